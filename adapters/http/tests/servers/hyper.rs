//! The timer of hyper: each of the deadlines that hyper and hyper-util have, one tick before it
//! comes and when it comes, by a manual clock; resets; and sleeps that a shard has no timer for.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use corewheel::fallback::InfallibleSleep;
use corewheel::{ShutdownPolicy, TimerService};
use corewheel_http::hyper::HyperTimer;
use hyper::rt::{Sleep, Timer};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::JoinHandle;

use crate::http::{
    Alarm, FAR, Lab, Peer, answer, builder, check_comes, lab, ms, poll_with, pong, preface,
};
use corewheel_test_support::logged;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: test\r\n\r\n";
const LIMIT: Duration = ms(100);

fn timer(lab: &Lab) -> HyperTimer {
    HyperTimer::new(lab.handle())
}

/// A server of HTTP/1 with a limit for the head of a request, and its peer.
fn http1(lab: &Lab) -> (Peer, JoinHandle<Result<(), hyper::Error>>) {
    let (near, far) = tokio::io::duplex(1 << 16);
    let mut builder = http1::Builder::new();
    builder.timer(timer(lab)).header_read_timeout(LIMIT);
    let served = builder.serve_connection(TokioIo::new(near), service_fn(answer));
    (Peer(far), lab.spawn(served))
}

/// A server of HTTP/2 that sends a PING to a quiet peer, and its peer, which has begun.
fn http2(lab: &mut Lab) -> (Peer, JoinHandle<Result<(), hyper::Error>>) {
    let (near, far) = tokio::io::duplex(1 << 16);
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(timer(lab)).keep_alive_interval(LIMIT).keep_alive_timeout(ms(50));
    let served = builder.serve_connection(TokioIo::new(near), service_fn(answer));
    let (mut peer, served) = (Peer(far), lab.spawn(served));
    peer.write(lab, &preface());
    (peer, served)
}

fn is_done(sleep: &mut Pin<Box<dyn Sleep>>) -> bool {
    poll_with(sleep.as_mut(), Waker::noop()).is_ready()
}

#[test]
fn kept_alive_connection_is_closed_a_limit_after_its_last_response() {
    let mut lab = lab();
    let (mut peer, served) = http1(&lab);
    lab.settle();
    lab.advance(ms(60));
    peer.write(&mut lab, REQUEST);
    assert!(peer.read(&mut lab).ends_with(b"hello"));
    check_comes(&mut lab, LIMIT, || served.is_finished());
}

#[test]
fn head_that_comes_in_time_cancels_its_timer() {
    let mut lab = lab();
    let (mut peer, served) = http1(&lab);
    lab.settle();
    for _ in 0..9 {
        lab.advance(ms(99));
        peer.write(&mut lab, REQUEST);
        assert!(peer.read(&mut lab).ends_with(b"hello"));
    }
    let counts = lab.settled();
    assert_eq!((counts.scheduled_local, counts.cancelled, counts.fired), (10, 9, 0));
    drop(peer);
    lab.settle();
    lab.output(served).unwrap();
    assert_eq!(lab.settled().pending, 0);
}

#[test]
fn http2_peer_that_answers_pings_stays_and_uses_one_timer() {
    let mut lab = lab();
    let (mut peer, served) = http2(&mut lab);
    for round in 0..20 {
        lab.advance(ms(100));
        let pings = peer.pings(&mut lab);
        assert_eq!(pings.len(), 1, "in round {round}");
        peer.write(&mut lab, &pong(&pings[0]));
        assert!(!served.is_finished());
    }
    let counts = lab.settled();
    assert_eq!((counts.pending, counts.cancelled), (1, 0), "a sleep was replaced");
}

#[test]
fn sleeps_by_delay_and_by_instant_are_done_at_their_tick() {
    let mut lab = lab();
    let timer = timer(&lab);
    lab.advance(ms(3));
    let mut sleeps = [timer.sleep(ms(10)), timer.sleep_until(timer.now() + ms(10))];
    let mut done = || sleeps.each_mut().map(is_done);
    lab.advance(ms(9));
    assert_eq!(done(), [false; 2]);
    lab.advance(ms(1));
    assert_eq!(done(), [true; 2]);
}

#[test]
fn present_of_the_timer_is_that_of_the_services_clock() {
    let mut lab = lab();
    let timer = timer(&lab);
    let before = timer.now();
    lab.advance(ms(7));
    assert_eq!(timer.now() - before, ms(7));
}

#[test]
fn present_of_the_timer_is_never_behind_the_systems_clock() {
    let service = TimerService::builder().shards(1).start().unwrap();
    let of_system = HyperTimer::new(service.handle());
    let check = move || {
        for _ in 0..1_000 {
            let before = Instant::now();
            assert!(of_system.now() >= before, "a deadline would be early");
        }
    };
    check();
    service.shutdown(ShutdownPolicy::Drop).unwrap();
    check();
    // A thread that has not used the service before its end.
    std::thread::spawn(check).join().unwrap();
}

#[test]
fn reset_keeps_the_box_and_the_timer_of_a_sleep() {
    let mut lab = lab();
    let timer = timer(&lab);
    let mut sleep = timer.sleep(ms(10));
    let address = std::ptr::from_ref(&*sleep).addr();
    let (alarm, waker) = Alarm::new();
    assert!(poll_with(sleep.as_mut(), &waker).is_pending());
    timer.reset(&mut sleep, timer.now() + ms(50));
    assert_eq!(std::ptr::from_ref(&*sleep).addr(), address, "a reset allocates");
    assert!(poll_with(sleep.as_mut(), &waker).is_pending());
    let counts = lab.settled();
    assert_eq!((counts.pending, counts.scheduled_local, counts.cancelled), (1, 1, 0));
    // To earlier, without a poll.
    timer.reset(&mut sleep, timer.now() + ms(5));
    check_comes(&mut lab, ms(5), || alarm.count() == 1);
    assert!(poll_with(sleep.as_mut(), &waker).is_ready());
    // After its end.
    timer.reset(&mut sleep, timer.now() + ms(5));
    assert!(poll_with(sleep.as_mut(), &waker).is_pending());
    lab.advance(ms(5));
    assert!(poll_with(sleep.as_mut(), &waker).is_ready());
    assert_eq!(std::ptr::from_ref(&*sleep).addr(), address);
}

/// A sleep of another timer, which is done at once.
struct Foreign;

impl Future for Foreign {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

impl Sleep for Foreign {}

#[test]
fn reset_of_a_foreign_sleep_makes_a_sleep_of_the_service() {
    let mut lab = lab();
    let other = TimerService::builder().shards(1).start_attached_with::<()>().unwrap();
    let timer = timer(&lab);
    let foreign = [Box::pin(Foreign) as _, HyperTimer::new(other.handle()).sleep(Duration::ZERO)];
    for mut sleep in foreign {
        timer.reset(&mut sleep, timer.now() + ms(10));
        assert!(!is_done(&mut sleep));
        assert_eq!(lab.settled().pending, 1);
        check_comes(&mut lab, ms(10), || is_done(&mut sleep));
    }
}

#[test]
fn sleep_of_a_full_shard_is_not_early_four_centuries_after_the_epoch() {
    let age = Duration::from_hours(24 * 365 * 400);
    let mut lab: Lab = Lab::aged(builder(1).capacity(1), age).with_tasks();
    let mut slot = Box::pin(lab.handle().sleep(FAR));
    assert!(poll_with(slot.as_mut(), Waker::noop()).is_pending());
    lab.settle();
    let (before, mut sleep) = (InfallibleSleep::fallback_count(), timer(&lab).sleep(ms(7)));
    for _ in 0..7 {
        assert!(poll_with(sleep.as_mut(), Waker::noop()).is_pending(), "it is early");
        lab.advance(ms(1));
    }
    assert!(InfallibleSleep::fallback_count() > before);
    assert!(poll_with(sleep.as_mut(), Waker::noop()).is_ready());
}

#[test]
fn service_that_is_gone_is_named_in_one_warning() {
    // Each service is named once, whatever a test before has logged.
    for _ in 0..2 {
        let service = TimerService::builder().shards(1).start().unwrap();
        let timer = HyperTimer::new(service.handle());
        drop(service);
        let before = InfallibleSleep::fallback_count();
        let log = logged(|| {
            // Its deadline does not come before the first poll, however long the thread is held up.
            let sleeps: Vec<_> = (0..3).map(|_| timer.sleep(FAR)).collect();
            for mut sleep in sleeps {
                assert!(poll_with(sleep.as_mut(), Waker::noop()).is_pending());
            }
        });
        assert!(InfallibleSleep::fallback_count() >= before + 3);
        assert_eq!(log.matches("WARN").count(), 1, "{log}");
        assert!(log.contains("is gone") && log.contains("dropped"), "{log}");
    }
}

//! Timeouts of a connection: when they are over, and what they leave to the stream.

use std::future::{Future, pending, poll_fn};

use corewheel::stream::StreamControl;
use corewheel::{RefusedKind, ShutdownPolicy, TimeoutError};

use super::*;

type Timed<'a, V> = Pin<Box<dyn Future<Output = Result<V, TimeoutError>> + 'a>>;

/// A timeout of something that never comes.
fn begin<M: Side>(control: &StreamControl<M>, milliseconds: u64) -> Timed<'_, ()> {
    Box::pin(control.timeout(ms(milliseconds), pending()))
}

fn poll_with<V>(timed: &mut Timed<'_, V>, waker: &Waker) -> Poll<Result<V, TimeoutError>> {
    timed.as_mut().poll(&mut Context::from_waker(waker))
}

fn poll<V>(timed: &mut Timed<'_, V>) -> Poll<Result<V, TimeoutError>> {
    poll_with(timed, Waker::noop())
}

#[track_caller]
fn is_over(timed: &mut Timed<'_, ()>) -> bool {
    match poll(timed) {
        Poll::Pending => false,
        Poll::Ready(result) => {
            let error = result.unwrap_err();
            assert!(error.is_elapsed(), "{error:?}");
            true
        }
    }
}

/// Checks that a timeout is over a number of ticks from now, and not before.
#[track_caller]
fn check_over(lab: &mut Lab, after: u64, mut timed: Timed<'_, ()>) {
    for tick in 0..after {
        assert!(!is_over(&mut timed), "over after {tick} ticks instead of {after}");
        lab.advance_ticks(1);
    }
    assert!(is_over(&mut timed), "not over after {after} ticks");
}

fn check_end<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.idle(ms(LIMIT)).read_idle(ms(LIMIT)));
    let control = stream.control();
    for _ in 0..3 {
        check_over(&mut lab, LIMIT - 20, begin(&control, LIMIT - 20));
        // The stream goes on.
        assert_eq!(control.limit_reached(), None);
        ready(write(&mut peer, b"a"));
        assert_eq!(ready(read(&mut stream)), b"a");
        assert!(read(&mut stream).is_pending());
    }
    let mut never = begin(&control, u64::MAX);
    let (_, reached) = ends(&mut lab, || read(&mut stream));
    assert!(!is_over(&mut never));
    assert_eq!(control.limit_reached(), Some(reached));
    // A stream that has ended has its timer until it is dropped.
    check_over(&mut lab, LIMIT, begin(&control, LIMIT));
}

#[test]
fn timeout_is_over_at_its_deadline_and_the_stream_goes_on() {
    both!(check_end);
}

fn check_after_others<K: Kind>() {
    let mut lab = lab();
    let (stream, _peer) = duplex::<K>(&lab, NONE);
    let control = stream.control();
    // Each begins after one that has ended young.
    for _ in 0..5 {
        let mut timed = begin(&control, LIMIT);
        assert!(!is_over(&mut timed));
        lab.advance_ticks(30);
    }
    check_over(&mut lab, LIMIT, begin(&control, LIMIT));
    assert!(!is_over(&mut begin(&control, LIMIT)));
    lab.advance_ticks(3 * LIMIT);
    check_over(&mut lab, LIMIT, begin(&control, LIMIT));
    // One that is due earlier than the one before.
    assert!(!is_over(&mut begin(&control, 10 * LIMIT)));
    check_over(&mut lab, LIMIT, begin(&control, LIMIT));
    check_over(&mut lab, LIMIT / 2, begin(&control, LIMIT / 2));
}

#[test]
fn timeout_after_others_that_were_dropped_is_over_at_its_own_deadline() {
    both!(check_after_others);
}

fn check_wakes<K: Kind>() {
    let mut lab = lab();
    let (stream, _peer) = duplex::<K>(&lab, NONE.idle(ms(10 * LIMIT)));
    let control = stream.control();
    // Another one has ended before.
    assert!(!is_over(&mut begin(&control, LIMIT - 10)));
    let (first, first_waker) = Alarm::new();
    let (second, second_waker) = Alarm::new();
    let mut timed = begin(&control, LIMIT);
    assert!(poll_with(&mut timed, &first_waker).is_pending());
    assert!(poll_with(&mut timed, &second_waker).is_pending());
    first.rang();
    for tick in 1..=LIMIT {
        if second.rang() {
            assert!(poll_with(&mut timed, &second_waker).is_pending(), "over after {tick} ticks");
        }
        lab.advance_ticks(1);
    }
    assert!(second.rang(), "the task is woken at the deadline");
    assert!(!first.rang(), "the task that polled before is not woken");
    assert!(is_over(&mut timed));
}

#[test]
fn task_of_a_timeout_is_woken_at_the_deadline() {
    both!(check_wakes);
}

fn check_several<K: Kind>() {
    let mut lab = lab();
    let (stream, _peer) = duplex::<K>(&lab, NONE);
    let control = stream.control();
    let limits = [50, 90, 20, 50];
    let mut timed: Vec<_> = limits.map(|limit| begin(&control, limit)).into();
    for tick in 0..LIMIT {
        for (timed, limit) in timed.iter_mut().zip(limits) {
            if tick <= limit {
                assert_eq!(is_over(timed), tick == limit, "{limit} after {tick} ticks");
            }
        }
        lab.advance_ticks(1);
    }
}

#[test]
fn timeouts_at_the_same_time_are_over_at_their_own_deadlines() {
    both!(check_several);
}

fn check_ready<K: Kind>() {
    let mut lab = lab();
    let (stream, _peer) = duplex::<K>(&lab, NONE);
    let control = stream.control();
    let mut is_done = false;
    assert!(poll(&mut (Box::pin(control.timeout(ms(0), async { 7 })) as Timed<'_, _>)).is_ready());
    let clock = lab.clock.clone();
    let due = clock.now() + ms(LIMIT);
    let value = poll_fn(|_| {
        is_done = clock.now() >= due;
        if is_done { Poll::Ready(7) } else { Poll::Pending }
    });
    let mut timed: Timed<'_, _> = Box::pin(control.timeout(ms(LIMIT), value));
    assert!(poll(&mut timed).is_pending());
    lab.advance_ticks(LIMIT);
    assert_eq!(poll(&mut timed), Poll::Ready(Ok(7)));
}

#[test]
fn value_that_is_ready_at_the_deadline_wins() {
    both!(check_ready);
}

#[test]
fn timeout_on_a_full_shard_is_refused_until_there_is_room() {
    let mut lab = Lab::new(builder(1).capacity(1));
    let timer = lab.timers().schedule(ms(60_000), 7).unwrap();
    let (stream, _peer) = duplex::<Handle>(&lab, NONE);
    let control = stream.control();
    let full = Poll::Ready(Err(TimeoutError::NoTimer(RefusedKind::Full)));
    for _ in 0..3 {
        let mut waiting = begin(&control, LIMIT);
        let polled = poll(&mut waiting);
        if polled.is_pending() {
            // The shard looks for room first.
            lab.settle();
            assert_eq!(poll(&mut waiting), full);
        } else {
            assert_eq!(polled, full);
        }
    }
    let _ = lab.timers().cancel(timer);
    lab.settle();
    check_over(&mut lab, LIMIT, begin(&control, LIMIT));
}

fn check_dropped<K: Kind>() {
    let closed = Poll::Ready(Err(TimeoutError::NoTimer(RefusedKind::Closed)));
    for ends_service in [false, true] {
        let mut lab = lab();
        let (stream, _peer) = duplex::<K>(&lab, NONE);
        let control = stream.control();
        let (alarm, waker) = Alarm::new();
        let mut timed = begin(&control, LIMIT);
        assert!(poll_with(&mut timed, &waker).is_pending());
        alarm.rang();
        if ends_service {
            let _ended = lab.service.begin_shutdown(ShutdownPolicy::Drop).unwrap();
            while lab.shards[0].turn() != Turn::Closed {}
            assert!(alarm.rang(), "the task is woken");
        } else {
            drop(stream);
        }
        assert_eq!(poll(&mut timed), closed);
        assert_eq!(poll(&mut begin(&control, LIMIT)), closed);
    }
}

#[test]
fn timeout_ends_with_the_stream_and_with_the_service() {
    both!(check_dropped);
}

#[test]
fn timeout_on_a_service_that_has_ended_is_refused_whatever_its_time_is() {
    let mut lab = lab();
    let _ended = lab.service.begin_shutdown(ShutdownPolicy::Drop).unwrap();
    while lab.shards[0].turn() != Turn::Closed {}
    let handle = lab.service.handle();
    let check = move || {
        for milliseconds in [LIMIT, u64::MAX] {
            let stream = TimedIo::new((), handle, NONE);
            let control = stream.control();
            let closed = Poll::Ready(Err(TimeoutError::NoTimer(RefusedKind::Closed)));
            assert_eq!(poll(&mut begin(&control, milliseconds)), closed);
        }
    };
    check();
    // A thread that has not used the service before its end.
    std::thread::spawn(check).join().unwrap();
}

#[test]
fn timeout_wakes_no_task_that_has_stopped_reading() {
    let service = TimerService::beside_runtime().start().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (stream, mut peer) = tokio::io::duplex(ROOM);
        let mut stream = TimedIo::new(stream, service.handle(), NONE);
        let control = stream.control();
        let (alarm, waker) = Alarm::new();
        assert!(read_with(&mut stream, &waker).is_pending());
        ready(write(&mut peer, b"a"));
        assert_eq!(ready(read_with(&mut stream, &waker)), b"a");
        alarm.rang();
        assert!(control.timeout(ms(20), pending::<()>()).await.unwrap_err().is_elapsed());
        assert!(!alarm.rang(), "the task is asked for a read, and none waits");
        // A read that waits is asked what has come.
        assert!(read_with(&mut stream, &waker).is_pending());
        assert!(control.timeout(ms(20), pending::<()>()).await.unwrap_err().is_elapsed());
        assert!(alarm.rang());
    });
}

#[test]
fn timeout_of_a_shared_control_goes_from_thread_to_thread() {
    let lab = lab();
    let (stream, _peer) = duplex::<Handle>(&lab, NONE);
    let control = stream.control();
    let timed = control.timeout(ms(LIMIT), async { 7 });
    let value = std::thread::scope(|scope| {
        let poll = scope.spawn(|| {
            let mut timed = Box::pin(timed);
            timed.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        });
        poll.join().unwrap()
    });
    assert_eq!(value, Poll::Ready(Ok(7)));
}

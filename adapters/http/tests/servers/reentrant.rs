//! Wakers whose wake and drop use the connection: no code of a user runs while a lock is held.
//!
//! A deadlock would hold the test up for ever, so each check runs on a thread of its own.

use std::error::Error;
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use corewheel::TimerService;
use corewheel::stream::{StreamControl, StreamLimits, TimedIo};
use corewheel_http::hyper::{BodyLimits, Exchange, HyperTimer};
use corewheel_http::tower::TimeoutLayer;
use corewheel_test_support::stream::{read_with, write_with};
use corewheel_test_support::{OnDrop, waker_that, within_patience};
use hyper::body::Body;
use hyper::rt::Timer;
use tokio::io::AsyncWrite;
use tower::{Layer, Service};

use crate::exchanges::{Asked, LIMIT, NONE, Polled, Timed};
use crate::http::{Lab, lab, poll_with};

/// A waker that acts when it is woken, and when its last clone is dropped.
fn acting(act: impl Fn() + Send + Sync + 'static) -> Waker {
    let act = Arc::new(act);
    let at_drop = Arc::clone(&act);
    let kept = OnDrop(move || at_drop());
    waker_that(move || {
        let _kept = &kept;
        act();
    })
}

#[test]
fn waker_whose_drop_ends_the_exchange_is_replaced_by_the_next_poll() {
    for (is_request, has_limit) in [(true, true), (true, false), (false, true), (false, false)] {
        within_patience(move || {
            let lab = lab();
            let limits = if has_limit { NONE.next_frame(LIMIT).next_poll(LIMIT) } else { NONE };
            let mut asked = Asked::new(lab.handle(), limits, limits);
            let exchange = asked.exchange.clone();
            if is_request {
                check_replaced(&exchange, asked.request);
            } else {
                check_replaced(&exchange, asked.respond());
            }
        });
    }
}

fn check_replaced<B>(exchange: &Exchange, mut body: Timed<B>)
where
    B: Body<Error = Box<dyn Error + Send + Sync>> + Unpin,
{
    let ended = exchange.clone();
    let waker = acting(move || ended.end());
    assert_eq!(body.poll_with(&waker), Polled::Waits);
    drop(waker);
    assert!(!exchange.has_ended());
    // The waker before is dropped, and the body with it.
    let _ = body.poll_with(Waker::noop());
    assert!(exchange.has_ended());
    assert!(matches!(body.poll_with(Waker::noop()), Polled::Failed(_)));
}

#[test]
fn waker_whose_drop_drops_the_last_body_is_dropped_while_a_body_arms_its_timer() {
    within_patience(|| {
        let service = TimerService::beside_runtime().start().unwrap();
        let timers = service.handle();
        let far = NONE.next_frame(Duration::from_hours(1));
        let mut asked = Asked::new(timers, far, far);
        let last = asked.respond();
        let (ended, held) = (asked.exchange.clone(), Mutex::new(Some(last)));
        let waker = acting(move || {
            drop(held.lock().unwrap().take());
            ended.end();
        });
        // More sleeps of this thread than it ends at once, each dropped on another thread.
        let mut sleeps = Vec::new();
        for index in 0..300 {
            let mut sleep = timers.sleep(Duration::from_hours(1));
            let used = if index == 150 { &waker } else { Waker::noop() };
            assert!(Pin::new(&mut sleep).poll(&mut Context::from_waker(used)).is_pending());
            sleeps.push(sleep);
        }
        drop(waker);
        thread::spawn(move || drop(sleeps)).join().unwrap();
        for _ in 0..64 {
            let mut other = Asked::new(timers, far, far);
            assert_eq!(other.request.poll_with(Waker::noop()), Polled::Waits);
            let _ = asked.request.poll_with(Waker::noop());
        }
    });
}

/// A connection whose wakers use it.
struct Used {
    lab: Lab,
    control: StreamControl,
    exchange: Exchange,
    asked: Asked,
    stream: TimedIo<tokio::io::DuplexStream>,
    _peer: tokio::io::DuplexStream,
}

impl Used {
    fn new() -> Self {
        let lab = lab();
        let (stream, peer) = tokio::io::duplex(16);
        let limits = StreamLimits::default()
            .idle(20 * LIMIT)
            .heartbeat(LIMIT)
            .request_idle(LIMIT)
            .max_age(LIMIT)
            .max_age_grace(20 * LIMIT)
            .write_stall(20 * LIMIT);
        let stream = TimedIo::new(stream, lab.handle(), limits);
        let control = stream.control();
        let limits = BodyLimits::default().next_frame(LIMIT).next_poll(LIMIT);
        let asked = Asked::new(lab.handle(), limits, limits);
        let exchange = asked.exchange.clone();
        Self { lab, control, exchange, asked, stream, _peer: peer }
    }

    /// A waker that uses all that other tasks may use.
    fn waker(&self) -> Waker {
        let (control, exchange) = (self.control.clone(), self.exchange.clone());
        acting(move || {
            let cx = &mut Context::from_waker(Waker::noop());
            control.head_complete();
            control.message_complete();
            control.begin_message();
            drop(control.begin_request());
            control.timers().set_limits(control.timers().limits());
            let _ = pin!(control.heartbeat()).poll(cx);
            let _ = pin!(control.max_age_reached()).poll(cx);
            let _ = pin!(control.request_idle()).poll(cx);
            let _ = pin!(control.timeout(LIMIT, pending::<()>())).poll(cx);
            let _ = pin!(exchange.ended()).poll(cx);
            exchange.on_end(|| {});
            let _ = (exchange.is_request_complete(), exchange.request_limit_reached());
            exchange.end();
        })
    }
}

/// Polls with one waker and then with another, lets the deadline come, and polls again.
fn drive(used: &mut Used, mut poll: impl FnMut(&mut Used, &Waker)) {
    for _ in 0..2 {
        let waker = used.waker();
        poll(used, &waker);
    }
    used.lab.advance(LIMIT);
    let waker = used.waker();
    poll(used, &waker);
    used.lab.advance(LIMIT);
}

/// Checks polls of something that stays when it has ended.
#[track_caller]
fn check_polls(poll: fn(&mut Used, &Waker)) {
    within_patience(move || drive(&mut Used::new(), poll));
}

type Boxed = Pin<Box<dyn Future<Output = ()>>>;

/// Checks a future that is kept from poll to poll, and is dropped before it ends.
#[track_caller]
fn check_future(make: fn(&mut Used) -> Boxed) {
    within_patience(move || {
        let used = &mut Used::new();
        let mut future = make(used);
        let mut is_over = false;
        let mut poll = |waker: &Waker| poll_with(future.as_mut(), waker).is_ready();
        drive(used, |_, waker| is_over = is_over || poll(waker));
        drop(future);
    });
}

#[test]
fn wakers_that_use_the_connection_return_from_each_future_of_a_stream() {
    fn of(used: &mut Used, poll: impl AsyncFn(StreamControl) + 'static) -> Boxed {
        let control = used.control.clone();
        Box::pin(async move { poll(control).await })
    }
    check_future(|used| {
        of(used, async |control| _ = control.timeout(LIMIT, pending::<()>()).await)
    });
    check_future(|used| of(used, async |control| drop(control.heartbeat().await)));
    check_future(|used| of(used, async |control| drop(control.request_idle().await)));
    check_future(|used| of(used, async |control| drop(control.max_age_reached().await)));
    check_polls(|used, waker| drop(read_with(&mut used.stream, waker)));
    check_polls(|used, waker| {
        let _ = write_with(&mut used.stream, &[0; 16], waker);
        let _ = Pin::new(&mut used.stream).poll_flush(&mut Context::from_waker(waker));
    });
}

#[test]
fn wakers_that_use_the_connection_return_from_each_future_and_body_of_the_adapters() {
    check_future(|used| {
        let exchange = used.exchange.clone();
        Box::pin(async move { exchange.ended().await })
    });
    check_future(|used| Box::pin(HyperTimer::new(used.lab.handle()).sleep(LIMIT)));
    check_future(|used| {
        let never = tower::service_fn(|()| pending::<Result<(), std::io::Error>>());
        let request = TimeoutLayer::new(used.lab.handle(), LIMIT).layer(never).call(());
        Box::pin(async { drop(request.await) })
    });
    check_polls(|used, waker| drop(used.asked.request.poll_with(waker)));
    within_patience(|| {
        let used = &mut Used::new();
        let mut response = used.asked.respond();
        drive(used, |_, waker| assert!(!matches!(response.poll_with(waker), Polled::Frame(_))));
    });
    check_polls(|used, waker| {
        let _ = used.asked.poll_answer(&mut Context::from_waker(waker));
    });
}

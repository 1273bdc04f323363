//! Wakers whose wake and drop use the connection: no code of a user runs while a lock is held.
//!
//! A deadlock would hold the test up for ever, so each check runs on a thread of its own.

use std::error::Error;
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use corewheel::TimerService;
use corewheel::stream::{StreamControl, StreamLimits, TimedIo};
use corewheel_http::hyper::{BodyLimits, Exchange, HyperTimer};
use corewheel_http::tower::TimeoutLayer;
use hyper::body::Body;
use hyper::rt::Timer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tower::{Layer, Service};

use crate::exchanges::{Asked, LIMIT, NONE, Polled, Timed};
use crate::http::{Lab, PATIENCE, lab};

/// A waker that acts when it is woken, and when its last clone is dropped.
struct Acts(Box<dyn Fn() + Send + Sync>);

impl Acts {
    fn waker(act: impl Fn() + Send + Sync + 'static) -> Waker {
        Waker::from(Arc::new(Self(Box::new(act))))
    }
}

impl Wake for Acts {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

impl Drop for Acts {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Runs a check that fails if it does not return.
#[track_caller]
fn check(name: &str, run: impl FnOnce() + Send + 'static) {
    let (sender, ended) = mpsc::channel();
    let thread = thread::spawn(move || {
        run();
        let _ = sender.send(());
    });
    let has_hung = ended.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout);
    assert!(!has_hung, "{name}: it never returns");
    thread.join().unwrap();
}

#[test]
fn waker_whose_drop_ends_the_exchange_is_replaced_by_the_next_poll() {
    for (is_request, has_limit) in [(true, true), (true, false), (false, true), (false, false)] {
        check(&format!("request: {is_request}, limit: {has_limit}"), move || {
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
    let waker = Acts::waker(move || ended.end());
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
    check("a wait of a body", || {
        let service = TimerService::beside_runtime().start().unwrap();
        let timers = service.handle();
        let far = NONE.next_frame(Duration::from_hours(1));
        let mut asked = Asked::new(timers, far, far);
        let last = asked.respond();
        let (ended, held) = (asked.exchange.clone(), Mutex::new(Some(last)));
        let waker = Acts::waker(move || {
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
        Acts::waker(move || {
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
fn drive(used: &mut Used, mut poll: impl FnMut(&mut Used, &mut Context<'_>)) {
    for _ in 0..2 {
        let waker = used.waker();
        poll(used, &mut Context::from_waker(&waker));
    }
    used.lab.advance(LIMIT);
    let waker = used.waker();
    poll(used, &mut Context::from_waker(&waker));
    used.lab.advance(LIMIT);
}

/// Checks a future that is kept from poll to poll, and is dropped before it ends.
fn check_future<F: Future + 'static>(
    name: &'static str,
    make: impl FnOnce(&mut Used) -> F + Send + 'static,
) {
    check(name, move || {
        let used = &mut Used::new();
        let mut future = Box::pin(make(used));
        let mut is_over = false;
        drive(used, |_, cx| is_over = is_over || future.as_mut().poll(cx).is_ready());
        drop(future);
    });
}

#[test]
fn wakers_that_use_the_connection_return_from_each_future_of_a_stream() {
    check_future("timeout", |used| {
        let control = used.control.clone();
        async move { control.timeout(LIMIT, pending::<()>()).await }
    });
    check_future("heartbeat", |used| {
        let control = used.control.clone();
        async move { control.heartbeat().await }
    });
    check_future("request_idle", |used| {
        let control = used.control.clone();
        async move { control.request_idle().await }
    });
    check_future("max_age_reached", |used| {
        let control = used.control.clone();
        async move { control.max_age_reached().await }
    });
    check("read", || {
        let used = &mut Used::new();
        drive(used, |used, cx| {
            let mut space = [0; 4];
            let _ = Pin::new(&mut used.stream).poll_read(cx, &mut ReadBuf::new(&mut space));
        });
    });
    check("write", || {
        let used = &mut Used::new();
        drive(used, |used, cx| {
            let _ = Pin::new(&mut used.stream).poll_write(cx, &[0; 16]);
            let _ = Pin::new(&mut used.stream).poll_flush(cx);
        });
    });
}

#[test]
fn wakers_that_use_the_connection_return_from_each_future_and_body_of_the_adapters() {
    check_future("Exchange::ended", |used| {
        let exchange = used.exchange.clone();
        async move { exchange.ended().await }
    });
    check_future("HyperTimer", |used| HyperTimer::new(used.lab.handle()).sleep(LIMIT));
    check_future("TimeoutLayer", |used| {
        let never = tower::service_fn(|()| pending::<Result<(), std::io::Error>>());
        TimeoutLayer::new(used.lab.handle(), LIMIT).layer(never).call(())
    });
    check("body of a request", || {
        let used = &mut Used::new();
        drive(used, |used, cx| {
            let _ = Pin::new(&mut used.asked.request.body).poll_frame(cx);
        });
    });
    check("body of a response", || {
        let used = &mut Used::new();
        let mut response = used.asked.respond();
        drive(used, |_, cx| {
            let polled = Pin::new(&mut response.body).poll_frame(cx);
            assert!(!matches!(polled, Poll::Ready(Some(Ok(_)))));
        });
    });
    check("response", || {
        let used = &mut Used::new();
        drive(used, |used, cx| {
            let _ = used.asked.poll_answer(cx);
        });
    });
}

//! The bodies of an exchange: each limit by a manual clock, and when an exchange ends.

use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use corewheel::Handle;
use corewheel::conn::DataRate;
use corewheel::stream::{StreamLimits, TimedIo};
use corewheel_http::hyper::{BodyError, BodyLimits, Exchange, ResponseBody, TimedBody, TimedHttp};
use corewheel_test_support::stream::{read, ready, write};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Buf, Bytes};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use tokio::io::DuplexStream;

use crate::http::{Alarm, Feed, Lab, builder, check_comes, lab, ms, poll_with, wait_until};

pub(crate) const LIMIT: Duration = ms(100);
pub(crate) const NONE: BodyLimits = BodyLimits::NONE;
const RATE: DataRate = DataRate::new(100, LIMIT);

/// A body with limits, and the test's side of it.
pub(crate) struct Timed<B = TimedBody<Feed>> {
    pub(crate) body: B,
    feed: Feed,
}

/// What a poll has returned.
#[derive(PartialEq, Debug)]
pub(crate) enum Polled {
    Waits,
    Frame(Vec<u8>),
    Failed(BodyError),
    End,
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<ResponseBody<Feed>>, Infallible>>>>;

/// A request whose handler waits for what the test answers.
pub(crate) struct Asked {
    pub(crate) request: Timed,
    pub(crate) exchange: Exchange,
    answer: Sender<Feed>,
    answering: Answering,
    /// The connection.
    stream: TimedIo<DuplexStream>,
    client: DuplexStream,
}

impl Asked {
    pub(crate) fn new(timers: Handle, request: BodyLimits, response: BodyLimits) -> Self {
        Self::with(timers, request, response, Feed::default())
    }

    /// A request whose body is there before the call.
    fn with(timers: Handle, request: BodyLimits, response: BodyLimits, feed: Feed) -> Self {
        let found = Arc::<Mutex<Option<TimedBody<Feed>>>>::default();
        let (answer, answers) = mpsc::channel();
        let answers = Arc::new(Mutex::new(answers));
        let handler = Arc::clone(&found);
        let service = service_fn(move |request: Request<TimedBody<Feed>>| {
            *handler.lock().unwrap() = Some(request.into_body());
            let answers = Arc::clone(&answers);
            poll_fn(move |_| match answers.lock().unwrap().try_recv() {
                Ok(body) => Poll::Ready(Ok::<_, Infallible>(Response::new(body))),
                Err(_) => Poll::Pending,
            })
        });
        let (stream, client, service) = timed(timers, service);
        let service = service.request(request).response(response);
        let mut answering: Answering = Box::pin(service.call(Request::new(feed.clone())));
        assert!(poll_with(answering.as_mut(), Waker::noop()).is_pending());
        let body = found.lock().unwrap().take().unwrap();
        let exchange = body.exchange().clone();
        Self { request: Timed { body, feed }, exchange, answer, answering, stream, client }
    }

    /// Polls for the answer, which does not come.
    pub(crate) fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.answering.as_mut().poll(cx).map(drop)
    }

    /// The client sends bytes, which are read one by one.
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        for byte in bytes.chunks(1) {
            ready(write(&mut self.client, byte));
            assert_eq!(ready(read(&mut self.stream)), byte);
        }
    }

    /// The server waits for the client.
    fn wait_for_client(&mut self) {
        assert!(read(&mut self.stream).is_pending());
    }

    /// The server sends a few bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        assert_eq!(ready(write(&mut self.stream, bytes)), bytes.len());
    }

    /// The handler answers.
    pub(crate) fn respond(&mut self) -> Timed<ResponseBody<Feed>> {
        let feed = Feed::default();
        self.answer.send(feed.clone()).unwrap();
        let Poll::Ready(Ok(response)) = poll_with(self.answering.as_mut(), Waker::noop()) else {
            panic!("no response");
        };
        Timed { body: response.into_body(), feed }
    }
}

/// A request whose bodies have limits.
fn asked(request: BodyLimits, response: BodyLimits) -> (Lab, Asked) {
    let lab = lab();
    let asked = Asked::new(lab.handle(), request, response);
    (lab, asked)
}

/// A request without a body.
fn complete(response: BodyLimits) -> (Lab, Asked) {
    let lab = lab();
    let asked = Asked::with(lab.handle(), NONE, response, Feed::empty());
    (lab, asked)
}

/// The service of a connection, beside its stream.
fn timed<S>(timers: Handle, service: S) -> (TimedIo<DuplexStream>, DuplexStream, TimedHttp<S>) {
    let (stream, client) = tokio::io::duplex(16);
    let stream = TimedIo::new(stream, timers, StreamLimits::default());
    let control = stream.control();
    (stream, client, TimedHttp::new(service, control))
}

impl<B: Body<Error = Box<dyn Error + Send + Sync>> + Unpin> Timed<B> {
    pub(crate) fn is_dropped(&self) -> bool {
        self.feed.is_dropped()
    }

    fn poll(&mut self) -> Polled {
        self.poll_with(Waker::noop())
    }

    pub(crate) fn poll_with(&mut self, waker: &Waker) -> Polled {
        match Pin::new(&mut self.body).poll_frame(&mut Context::from_waker(waker)) {
            Poll::Pending => Polled::Waits,
            Poll::Ready(None) => Polled::End,
            Poll::Ready(Some(Err(error))) => Polled::Failed(*error.downcast().unwrap()),
            Poll::Ready(Some(Ok(frame))) => {
                let mut data = frame.into_data().ok().unwrap();
                Polled::Frame(data.copy_to_bytes(data.remaining()).to_vec())
            }
        }
    }

    /// A frame comes, and the next poll takes it.
    #[track_caller]
    fn take(&mut self, frame: &'static [u8]) {
        self.feed.push(frame);
        assert_eq!(self.poll(), Polled::Frame(frame.to_vec()));
    }

    /// The last frame comes, and the next poll takes it.
    #[track_caller]
    fn take_last(&mut self, frame: &'static [u8]) {
        self.feed.push(frame);
        self.feed.end();
        assert_eq!(self.poll(), Polled::Frame(frame.to_vec()));
    }

    /// The end comes, and the next poll finds it.
    #[track_caller]
    fn end(&mut self) {
        self.feed.end();
        assert_eq!(self.poll(), Polled::End);
    }
}

/// Counts the calls of a function that an exchange calls at its end.
fn count_ends(exchange: &Exchange) -> Arc<Alarm> {
    let (alarm, waker) = Alarm::new();
    exchange.on_end(move || waker.wake());
    alarm
}

/// The limits of the request and of the response that have ended an exchange.
fn limits_reached(exchange: &Exchange) -> [Option<BodyError>; 2] {
    [exchange.request_limit_reached(), exchange.response_limit_reached()]
}

/// Checks that a limit of the request ends an exchange so long from now, and not a tick before.
#[track_caller]
fn check_reached(lab: &mut Lab, exchange: &Exchange, after: Duration, reached: BodyError) {
    check_comes(lab, after, || limits_reached(exchange) != [None; 2]);
    assert_eq!(limits_reached(exchange), [Some(reached), None]);
}

#[test]
fn body_whose_producer_stops_fails_at_its_limit_and_wakes_the_consumer() {
    let (mut lab, Asked { exchange, request: mut body, answering: _answering, .. }) =
        asked(NONE.next_frame(LIMIT), NONE);
    let (alarm, waker) = Alarm::new();
    // The time before the first poll is that of the consumer.
    lab.advance(10 * LIMIT);
    body.take(b"one");
    assert_eq!(body.poll_with(&waker), Polled::Waits);
    lab.advance(LIMIT.saturating_sub(ms(1)));
    assert_eq!((alarm.count(), body.is_dropped()), (0, false));
    // A poll that waits on does not begin the wait again.
    assert_eq!(body.poll_with(&waker), Polled::Waits);
    lab.advance(ms(1));
    assert_eq!((alarm.count(), body.is_dropped()), (1, true));
    let reached = BodyError::NextFrame(LIMIT);
    assert_eq!(exchange.request_limit_reached(), Some(reached));
    assert_eq!(body.poll(), Polled::Failed(reached));
    assert_eq!(body.poll(), Polled::End);
}

#[test]
fn each_frame_begins_the_wait_for_the_next_one_again() {
    let (mut lab, mut asked) = asked(NONE, NONE.next_frame(LIMIT).next_poll(LIMIT));
    let mut body = asked.respond();
    for _ in 0..5 {
        lab.advance(LIMIT.saturating_sub(ms(1)));
        assert_eq!(body.poll(), Polled::Waits);
        lab.advance(LIMIT.saturating_sub(ms(1)));
        body.take(b"frame");
    }
    body.end();
    lab.advance(10 * LIMIT);
    assert_eq!(limits_reached(&asked.exchange), [None; 2]);
}

#[test]
fn frame_that_is_found_at_the_limit_is_in_time_and_the_next_wait_has_one() {
    let (mut lab, mut asked) = asked(NONE.next_frame(LIMIT), NONE);
    let (alarm, waker) = Alarm::new();
    assert_eq!(asked.request.poll_with(&waker), Polled::Waits);
    // The frame has come, and its waker was not called.
    asked.request.feed.push(b"found");
    lab.advance(LIMIT);
    assert!(alarm.count() > 0);
    assert_eq!((limits_reached(&asked.exchange), asked.request.is_dropped()), ([None; 2], false));
    assert_eq!(asked.request.poll_with(&waker), Polled::Frame(b"found".to_vec()));
    assert_eq!(asked.request.poll_with(&waker), Polled::Waits);
    check_reached(&mut lab, &asked.exchange, LIMIT, BodyError::NextFrame(LIMIT));
}

#[test]
fn wait_with_a_shorter_limit_than_the_one_before_has_its_own() {
    let (mut lab, mut asked) = asked(NONE.next_frame(10 * LIMIT).next_poll(LIMIT), NONE);
    assert_eq!(asked.request.poll(), Polled::Waits);
    // The timer that was armed for the consumer has expired.
    lab.advance(LIMIT);
    asked.request.take(b"frame");
    lab.advance(LIMIT);
    assert_eq!(asked.exchange.request_limit_reached(), Some(BodyError::NextPoll(LIMIT)));
}

#[test]
fn limit_that_comes_during_a_poll_is_reached_after_it() {
    let (mut lab, Asked { exchange, request: mut body, answering: _answering, .. }) =
        asked(NONE.next_frame(LIMIT), NONE);
    assert_eq!(body.poll(), Polled::Waits);
    let (has_begun, go) = body.feed.hold();
    let consumer = thread::spawn(move || (body.poll(), body));
    has_begun.recv().unwrap();
    lab.advance(LIMIT);
    assert_eq!(limits_reached(&exchange), [None; 2]);
    go.send(()).unwrap();
    let (polled, body) = consumer.join().unwrap();
    assert_eq!(polled, Polled::Waits);
    assert_eq!(exchange.request_limit_reached(), Some(BodyError::NextFrame(LIMIT)));
    assert!(body.is_dropped());
}

#[test]
fn body_that_no_task_polls_is_dropped_at_its_limit_and_the_other_one_says_so() {
    let (mut lab, mut asked) = asked(NONE, NONE.next_poll(LIMIT));
    let (alarm, waker) = Alarm::new();
    assert_eq!(asked.request.poll_with(&waker), Polled::Waits);
    let mut response = asked.respond();
    let ends = count_ends(&asked.exchange);
    check_comes(&mut lab, LIMIT, || response.is_dropped());
    // Without a poll, of both bodies.
    assert!(asked.request.is_dropped());
    assert_eq!((alarm.count(), ends.count()), (1, 1));
    let reached = BodyError::NextPoll(LIMIT);
    assert_eq!(asked.exchange.response_limit_reached(), Some(reached));
    assert_eq!(response.poll(), Polled::Failed(reached));
    assert_eq!(asked.request.poll(), Polled::Failed(BodyError::Ended));
}

#[test]
fn response_whose_connection_has_moved_since_the_limit_has_a_second_more() {
    // After the byte, so much time is left until two milliseconds before the end.
    for (received, left) in [(ms(95), ms(3)), (ms(105), ms(998))] {
        let (mut lab, mut asked) = asked(NONE, NONE.next_poll(LIMIT));
        let response = asked.respond();
        asked.wait_for_client();
        // The shard is held up.
        lab.clock.advance(received);
        asked.receive(b"w");
        asked.wait_for_client();
        lab.settle();
        lab.advance(left);
        assert!(!response.is_dropped(), "{received:?}");
        lab.advance(ms(2));
        assert!(response.is_dropped(), "{received:?}");
    }
    // It has the second once.
    let (mut lab, mut asked) = asked(NONE, NONE.next_poll(LIMIT));
    let mut response = asked.respond();
    asked.wait_for_client();
    for _ in 0..2 {
        lab.clock.advance(LIMIT);
        asked.receive(b"w");
        lab.settle();
        // Each wait has it.
        response.take(b"frame");
        asked.wait_for_client();
    }
    lab.clock.advance(LIMIT);
    asked.receive(b"w");
    lab.advance(Duration::ZERO);
    asked.wait_for_client();
    lab.clock.advance(ms(1_000));
    asked.receive(b"w");
    lab.advance(ms(2));
    assert_eq!(response.poll(), Polled::Failed(BodyError::NextPoll(LIMIT)));
}

#[test]
fn slow_producer_is_found_by_its_rate_which_counts_only_waits_for_it() {
    let (mut lab, mut asked) = asked(NONE.min_frame_rate(RATE), NONE);
    let mut waited = Duration::ZERO;
    let reached = loop {
        // The consumer takes its time.
        lab.advance(10 * LIMIT);
        assert_eq!(limits_reached(&asked.exchange), [None; 2], "after {waited:?}");
        assert_eq!(asked.request.poll(), Polled::Waits);
        lab.advance(ms(50));
        waited += ms(50);
        if let Some(reached) = asked.exchange.request_limit_reached() {
            break reached;
        }
        asked.request.take(b"xy");
    };
    // Two bytes in 50 ms are 40 a second: 100 ms have passed with 2 or 4 bytes.
    assert_eq!((reached, waited), (BodyError::FrameRate(RATE), LIMIT));
}

#[test]
fn wait_for_a_frame_that_is_found_late_leaves_half_of_its_time_to_the_next() {
    let (mut lab, mut asked) = asked(NONE.min_frame_rate(RATE), NONE);
    assert_eq!(asked.request.poll(), Polled::Waits);
    // The server is held up until the deadline is over, also its shard.
    for left in [100, 50] {
        lab.clock.advance(ms(left + 10));
        asked.request.take(b"x");
        assert_eq!(asked.request.poll(), Polled::Waits);
    }
    check_reached(&mut lab, &asked.exchange, ms(25), BodyError::FrameRate(RATE));
}

#[test]
fn slow_consumer_is_found_by_its_rate() {
    let (mut lab, mut asked) = asked(NONE, NONE.min_poll_rate(RATE));
    let mut body = asked.respond();
    body.take(&[b'x'; 50]);
    // 50 bytes at 100 a second.
    check_comes(&mut lab, ms(500), || limits_reached(&asked.exchange) != [None; 2]);
    assert_eq!(asked.exchange.response_limit_reached(), Some(BodyError::PollRate(RATE)));
}

#[test]
fn body_that_has_ended_leaves_no_timer() {
    let mut lab = lab();
    let limits = NONE.next_frame(LIMIT).next_poll(LIMIT);
    for _ in 0..50 {
        let mut body = Asked::new(lab.handle(), NONE, limits).respond();
        assert_eq!(body.poll(), Polled::Waits);
        body.end();
        lab.advance(ms(1));
    }
    assert_eq!(lab.settled().pending, 0);
    lab.advance(LIMIT);
    assert_eq!(lab.settled().fired, 0);
}

#[test]
fn exchange_whose_bodies_are_complete_calls_no_function() {
    let (_lab, mut asked) = asked(NONE, NONE);
    let exchange = asked.exchange.clone();
    let ends = count_ends(&exchange);
    assert!(!exchange.is_request_complete());
    asked.request.end();
    assert!(exchange.is_request_complete());
    let mut response = asked.respond();
    response.take_last(b"all");
    drop((asked, response));
    exchange.end();
    let late = count_ends(&exchange);
    assert_eq!((ends.count(), late.count()), (0, 0));
}

#[test]
fn response_that_is_dropped_or_complete_first_ends_the_request() {
    for is_complete in [false, true] {
        let (_lab, mut asked) = asked(NONE.next_frame(10 * LIMIT), NONE);
        let ends = count_ends(&asked.exchange);
        let mut response = asked.respond();
        if is_complete {
            response.end();
        }
        drop(response);
        assert!(asked.request.is_dropped());
        assert_eq!(ends.count(), 1);
        assert_eq!(asked.request.poll(), Polled::Failed(BodyError::Ended));
        // A function that comes later is called at once.
        assert_eq!(count_ends(&asked.exchange).count(), 1);
    }
}

#[test]
fn response_to_complete_request_fails_in_its_first_poll_after_the_end() {
    let (_lab, mut asked) = complete(NONE);
    let ends = count_ends(&asked.exchange);
    let mut response = asked.respond();
    response.feed.push(b"all");
    response.feed.end();
    asked.exchange.end();
    assert_eq!(ends.count(), 1);
    assert_eq!(response.poll(), Polled::Failed(BodyError::Ended));
    assert!(response.is_dropped());
    assert_eq!(response.poll(), Polled::End);
}

#[test]
fn response_to_complete_request_is_dropped_at_once_when_it_was_polled() {
    for has_frame in [false, true] {
        let (_lab, mut asked) = complete(NONE);
        let (alarm, waker) = Alarm::new();
        let mut response = asked.respond();
        if has_frame {
            response.feed.push(b"frame");
        }
        let polled = if has_frame { Polled::Frame(b"frame".to_vec()) } else { Polled::Waits };
        assert_eq!(response.poll_with(&waker), polled);
        asked.exchange.end();
        assert_eq!((response.is_dropped(), alarm.count()), (true, usize::from(!has_frame)));
        assert_eq!(response.poll(), Polled::Failed(BodyError::Ended));
    }
}

#[test]
fn response_to_complete_request_reaches_its_limit_from_its_first_poll_on() {
    let (mut lab, mut asked) = complete(NONE.next_frame(LIMIT));
    let (alarm, waker) = Alarm::new();
    let mut response = asked.respond();
    lab.advance(10 * LIMIT);
    assert_eq!(response.poll_with(&waker), Polled::Waits);
    check_comes(&mut lab, LIMIT, || response.is_dropped() || alarm.count() > 0);
    assert_eq!((response.is_dropped(), alarm.count()), (true, 1));
    let reached = BodyError::NextFrame(LIMIT);
    assert_eq!(asked.exchange.response_limit_reached(), Some(reached));
    assert_eq!(response.poll(), Polled::Failed(reached));
}

#[test]
fn response_that_is_dropped_before_its_first_poll_calls_the_functions() {
    for limits in [NONE, NONE.next_poll(LIMIT)] {
        let (_lab, mut asked) = complete(limits);
        let ends = count_ends(&asked.exchange);
        let Timed { body, feed } = asked.respond();
        drop(body);
        assert!(feed.is_dropped());
        assert_eq!((ends.count(), asked.exchange.has_ended()), (1, true));
    }
}

#[test]
fn response_future_that_is_dropped_ends_the_exchange() {
    let (_lab, asked) = asked(NONE.next_frame(LIMIT), NONE);
    let ends = count_ends(&asked.exchange);
    drop(asked.answering);
    assert!(asked.request.is_dropped());
    assert_eq!(ends.count(), 1);
}

#[test]
fn body_limits_hold_where_the_shard_is_full() {
    // The only slot is that of another timer.
    let mut lab: Lab = Lab::new(builder(1).capacity(1)).with_tasks();
    let mut other = pin!(lab.handle().sleep(Duration::from_hours(1)));
    assert!(poll_with(other.as_mut(), Waker::noop()).is_pending());
    lab.settle();
    let body = Asked::new(lab.handle(), NONE, NONE.next_poll(LIMIT)).respond();
    lab.advance(LIMIT);
    // The thread of the fallback looks once in each millisecond.
    wait_until(|| body.is_dropped());
}

#[test]
fn handler_learns_of_the_end_and_may_still_answer() {
    let mut lab = lab();
    let service = service_fn(|request: Request<TimedBody<Feed>>| async move {
        let exchange = request.body().exchange().clone();
        exchange.ended().await;
        let line = format!("{:?}", exchange.request_limit_reached().unwrap());
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(line))))
    });
    let (_stream, _client, service) = timed(lab.handle(), service);
    let service = service.request(NONE.next_poll(LIMIT));
    let answer = lab.spawn(service.call(Request::new(Feed::default())));
    lab.advance(LIMIT);
    let body = lab.output(answer).unwrap().into_body();
    assert_eq!(lab.block_on(body.collect()).unwrap().to_bytes(), "NextPoll(100ms)");
}

#[test]
fn end_of_an_exchange_wakes_who_waits_for_it_and_nobody_else() {
    for (cut, waits) in [(false, false), (false, true), (true, false), (true, true)] {
        let (_lab, mut asked) = asked(NONE, NONE);
        asked.request.end();
        let (mut body, exchange) = (asked.respond(), &asked.exchange);
        let (alarm, waker) = Alarm::new();
        let mut kept = pin!(exchange.ended());
        {
            // A handler that has its answer waits no longer.
            let dropped = pin!(exchange.ended());
            assert!(poll_with(dropped, &waker).is_pending());
        }
        if waits {
            assert!(poll_with(kept.as_mut(), &waker).is_pending());
        }
        if cut {
            exchange.end();
        } else {
            body.end();
        }
        assert!(exchange.has_ended());
        assert_eq!(alarm.count(), usize::from(waits), "cut: {cut}");
        assert!(poll_with(kept, &waker).is_ready());
    }
}

#[test]
fn response_with_a_limit_for_its_client_is_complete_with_its_last_frame() {
    for asks_for_end in [true, false] {
        let (_lab, mut asked) = asked(NONE, NONE.next_poll(LIMIT));
        asked.request.end();
        let (mut body, exchange) = (asked.respond(), &asked.exchange);
        let ends = count_ends(exchange);
        body.take_last(b"all");
        // The client may still wait for a window.
        assert!(!body.body.is_end_stream() && !exchange.has_ended());
        if asks_for_end {
            assert_eq!(body.poll(), Polled::End);
        }
        drop(body);
        assert!(exchange.has_ended());
        assert_eq!(ends.count(), 0);
    }
}

#[test]
fn request_whose_consumer_has_the_last_frame_is_complete_and_has_no_limit() {
    let (mut lab, mut asked) = asked(NONE.next_poll(LIMIT), NONE);
    asked.request.take_last(b"all");
    assert!(asked.exchange.is_request_complete());
    lab.advance(10 * LIMIT);
    assert_eq!(limits_reached(&asked.exchange), [None; 2]);
}

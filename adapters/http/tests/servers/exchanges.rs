//! The bodies of an exchange: each limit by a manual clock, and when an exchange ends.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use corewheel::Handle;
use corewheel::conn::DataRate;
use corewheel::stream::{StreamLimits, TimedIo};
use corewheel_http::hyper::{BodyError, BodyLimits, Exchange, ResponseBody, TimedBody, TimedHttp};
use http_body_util::Full;
use hyper::body::{Body, Buf, Bytes, Frame};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use tokio::io::{AsyncRead, AsyncWriteExt, DuplexStream, ReadBuf};

use crate::http::{Alarm, Lab, builder, lab, ms};

pub(crate) const LIMIT: Duration = ms(100);
pub(crate) const NONE: BodyLimits = BodyLimits::NONE;
const RATE: DataRate = DataRate::new(100, LIMIT);

/// What a test and its body share.
#[derive(Default)]
pub(crate) struct Shared {
    /// `None` is the end.
    frames: VecDeque<Option<&'static [u8]>>,
    is_dropped: bool,
    /// The next poll says that it has begun, and waits until it may go on.
    gate: Option<(Sender<()>, Receiver<()>)>,
}

/// A body whose frames come from the test. A poll that finds none waits.
pub(crate) struct Feed(Arc<Mutex<Shared>>);

impl Feed {
    fn new() -> (Self, Arc<Mutex<Shared>>) {
        let shared = Arc::<Mutex<Shared>>::default();
        (Self(Arc::clone(&shared)), shared)
    }
}

impl Body for Feed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let gate = self.0.lock().unwrap().gate.take();
        if let Some((has_begun, may_go)) = gate {
            has_begun.send(()).unwrap();
            may_go.recv().unwrap();
        }
        match self.0.lock().unwrap().frames.pop_front() {
            Some(bytes) => Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes.into())))),
            None => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().unwrap().frames.front() == Some(&None)
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.0.lock().unwrap().is_dropped = true;
    }
}

/// A body with limits, and the test's side of it.
pub(crate) struct Timed<B = TimedBody<Feed>> {
    pub(crate) body: B,
    shared: Arc<Mutex<Shared>>,
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
        Self::with(timers, request, response, &[])
    }

    /// A request without a body.
    fn complete(timers: Handle, response: BodyLimits) -> Self {
        Self::with(timers, NONE, response, &[None])
    }

    /// A request whose body has these frames before the call.
    fn with(
        timers: Handle,
        request: BodyLimits,
        response: BodyLimits,
        frames: &[Option<&'static [u8]>],
    ) -> Self {
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
        let (feed, shared) = Feed::new();
        shared.lock().unwrap().frames.extend(frames);
        let mut answering: Answering = Box::pin(service.call(Request::new(feed)));
        assert!(poll_once(&mut answering).is_pending());
        let body = found.lock().unwrap().take().unwrap();
        let exchange = body.exchange().clone();
        Self { request: Timed { body, shared }, exchange, answer, answering, stream, client }
    }

    /// Polls for the answer, which does not come.
    pub(crate) fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.answering.as_mut().poll(cx).map(drop)
    }

    /// Reads a byte from the client, or waits for one.
    fn read(&mut self) -> Poll<u8> {
        let mut byte = [0];
        let mut buffer = ReadBuf::new(&mut byte);
        let cx = &mut Context::from_waker(Waker::noop());
        Pin::new(&mut self.stream).poll_read(cx, &mut buffer).map(|read| {
            read.unwrap();
            byte[0]
        })
    }

    /// The client sends a byte, which is read.
    fn receive(&mut self) {
        let sent = pin!(self.client.write_all(b"w")).poll(&mut Context::from_waker(Waker::noop()));
        assert!(sent.is_ready());
        assert_eq!(self.read(), Poll::Ready(b'w'));
    }

    /// The client sends bytes, which are read.
    pub(crate) fn receive_all(&mut self, bytes: &[u8]) {
        let cx = &mut Context::from_waker(Waker::noop());
        for part in bytes.chunks(16) {
            assert!(pin!(self.client.write_all(part)).poll(cx).is_ready());
            assert!(part.iter().all(|sent| self.read() == Poll::Ready(*sent)));
        }
    }

    /// The server sends a few bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(pin!(self.stream.write_all(bytes)).poll(cx).is_ready());
    }

    /// The handler answers.
    pub(crate) fn respond(&mut self) -> Timed<ResponseBody<Feed>> {
        let (feed, shared) = Feed::new();
        self.answer.send(feed).unwrap();
        let Poll::Ready(Ok(response)) = poll_once(&mut self.answering) else {
            panic!("no response");
        };
        Timed { body: response.into_body(), shared }
    }
}

fn poll_once(answering: &mut Answering) -> Poll<Result<Response<ResponseBody<Feed>>, Infallible>> {
    answering.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// The service of a connection, beside its stream.
fn timed<S>(timers: Handle, service: S) -> (TimedIo<DuplexStream>, DuplexStream, TimedHttp<S>) {
    let (stream, client) = tokio::io::duplex(16);
    let stream = TimedIo::new(stream, timers, StreamLimits::default());
    let control = stream.control();
    (stream, client, TimedHttp::new(service, control))
}

impl<B: Body<Error = Box<dyn Error + Send + Sync>> + Unpin> Timed<B> {
    fn push(&self, frame: Option<&'static [u8]>) {
        self.shared.lock().unwrap().frames.push_back(frame);
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.shared.lock().unwrap().is_dropped
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
}

/// Counts the calls of a function that an exchange calls at its end.
fn count_ends(exchange: &Exchange) -> Arc<AtomicUsize> {
    let count = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&count);
    exchange.on_end(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    count
}

/// The limits of the request and of the response that have ended an exchange.
fn limits_reached(exchange: &Exchange) -> [Option<BodyError>; 2] {
    [exchange.request_limit_reached(), exchange.response_limit_reached()]
}

#[test]
fn body_whose_producer_stops_fails_at_its_limit_and_wakes_the_consumer() {
    let mut lab = lab();
    let asked = Asked::new(lab.handle(), NONE.next_frame(LIMIT), NONE);
    let (exchange, mut body) = (asked.exchange, asked.request);
    let (alarm, waker) = Alarm::new();
    // The time before the first poll is that of the consumer.
    lab.advance(10 * LIMIT);
    body.push(Some(b"one"));
    assert_eq!(body.poll_with(&waker), Polled::Frame(b"one".to_vec()));
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
    let mut lab = lab();
    let limits = NONE.next_frame(LIMIT).next_poll(LIMIT);
    let mut asked = Asked::new(lab.handle(), NONE, limits);
    let mut body = asked.respond();
    for _ in 0..5 {
        lab.advance(LIMIT.saturating_sub(ms(1)));
        assert_eq!(body.poll(), Polled::Waits);
        lab.advance(LIMIT.saturating_sub(ms(1)));
        body.push(Some(b"frame"));
        assert_eq!(body.poll(), Polled::Frame(b"frame".to_vec()));
    }
    body.push(None);
    assert_eq!(body.poll(), Polled::End);
    lab.advance(10 * LIMIT);
    assert_eq!(limits_reached(&asked.exchange), [None; 2]);
}

#[test]
fn frame_that_is_found_at_the_limit_is_in_time_and_the_next_wait_has_one() {
    let mut lab = lab();
    let asked = Asked::new(lab.handle(), NONE.next_frame(LIMIT), NONE);
    let (exchange, mut body) = (asked.exchange, asked.request);
    let (alarm, waker) = Alarm::new();
    assert_eq!(body.poll_with(&waker), Polled::Waits);
    // The frame has come, and its waker was not called.
    body.push(Some(b"found"));
    lab.advance(LIMIT);
    assert!(alarm.count() > 0);
    assert_eq!((limits_reached(&exchange), body.is_dropped()), ([None; 2], false));
    assert_eq!(body.poll_with(&waker), Polled::Frame(b"found".to_vec()));
    assert_eq!(body.poll_with(&waker), Polled::Waits);
    lab.advance(LIMIT.saturating_sub(ms(1)));
    assert_eq!(limits_reached(&exchange), [None; 2]);
    lab.advance(ms(1));
    let reached = BodyError::NextFrame(LIMIT);
    assert_eq!(exchange.request_limit_reached(), Some(reached));
}

#[test]
fn wait_with_a_shorter_limit_than_the_one_before_has_its_own() {
    let mut lab = lab();
    let limits = NONE.next_frame(10 * LIMIT).next_poll(LIMIT);
    let asked = Asked::new(lab.handle(), limits, NONE);
    let (exchange, mut body) = (asked.exchange, asked.request);
    assert_eq!(body.poll(), Polled::Waits);
    // The timer that was armed for the consumer has expired.
    lab.advance(LIMIT);
    body.push(Some(b"frame"));
    assert_eq!(body.poll(), Polled::Frame(b"frame".to_vec()));
    lab.advance(LIMIT);
    let reached = BodyError::NextPoll(LIMIT);
    assert_eq!(exchange.request_limit_reached(), Some(reached));
}

#[test]
fn limit_that_comes_during_a_poll_is_reached_after_it() {
    let mut lab = lab();
    let asked = Asked::new(lab.handle(), NONE.next_frame(LIMIT), NONE);
    let (exchange, mut body) = (asked.exchange, asked.request);
    assert_eq!(body.poll(), Polled::Waits);
    let ((begun, has_begun), (go, may_go)) = (mpsc::channel(), mpsc::channel());
    body.shared.lock().unwrap().gate = Some((begun, may_go));
    let consumer = thread::spawn(move || (body.poll(), body));
    has_begun.recv().unwrap();
    lab.advance(LIMIT);
    assert_eq!(limits_reached(&exchange), [None; 2]);
    go.send(()).unwrap();
    let (polled, body) = consumer.join().unwrap();
    assert_eq!(polled, Polled::Waits);
    let reached = BodyError::NextFrame(LIMIT);
    assert_eq!(exchange.request_limit_reached(), Some(reached));
    assert!(body.is_dropped());
}

#[test]
fn body_that_no_task_polls_is_dropped_at_its_limit() {
    let mut lab = lab();
    let mut asked = Asked::new(lab.handle(), NONE, NONE.next_poll(LIMIT));
    let mut response = asked.respond();
    let (exchange, request) = (asked.exchange, asked.request);
    let ends = count_ends(&exchange);
    lab.advance(LIMIT.saturating_sub(ms(1)));
    assert!(!response.is_dropped());
    lab.advance(ms(1));
    // Without a poll, of both bodies.
    assert!(response.is_dropped() && request.is_dropped());
    assert_eq!(ends.load(Ordering::SeqCst), 1);
    let reached = BodyError::NextPoll(LIMIT);
    assert_eq!(exchange.response_limit_reached(), Some(reached));
    assert_eq!(response.poll(), Polled::Failed(reached));
}

#[test]
fn response_whose_connection_has_moved_since_the_limit_has_a_second_more() {
    // After the byte, so much time is left until two milliseconds before the end.
    let check = |received: Duration, left: Duration| {
        let mut lab = lab();
        let mut asked = Asked::new(lab.handle(), NONE, NONE.next_poll(LIMIT));
        let response = asked.respond();
        assert!(asked.read().is_pending());
        // The shard is held up.
        lab.clock.advance(received);
        asked.receive();
        assert!(asked.read().is_pending());
        lab.settle();
        lab.advance(left);
        assert!(!response.is_dropped(), "{received:?}");
        lab.advance(ms(2));
        assert!(response.is_dropped(), "{received:?}");
    };
    check(ms(95), ms(3));
    check(ms(105), ms(998));
    // It has the second once.
    let mut lab = lab();
    let mut asked = Asked::new(lab.handle(), NONE, NONE.next_poll(LIMIT));
    let mut response = asked.respond();
    assert!(asked.read().is_pending());
    for _ in 0..2 {
        lab.clock.advance(LIMIT);
        asked.receive();
        lab.settle();
        response.push(Some(b"frame"));
        assert_eq!(response.poll(), Polled::Frame(b"frame".into()), "each wait has it");
        assert!(asked.read().is_pending());
    }
    lab.clock.advance(LIMIT);
    asked.receive();
    lab.advance(Duration::ZERO);
    assert!(asked.read().is_pending());
    lab.clock.advance(ms(1_000));
    asked.receive();
    lab.advance(ms(2));
    assert_eq!(response.poll(), Polled::Failed(BodyError::NextPoll(LIMIT)));
}

#[test]
fn body_of_an_exchange_that_another_body_has_ended_says_so() {
    let mut lab = lab();
    let mut asked = Asked::new(lab.handle(), NONE, NONE.next_poll(LIMIT));
    let (alarm, waker) = Alarm::new();
    assert_eq!(asked.request.poll_with(&waker), Polled::Waits);
    let response = asked.respond();
    let mut request = asked.request;
    lab.advance(LIMIT);
    assert_eq!((alarm.count(), response.is_dropped()), (1, true));
    assert_eq!(request.poll(), Polled::Failed(BodyError::Ended));
}

#[test]
fn slow_producer_is_found_by_its_rate_which_counts_only_waits_for_it() {
    let mut lab = lab();
    let asked = Asked::new(lab.handle(), NONE.min_frame_rate(RATE), NONE);
    let (exchange, mut body) = (asked.exchange, asked.request);
    let mut waited = Duration::ZERO;
    let reached = loop {
        // The consumer takes its time.
        lab.advance(10 * LIMIT);
        assert_eq!(limits_reached(&exchange), [None; 2], "after {waited:?}");
        assert_eq!(body.poll(), Polled::Waits);
        lab.advance(ms(50));
        waited += ms(50);
        if let Some(reached) = exchange.request_limit_reached() {
            break reached;
        }
        body.push(Some(b"xy"));
        assert_eq!(body.poll(), Polled::Frame(b"xy".to_vec()));
    };
    // Two bytes in 50 ms are 40 a second: 100 ms have passed with 2 or 4 bytes.
    assert_eq!(reached, BodyError::FrameRate(RATE));
    assert_eq!(waited, LIMIT);
}

#[test]
fn wait_for_a_frame_that_is_found_late_leaves_half_of_its_time_to_the_next() {
    let mut lab = lab();
    let asked = Asked::new(lab.handle(), NONE.min_frame_rate(RATE), NONE);
    let (exchange, mut body) = (asked.exchange, asked.request);
    assert_eq!(body.poll(), Polled::Waits);
    // The server is held up until the deadline is over, also its shard.
    for left in [100, 50] {
        lab.clock.advance(ms(left + 10));
        body.push(Some(b"x"));
        assert_eq!(body.poll(), Polled::Frame(b"x".to_vec()));
        assert_eq!(body.poll(), Polled::Waits);
    }
    lab.advance(ms(24));
    assert_eq!(exchange.request_limit_reached(), None);
    lab.advance(ms(1));
    assert_eq!(exchange.request_limit_reached(), Some(BodyError::FrameRate(RATE)));
}

#[test]
fn slow_consumer_is_found_by_its_rate() {
    let mut lab = lab();
    let mut asked = Asked::new(lab.handle(), NONE, NONE.min_poll_rate(RATE));
    let mut body = asked.respond();
    let exchange = asked.exchange;
    body.push(Some(&[b'x'; 50]));
    assert!(matches!(body.poll(), Polled::Frame(_)));
    // 50 bytes at 100 a second.
    lab.advance(ms(499));
    assert_eq!(limits_reached(&exchange), [None; 2]);
    lab.advance(ms(1));
    assert_eq!(exchange.response_limit_reached(), Some(BodyError::PollRate(RATE)));
}

#[test]
fn body_that_has_ended_leaves_no_timer() {
    let mut lab = lab();
    let limits = NONE.next_frame(LIMIT).next_poll(LIMIT);
    for _ in 0..50 {
        let mut body = Asked::new(lab.handle(), NONE, limits).respond();
        assert_eq!(body.poll(), Polled::Waits);
        body.push(None);
        assert_eq!(body.poll(), Polled::End);
        lab.advance(ms(1));
    }
    assert_eq!(lab.settled().pending, 0);
    lab.advance(LIMIT);
    assert_eq!(lab.settled().fired, 0);
}

#[test]
fn many_bodies_end_each_at_its_own_time() {
    let mut lab = lab();
    let mut bodies = Vec::new();
    for index in 0..20_u64 {
        let limits = NONE.next_poll(ms(200 - 5 * index));
        bodies.push(Asked::new(lab.handle(), NONE, limits).respond());
    }
    for milliseconds in 1..=200 {
        lab.advance(ms(1));
        for (index, body) in (0..).zip(&bodies) {
            assert_eq!(body.is_dropped(), milliseconds >= 200 - 5 * index, "body {index}");
        }
    }
}

#[test]
fn exchange_whose_bodies_are_complete_calls_no_function() {
    let lab = lab();
    let mut asked = Asked::new(lab.handle(), NONE, NONE);
    let exchange = asked.exchange.clone();
    let ends = count_ends(&exchange);
    asked.request.push(None);
    assert!(!exchange.is_request_complete());
    assert_eq!(asked.request.poll(), Polled::End);
    assert!(exchange.is_request_complete());
    let mut response = asked.respond();
    response.push(Some(b"all"));
    response.push(None);
    assert_eq!(response.poll(), Polled::Frame(b"all".to_vec()));
    drop((asked, response));
    exchange.end();
    let late = count_ends(&exchange);
    assert_eq!((ends.load(Ordering::SeqCst), late.load(Ordering::SeqCst)), (0, 0));
}

#[test]
fn response_that_is_dropped_or_complete_first_ends_the_request() {
    for is_complete in [false, true] {
        let lab = lab();
        let far = NONE.next_frame(10 * LIMIT);
        let mut asked = Asked::new(lab.handle(), far, NONE);
        let ends = count_ends(&asked.exchange);
        let mut response = asked.respond();
        let (exchange, mut request) = (asked.exchange, asked.request);
        if is_complete {
            response.push(None);
            assert_eq!(response.poll(), Polled::End);
        }
        drop(response);
        assert!(request.is_dropped());
        assert_eq!(ends.load(Ordering::SeqCst), 1);
        assert_eq!(request.poll(), Polled::Failed(BodyError::Ended));
        // A function that comes later is called at once.
        assert_eq!(count_ends(&exchange).load(Ordering::SeqCst), 1);
    }
}

#[test]
fn response_to_complete_request_fails_in_its_first_poll_after_the_end() {
    let lab = lab();
    let mut asked = Asked::complete(lab.handle(), NONE);
    let ends = count_ends(&asked.exchange);
    let mut response = asked.respond();
    response.push(Some(b"all"));
    response.push(None);
    asked.exchange.end();
    assert_eq!(ends.load(Ordering::SeqCst), 1);
    assert_eq!(response.poll(), Polled::Failed(BodyError::Ended));
    assert!(response.is_dropped());
    assert_eq!(response.poll(), Polled::End);
}

#[test]
fn response_to_complete_request_is_dropped_at_once_when_it_was_polled() {
    for frame in [None, Some(&b"frame"[..])] {
        let lab = lab();
        let mut asked = Asked::complete(lab.handle(), NONE);
        let (alarm, waker) = Alarm::new();
        let mut response = asked.respond();
        if frame.is_some() {
            response.push(frame);
            assert_eq!(response.poll_with(&waker), Polled::Frame(b"frame".to_vec()));
        } else {
            assert_eq!(response.poll_with(&waker), Polled::Waits);
        }
        asked.exchange.end();
        assert_eq!((response.is_dropped(), alarm.count()), (true, usize::from(frame.is_none())));
        assert_eq!(response.poll(), Polled::Failed(BodyError::Ended));
    }
}

#[test]
fn response_to_complete_request_reaches_its_limit_from_its_first_poll_on() {
    let mut lab = lab();
    let mut asked = Asked::complete(lab.handle(), NONE.next_frame(LIMIT));
    let (alarm, waker) = Alarm::new();
    let mut response = asked.respond();
    lab.advance(10 * LIMIT);
    assert_eq!(response.poll_with(&waker), Polled::Waits);
    lab.advance(LIMIT.saturating_sub(ms(1)));
    assert_eq!((response.is_dropped(), alarm.count()), (false, 0));
    lab.advance(ms(1));
    assert_eq!((response.is_dropped(), alarm.count()), (true, 1));
    let reached = BodyError::NextFrame(LIMIT);
    assert_eq!(asked.exchange.response_limit_reached(), Some(reached));
    assert_eq!(response.poll(), Polled::Failed(reached));
}

#[test]
fn response_that_is_dropped_before_its_first_poll_calls_the_functions() {
    for limits in [NONE, NONE.next_poll(LIMIT)] {
        let lab = lab();
        let mut asked = Asked::complete(lab.handle(), limits);
        let ends = count_ends(&asked.exchange);
        let Timed { body, shared } = asked.respond();
        drop(body);
        assert!(shared.lock().unwrap().is_dropped);
        assert_eq!((ends.load(Ordering::SeqCst), asked.exchange.has_ended()), (1, true));
    }
}

#[test]
fn response_future_that_is_dropped_ends_the_exchange() {
    let lab = lab();
    let found = Arc::<Mutex<Option<Exchange>>>::default();
    let handler = Arc::clone(&found);
    let service = service_fn(move |request: Request<TimedBody<Feed>>| {
        *handler.lock().unwrap() = Some(request.body().exchange().clone());
        async move {
            let _request = request;
            pending::<Result<Response<Full<Bytes>>, Infallible>>().await
        }
    });
    let (_stream, _client, service) = timed(lab.handle(), service);
    let service = service.request(NONE.next_frame(LIMIT));
    let (feed, shared) = Feed::new();
    let mut future = Box::pin(service.call(Request::new(feed)));
    let polled = pin!(&mut future).poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    let ends = count_ends(found.lock().unwrap().as_ref().unwrap());
    drop(future);
    assert!(shared.lock().unwrap().is_dropped);
    assert_eq!(ends.load(Ordering::SeqCst), 1);
}

#[test]
fn body_limits_hold_where_the_shard_is_full() {
    // The only slot is that of another timer.
    let mut lab: Lab = Lab::new(builder(1).capacity(1)).with_tasks();
    let mut other = pin!(lab.handle().sleep(Duration::from_hours(1)));
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(other.as_mut().poll(cx).is_pending());
    lab.settle();
    let body = Asked::new(lab.handle(), NONE, NONE.next_poll(LIMIT)).respond();
    lab.advance(LIMIT);
    // The thread of the fallback looks once in each millisecond.
    crate::http::wait_until(|| body.is_dropped());
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
    let (feed, _shared) = Feed::new();
    let answer = lab.spawn(service.call(Request::new(feed)));
    lab.advance(LIMIT);
    let mut body = lab.output(answer).unwrap().into_body();
    let polled = Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Some(Ok(frame))) = polled else { panic!("the answer is cut") };
    let data = frame.into_data().unwrap();
    assert_eq!(data.chunk(), b"NextPoll(100ms)");
}

#[test]
fn end_of_an_exchange_wakes_who_waits_for_it_and_nobody_else() {
    let lab = lab();
    for (cut, waits) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut asked = Asked::new(lab.handle(), NONE, NONE);
        asked.request.push(None);
        assert_eq!(asked.request.poll(), Polled::End);
        let (mut body, exchange) = (asked.respond(), &asked.exchange);
        let (alarm, waker) = Alarm::new();
        let mut kept = pin!(exchange.ended());
        {
            // A handler that has its answer waits no longer.
            let mut dropped = pin!(exchange.ended());
            assert!(dropped.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        if waits {
            assert!(kept.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        if cut {
            exchange.end();
        } else {
            body.push(None);
            assert_eq!(body.poll(), Polled::End);
        }
        assert!(exchange.has_ended());
        assert_eq!(alarm.count(), usize::from(waits), "cut: {cut}");
        assert!(kept.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    }
}

#[test]
fn response_with_a_limit_for_its_client_is_complete_with_its_last_frame() {
    let lab = lab();
    for asks_for_end in [true, false] {
        let mut asked = Asked::new(lab.handle(), NONE, NONE.next_poll(LIMIT));
        asked.request.push(None);
        assert_eq!(asked.request.poll(), Polled::End);
        let (mut body, exchange) = (asked.respond(), &asked.exchange);
        let ends = count_ends(exchange);
        body.push(Some(b"all"));
        body.push(None);
        assert_eq!(body.poll(), Polled::Frame(b"all".to_vec()));
        // The client may still wait for a window.
        assert!(!body.body.is_end_stream() && !exchange.has_ended());
        if asks_for_end {
            assert_eq!(body.poll(), Polled::End);
        }
        drop(body);
        assert!(exchange.has_ended());
        assert_eq!(ends.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn request_whose_consumer_has_the_last_frame_is_complete_and_has_no_limit() {
    let mut lab = lab();
    let asked = Asked::new(lab.handle(), NONE.next_poll(LIMIT), NONE);
    let (exchange, mut body) = (asked.exchange, asked.request);
    body.push(Some(b"all"));
    body.push(None);
    assert_eq!(body.poll(), Polled::Frame(b"all".to_vec()));
    assert!(exchange.is_request_complete());
    lab.advance(10 * LIMIT);
    assert_eq!(limits_reached(&exchange), [None; 2]);
}

//! `TimedHttp`: how long a request holds the idle times of its connection back, and where its
//! messages begin and end. The service is called by hand, for both kinds of timers.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use corewheel::stream::StreamTimeout::{Head, Idle, ReadIdle, ReadRate};
use corewheel_http::hyper::{ResponseBody, TimedBody, TimedHttp, TimedResponse};
use hyper::body::{Body, Buf, Bytes, Frame};
use hyper::service::Service;
use hyper::{Method, Request, Response, StatusCode, Version};

use super::*;

/// A queue that a test fills. A poll that finds it empty waits.
type Queue<V> = Rc<RefCell<VecDeque<V>>>;

/// A body whose frames come from the test; `None` is its end.
#[derive(Clone, Default)]
pub(super) struct Feed(Arc<Mutex<VecDeque<Option<&'static [u8]>>>>);

impl Feed {
    pub(super) fn push(&self, frame: &'static [u8]) {
        self.0.lock().unwrap().push_back(Some(frame));
    }

    pub(super) fn end(&self) {
        self.0.lock().unwrap().push_back(None);
    }
}

impl Body for Feed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.0.lock().unwrap().pop_front() {
            Some(bytes) => Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes.into())))),
            None => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().unwrap().front() == Some(&None)
    }
}

/// How a handler ends.
enum Answer {
    Respond(StatusCode, Feed),
    Fail,
    Panic,
}

/// A service whose test takes the bodies of its requests and gives the answers.
struct Scripted<M: Side> {
    bodies: Queue<TimedBody<Feed, M>>,
    answers: Queue<Answer>,
}

/// The future of an answer.
pub(super) struct Answering(Queue<Answer>);

impl Future for Answering {
    type Output = Result<Response<Feed>, &'static str>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        match self.0.borrow_mut().pop_front() {
            Some(Answer::Respond(status, body)) => {
                Poll::Ready(Ok(Response::builder().status(status).body(body).unwrap()))
            }
            Some(Answer::Fail) => Poll::Ready(Err("failed")),
            Some(Answer::Panic) => panic!("a handler panics"),
            None => Poll::Pending,
        }
    }
}

impl<M: Side> Service<Request<TimedBody<Feed, M>>> for Scripted<M> {
    type Response = Response<Feed>;
    type Error = &'static str;
    type Future = Answering;

    fn call(&self, request: Request<TimedBody<Feed, M>>) -> Answering {
        self.bodies.borrow_mut().push_back(request.into_body());
        Answering(Rc::clone(&self.answers))
    }
}

pub(super) type Called<K> = Pin<Box<TimedResponse<Answering, K>>>;
pub(super) type Answered<K> = Pin<Box<ResponseBody<Feed, K>>>;

/// A connection with its service.
pub(super) struct Conn<K: Kind> {
    pub(super) lab: Lab,
    pub(super) stream: Duplex<K>,
    pub(super) peer: DuplexStream,
    service: TimedHttp<Scripted<K>, K>,
    bodies: Queue<TimedBody<Feed, K>>,
    answers: Queue<Answer>,
}

impl<K: Kind> Conn<K> {
    pub(super) fn new(limits: StreamLimits) -> Self {
        let lab = lab();
        let (stream, peer) = duplex::<K>(&lab, limits);
        let (bodies, answers) = (Queue::default(), Queue::default());
        let scripted = Scripted { bodies: Rc::clone(&bodies), answers: Rc::clone(&answers) };
        let service = TimedHttp::new(scripted, stream.control());
        Self { lab, stream, peer, service, bodies, answers }
    }

    fn call_with(&self, version: Version, method: Method, body: Feed) -> Called<K> {
        let request = Request::builder().version(version).method(method).body(body).unwrap();
        Box::pin(self.service.call(request))
    }

    /// Calls the service for a request of HTTP/2 without a body.
    pub(super) fn get_http2(&self) -> Called<K> {
        let body = Feed::default();
        body.end();
        self.call_with(Version::HTTP_2, Method::GET, body)
    }

    /// Calls the service for an HTTP/1.1 request.
    fn call(&self, body: Feed) -> Called<K> {
        self.call_with(Version::HTTP_11, Method::GET, body)
    }

    /// Calls the service for a request without a body.
    fn get(&self) -> Called<K> {
        let body = Feed::default();
        body.end();
        self.call(body)
    }

    /// The body of the last request.
    fn body(&self) -> Pin<Box<TimedBody<Feed, K>>> {
        Box::pin(self.bodies.borrow_mut().pop_back().unwrap())
    }

    pub(super) fn answer(&self, status: StatusCode, called: &mut Called<K>) -> (Feed, Answered<K>) {
        let body = Feed::default();
        self.answers.borrow_mut().push_back(Answer::Respond(status, body.clone()));
        let Poll::Ready(response) = poll(called.as_mut()) else { panic!("no response") };
        (body, Box::pin(response.unwrap().into_body()))
    }

    /// The framework takes an answer of one frame whole, and drops its body.
    fn answer_whole(&self, called: &mut Called<K>) {
        let (feed, mut body) = self.answer(StatusCode::OK, called);
        feed.push(b"whole");
        feed.end();
        assert_eq!(frame(&mut body).unwrap(), b"whole");
    }

    /// A byte comes from the peer and is read.
    fn receive(&mut self) {
        ready(write(&mut self.peer, b"a"));
        assert_eq!(ready(read(&mut self.stream)), b"a");
    }

    /// Checks that the connection stays open for several times the limit.
    #[track_caller]
    fn check_open(&mut self) {
        for _ in 0..5 * LIMIT {
            assert_eq!(timeout(read(&mut self.stream)), None);
            self.lab.advance_ticks(1);
        }
        assert_eq!(timeout(read(&mut self.stream)), None);
    }

    /// Checks that the connection ends the limit from now.
    #[track_caller]
    fn check_ends(&mut self, expected: StreamTimeout) {
        check_ends::<K, _>(&mut self.lab, LIMIT, expected, || read(&mut self.stream));
    }
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// The next data of a body: `None` if it waits, nothing if it has ended.
fn frame<B: Body>(body: &mut Pin<Box<B>>) -> Option<Vec<u8>> {
    let cx = &mut Context::from_waker(Waker::noop());
    match body.as_mut().poll_frame(cx) {
        Poll::Pending => None,
        Poll::Ready(None) => Some(Vec::new()),
        Poll::Ready(Some(frame)) => {
            let Ok(frame) = frame else { panic!("a body fails") };
            let mut data = frame.into_data().unwrap_or_else(|_| panic!("no data"));
            Some(data.copy_to_bytes(data.remaining()).to_vec())
        }
    }
}

const IDLE: StreamLimits = NONE.idle(ms(LIMIT));
const RATE: DataRate = DataRate::new(1_000, ms(LIMIT));

fn check_held_until_response_ends<K: Kind>() {
    let mut conn = Conn::<K>::new(IDLE);
    conn.receive();
    let mut called = conn.get();
    assert!(poll(called.as_mut()).is_pending());
    conn.check_open();
    let (feed, mut body) = conn.answer(StatusCode::OK, &mut called);
    drop(called);
    conn.check_open();
    feed.push(b"part");
    assert_eq!(frame(&mut body).unwrap(), b"part");
    conn.check_open();
    feed.end();
    // The end, and not the drop.
    assert_eq!(frame(&mut body).unwrap(), b"");
    conn.check_ends(Idle(ms(LIMIT)));
}

#[test]
fn request_holds_idle_time_back_until_the_body_of_its_response_has_ended() {
    both!(check_held_until_response_ends);
}

fn check_last_frame<K: Kind>() {
    let mut conn = Conn::<K>::new(IDLE);
    let mut called = conn.get();
    let (feed, mut body) = conn.answer(StatusCode::OK, &mut called);
    feed.push(b"whole");
    feed.end();
    assert_eq!(frame(&mut body).unwrap(), b"whole");
    conn.check_ends(Idle(ms(LIMIT)));
}

#[test]
fn frame_that_is_known_to_be_the_last_ends_its_request() {
    both!(check_last_frame);
}

/// The data of the next frame, as a server keeps it.
pub(super) fn piece<B: Body>(body: &mut Pin<Box<B>>) -> B::Data {
    let polled = body.as_mut().poll_frame(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Some(Ok(frame))) = polled else { panic!("no frame") };
    frame.into_data().unwrap_or_else(|_| panic!("no data"))
}

fn check_pieces<K: Kind>() {
    let limits = IDLE.write_stall(ms(20 * LIMIT)).request_idle(ms(LIMIT));
    // The server keeps the last piece after the body.
    let mut conn = Conn::<K>::new(limits);
    let mut called = conn.get_http2();
    let (feed, mut body) = conn.answer(StatusCode::OK, &mut called);
    feed.push(b"first");
    let first = piece(&mut body);
    feed.push(b"last");
    feed.end();
    let mut last = piece(&mut body);
    assert!(body.is_end_stream());
    drop((body, first));
    conn.check_open();
    last.advance(3);
    conn.check_open();
    // The time without a request counts from the same moment.
    let due_in = |conn: &Conn<K>| {
        let due = conn.stream.timers().deadline(DeadlineKind::RequestIdle).unwrap();
        due - conn.lab.clock.now()
    };
    assert!(due_in(&conn) >= ms(LIMIT));
    drop(last);
    conn.lab.advance_ticks(LIMIT / 2);
    assert!(due_in(&conn) <= ms(LIMIT / 2 + K::LATE));
    conn.receive();
    conn.check_ends(Idle(ms(LIMIT)));

    // The server has written the last piece, and keeps the rest of it until it has flushed.
    let mut conn = Conn::<K>::new(limits);
    let mut called = conn.get_http2();
    let (feed, mut body) = conn.answer(StatusCode::OK, &mut called);
    feed.push(b"whole");
    feed.end();
    let mut whole = piece(&mut body);
    assert!(body.is_end_stream());
    drop(body);
    whole.advance(5);
    conn.lab.advance_ticks(LIMIT / 2);
    ready(flush(&mut conn.stream));
    conn.check_ends(Idle(ms(LIMIT)));
    drop(whole);

    // The body is broken off before the server knows that it has ended.
    for has_last in [false, true] {
        let mut conn = Conn::<K>::new(limits);
        let mut called = conn.get_http2();
        let (feed, mut body) = conn.answer(StatusCode::OK, &mut called);
        feed.push(b"first");
        if has_last {
            feed.end();
        }
        let kept = piece(&mut body);
        conn.check_open();
        drop(body);
        conn.check_ends(Idle(ms(LIMIT)));
        drop(kept);
    }

    // Without a limit for writes, idle times bound the client.
    let mut conn = Conn::<K>::new(IDLE);
    let mut called = conn.get_http2();
    let (feed, mut body) = conn.answer(StatusCode::OK, &mut called);
    feed.push(b"whole");
    feed.end();
    let _kept = piece(&mut body);
    drop(body);
    conn.check_ends(Idle(ms(LIMIT)));
}

#[test]
fn http2_request_goes_on_until_the_server_has_dropped_the_data_of_its_response() {
    both!(check_pieces);
}

fn check_flush<K: Kind>() {
    let mut conn = Conn::<K>::new(IDLE.write_stall(ms(20 * LIMIT)));
    let mut called = conn.get();
    conn.answer_whole(&mut called);
    // More than the peer has room for: the write waits, and then goes on.
    let long = [b'x'; 100];
    ready(write(&mut conn.stream, &long));
    while write(&mut conn.stream, &long).is_ready() {}
    conn.check_open();
    ready(read(&mut conn.peer));
    ready(write(&mut conn.stream, b"y"));
    ready(flush(&mut conn.stream));
    conn.check_ends(Idle(ms(LIMIT)));

    // A server that waits for more to answer before it flushes.
    let mut conn = Conn::<K>::new(IDLE.write_stall(ms(20 * LIMIT)));
    let mut called = conn.get();
    let (feed, mut body) = conn.answer(StatusCode::OK, &mut called);
    feed.push(b"whole");
    feed.end();
    assert_eq!(frame(&mut body).unwrap(), b"whole");
    conn.check_ends(Idle(ms(LIMIT)));
}

#[test]
fn http1_request_goes_on_until_its_response_is_flushed() {
    both!(check_flush);
}

fn check_end_without_write<K: Kind>() {
    let limits = IDLE.write_stall(ms(20 * LIMIT)).request_idle(ms(LIMIT));
    let mut conn = Conn::<K>::new(limits);
    let mut called = conn.get();
    let (feed, mut body) = conn.answer(StatusCode::OK, &mut called);
    ready(write(&mut conn.stream, b"head"));
    assert!(read(&mut conn.stream).is_pending());
    conn.lab.advance_ticks(LIMIT / 2);
    feed.push(b"whole");
    feed.end();
    assert_eq!(frame(&mut body).unwrap(), b"whole");
    drop(body);
    ready(flush(&mut conn.stream));
    let due = conn.stream.timers().deadline(DeadlineKind::RequestIdle).unwrap();
    assert!(due - conn.lab.clock.now() >= ms(LIMIT));
}

#[test]
fn http1_request_that_ends_without_a_write_has_not_ended_with_the_last_one() {
    both!(check_end_without_write);
}

#[test]
fn http1_request_goes_on_while_a_write_is_put_off_for_other_tasks_of_the_shard() {
    for is_flushed in [true, false] {
        let mut conn = Conn::<Timers>::new(IDLE.write_stall(ms(20 * LIMIT)));
        let mut called = conn.get();
        conn.answer_whole(&mut called);
        let accepted = (0..ROOM).take_while(|_| write(&mut conn.stream, b"x").is_ready()).count();
        assert!(accepted < ROOM, "a write is put off, though the peer has room");
        conn.check_open();
        ready(write(&mut conn.stream, b"x"));
        // A server that waits for more to answer does not flush.
        if is_flushed {
            ready(flush(&mut conn.stream));
        }
        conn.check_ends(Idle(ms(LIMIT)));
    }
}

/// Checks that something ends a request.
fn check_released<K: Kind>(end: fn(&Conn<K>, Called<K>)) {
    let mut conn = Conn::<K>::new(IDLE);
    conn.receive();
    let mut called = conn.get();
    assert!(poll(called.as_mut()).is_pending());
    conn.check_open();
    end(&conn, called);
    conn.check_ends(Idle(ms(LIMIT)));
}

fn check_all_released<K: Kind>() {
    // The client has left.
    check_released::<K>(|_, called| drop(called));
    check_released::<K>(|conn, mut called| {
        let (_, body) = conn.answer(StatusCode::OK, &mut called);
        drop(body);
    });
    check_released::<K>(|conn, mut called| {
        conn.answers.borrow_mut().push_back(Answer::Fail);
        assert!(matches!(poll(called.as_mut()), Poll::Ready(Err("failed"))));
        // The future itself is still there.
        std::mem::forget(called);
    });
    check_released::<K>(|conn, mut called| {
        conn.answers.borrow_mut().push_back(Answer::Panic);
        let polled = catch_unwind(AssertUnwindSafe(|| poll(called.as_mut()).is_ready()));
        assert!(polled.is_err());
    });
}

#[test]
fn request_whose_response_is_dropped_fails_or_panics_holds_nothing() {
    both!(check_all_released);
}

/// A service that panics when it is called.
struct Panics;

impl<R> Service<R> for Panics {
    type Response = Response<Feed>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<Feed>, Infallible>>;

    fn call(&self, _: R) -> Self::Future {
        panic!("a service panics")
    }
}

fn check_panic_in_call<K: Kind>() {
    let mut lab = lab();
    let (mut stream, _peer) = duplex::<K>(&lab, IDLE);
    let service = TimedHttp::new(Panics, stream.control());
    let called =
        catch_unwind(AssertUnwindSafe(|| drop(service.call(Request::new(Feed::default())))));
    assert!(called.is_err());
    check_ends::<K, _>(&mut lab, LIMIT, Idle(ms(LIMIT)), || read(&mut stream));
}

#[test]
fn service_that_panics_when_it_is_called_holds_nothing() {
    both!(check_panic_in_call);
}

fn check_several<K: Kind>() {
    let mut conn = Conn::<K>::new(IDLE);
    let called = [0; 3].map(|_| conn.get());
    for one in called {
        conn.check_open();
        drop(one);
    }
    conn.check_ends(Idle(ms(LIMIT)));
}

#[test]
fn several_requests_hold_idle_time_back_until_the_last_has_ended() {
    both!(check_several);
}

fn check_wait_for_body<K: Kind>() {
    // Both limits count while the server waits for the client.
    for (limits, expected) in
        [(IDLE, Idle(ms(LIMIT))), (NONE.read_idle(ms(LIMIT)), ReadIdle(ms(LIMIT)))]
    {
        let mut conn = Conn::<K>::new(limits);
        let feed = Feed::default();
        let _called = conn.call(feed.clone());
        let mut body = conn.body();
        conn.check_open();
        assert_eq!(frame(&mut body), None);
        conn.lab.advance_ticks(LIMIT / 2);
        assert_eq!(timeout(read(&mut conn.stream)), None);
        // It comes, and the server works on it.
        feed.push(b"part");
        assert_eq!(frame(&mut body).unwrap(), b"part");
        conn.check_open();
        assert_eq!(frame(&mut body), None);
        conn.check_ends(expected);
    }
}

#[test]
fn server_that_waits_for_the_body_of_a_request_finds_a_client_that_is_idle() {
    both!(check_wait_for_body);
}

fn check_end_of_wait<K: Kind>() {
    // The end of the body, and its drop.
    for is_ended in [true, false] {
        let mut conn = Conn::<K>::new(IDLE);
        let feed = Feed::default();
        let called = conn.call(feed.clone());
        let mut body = conn.body();
        assert_eq!(frame(&mut body), None);
        if is_ended {
            feed.end();
            assert_eq!(frame(&mut body).unwrap(), b"");
        } else {
            drop(body);
        }
        conn.check_open();
        drop(called);
        conn.check_ends(Idle(ms(LIMIT)));
    }
}

#[test]
fn request_whose_body_has_ended_or_is_dropped_holds_idle_time_back_again() {
    both!(check_end_of_wait);
}

fn check_late_body<K: Kind>() {
    let mut conn = Conn::<K>::new(IDLE);
    let feed = Feed::default();
    let called = conn.call(feed.clone());
    // Another task reads the body when the response has ended.
    let mut body = conn.body();
    assert_eq!(frame(&mut body), None);
    drop(called);
    assert_eq!(frame(&mut body), None);
    feed.push(b"part");
    assert_eq!(frame(&mut body).unwrap(), b"part");
    conn.check_ends(Idle(ms(LIMIT)));
}

#[test]
fn body_that_is_read_after_the_response_has_ended_holds_nothing() {
    both!(check_late_body);
}

fn check_heads<K: Kind>() {
    let mut conn = Conn::<K>::new(NONE.head(ms(LIMIT)));
    for _ in 0..3 {
        conn.receive();
        assert_eq!(timeout(read(&mut conn.stream)), None);
        let feed = Feed::default();
        let called = conn.call(feed.clone());
        conn.check_open();
        // Bytes of the body.
        conn.receive();
        conn.check_open();
        drop(called);
        // Another task still reads the body.
        conn.receive();
        conn.check_open();
        drop(conn.body());
        conn.check_open();
    }
    conn.receive();
    conn.check_ends(Head(ms(LIMIT)));
}

#[test]
fn head_has_a_deadline_from_its_first_byte_to_the_call_in_each_message() {
    both!(check_heads);
}

fn check_head_ahead<K: Kind>() {
    // Whether another read waits before the response has ended.
    for reads_on in [false, true] {
        let mut conn = Conn::<K>::new(NONE.head(ms(LIMIT)));
        conn.receive();
        let called = conn.get();
        conn.check_open();
        // The next head begins.
        conn.receive();
        if reads_on {
            conn.check_open();
        }
        drop(called);
        conn.check_ends(Head(ms(LIMIT)));
    }
    // All of the next head came ahead, and nothing of the one after it.
    let mut conn = Conn::<K>::new(NONE.head(ms(LIMIT)));
    conn.receive();
    let called = conn.get();
    conn.receive();
    drop(called);
    drop(conn.get());
    conn.check_open();
}

fn check_head_behind<K: Kind>() {
    let mut conn = Conn::<K>::new(NONE.head(ms(LIMIT)));
    let read_all = b"a\r\n\r\nb";
    ready(write(&mut conn.peer, read_all));
    let mut bytes = [0; 8];
    let mut buf = ReadBuf::new(&mut bytes);
    let cx = &mut Context::from_waker(Waker::noop());
    ready(Pin::new(&mut conn.stream).poll_read(cx, &mut buf));
    assert_eq!(buf.filled(), read_all);
    let called = conn.get();
    conn.check_open();
    drop(called);
    conn.check_ends(Head(ms(LIMIT)));
}

#[test]
fn head_that_is_read_with_the_request_before_it_has_a_deadline_from_the_response() {
    both!(check_head_behind);
}

#[test]
fn head_that_begins_before_the_response_has_ended_has_a_deadline_from_that_end() {
    both!(check_head_ahead);
}

fn check_tunnel<K: Kind>() {
    let cases = [
        (Method::GET, StatusCode::SWITCHING_PROTOCOLS, true),
        (Method::CONNECT, StatusCode::OK, true),
        (Method::CONNECT, StatusCode::BAD_GATEWAY, false),
        (Method::GET, StatusCode::OK, false),
    ];
    for (method, status, is_tunnel) in cases {
        let mut conn = Conn::<K>::new(NONE.head(ms(LIMIT)).min_read_rate(RATE));
        conn.receive();
        let body = Feed::default();
        body.end();
        let mut called = conn.call_with(Version::HTTP_11, method, body);
        drop(conn.answer(status, &mut called));
        conn.receive();
        if is_tunnel {
            conn.check_open();
        } else {
            conn.check_ends(Head(ms(LIMIT)));
        }
    }
}

#[test]
fn connection_that_another_protocol_has_taken_over_has_no_more_heads() {
    both!(check_tunnel);
}

fn check_http2<K: Kind>() {
    // Before its first request, a connection has the deadline of a head.
    let mut conn = Conn::<K>::new(NONE.head(ms(LIMIT)).min_read_rate(RATE));
    conn.receive();
    conn.check_ends(Head(ms(LIMIT)));
    let mut conn = Conn::<K>::new(NONE.head(ms(LIMIT)).min_read_rate(RATE));
    conn.receive();
    for _ in 0..2 {
        let feed = Feed::default();
        let called = conn.call_with(Version::HTTP_2, Method::POST, feed.clone());
        let mut body = conn.body();
        assert_eq!(frame(&mut body), None);
        conn.check_open();
        drop((called, body));
        conn.receive();
        conn.check_open();
    }
}

#[test]
fn http2_connection_has_no_head_and_no_rate_after_its_first_request() {
    both!(check_http2);
}

fn check_rate<K: Kind>() {
    let mut conn = Conn::<K>::new(NONE.min_read_rate(RATE));
    // Messages that come in time, and handlers that take long.
    for _ in 0..2 {
        conn.receive();
        let feed = Feed::default();
        let called = conn.call(feed.clone());
        let mut body = conn.body();
        assert_eq!(frame(&mut body), None);
        feed.end();
        assert_eq!(frame(&mut body).unwrap(), b"");
        conn.check_open();
        drop(called);
        conn.check_open();
    }
    // A message whose body does not come.
    conn.receive();
    let _called = conn.call(Feed::default());
    let mut body = conn.body();
    assert_eq!(frame(&mut body), None);
    conn.check_ends(ReadRate(RATE));
}

#[test]
fn message_is_measured_until_the_body_of_its_request_has_ended() {
    both!(check_rate);
}

fn check_pipelined_body<K: Kind>() {
    let mut conn = Conn::<K>::new(NONE.min_read_rate(RATE));
    // These bytes have the first request, and the head of the second.
    conn.receive();
    drop(conn.get());
    drop(conn.body());
    let _called = conn.call(Feed::default());
    let mut body = conn.body();
    assert_eq!(frame(&mut body), None);
    conn.check_ends(ReadRate(RATE));
}

#[test]
fn body_that_does_not_follow_a_pipelined_head_is_measured() {
    both!(check_pipelined_body);
}

fn check_pipelined_requests<K: Kind>() {
    let mut conn = Conn::<K>::new(NONE.min_read_rate(RATE));
    conn.receive();
    for _ in 0..3 {
        let _called = conn.get();
        conn.check_open();
    }
    // The next request may take its time.
    conn.check_open();
}

#[test]
fn pipelined_requests_without_bodies_are_not_measured() {
    both!(check_pipelined_requests);
}

fn check_dropped_body<K: Kind>() {
    let mut conn = Conn::<K>::new(NONE.min_read_rate(RATE));
    conn.receive();
    let _called = conn.call(Feed::default());
    drop(conn.body());
    conn.check_open();
}

#[test]
fn body_that_the_handler_has_dropped_is_not_measured() {
    both!(check_dropped_body);
}

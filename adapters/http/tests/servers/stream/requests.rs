//! `TimedHttp`: how long a request holds the idle times of its connection back, and where its
//! messages begin and end. The service is called by hand, for both kinds of timers.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use corewheel::stream::StreamTimeout::{Head, Idle, ReadIdle, ReadRate};
use corewheel_http::hyper::{BodyData, ResponseBody, TimedBody, TimedHttp, TimedResponse};
use hyper::body::{Body, Buf, Bytes};
use hyper::service::{Service, service_fn};
use hyper::{Method, Request, Response, StatusCode, Version};

use super::*;
use crate::http::{Feed, poll_with};

/// A queue that a test fills. A poll that finds it empty waits.
type Queue<V> = Rc<RefCell<VecDeque<V>>>;

type Result = std::result::Result<Response<Feed>, &'static str>;
/// How a handler ends.
type Answer = Box<dyn FnOnce() -> Result>;
type Answering = Pin<Box<dyn Future<Output = Result>>>;
/// A service whose test takes the bodies of its requests and gives the answers.
type Scripted<K> = Box<
    dyn Service<
            Request<TimedBody<Feed, K>>,
            Response = Response<Feed>,
            Error = &'static str,
            Future = Answering,
        >,
>;

pub(super) type Called<K> = Pin<Box<TimedResponse<Answering, K>>>;
type Received<K> = Pin<Box<TimedBody<Feed, K>>>;
pub(super) type Piece<K> = BodyData<Bytes, K>;
pub(super) type Answered<K> = Pin<Box<ResponseBody<Feed, K>>>;

/// A connection with its service.
pub(super) struct Conn<K: Kind> {
    pub(super) lab: Lab,
    pub(super) stream: Duplex<K>,
    pub(super) peer: DuplexStream,
    service: TimedHttp<Scripted<K>, K>,
    bodies: Queue<TimedBody<Feed, K>>,
    answers: Queue<Answer>,
    /// Whether a call panics.
    panics: Rc<Cell<bool>>,
}

impl<K: Kind> Conn<K> {
    pub(super) fn new(limits: StreamLimits) -> Self {
        let lab = lab();
        let (stream, peer) = duplex::<K>(&lab, limits);
        let (bodies, answers) = (Queue::default(), Queue::<Answer>::default());
        let (found, given) = (Rc::clone(&bodies), Rc::clone(&answers));
        let panics = Rc::<Cell<bool>>::default();
        let is_bad = Rc::clone(&panics);
        let scripted: Scripted<K> = Box::new(service_fn(move |request: Request<_>| {
            assert!(!is_bad.get(), "a service panics");
            found.borrow_mut().push_back(request.into_body());
            let given = Rc::clone(&given);
            let next = move || given.borrow_mut().pop_front();
            Box::pin(poll_fn(move |_| next().map_or(Poll::Pending, |it| Poll::Ready(it())))) as _
        }));
        let service = TimedHttp::new(scripted, stream.control());
        Self { lab, stream, peer, service, bodies, answers, panics }
    }

    fn call_with(&self, version: Version, method: Method, body: Feed) -> Called<K> {
        let request = Request::builder().version(version).method(method).body(body).unwrap();
        Box::pin(self.service.call(request))
    }

    /// Calls the service for a request of HTTP/2 without a body.
    pub(super) fn get_http2(&self) -> Called<K> {
        self.call_with(Version::HTTP_2, Method::GET, Feed::empty())
    }

    /// Calls the service for an HTTP/1.1 request.
    fn call(&self, body: Feed) -> Called<K> {
        self.call_with(Version::HTTP_11, Method::GET, body)
    }

    /// Calls the service for a request without a body.
    fn get(&self) -> Called<K> {
        self.call(Feed::empty())
    }

    /// The body of the last request.
    fn body(&self) -> Received<K> {
        Box::pin(self.bodies.borrow_mut().pop_back().unwrap())
    }

    /// Calls the service for a request whose handler has begun to read its body.
    fn call_reading(&self) -> (Called<K>, Feed, Received<K>) {
        let feed = Feed::default();
        let called = self.call(feed.clone());
        let mut body = self.body();
        assert_eq!(frame(&mut body), None);
        (called, feed, body)
    }

    /// The handler answers with a status.
    fn answer_with(&self, status: StatusCode, called: &mut Called<K>) -> (Feed, Answered<K>) {
        let feed = Feed::default();
        let body = feed.clone();
        let respond = move || Ok(Response::builder().status(status).body(body).unwrap());
        self.answers.borrow_mut().push_back(Box::new(respond));
        let Poll::Ready(response) = poll(called) else { panic!("no response") };
        (feed, Box::pin(response.unwrap().into_body()))
    }

    pub(super) fn answer(&self, called: &mut Called<K>) -> (Feed, Answered<K>) {
        self.answer_with(StatusCode::OK, called)
    }

    /// The framework has a piece of the response to a request of HTTP/2, which may be the last.
    pub(super) fn answer_http2(
        &self,
        data: &'static [u8],
        is_last: bool,
    ) -> (Feed, Answered<K>, Piece<K>) {
        let (feed, mut body) = self.answer(&mut self.get_http2());
        feed.push(data);
        if is_last {
            feed.end();
        }
        let piece = piece(&mut body);
        (feed, body, piece)
    }

    /// How long the connection may be without a request from now on.
    fn due_in(&self) -> Duration {
        let due = self.stream.timers().deadline(DeadlineKind::RequestIdle).unwrap();
        due - self.lab.clock.now()
    }

    /// The framework takes an answer of one frame whole. Returns its body.
    fn answer_whole(&self, called: &mut Called<K>) -> Answered<K> {
        let (feed, mut body) = self.answer(called);
        feed.push(b"whole");
        feed.end();
        assert_eq!(frame(&mut body).unwrap(), b"whole");
        body
    }

    /// The handler ends otherwise.
    fn end_by(&self, answer: impl FnOnce() -> Result + 'static, called: &mut Called<K>) -> bool {
        self.answers.borrow_mut().push_back(Box::new(answer));
        let polled = catch_unwind(AssertUnwindSafe(|| poll(called).map(|it| it.is_err())));
        polled.is_ok_and(|polled| polled == Poll::Ready(true))
    }

    /// Bytes come from the peer and are read.
    pub(super) fn receive_all(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(4) {
            assert_eq!(ready(write(&mut self.peer, part)), part.len());
            assert_eq!(ready(read(&mut self.stream)), part);
        }
    }

    /// A byte comes from the peer and is read.
    fn receive(&mut self) {
        self.receive_all(b"a");
    }

    /// Checks that the connection stays open for several times the limit.
    #[track_caller]
    fn check_open(&mut self) {
        for _ in 0..LIMIT {
            assert_eq!(timeout(read(&mut self.stream)), None);
            self.lab.advance(ms(5));
        }
        assert_eq!(timeout(read(&mut self.stream)), None);
    }

    /// Checks that the connection ends the limit from now.
    #[track_caller]
    fn check_ends(&mut self, expected: StreamTimeout) {
        check_ends::<K, _>(&mut self.lab, LIMIT, expected, || read(&mut self.stream));
    }
}

fn poll<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    poll_with(future.as_mut(), Waker::noop())
}

/// The next data of a body: `None` if it waits, nothing if it has ended.
fn frame<B: Body<Error: Debug>>(body: &mut Pin<Box<B>>) -> Option<Vec<u8>> {
    let polled = body.as_mut().poll_frame(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(frame) = polled else { return None };
    let Some(frame) = frame else { return Some(Vec::new()) };
    let mut data = frame.unwrap().into_data().unwrap_or_else(|_| panic!("no data"));
    Some(data.copy_to_bytes(data.remaining()).to_vec())
}

/// The data of the next frame, as a server keeps it.
pub(super) fn piece<B: Body>(body: &mut Pin<Box<B>>) -> B::Data {
    let polled = body.as_mut().poll_frame(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Some(Ok(frame))) = polled else { panic!("no frame") };
    frame.into_data().unwrap_or_else(|_| panic!("no data"))
}

const IDLE: StreamLimits = NONE.idle(ms(LIMIT));
const RATE: DataRate = DataRate::new(1_000, ms(LIMIT));

both_sides!(request_holds_idle_time_back_until_the_body_of_its_response_has_ended);
fn request_holds_idle_time_back_until_the_body_of_its_response_has_ended<K: Kind>() {
    let mut conn = Conn::<K>::new(IDLE);
    conn.receive();
    let mut called = conn.get();
    assert!(poll(&mut called).is_pending());
    conn.check_open();
    let (feed, mut body) = conn.answer(&mut called);
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

both_sides!(frame_that_is_known_to_be_the_last_ends_its_request);
fn frame_that_is_known_to_be_the_last_ends_its_request<K: Kind>() {
    // With a limit for writes, of a server that waits for more to answer before it flushes.
    for limits in [IDLE, IDLE.write_stall(ms(20 * LIMIT))] {
        let mut conn = Conn::<K>::new(limits);
        let _body = conn.answer_whole(&mut conn.get());
        conn.check_ends(Idle(ms(LIMIT)));
    }
}

both_sides!(http2_request_goes_on_until_the_server_has_dropped_the_data_of_its_response);
fn http2_request_goes_on_until_the_server_has_dropped_the_data_of_its_response<K: Kind>() {
    let limits = IDLE.write_stall(ms(20 * LIMIT)).request_idle(ms(LIMIT));
    // The server keeps the last piece after the body.
    let mut conn = Conn::<K>::new(limits);
    let (feed, mut body, first) = conn.answer_http2(b"first", false);
    feed.push(b"last");
    feed.end();
    let mut last = piece(&mut body);
    assert!(body.is_end_stream());
    drop((body, first));
    conn.check_open();
    last.advance(3);
    conn.check_open();
    // The time without a request counts from the same moment.
    assert!(conn.due_in() >= ms(LIMIT));
    drop(last);
    conn.lab.advance_ticks(LIMIT / 2);
    assert!(conn.due_in() <= ms(LIMIT / 2 + K::LATE));
    conn.receive();
    conn.check_ends(Idle(ms(LIMIT)));

    // The server has written the last piece, and keeps the rest of it until it has flushed.
    let mut conn = Conn::<K>::new(limits);
    let (_feed, body, mut whole) = conn.answer_http2(b"whole", true);
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
        let (_feed, body, kept) = conn.answer_http2(b"first", has_last);
        conn.check_open();
        drop(body);
        conn.check_ends(Idle(ms(LIMIT)));
        drop(kept);
    }

    // Without a limit for writes, idle times bound the client.
    let mut conn = Conn::<K>::new(IDLE);
    let (_feed, body, _kept) = conn.answer_http2(b"whole", true);
    drop(body);
    conn.check_ends(Idle(ms(LIMIT)));
}

both_sides!(http1_request_goes_on_until_its_response_is_flushed);
fn http1_request_goes_on_until_its_response_is_flushed<K: Kind>() {
    let mut conn = Conn::<K>::new(IDLE.write_stall(ms(20 * LIMIT)));
    drop(conn.answer_whole(&mut conn.get()));
    // More than the peer has room for: the write waits, and then goes on.
    let long = [b'x'; 100];
    ready(write(&mut conn.stream, &long));
    while write(&mut conn.stream, &long).is_ready() {}
    conn.check_open();
    ready(read(&mut conn.peer));
    ready(write(&mut conn.stream, b"y"));
    ready(flush(&mut conn.stream));
    conn.check_ends(Idle(ms(LIMIT)));
}

both_sides!(http1_request_that_ends_without_a_write_has_not_ended_with_the_last_one);
fn http1_request_that_ends_without_a_write_has_not_ended_with_the_last_one<K: Kind>() {
    let limits = IDLE.write_stall(ms(20 * LIMIT)).request_idle(ms(LIMIT));
    let mut conn = Conn::<K>::new(limits);
    let (feed, mut body) = conn.answer(&mut conn.get());
    ready(write(&mut conn.stream, b"head"));
    assert!(read(&mut conn.stream).is_pending());
    conn.lab.advance_ticks(LIMIT / 2);
    feed.push(b"whole");
    feed.end();
    assert_eq!(frame(&mut body).unwrap(), b"whole");
    drop(body);
    ready(flush(&mut conn.stream));
    assert!(conn.due_in() >= ms(LIMIT));
}

#[test]
fn http1_request_goes_on_while_a_write_is_put_off_for_other_tasks_of_the_shard() {
    for is_flushed in [true, false] {
        let mut conn = Conn::<Timers>::new(IDLE.write_stall(ms(20 * LIMIT)));
        drop(conn.answer_whole(&mut conn.get()));
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

/// What ends a request.
type End<K> = fn(&Conn<K>, Called<K>);

both_sides!(request_whose_response_is_dropped_fails_or_panics_holds_nothing);
fn request_whose_response_is_dropped_fails_or_panics_holds_nothing<K: Kind>() {
    let ends: [End<K>; 5] = [
        // The client has left.
        |_, called| drop(called),
        |conn, mut called| drop(conn.answer(&mut called)),
        |conn, mut called| {
            assert!(conn.end_by(|| Err("failed"), &mut called));
            // The future itself is still there.
            std::mem::forget(called);
        },
        |conn, mut called| assert!(!conn.end_by(|| panic!("a handler panics"), &mut called)),
        |conn, called| {
            drop(called);
            conn.panics.set(true);
            catch_unwind(AssertUnwindSafe(|| drop(conn.get()))).unwrap_err();
        },
    ];
    for end in ends {
        let mut conn = Conn::<K>::new(IDLE);
        conn.receive();
        let mut called = conn.get();
        assert!(poll(&mut called).is_pending());
        conn.check_open();
        end(&conn, called);
        conn.check_ends(Idle(ms(LIMIT)));
    }
}

both_sides!(several_requests_hold_idle_time_back_until_the_last_has_ended);
fn several_requests_hold_idle_time_back_until_the_last_has_ended<K: Kind>() {
    let mut conn = Conn::<K>::new(IDLE);
    for one in [0; 3].map(|_| conn.get()) {
        conn.check_open();
        drop(one);
    }
    conn.check_ends(Idle(ms(LIMIT)));
}

both_sides!(server_that_waits_for_the_body_of_a_request_finds_a_client_that_is_idle);
fn server_that_waits_for_the_body_of_a_request_finds_a_client_that_is_idle<K: Kind>() {
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

both_sides!(request_whose_body_has_ended_or_is_dropped_holds_idle_time_back_again);
fn request_whose_body_has_ended_or_is_dropped_holds_idle_time_back_again<K: Kind>() {
    // The end of the body, and its drop.
    for is_ended in [true, false] {
        let mut conn = Conn::<K>::new(IDLE);
        let (called, feed, mut body) = conn.call_reading();
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

both_sides!(body_that_is_read_after_the_response_has_ended_holds_nothing);
fn body_that_is_read_after_the_response_has_ended_holds_nothing<K: Kind>() {
    let mut conn = Conn::<K>::new(IDLE);
    // Another task reads the body when the response has ended.
    let (called, feed, mut body) = conn.call_reading();
    drop(called);
    assert_eq!(frame(&mut body), None);
    feed.push(b"part");
    assert_eq!(frame(&mut body).unwrap(), b"part");
    conn.check_ends(Idle(ms(LIMIT)));
}

both_sides!(head_has_a_deadline_from_its_first_byte_to_the_call_in_each_message);
fn head_has_a_deadline_from_its_first_byte_to_the_call_in_each_message<K: Kind>() {
    let mut conn = Conn::<K>::new(NONE.head(ms(LIMIT)));
    for _ in 0..3 {
        conn.receive();
        assert_eq!(timeout(read(&mut conn.stream)), None);
        let called = conn.call(Feed::default());
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

both_sides!(head_that_begins_before_the_response_has_ended_has_a_deadline_from_that_end);
fn head_that_begins_before_the_response_has_ended_has_a_deadline_from_that_end<K: Kind>() {
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
    // It is read with the request before it.
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

both_sides!(connection_that_another_protocol_has_taken_over_has_no_more_heads);
fn connection_that_another_protocol_has_taken_over_has_no_more_heads<K: Kind>() {
    let cases = [
        (Method::GET, StatusCode::SWITCHING_PROTOCOLS, true),
        (Method::CONNECT, StatusCode::OK, true),
        (Method::CONNECT, StatusCode::BAD_GATEWAY, false),
        (Method::GET, StatusCode::OK, false),
    ];
    for (method, status, is_tunnel) in cases {
        let mut conn = Conn::<K>::new(NONE.head(ms(LIMIT)).min_read_rate(RATE));
        conn.receive();
        let mut called = conn.call_with(Version::HTTP_11, method, Feed::empty());
        drop(conn.answer_with(status, &mut called));
        conn.receive();
        if is_tunnel {
            conn.check_open();
        } else {
            conn.check_ends(Head(ms(LIMIT)));
        }
    }
}

both_sides!(http2_connection_has_no_head_and_no_rate_after_its_first_request);
fn http2_connection_has_no_head_and_no_rate_after_its_first_request<K: Kind>() {
    // Before its first request, a connection has the deadline of a head.
    let mut conn = Conn::<K>::new(NONE.head(ms(LIMIT)).min_read_rate(RATE));
    conn.receive();
    conn.check_ends(Head(ms(LIMIT)));
    let mut conn = Conn::<K>::new(NONE.head(ms(LIMIT)).min_read_rate(RATE));
    conn.receive();
    for _ in 0..2 {
        let called = conn.call_with(Version::HTTP_2, Method::POST, Feed::default());
        let mut body = conn.body();
        assert_eq!(frame(&mut body), None);
        conn.check_open();
        drop((called, body));
        conn.receive();
        conn.check_open();
    }
}

both_sides!(message_is_measured_until_the_body_of_its_request_has_ended);
fn message_is_measured_until_the_body_of_its_request_has_ended<K: Kind>() {
    let mut conn = Conn::<K>::new(NONE.min_read_rate(RATE));
    // Messages that come in time, and handlers that take long.
    for _ in 0..2 {
        conn.receive();
        let (called, feed, mut body) = conn.call_reading();
        feed.end();
        assert_eq!(frame(&mut body).unwrap(), b"");
        conn.check_open();
        drop(called);
        conn.check_open();
    }
    // A message whose body does not come.
    conn.receive();
    let _reading = conn.call_reading();
    conn.check_ends(ReadRate(RATE));

    let mut conn = Conn::<K>::new(NONE.min_read_rate(RATE));
    // These bytes have the first request, and the head of the second.
    conn.receive();
    drop(conn.get());
    drop(conn.body());
    let _reading = conn.call_reading();
    conn.check_ends(ReadRate(RATE));
}

both_sides!(pipelined_requests_without_bodies_and_bodies_that_are_dropped_are_not_measured);
fn pipelined_requests_without_bodies_and_bodies_that_are_dropped_are_not_measured<K: Kind>() {
    let mut conn = Conn::<K>::new(NONE.min_read_rate(RATE));
    conn.receive();
    for _ in 0..3 {
        let _called = conn.get();
        conn.check_open();
    }
    // The next request may take its time.
    conn.check_open();

    let mut conn = Conn::<K>::new(NONE.min_read_rate(RATE));
    conn.receive();
    let _called = conn.call(Feed::default());
    drop(conn.body());
    conn.check_open();
}

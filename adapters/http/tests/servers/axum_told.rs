//! What `serve` of this package tells its clients, over real sockets, of HTTP/1 and HTTP/2: before
//! a connection that is idle, too old or drained ends, and where a head or a body is too slow.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::LazyLock;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use axum::routing::{any, get as on_get, post as on_post};
use corewheel::conn::DataRate;
use corewheel::stream::StreamLimits;
use corewheel::{Handle, TimerService};
use corewheel_http::axum::serve;
use corewheel_http::hyper::BodyLimits;
use futures_lite::stream::{self, StreamExt};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

pub(super) use corewheel_test_support::stream::NONE as OFF;

use crate::http::{
    Dropped, PATIENCE, beside_runtime, check_at_once, connect, get, ms, preface, read_until, slow,
    wait_until,
};
pub(super) use crate::on_its_way::clients::{frame, ping};

pub(super) const LIMIT: Duration = ms(500);
/// Far longer than a test takes.
pub(super) const FAR: Duration = Duration::from_secs(400);

/// How long a handler works that comes to an end by itself, and a slow response takes.
pub(super) const WORK: Duration = ms(1_500);
/// The parts of a slow response.
pub(super) const PARTS: u32 = 5;
/// A long response: far more than the buffers of both sides hold.
pub(super) const LONG: usize = 160 << 10;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;

/// `:status` in the static table, for a whole block of a head.
pub(super) const OK: u8 = 0x88;
/// `:status` of the static table with a literal, which is `408` in Huffman's code of HPACK.
const REQUEST_TIMEOUT: [u8; 5] = [0x48, 0x83, 0x68, 0x0f, 0x7f];

pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) service: TimerService,
    /// The handlers that have begun to work; each works until it is given a permit.
    begun: Receiver<()>,
    /// The handlers that never end and the bodies that rest or have no end, when they were dropped.
    dropped: Receiver<Instant>,
    permits: &'static Semaphore,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
    pub(super) runtime: Runtime,
}

impl Server {
    pub(super) fn start(limits: StreamLimits, request: BodyLimits) -> Self {
        Self::with_bodies(limits, request, BodyLimits::NONE)
    }

    pub(super) fn with_bodies(
        limits: StreamLimits,
        request: BodyLimits,
        response: BodyLimits,
    ) -> Self {
        let (service, runtime, listener, address) = beside_runtime(Builder::enable_all);
        // Connections inherit it: a long response is on its way for a while.
        SockRef::from(&listener).set_send_buffer_size(16 << 10).unwrap();
        let timers = service.handle();
        let (begins, begun) = mpsc::channel();
        let [working, late, never] = [(); 3].map(|()| begins.clone());
        let (drops, dropped) = mpsc::channel();
        let [stalls, endless] = [(); 2].map(|()| drops.clone());
        let permits: &'static Semaphore = Box::leak(Box::new(Semaphore::new(0)));
        let work = move || async move {
            working.send(()).unwrap();
            permits.acquire().await.unwrap().forget();
            "worked"
        };
        let never = async move || {
            never.send(()).unwrap();
            let _dropped = Dropped(drops);
            pending::<()>().await;
        };
        let late = move || async move {
            late.send(()).unwrap();
            timers.sleep(WORK).await.unwrap();
            "worked"
        };
        let hold = move |body: Body| async move {
            begins.send(()).unwrap();
            permits.acquire().await.unwrap().forget();
            body.collect().await.unwrap().to_bytes().len().to_string()
        };
        let tolerant = |request: Request| async {
            format!("whole: {}", request.into_body().collect().await.is_ok())
        };
        let slow = move || async move { Body::new(slow(timers, PARTS, WORK / PARTS)) };
        let app = Router::new()
            .route("/", on_get(|| async { "hello" }))
            .route("/work", on_get(work))
            .route("/late", on_get(late))
            .route("/slow", on_get(slow))
            .route("/long", on_get(|| async { vec![b'x'; LONG] }))
            .route("/post", on_post(|body: Bytes| async move { body }))
            .route("/tolerant", on_post(tolerant))
            .route("/never", on_get(never))
            .route("/panic", on_get(panics))
            .route("/stalls", on_get(async move || parts(1, stalls)))
            .route("/endless", on_get(async move || parts(usize::MAX, endless)))
            .route("/hold", on_post(hold))
            .route("/upgrade", any(upgrade))
            .route("/events", on_get(move || async move { events(timers) }))
            // The response of a stream of gRPC begins before the request ends.
            .route("/stream", on_post(|body: Body| async { Response::new(body) }))
            .route("/push", on_post(move |body| ready(push(timers, body))))
            // The path of a CONNECT of HTTP/1 is empty.
            .fallback(upgrade);
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = runtime.spawn(async move {
            let serving = serve(listener, app).timers(timers).limits(|_| limits);
            let serving = serving.request(|_| request).response(|_| response);
            let serving = serving.with_graceful_shutdown(async move { drop(stopped.await) });
            serving.await.unwrap();
        });
        Self { address, service, begun, dropped, permits, stop, serving, runtime }
    }

    /// A client that has sent some bytes.
    pub(super) fn send(&self, sent: &[u8]) -> TcpStream {
        let mut client = connect(self.address);
        client.write_all(sent).unwrap();
        client
    }

    /// A client whose first request was answered.
    pub(super) fn greet(&self) -> TcpStream {
        let mut client = self.send(&get("/"));
        assert!(read_until(&mut client, b"hello").starts_with("HTTP/1.1 200"));
        client
    }

    /// A client of HTTP/2 whose first request was answered.
    pub(super) fn greet_http2(&self) -> Http2 {
        let mut client = Http2::connect(self);
        client.send(&head(1, "/", false));
        assert_eq!(client.status(), OK);
        client
    }

    /// All that a client gets that sends some bytes.
    pub(super) fn answer_to(&self, sent: &[u8]) -> String {
        read_until(&mut self.send(sent), b"\0")
    }

    /// A server whose only limit is one of its connections.
    pub(super) fn of(limits: StreamLimits) -> Self {
        Self::start(limits, BodyLimits::default())
    }

    /// Waits until a handler works.
    pub(super) fn wait_for_work(&self) {
        self.begun.recv_timeout(PATIENCE).expect("no handler works");
    }

    /// Waits until a handler that never ends, or a body, is dropped.
    pub(super) fn wait_for_drop(&self) {
        self.dropped.recv_timeout(PATIENCE).expect("it stays");
    }

    /// Lets one handler answer.
    pub(super) fn answer(&self) {
        self.permits.add_permits(1);
    }

    /// Waits until no task but that of the loop is left.
    pub(super) fn wait_for_tasks(&self) {
        wait_until(|| self.runtime.metrics().num_alive_tasks() <= 1);
    }

    /// Ends the server, when its connections have ended. Returns how many have by each limit, and
    /// how many without one.
    #[track_caller]
    pub(super) fn stop(self) -> Vec<(&'static str, u64)> {
        self.stop.send(()).unwrap();
        let ended =
            self.runtime.block_on(async { tokio::time::timeout(PATIENCE, self.serving).await });
        ended.expect("a connection holds the shutdown").unwrap();
        let stats = self.service.stats();
        let by_limit = stats.deadlines.iter().map(|of| (of.kind, of.ended));
        let all = by_limit.chain([("close", stats.connections_closed)]);
        all.filter(|(_, count)| *count > 0).collect()
    }
}

/// How long this process has run, in nanoseconds.
pub(super) fn present() -> u128 {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGIN.elapsed().as_nanos()
}

async fn panics() {
    panic!("a handler panics")
}

/// A body of so many parts, which rests then. Its drop is told.
fn parts(count: usize, drops: Sender<Instant>) -> Body {
    let dropped = Dropped(drops);
    let parts = stream::repeat(vec![b'x'; 1 << 14]).take(count).chain(stream::pending());
    Body::from_stream(parts.map(move |part| {
        let _held = &dropped;
        Ok::<_, Infallible>(part)
    }))
}

/// Events that say when they were sent.
fn events(timers: Handle) -> Body {
    Body::from_stream(stream::unfold((), move |()| async move {
        timers.sleep(LIMIT / 20).await.unwrap();
        Some((Ok::<_, Infallible>(format!("data: {}\n\n", present())), ()))
    }))
}

/// Events until the body of the request ends, which is read meanwhile.
fn push(timers: Handle, body: Body) -> Body {
    let (sender, ended) = oneshot::channel::<()>();
    tokio::spawn(async move {
        let _ = body.collect().await;
        drop(sender);
    });
    let ended = stream::once_future(async { drop(ended.await) }).map(|()| None);
    let events = events(timers).into_data_stream().map(Some);
    Body::from_stream(stream::race(ended, events).map_while(|event| event))
}

/// Echoes what comes after an upgrade.
async fn upgrade(request: Request) -> Response {
    let is_connect = request.method() == Method::CONNECT;
    let upgraded = hyper::upgrade::on(request);
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgraded.await.unwrap());
        while let Ok(byte) = stream.read_u8().await {
            if stream.write_u8(byte).await.is_err() {
                return;
            }
        }
    });
    if is_connect {
        return Response::new(Body::empty());
    }
    let response = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
    let response = response.header("connection", "upgrade").header("upgrade", "test");
    response.body(Body::empty()).unwrap()
}

/// The head of a request of HTTP/2, on a stream that ends with it if it has no body.
pub(super) fn head(stream: u8, path: &str, has_body: bool) -> Vec<u8> {
    let method = if has_body { 0x83 } else { 0x82 };
    let mut block = vec![method, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
    block.extend(path.as_bytes());
    block.extend(b"\x01\x04test");
    frame(HEADERS, if has_body { 4 } else { 5 }, stream, &block)
}

/// A client of HTTP/2 that does only what a test says.
pub(super) struct Http2(pub(super) TcpStream);

impl Http2 {
    pub(super) fn connect(server: &Server) -> Self {
        Self(server.send(&preface()))
    }

    pub(super) fn send(&mut self, frame: &[u8]) {
        self.0.write_all(frame).unwrap();
    }

    /// The kind of the next frame, its flags, its stream and its payload; `None` at the end.
    pub(super) fn next(&mut self) -> Option<(u8, u8, u8, Vec<u8>)> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).ok()?;
        let length = usize::from(head[1]) << 8 | usize::from(head[2]);
        let mut payload = vec![0; length];
        self.0.read_exact(&mut payload).ok()?;
        Some((head[3], head[4], head[8], payload))
    }

    /// The payload of the next frame of a kind, and its stream.
    #[track_caller]
    pub(super) fn wait_for(&mut self, kind: u8) -> (u8, Vec<u8>) {
        loop {
            let (found, flags, stream, payload) = self.next().expect("the connection has ended");
            self.answer_ping(found, flags, &payload);
            if found == kind && (kind != PING || flags == 1) {
                return (stream, payload);
            }
        }
    }

    /// A server that says that it goes away waits for the answer of its PING.
    fn answer_ping(&mut self, kind: u8, flags: u8, payload: &[u8]) {
        if kind == PING && flags == 0 {
            self.send(&frame(PING, 1, 0, payload));
        }
    }

    /// Reads to the end. Returns the kinds of the frames.
    pub(super) fn rest(mut self) -> Vec<u8> {
        std::iter::from_fn(|| Some(self.next()?.0)).collect()
    }

    /// Reads to the end, and sends PINGs meanwhile. Returns the kinds of the frames.
    pub(super) fn rest_beside_pings(self, pause: Duration) -> Vec<u8> {
        let mut pings = self.0.try_clone().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                while pings.write_all(&ping()).is_ok() {
                    thread::sleep(pause);
                }
            });
            self.rest()
        })
    }

    /// The first byte of the head of a response, which is an index of `:status`.
    #[track_caller]
    pub(super) fn status(&mut self) -> u8 {
        self.wait_for(HEADERS).1[0]
    }
}

#[test]
fn http2_client_that_sends_pings_and_no_request_gets_goaway_and_is_cut() {
    check_at_once([false, true], |has_asked| {
        let server = Server::of(OFF.idle(LIMIT));
        let begin = Instant::now();
        let client = if has_asked { server.greet_http2() } else { Http2::connect(&server) };
        let kinds = client.rest_beside_pings(LIMIT / 5);
        assert!(kinds.contains(&GOAWAY), "{kinds:?}");
        assert!(begin.elapsed() >= LIMIT, "after {:?}", begin.elapsed());
        assert_eq!(server.stop(), [("request idle", 1)]);
    });
}

#[test]
fn http2_client_without_a_request_has_the_time_of_an_idle_connection() {
    // Of the limits for the first request, those of a head and of its rate end with the preface.
    let limits = OFF.idle(FAR).head(LIMIT).min_read_rate(DataRate::new(1_000_000, LIMIT));
    let server = Server::of(limits);
    let mut client = Http2::connect(&server);
    client.send(&ping());
    client.wait_for(PING);
    thread::sleep(2 * LIMIT);
    client.send(&head(1, "/", false));
    assert_eq!(client.status(), OK);
    server.stop();
}

#[test]
fn http1_client_at_the_greatest_age_is_told_and_gets_its_response() {
    // And one in a drain.
    for limits in [OFF.max_age(LIMIT).max_age_grace(FAR), OFF] {
        let server = Server::of(limits);
        let mut client = server.send(&get("/work"));
        server.wait_for_work();
        if limits == OFF {
            server.service.drain(FAR);
        }
        thread::sleep(2 * LIMIT);
        server.answer();
        let answer = read_until(&mut client, b"\0");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("worked"), "{answer:?}");
        assert!(answer.contains("connection: close"), "{answer:?}");
        assert_eq!(server.stop(), [("max age", 1)]);
    }
}

#[test]
fn http2_client_gets_goaway_and_its_response_at_the_greatest_age_and_in_a_drain() {
    for limits in [OFF.max_age(LIMIT).max_age_grace(FAR), OFF] {
        let server = Server::of(limits);
        let mut client = Http2::connect(&server);
        client.send(&head(1, "/work", false));
        server.wait_for_work();
        if limits == OFF {
            server.service.drain(FAR);
        }
        client.wait_for(GOAWAY);
        server.answer();
        assert_eq!(client.status(), OK);
        assert_eq!(client.wait_for(DATA), (1, b"worked".to_vec()));
        // The client does not close its side, and holds nothing by that.
        client.rest();
        server.stop();
    }
}

#[test]
fn idle_clients_are_told_when_the_service_drains() {
    let server = Server::of(OFF.idle(FAR));
    let mut client = server.greet();
    // The only connection is told at the beginning of the window.
    server.service.drain(FAR);
    assert_eq!(read_until(&mut client, b"\0"), "");
    assert_eq!(server.stop(), [("max age", 1)]);
    let server = Server::of(OFF.idle(FAR));
    let client = server.greet_http2();
    server.service.drain(FAR);
    let mut told = client.rest();
    told.retain(|kind| *kind == GOAWAY);
    assert_eq!(told, [GOAWAY]);
    server.stop();
}

#[test]
fn drained_server_answers_requests_in_flight_and_closes_each_connection() {
    let server = Server::of(OFF);
    let has_request = |number| number % 2 == 0;
    let connect = |number| {
        if has_request(number) { server.send(&get("/late")) } else { server.greet() }
    };
    let clients: Vec<_> = (0..20).map(connect).collect();
    (0..10).for_each(|_| server.wait_for_work());
    server.service.drain(2 * WORK);
    for (number, mut client) in clients.into_iter().enumerate() {
        let answer = read_until(&mut client, b"\0");
        assert_eq!(answer.ends_with("worked"), has_request(number), "{answer}");
    }
    // Each is told once, and ends by that.
    let told = server.service.stats().deadlines[0];
    assert_eq!((told.kind, told.count), ("max age", 20));
    assert_eq!(server.stop(), [("max age", 20)]);
}

#[test]
fn request_that_takes_longer_than_the_drain_is_cut() {
    let server = Server::of(OFF);
    let clients = [server.send(&get("/work")), server.greet()];
    server.wait_for_work();
    server.service.drain(LIMIT);
    for mut client in clients {
        assert_eq!(read_until(&mut client, b"\0"), "");
    }
    assert_eq!(server.stop(), [("max age", 1), ("age grace", 1)]);
}

#[test]
fn connection_that_begins_in_a_drain_has_one_request() {
    let server = Server::of(OFF);
    server.service.drain(FAR);
    let mut one = connect(server.address);
    // The server has told the connection before its first request.
    thread::sleep(LIMIT / 5);
    one.write_all(&get("/")).unwrap();
    let answer = read_until(&mut one, b"\0");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{answer:?}");
    let mut two = Http2::connect(&server);
    thread::sleep(LIMIT / 5);
    two.send(&head(1, "/", false));
    let kinds = two.rest();
    assert!(kinds.contains(&HEADERS) && kinds.contains(&GOAWAY), "{kinds:?}");
    server.stop();
}

#[test]
fn http2_client_that_goes_on_does_not_hold_the_graceful_shutdown() {
    let server = Server::of(OFF);
    let client = server.greet_http2();
    let reading = thread::spawn(move || client.rest());
    server.stop();
    assert!(reading.join().unwrap().contains(&GOAWAY));
}

/// The head and a half of the body of a request.
pub(super) fn half(path: &str) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-length: 9\r\n\r\n");
    [head.as_bytes(), b"half"].concat()
}

/// The limits of a body that is slow.
fn slow_body() -> [BodyLimits; 2] {
    let limits = BodyLimits::default();
    [limits.next_frame(LIMIT), limits.min_frame_rate(DataRate::new(1_000, LIMIT))]
}

#[test]
fn http1_client_whose_body_is_slow_gets_408() {
    check_at_once(slow_body(), |limits| {
        let server = Server::start(OFF, limits);
        let begin = Instant::now();
        let answer = server.answer_to(&half("/post"));
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer:?}");
        assert!(answer.contains("connection: close"), "{answer:?}");
        assert!(begin.elapsed() >= LIMIT, "after {:?}", begin.elapsed());
        server.wait_for_tasks();
        server.stop();
    });
}

#[test]
fn http1_client_gets_408_also_while_it_sends_its_slow_body() {
    let server = Server::start(OFF, slow_body()[1]);
    let mut client =
        server.send(b"POST /post HTTP/1.1\r\nhost: test\r\ncontent-length: 9999\r\n\r\n");
    let mut sending = client.try_clone().unwrap();
    let sends = thread::spawn(move || {
        while sending.write_all(b"x").is_ok() {
            thread::sleep(LIMIT / 20);
        }
    });
    // What comes after the response does not take it back: the server reads on.
    let answer = read_until(&mut client, b"\0");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer:?}");
    drop(client);
    sends.join().unwrap();
    server.stop();
}

#[test]
fn http2_client_whose_body_is_slow_gets_408_and_its_connection_goes_on() {
    let server = Server::start(OFF.idle(FAR), slow_body()[0]);
    let mut client = Http2::connect(&server);
    client.send(&[head(1, "/post", true), frame(DATA, 0, 1, b"half")].concat());
    let (stream, block) = client.wait_for(HEADERS);
    assert_eq!((stream, &block[..5]), (1, &REQUEST_TIMEOUT[..]));
    client.wait_for(RST_STREAM);
    client.send(&head(3, "/", false));
    assert_eq!(client.status(), OK);
    drop(client);
    server.wait_for_tasks();
    server.stop();
}

#[test]
fn answer_of_a_handler_that_goes_on_without_the_body_stays() {
    let server = Server::start(OFF, slow_body()[0]);
    let answer = server.answer_to(&half("/tolerant"));
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("whole: false"), "{answer:?}");
    server.stop();
}

#[test]
fn http1_client_whose_head_is_slow_gets_408_and_one_of_http2_nothing() {
    let server = Server::of(OFF.head(LIMIT));
    let begin = Instant::now();
    let answer = server.answer_to(b"GET / HTTP/1.1\r\nhost: te");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer:?}");
    assert!(begin.elapsed() >= LIMIT, "after {:?}", begin.elapsed());
    // The head of a later request.
    let mut client = server.greet();
    let begin = Instant::now();
    client.write_all(b"GET / HT").unwrap();
    assert!(read_until(&mut client, b"\0").starts_with("HTTP/1.1 408 "));
    assert!(begin.elapsed() >= LIMIT, "after {:?}", begin.elapsed());
    assert_eq!(server.answer_to(&preface()[..10]), "");
    assert_eq!(server.stop(), [("request", 3)]);
}

#[test]
fn upgraded_connection_has_the_idle_time_and_holds_no_shutdown() {
    let idle = 4 * LIMIT;
    let server = Server::of(OFF.idle(idle));
    let upgraded = || {
        let upgrade = "connection: upgrade\r\nupgrade: test";
        let request = format!("GET /upgrade HTTP/1.1\r\nhost: test\r\n{upgrade}\r\n\r\n");
        let mut client = server.send(request.as_bytes());
        assert!(read_until(&mut client, b"\r\n\r\n").starts_with("HTTP/1.1 101"));
        client
    };
    let mut client = upgraded();
    thread::sleep(LIMIT / 2);
    let last = Instant::now();
    client.write_all(b"x").unwrap();
    client.read_exact(&mut [0]).unwrap();
    assert_eq!(read_until(&mut client, b"\0"), "");
    assert!(last.elapsed() >= idle, "after {:?}", last.elapsed());
    // Another one stays open, without an end of its own in the time of the test.
    let _other = upgraded();
    server.stop();
}

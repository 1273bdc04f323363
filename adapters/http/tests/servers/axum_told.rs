//! What `serve` of this package tells its clients, over real sockets, of HTTP/1 and HTTP/2: before
//! a connection that is idle, too old or drained ends, and where a head or a body is too slow.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::LazyLock;
use std::sync::mpsc::{self, Receiver};
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
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

use crate::axum_serve::OFF;
use crate::http::{PATIENCE, check_at_once, connect, get, ms, preface, read_until};

pub(super) const LIMIT: Duration = ms(500);
/// Far longer than a test takes.
pub(super) const FAR: Duration = Duration::from_secs(400);

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
    permits: &'static Semaphore,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
    runtime: Runtime,
}

impl Server {
    pub(super) fn start(limits: StreamLimits, request: BodyLimits) -> Self {
        let service = TimerService::beside_runtime().start().unwrap();
        let timers = service.handle();
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let (begins, begun) = mpsc::channel();
        let begins_too = begins.clone();
        let permits: &'static Semaphore = Box::leak(Box::new(Semaphore::new(0)));
        let work = move || async move {
            begins.send(()).unwrap();
            permits.acquire().await.unwrap().forget();
            "worked"
        };
        let begins = begins_too;
        let hold = move |body: Body| async move {
            begins.send(()).unwrap();
            permits.acquire().await.unwrap().forget();
            body.collect().await.unwrap().to_bytes().len().to_string()
        };
        let tolerant = |request: Request| async { request.into_body().collect().await.is_ok() };
        let tolerant = move |request| async move { format!("whole: {}", tolerant(request).await) };
        let app = Router::new()
            .route("/", on_get(|| async { "hello" }))
            .route("/work", on_get(work))
            .route("/post", on_post(|body: Bytes| async move { body }))
            .route("/tolerant", on_post(tolerant))
            .route("/never", on_post(|_: Bytes| pending::<()>()))
            .route("/hold", on_post(hold))
            .route("/upgrade", any(upgrade))
            .route("/events", on_get(move || async move { events(timers) }))
            // The response of a stream of gRPC begins before the request ends.
            .route("/stream", on_post(|body: Body| async { Response::new(body) }))
            .route("/push", on_post(move |body| ready(push(timers, body))))
            // The path of a CONNECT of HTTP/1 is empty.
            .fallback(upgrade);
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = runtime.spawn(async move {
            let serving =
                serve(listener, app).timers(timers).limits(|_| limits).request(|_| request);
            let serving = serving.with_graceful_shutdown(async move { drop(stopped.await) });
            serving.await.unwrap();
        });
        Self { address, service, begun, permits, stop, serving, runtime }
    }

    /// A server whose only limit is one of its connections.
    pub(super) fn of(limits: StreamLimits) -> Self {
        Self::start(limits, BodyLimits::default())
    }

    /// Waits until a handler works.
    pub(super) fn wait_for_work(&self) {
        self.begun.recv_timeout(PATIENCE).expect("no handler works");
    }

    /// Lets one handler answer.
    pub(super) fn answer(&self) {
        self.permits.add_permits(1);
    }

    /// Ends the server, when its connections have ended.
    #[track_caller]
    pub(super) fn stop(self) {
        self.stop.send(()).unwrap();
        let ended =
            self.runtime.block_on(async { tokio::time::timeout(PATIENCE, self.serving).await });
        ended.expect("a connection holds the shutdown").unwrap();
    }
}

/// How long this process has run, in nanoseconds.
pub(super) fn present() -> u128 {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGIN.elapsed().as_nanos()
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

pub(super) fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![0, length[0], length[1], kind, flags, 0, 0, 0, stream];
    frame.extend(payload);
    frame
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
        let mut client = connect(server.address);
        client.write_all(&preface()).unwrap();
        Self(client)
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
        let mut client = Http2::connect(&server);
        if has_asked {
            client.send(&head(1, "/", false));
            assert_eq!(client.status(), OK);
        }
        let mut pings = client.0.try_clone().unwrap();
        let pinging = thread::spawn(move || {
            while pings.write_all(&frame(PING, 0, 0, b"12345678")).is_ok() {
                thread::sleep(LIMIT / 5);
            }
        });
        let kinds = client.rest();
        assert!(kinds.contains(&GOAWAY), "{kinds:?}");
        assert!(begin.elapsed() >= LIMIT, "after {:?}", begin.elapsed());
        pinging.join().unwrap();
        server.stop();
    });
}

#[test]
fn http2_client_without_a_request_has_the_time_of_an_idle_connection() {
    // Of the limits for the first request, those of a head and of its rate end with the preface.
    let limits = OFF.idle(FAR).head(LIMIT).min_read_rate(DataRate::new(1_000_000, LIMIT));
    let server = Server::of(limits);
    let mut client = Http2::connect(&server);
    client.send(&frame(PING, 0, 0, b"12345678"));
    client.wait_for(PING);
    thread::sleep(2 * LIMIT);
    client.send(&head(1, "/", false));
    assert_eq!(client.status(), OK);
    server.stop();
}

#[test]
fn http1_client_at_the_greatest_age_is_told_and_gets_its_response() {
    let server = Server::of(OFF.max_age(LIMIT).max_age_grace(FAR));
    let mut client = connect(server.address);
    client.write_all(&get("/work")).unwrap();
    server.wait_for_work();
    thread::sleep(2 * LIMIT);
    server.answer();
    let answer = read_until(&mut client, b"\0");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("worked"), "{answer:?}");
    assert!(answer.contains("connection: close"), "{answer:?}");
    server.stop();
}

/// Checks that a client of HTTP/2 with a request in progress is told, and gets its response.
fn check_told(server: Server, tell: impl FnOnce(&Server)) {
    let mut client = Http2::connect(&server);
    client.send(&head(1, "/work", false));
    server.wait_for_work();
    tell(&server);
    client.wait_for(GOAWAY);
    server.answer();
    assert_eq!(client.status(), OK);
    assert_eq!(client.wait_for(DATA), (1, b"worked".to_vec()));
    // The client does not close its side, and holds nothing by that.
    client.rest();
    server.stop();
}

#[test]
fn http2_client_at_the_greatest_age_gets_goaway_and_its_response() {
    check_told(Server::of(OFF.max_age(LIMIT).max_age_grace(FAR)), |_| {});
}

#[test]
fn http2_client_gets_goaway_and_its_response_when_the_service_drains() {
    check_told(Server::of(OFF), |server| server.service.drain(FAR));
}

#[test]
fn idle_clients_are_told_when_the_service_drains() {
    let server = Server::of(OFF.idle(FAR));
    let mut client = connect(server.address);
    client.write_all(&get("/")).unwrap();
    assert!(read_until(&mut client, b"hello").starts_with("HTTP/1.1 200"));
    // The only connection is told at the beginning of the window.
    server.service.drain(FAR);
    assert_eq!(read_until(&mut client, b"\0"), "");
    server.stop();
    let server = Server::of(OFF.idle(FAR));
    let mut client = Http2::connect(&server);
    client.send(&head(1, "/", false));
    assert_eq!(client.status(), OK);
    server.service.drain(FAR);
    assert!(client.rest().contains(&GOAWAY));
    server.stop();
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
    let mut client = Http2::connect(&server);
    client.send(&head(1, "/", false));
    assert_eq!(client.status(), OK);
    let reading = thread::spawn(move || client.rest());
    server.stop();
    assert!(reading.join().unwrap().contains(&GOAWAY));
}

const HALF: &[u8] = b"POST /post HTTP/1.1\r\nhost: test\r\ncontent-length: 9\r\n\r\nhalf";

fn slow_body() -> BodyLimits {
    BodyLimits::default().next_frame(LIMIT)
}

#[test]
fn http1_client_whose_body_is_slow_gets_408() {
    let rate = BodyLimits::default().min_frame_rate(DataRate::new(1_000, LIMIT));
    check_at_once([slow_body(), rate], |limits| {
        let server = Server::start(OFF, limits);
        let begin = Instant::now();
        let mut client = connect(server.address);
        client.write_all(HALF).unwrap();
        let answer = read_until(&mut client, b"\0");
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer:?}");
        assert!(answer.contains("connection: close"), "{answer:?}");
        assert!(begin.elapsed() >= LIMIT, "after {:?}", begin.elapsed());
        server.stop();
    });
}

#[test]
fn http1_client_gets_408_also_while_it_sends_its_slow_body() {
    let server =
        Server::start(OFF, BodyLimits::default().min_frame_rate(DataRate::new(1_000, LIMIT)));
    let mut client = connect(server.address);
    client.write_all(b"POST /post HTTP/1.1\r\nhost: test\r\ncontent-length: 9999\r\n\r\n").unwrap();
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
    let server = Server::start(OFF.idle(FAR), slow_body());
    let mut client = Http2::connect(&server);
    client.send(&[head(1, "/post", true), frame(DATA, 0, 1, b"half")].concat());
    let (stream, block) = client.wait_for(HEADERS);
    assert_eq!((stream, &block[..5]), (1, &REQUEST_TIMEOUT[..]));
    client.wait_for(RST_STREAM);
    client.send(&head(3, "/", false));
    assert_eq!(client.status(), OK);
    server.stop();
}

#[test]
fn answer_of_a_handler_that_goes_on_without_the_body_stays() {
    let server = Server::start(OFF, slow_body());
    let mut client = connect(server.address);
    let tolerant = String::from_utf8(HALF.to_vec()).unwrap().replace("/post", "/tolerant");
    client.write_all(tolerant.as_bytes()).unwrap();
    let answer = read_until(&mut client, b"\0");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("whole: false"), "{answer:?}");
    server.stop();
}

#[test]
fn http1_client_whose_head_is_slow_gets_408_and_one_of_http2_nothing() {
    let server = Server::of(OFF.head(LIMIT));
    let mut client = connect(server.address);
    let begin = Instant::now();
    client.write_all(b"GET / HTTP/1.1\r\nhost: te").unwrap();
    let answer = read_until(&mut client, b"\0");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer:?}");
    assert!(begin.elapsed() >= LIMIT, "after {:?}", begin.elapsed());
    // The head of a later request.
    let mut client = connect(server.address);
    client.write_all(&get("/")).unwrap();
    assert!(read_until(&mut client, b"hello").starts_with("HTTP/1.1 200"));
    client.write_all(b"GET / HT").unwrap();
    assert!(read_until(&mut client, b"\0").starts_with("HTTP/1.1 408 "));
    let mut client = connect(server.address);
    client.write_all(&preface()[..10]).unwrap();
    assert_eq!(read_until(&mut client, b"\0"), "");
    server.stop();
}

#[test]
fn upgraded_connection_has_the_idle_time_and_holds_no_shutdown() {
    let idle = 4 * LIMIT;
    let server = Server::of(OFF.idle(idle));
    let mut client = connect(server.address);
    let upgrade = "connection: upgrade\r\nupgrade: test";
    let request = format!("GET /upgrade HTTP/1.1\r\nhost: test\r\n{upgrade}\r\n\r\n");
    client.write_all(request.as_bytes()).unwrap();
    assert!(read_until(&mut client, b"\r\n\r\n").starts_with("HTTP/1.1 101"));
    thread::sleep(LIMIT / 2);
    let last = Instant::now();
    client.write_all(b"x").unwrap();
    client.read_exact(&mut [0]).unwrap();
    assert_eq!(read_until(&mut client, b"\0"), "");
    assert!(last.elapsed() >= idle, "after {:?}", last.elapsed());
    // Another one stays open, without an end of its own in the time of the test.
    let mut other = connect(server.address);
    other.write_all(request.as_bytes()).unwrap();
    assert!(read_until(&mut other, b"\r\n\r\n").starts_with("HTTP/1.1 101"));
    server.stop();
}

//! A server of axum by `serve` of this package, over real sockets, with all that the tests ask for,
//! and a client of HTTP/2 that does only what a test says.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::LazyLock;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Request};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use axum::routing::{any, get as on_get, post as on_post};
use corewheel::stream::{StreamControl, StreamLimits};
use corewheel::{Handle, TimerService};
use corewheel_http::axum::serve;
use corewheel_http::hyper::BodyLimits;
use corewheel_test_support::stream::NONE as OFF;
use futures_lite::stream::{self, StreamExt};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

use crate::http::{
    HEADERS, PATIENCE, PING, beside_runtime, connect, dropped, ended, get, head, ms, ping, pong,
    preface, read_until, rest_of, slow, wait_until,
};

pub(crate) const LIMIT: Duration = ms(500);
/// Far longer than a test takes.
pub(crate) const FAR: Duration = Duration::from_secs(400);

/// How long a handler works that comes to an end by itself, and a slow response takes.
pub(crate) const WORK: Duration = ms(1_500);
/// The parts of a slow response.
pub(crate) const PARTS: u32 = 5;
/// A long response: far more than the buffers of both sides hold.
pub(crate) const LONG: usize = 160 << 10;
/// As much as larger buffers of both sides hold, of which the client's holds a part.
pub(crate) const HELD: usize = 100 << 10;
/// Far more than a socket takes at once.
pub(crate) const MUCH: usize = 1 << 20;
/// More than the system's send buffer holds when it has grown.
pub(crate) const HUGE: usize = 24 << 20;

/// `:status` in the static table, for a whole block of a head.
pub(crate) const OK: u8 = 0x88;

/// The limits and times of a server.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) limits: StreamLimits,
    pub(crate) request: BodyLimits,
    pub(crate) response: BodyLimits,
    pub(crate) close_time: Duration,
    pub(crate) half_close: Duration,
    /// The send buffer of each connection; `None` leaves its size to the system.
    pub(crate) send_buffer: Option<usize>,
}

/// No limits, and a send buffer that holds a small part of a long response.
pub(crate) const UNLIMITED: Settings = Settings {
    limits: OFF,
    request: BodyLimits::NONE,
    response: BodyLimits::NONE,
    close_time: Duration::from_secs(5),
    half_close: Duration::ZERO,
    send_buffer: Some(16 << 10),
};

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) service: TimerService,
    /// The handlers that have begun to work; each works until it is given a permit.
    begun: Receiver<()>,
    /// The handlers that never end and the bodies that rest or have no end, when they were dropped.
    dropped: Receiver<Instant>,
    /// The control of the connection of each request for `/held`, `/large` or `/huge`.
    controls: Receiver<StreamControl>,
    permits: &'static Semaphore,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
    pub(crate) runtime: Runtime,
}

impl Server {
    /// A server whose only limit is one of its connections.
    pub(crate) fn of(limits: StreamLimits) -> Self {
        Self::start(limits, BodyLimits::NONE)
    }

    pub(crate) fn start(limits: StreamLimits, request: BodyLimits) -> Self {
        Self::with(Settings { limits, request, ..UNLIMITED })
    }

    pub(crate) fn with(settings: Settings) -> Self {
        let (service, runtime, listener, address) = beside_runtime(Builder::enable_all);
        if let Some(size) = settings.send_buffer {
            // Connections inherit it.
            SockRef::from(&listener).set_send_buffer_size(size).unwrap();
        }
        let timers = service.handle();
        let (begins, begun) = mpsc::channel();
        let (drops, dropped) = mpsc::channel();
        let (sender, controls) = mpsc::channel();
        let permits: &'static Semaphore = Box::leak(Box::new(Semaphore::new(0)));
        let app = routes(timers, permits, &begins, &drops);
        let much = |length| {
            let sender = sender.clone();
            on_get(move |ConnectInfo(control): ConnectInfo<StreamControl>| async move {
                sender.send(control).unwrap();
                vec![b'x'; length]
            })
        };
        let app = app.route("/held", much(HELD)).route("/large", much(4 << 20));
        let app = app.route("/huge", much(HUGE));
        let app = app.into_make_service_with_connect_info::<StreamControl>();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = runtime.spawn(async move {
            let serving = serve(listener, app).timers(timers).limits(|_| settings.limits);
            let serving = serving.request(|_| settings.request).response(|_| settings.response);
            let serving = serving.close_time(settings.close_time).half_close(settings.half_close);
            let serving = serving.with_graceful_shutdown(async move { drop(stopped.await) });
            serving.await.unwrap();
        });
        Self { address, service, begun, dropped, controls, permits, stop, serving, runtime }
    }

    /// A client that has sent some bytes.
    pub(crate) fn send(&self, sent: &[u8]) -> TcpStream {
        let mut client = connect(self.address);
        client.write_all(sent).unwrap();
        client
    }

    /// A client whose first request was answered.
    pub(crate) fn greet(&self) -> TcpStream {
        let mut client = self.send(&get("/"));
        assert!(read_until(&mut client, b"hello").starts_with("HTTP/1.1 200"));
        client
    }

    /// A client of HTTP/2 that has asked for a path.
    pub(crate) fn ask_http2(&self, path: &str) -> Http2 {
        let mut client = Http2::connect(self.address);
        client.send(&head(1, path, false));
        client
    }

    /// A client of HTTP/2 whose first request was answered.
    pub(crate) fn greet_http2(&self) -> Http2 {
        let mut client = self.ask_http2("/");
        assert_eq!(client.status(), OK);
        client
    }

    /// All that a client gets that sends some bytes.
    pub(crate) fn answer_to(&self, sent: &[u8]) -> String {
        rest_of(self.send(sent))
    }

    /// Waits until a handler works.
    pub(crate) fn wait_for_work(&self) {
        self.begun.recv_timeout(PATIENCE).expect("no handler works");
    }

    /// Waits until a handler that never ends, or a body, is dropped. Returns when it was.
    pub(crate) fn wait_for_drop(&self) -> Instant {
        self.dropped.recv_timeout(PATIENCE).expect("it stays")
    }

    /// The control of the connection of the next such request; see the field `controls`.
    pub(crate) fn control(&self) -> StreamControl {
        self.controls.recv_timeout(PATIENCE).unwrap()
    }

    /// Lets one handler answer.
    pub(crate) fn answer(&self) {
        self.permits.add_permits(1);
    }

    pub(crate) fn tasks(&self) -> usize {
        self.runtime.metrics().num_alive_tasks()
    }

    /// Waits until no task but that of the loop is left.
    pub(crate) fn wait_for_tasks(&self) {
        wait_until(|| self.tasks() <= 1);
    }

    /// Ends the server, when its connections have ended. Returns how many have by each limit, and
    /// how many without one.
    #[track_caller]
    pub(crate) fn stop(self) -> Vec<(&'static str, u64)> {
        self.stop.send(()).unwrap();
        let serving = async { tokio::time::timeout(PATIENCE, self.serving).await };
        self.runtime.block_on(serving).expect("a connection holds the shutdown").unwrap();
        ended(&self.service)
    }
}

/// The routes whose responses tell no control.
fn routes(
    timers: Handle,
    permits: &'static Semaphore,
    begins: &Sender<()>,
    drops: &Sender<Instant>,
) -> Router {
    let [begins, working, late, never] = [(); 4].map(|()| begins.clone());
    let [drops, stalls, endless] = [(); 3].map(|()| drops.clone());
    let work = move || async move {
        working.send(()).unwrap();
        permits.acquire().await.unwrap().forget();
        "worked"
    };
    let never = async move || {
        never.send(()).unwrap();
        let _dropped = dropped(drops);
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
    // The length of the body, and much behind it.
    let count = async move |body: Body| {
        timers.sleep(LIMIT).await.unwrap();
        let length = body.collect().await.unwrap().to_bytes().len();
        [length.to_string().as_bytes(), &vec![b'x'; MUCH]].concat()
    };
    let tolerant = |request: Request| async {
        format!("whole: {}", request.into_body().collect().await.is_ok())
    };
    let slow = move || async move { Body::new(slow(timers, PARTS, WORK / PARTS)) };
    Router::new()
        .route("/", on_get(|| async { "hello" }))
        .route("/work", on_get(work))
        .route("/late", on_get(late))
        .route("/count", any(count))
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
        .fallback(upgrade)
}

/// How long this process has run, in nanoseconds.
pub(crate) fn present() -> u128 {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGIN.elapsed().as_nanos()
}

async fn panics() {
    panic!("a handler panics")
}

/// A body of so many parts, which rests then. Its drop is told.
fn parts(count: usize, drops: Sender<Instant>) -> Body {
    let dropped = dropped(drops);
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

/// A client of HTTP/2 that does only what a test says.
pub(crate) struct Http2(pub(crate) TcpStream);

impl Http2 {
    pub(crate) fn connect(server: SocketAddr) -> Self {
        let mut client = Self(connect(server));
        client.send(&preface());
        client
    }

    pub(crate) fn send(&mut self, frame: &[u8]) {
        self.0.write_all(frame).unwrap();
    }

    /// The kind of the next frame, its flags, its stream and its payload; `None` at the end.
    pub(crate) fn next(&mut self) -> Option<(u8, u8, u8, Vec<u8>)> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).ok()?;
        let length = usize::from(head[1]) << 8 | usize::from(head[2]);
        let mut payload = vec![0; length];
        self.0.read_exact(&mut payload).ok()?;
        Some((head[3], head[4], head[8], payload))
    }

    /// The payload of the next frame of a kind, and its stream.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, kind: u8) -> (u8, Vec<u8>) {
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
            self.send(&pong(payload));
        }
    }

    /// Reads to the end. Returns the kinds of the frames.
    pub(crate) fn rest(mut self) -> Vec<u8> {
        std::iter::from_fn(|| Some(self.next()?.0)).collect()
    }

    /// Reads to the end, and sends PINGs meanwhile. Returns the kinds of the frames.
    pub(crate) fn rest_beside_pings(self, pause: Duration) -> Vec<u8> {
        let pings = self.0.try_clone().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                while (&pings).write_all(&ping()).is_ok() {
                    thread::sleep(pause);
                }
            });
            let kinds = self.rest();
            let _ = pings.shutdown(Shutdown::Both);
            kinds
        })
    }

    /// The first byte of the head of a response, which is an index of `:status`.
    #[track_caller]
    pub(crate) fn status(&mut self) -> u8 {
        self.wait_for(HEADERS).1[0]
    }
}

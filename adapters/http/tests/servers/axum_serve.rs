//! `serve` of this package over real sockets: idle connections and slow clients are cut, and no
//! request that the server works on is, nor in a graceful shutdown.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::ConnectInfo;
use axum::extract::connect_info::Connected;
use axum::handler::{Handler, HandlerWithoutStateExt};
use axum::routing::{get as on_get, post as on_post};
use axum::serve::ListenerExt;
use corewheel::TimerService;
use corewheel::conn::DataRate;
use corewheel::stream::{StreamControl, StreamLimits};
use corewheel_http::axum::{IncomingStream, serve};
use corewheel_http::hyper::BodyLimits;
pub(super) use corewheel_test_support::stream::NONE as OFF;
use socket2::SockRef;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::http::{PATIENCE, Slow, ask, connect, connect_http2, get, ms, read_until};
use crate::on_its_way::clients::{Client, VERSIONS, Version};

/// Far more than the buffers of both sides hold.
const LONG: usize = 160 << 10;
/// Each limit.
const LIMIT: Duration = ms(1_000);
/// How long a handler works: longer than the limit.
const WORK: Duration = ms(1_500);
const RATE: DataRate = DataRate::new(1_000, LIMIT);
/// The parts of a slow response, all together in the time of a handler that works.
const PARTS: u32 = 5;

const ALL: StreamLimits =
    OFF.first_byte(LIMIT).head(LIMIT).idle(LIMIT).read_idle(LIMIT).min_read_rate(RATE);

struct Server {
    address: SocketAddr,
    /// The handlers that have begun to work.
    begun: Receiver<()>,
    /// Begins the graceful shutdown.
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
    runtime: Runtime,
    _service: TimerService,
}

impl Server {
    fn start(limits: StreamLimits) -> Self {
        let service = TimerService::beside_runtime().start().unwrap();
        let timers = service.handle();
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let (begins, begun) = mpsc::channel();
        let work = move || async move {
            begins.send(()).unwrap();
            timers.sleep(WORK).await.unwrap();
            "worked"
        };
        let slow = move || async move { Body::new(Slow::new(timers, PARTS, WORK / PARTS)) };
        let app = Router::new()
            .route("/", on_get(|| async { "hello" }))
            .route("/late", on_get(work))
            .route("/slow", on_get(slow))
            .route("/long", on_get(|| async { vec![b'x'; LONG] }))
            .route("/post", on_post(|body: Bytes| async move { body }));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        // Connections inherit it: a long response is on its way for a while.
        SockRef::from(&listener).set_send_buffer_size(16 << 10).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = runtime.spawn(async move {
            let serving = serve(listener, app).timers(timers).limits(|_| limits);
            // A client that stops in a body is idle.
            let serving = serving.request(|_| BodyLimits::NONE);
            let serving = serving.with_graceful_shutdown(async move {
                let _ = stopped.await;
            });
            serving.await.unwrap();
        });
        Self { address, begun, stop, serving, runtime, _service: service }
    }

    /// Ends the server, when its connections have ended.
    fn stop(self) {
        self.stop.send(()).unwrap();
        self.runtime
            .block_on(async { tokio::time::timeout(PATIENCE, self.serving).await })
            .expect("the server ends")
            .unwrap();
    }
}

/// Sends some bytes, and checks that the server closes the connection, not before the limit.
fn check_cut(limits: StreamLimits, sent: &[u8]) {
    let server = Server::start(limits);
    let begin = Instant::now();
    let mut client = connect(server.address);
    client.write_all(sent).unwrap();
    let answer = read_until(&mut client, b"\0");
    assert!(begin.elapsed() >= LIMIT, "after {:?}", begin.elapsed());
    let is_request = sent.ends_with(b"\r\n\r\n");
    assert_eq!(answer.starts_with("HTTP/1.1 200"), is_request, "{answer:?}");
    server.stop();
}

#[test]
fn connection_that_is_idle_or_whose_head_or_body_is_slow_is_cut() {
    let body = b"POST /post HTTP/1.1\r\nhost: test\r\ncontent-length: 9\r\n\r\nhalf";
    let request = get("/");
    let cases = [
        (OFF.first_byte(LIMIT), &b""[..]),
        (OFF.idle(LIMIT), &request),
        (OFF.head(LIMIT), b"GET / HT"),
        (OFF.idle(LIMIT), body),
        (OFF.min_read_rate(RATE), body),
    ];
    thread::scope(|scope| {
        for (limits, sent) in cases {
            scope.spawn(move || check_cut(limits, sent));
        }
    });
}

#[test]
fn second_head_that_is_slow_is_cut() {
    let server = Server::start(OFF.head(LIMIT));
    let mut client = connect(server.address);
    client.write_all(&get("/late")).unwrap();
    assert!(read_until(&mut client, b"worked").starts_with("HTTP/1.1 200"));
    let begin = Instant::now();
    client.write_all(b"GET / HT").unwrap();
    assert!(!read_until(&mut client, b"\0").contains("200"));
    assert!(begin.elapsed() >= LIMIT, "after {:?}", begin.elapsed());
}

#[test]
fn handlers_and_responses_that_take_longer_than_each_limit_are_not_cut() {
    let server = Server::start(ALL);
    let mut client = connect(server.address);
    client.write_all(&get("/late")).unwrap();
    assert!(read_until(&mut client, b"worked").starts_with("HTTP/1.1 200"));
    client.write_all(&get("/slow")).unwrap();
    let answer = read_until(&mut client, b"0\r\n\r\n");
    assert_eq!(answer.matches("part").count(), PARTS as usize, "{answer:?}");
    server.runtime.block_on(async {
        let client = connect_http2(server.address).await;
        let (late, slow) = tokio::join!(ask(client.clone(), "/late"), ask(client, "/slow"));
        assert_eq!(late.unwrap(), "worked");
        assert_eq!(slow.unwrap().len(), PARTS as usize * b"part".len());
    });
}

#[test]
fn client_that_takes_a_long_response_slowly_is_not_idle() {
    let limits = OFF.idle(ms(200)).write_stall(PATIENCE);
    thread::scope(|scope| {
        for version in VERSIONS {
            scope.spawn(move || {
                let server = Server::start(limits);
                let mut client = Client::connect(server.address, version, 32 << 20);
                client.get(1, "/long");
                client.read_steadily(LONG, &format!("{version:?}"));
                client.wait_for_end();
                server.stop();
            });
        }
        scope.spawn(|| {
            let server = Server::start(limits);
            let mut client = Client::connect(server.address, Version::Http2, 40_000);
            client.get(1, "/long");
            for _ in 0..LONG / 40_000 {
                client.read_data(40_000);
                thread::sleep(ms(400));
                client.give_window(1, 40_000);
            }
            client.read_data(LONG % 40_000);
            client.wait_for_end();
            server.stop();
        });
    });
}

#[test]
fn http2_client_that_gives_no_window_is_cut() {
    let server = Server::start(OFF.write_stall(LIMIT));
    let mut client = Client::connect(server.address, Version::Http2, 1);
    let begin = Instant::now();
    client.get(1, "/long");
    client.wait_for_end();
    assert!(begin.elapsed() >= LIMIT, "after {:?}", begin.elapsed());
    server.stop();
}

#[test]
fn graceful_shutdown_waits_for_a_request_that_takes_longer_than_each_limit() {
    let server = Server::start(ALL);
    let mut client = connect(server.address);
    let mut idle = connect(server.address);
    client.write_all(&get("/late")).unwrap();
    idle.write_all(&get("/")).unwrap();
    assert!(read_until(&mut idle, b"hello").starts_with("HTTP/1.1 200"));
    server.begun.recv_timeout(PATIENCE).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let answer = read_until(&mut client, b"\0");
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
            assert!(answer.ends_with("worked"), "{answer:?}");
        });
        server.stop();
    });
    assert_eq!(read_until(&mut idle, b"\0"), "");
}

/// The answer to a client of a server.
fn answer_of<F>(serve: impl FnOnce(TcpListener) -> F) -> (String, String)
where
    F: IntoFuture<IntoFuture: Send + 'static, Output: Send + 'static>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(serve(listener).into_future());
    let mut client = connect(address);
    client.write_all(b"GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").unwrap();
    let own = client.local_addr().unwrap().to_string();
    (read_until(&mut client, b"\0"), own)
}

#[test]
fn handler_is_given_the_control_of_its_connection() {
    let late = |ConnectInfo(control): ConnectInfo<StreamControl>| async move {
        let late = control.timeout(ms(20), std::future::pending::<()>()).await;
        format!("late: {}", late.unwrap_err().is_elapsed())
    };
    let app = Router::new().route("/", on_get(late));
    let app = app.into_make_service_with_connect_info::<StreamControl>();
    let (answer, _) = answer_of(|listener| serve(listener, app));
    assert!(answer.ends_with("late: true"), "{answer:?}");
}

#[test]
fn handler_is_given_the_address_of_its_client() {
    let whom = |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.to_string() };
    let app = Router::new().route("/", on_get(whom));
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    let (answer, own) = answer_of(|listener| serve(listener, app.clone()));
    assert!(answer.ends_with(&own), "{answer:?}, {own}");
    let tap = |stream: &mut tokio::net::TcpStream| stream.set_nodelay(true).unwrap();
    let (answer, own) = answer_of(|listener| serve(listener.tap_io(tap), app));
    assert!(answer.ends_with(&own), "{answer:?}, {own}");
}

/// What a server knows of a connection, as its own type.
#[derive(Clone)]
struct Known(String);

impl Connected<IncomingStream<'_, TcpListener>> for Known {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        let of_socket = stream.io().peer_addr().unwrap();
        assert_eq!(of_socket, *stream.remote_addr());
        assert_eq!(StreamControl::connect_info(stream).limit_reached(), None);
        Self(of_socket.to_string())
    }
}

#[test]
fn server_takes_whatever_that_of_axum_takes() {
    async fn hello() -> &'static str {
        "hello"
    }
    let router = || Router::new().route("/", on_get(hello));
    let is_hello = |(answer, _): (String, String)| assert!(answer.ends_with("hello"), "{answer:?}");
    is_hello(answer_of(|listener| serve(listener, router())));
    is_hello(answer_of(|listener| serve(listener, router().into_make_service())));
    is_hello(answer_of(|listener| serve(listener, on_get(hello))));
    is_hello(answer_of(|listener| serve(listener, hello.with_state(()))));
    is_hello(answer_of(|listener| serve(listener, hello.into_make_service())));
    is_hello(answer_of(|listener| {
        serve(listener, router()).with_graceful_shutdown(std::future::pending())
    }));
    let known = |ConnectInfo(Known(peer)): ConnectInfo<Known>| async move { peer };
    let app = Router::new().route("/", on_get(known));
    let app = app.into_make_service_with_connect_info::<Known>();
    let (answer, own) = answer_of(|listener| serve(listener, app));
    assert!(answer.ends_with(&own), "{answer:?}, {own}");
}

#[test]
fn server_without_settings_has_limits() {
    let limits = |ConnectInfo(control): ConnectInfo<StreamControl>| async move {
        let limits = control.timers().limits();
        format!("{:?} {:?}", limits.all_idle, limits.write_timeout)
    };
    let app = Router::new().route("/", on_get(limits));
    let app = app.into_make_service_with_connect_info::<StreamControl>();
    let (answer, _) = answer_of(|listener| serve(listener, app));
    assert!(answer.ends_with("60s 30s"), "{answer:?}");
}

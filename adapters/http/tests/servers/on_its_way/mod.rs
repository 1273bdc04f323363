//! Responses on their way, over real sockets with small buffers, of HTTP/1 and HTTP/2, on a shard
//! and on any thread: a client that takes its response at a steady pace is not idle, and one that
//! takes nothing of it is a stalled write.

mod attacks;
pub(crate) mod clients;
mod cuts;
mod downloads;
mod ends;

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::conn::{DataRate, Side};
use corewheel::stream::StreamTimeout::{self, Idle, ReadIdle, Told, WriteRate, WriteStall};
use corewheel::stream::{StreamControl, StreamLimits, TimedIo};
use corewheel::{Fired, Runtime, TimerService, Timers};
use corewheel_http::hyper::{TimedBody, TimedHttp};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{CONNECTION, UPGRADE};
use hyper::rt::Executor;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpSocket};

use self::clients::{Client, VERSIONS, Version};
use crate::http::{PATIENCE, ms};

/// The idle limits: half of the time in which a steady client takes what the system then accepts at
/// once, a third of the send buffer.
const LIMIT: Duration = ms(200);
/// Far longer than any pause of a steady client.
const STALL: Duration = Duration::from_secs(40);
/// Far more than the buffers of both sides hold.
const LONG: usize = 160 << 10;

/// After how long the data of a late response comes.
const LATE: Duration = ms(100);

/// Where the tasks of the connections run.
#[derive(Clone, Copy, Debug)]
enum On {
    Shard,
    AnyThread,
}
const SIDES: [On; 2] = [On::Shard, On::AnyThread];

type Body = UnsyncBoxBody<Bytes, Infallible>;

fn whole(bytes: Bytes) -> Body {
    Full::new(bytes).boxed_unsync()
}

/// A body whose end is not known with its last frame.
fn frames(frames: Vec<Frame<Bytes>>) -> Body {
    let frames = futures_lite::stream::iter(frames.into_iter().map(Ok));
    StreamBody::new(frames).boxed_unsync()
}

async fn answer<M: Side>(request: Request<TimedBody<Incoming, M>>) -> Response<Body> {
    let long = || Bytes::from(vec![b'x'; LONG]);
    let status = |status| {
        let mut response = Response::new(whole(Bytes::new()));
        *response.status_mut() = status;
        response
    };
    match request.uri().path() {
        "/long" => Response::new(whole(long())),
        "/one-frame" => Response::new(frames(vec![Frame::data(long())])),
        "/frames" => {
            let part = |_| Frame::data(Bytes::from(vec![b'x'; LONG / 20]));
            Response::new(frames((0..20).map(part).collect()))
        }
        "/trailers" => {
            let mut trailers = HeaderMap::new();
            trailers.insert("x", "y".parse().unwrap());
            let data = Frame::data(Bytes::from_static(b"short"));
            Response::new(frames(vec![data, Frame::trailers(trailers)]))
        }
        "/late" => {
            let data = async {
                tokio::time::sleep(LATE).await;
                Ok(Frame::data(Bytes::from(vec![b'x'; LONG])))
            };
            let frames = futures_lite::stream::once_future(data);
            Response::new(StreamBody::new(frames).boxed_unsync())
        }
        "/204" => status(StatusCode::NO_CONTENT),
        "/304" => status(StatusCode::NOT_MODIFIED),
        "/panic" => panic!("a handler panics"),
        "/echo" => {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            Response::new(whole(body))
        }
        "/upgrade" => {
            let mut response = status(StatusCode::SWITCHING_PROTOCOLS);
            response.headers_mut().insert(CONNECTION, "upgrade".parse().unwrap());
            response.headers_mut().insert(UPGRADE, "test".parse().unwrap());
            response
        }
        path if path.starts_with("/bytes/") => {
            let bytes = path["/bytes/".len()..].parse().unwrap();
            Response::new(whole(Bytes::from(vec![b'x'; bytes])))
        }
        _ => Response::new(whole(Bytes::from_static(b"short"))),
    }
}

/// Runs the tasks of HTTP/2 on the thread of the connection.
#[derive(Clone, Copy)]
struct Here;

impl<F: Future<Output: 'static> + 'static> Executor<F> for Here {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

struct Server {
    address: SocketAddr,
    /// The limit that has ended each connection, with its client.
    ended: Receiver<Outcome>,
    service: TimerService<u64>,
    _runtime: Option<tokio::runtime::Runtime>,
}

/// The limit that has ended a connection, with its client.
type Outcome = (SocketAddr, Option<StreamTimeout>);
type Ended = Sender<Outcome>;

/// A listener whose connections have send buffers of a size.
fn listen(send_buffer: Option<u32>) -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    if let Some(bytes) = send_buffer {
        socket.set_send_buffer_size(bytes).unwrap();
    }
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket.listen(64).unwrap()
}

/// Says by which limit a connection has ended, also if its task panics.
struct Report<M: Side> {
    peer: SocketAddr,
    control: StreamControl<M>,
    ended: Ended,
}

impl<M: Side> Drop for Report<M> {
    fn drop(&mut self) {
        let _ = self.ended.send((self.peer, self.control.limit_reached()));
    }
}

/// Serves a connection. A connection without requests for too long is dropped, and one that is too
/// old takes no further request.
macro_rules! serve {
    ($stream:expr, $peer:expr, $ended:expr, $executor:expr) => {{
        let (stream, peer, ended) = ($stream, $peer, $ended);
        let control = stream.control();
        let has_age = !stream.timers().limits().max_age.is_zero();
        let report = Report { peer, control: control.clone(), ended };
        let service = service_fn(|request| async { Ok::<_, Infallible>(answer(request).await) });
        let service = TimedHttp::new(service, control.clone());
        async move {
            // Declared first, so that the connection is closed before.
            let _report = report;
            let server = auto::Builder::new($executor);
            let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
            let is_old =
                async { if has_age { control.max_age_reached().await } else { pending().await } };
            tokio::select! {
                _ = connection.as_mut() => {}
                _ = control.request_idle() => {}
                _ = is_old => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
        }
    }};
}

impl Server {
    fn start(side: On, limits: StreamLimits) -> Self {
        Self::start_with(side, limits, Some(16 << 10))
    }

    /// `None` leaves the size of the send buffers to the system.
    fn start_with(side: On, limits: StreamLimits, send_buffer: Option<u32>) -> Self {
        let builder = TimerService::builder().shards(1).runtime(Runtime::Tokio);
        let service = builder.start_with(|_| |_: Fired<u64>, _: &Timers<u64>| {}).unwrap();
        let (sender, ended) = mpsc::channel();
        let (address, runtime) = match side {
            On::Shard => (start_on_shard(&service, limits, send_buffer, sender), None),
            On::AnyThread => {
                let mut builder = tokio::runtime::Builder::new_multi_thread();
                let runtime = builder.worker_threads(2).enable_all().build().unwrap();
                let address = start_on_any_thread(&runtime, &service, limits, send_buffer, sender);
                (address, Some(runtime))
            }
        };
        Self { address, ended, service, _runtime: runtime }
    }

    /// Checks by which limit the only connection has ended.
    #[track_caller]
    fn check_ended(&self, expected: Option<StreamTimeout>, case: &str) {
        let (_, ended) = self.ended.recv_timeout(PATIENCE).expect(case);
        assert_eq!(ended, expected, "{case}");
    }
}

fn start_on_shard(
    service: &TimerService<u64>,
    limits: StreamLimits,
    send_buffer: Option<u32>,
    ended: Ended,
) -> SocketAddr {
    let (ready, address) = mpsc::channel();
    let serving = service.spawn_on(service.shard_for(0), move |timers| async move {
        let listener = listen(send_buffer);
        ready.send(listener.local_addr().unwrap()).unwrap();
        loop {
            let (socket, peer) = listener.accept().await.unwrap();
            let stream = TimedIo::on_shard(socket, &timers, limits).unwrap();
            tokio::task::spawn_local(serve!(stream, peer, ended.clone(), Here));
        }
    });
    drop(serving);
    address.recv().unwrap()
}

fn start_on_any_thread(
    runtime: &tokio::runtime::Runtime,
    service: &TimerService<u64>,
    limits: StreamLimits,
    send_buffer: Option<u32>,
    ended: Ended,
) -> SocketAddr {
    let timers = service.handle();
    let listener = runtime.block_on(async { listen(send_buffer) });
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move {
        loop {
            let (socket, peer) = listener.accept().await.unwrap();
            let stream = TimedIo::new(socket, timers, limits);
            let executor = TokioExecutor::new();
            tokio::spawn(serve!(stream, peer, ended.clone(), executor));
        }
    });
    address
}

/// Runs a check for each version, on each side, all at once.
fn check_each(check: impl Fn(On, Version, &str) + Sync) {
    thread::scope(|scope| {
        for side in SIDES {
            for version in VERSIONS {
                let check = &check;
                scope.spawn(move || check(side, version, &format!("{version:?}, {side:?}")));
            }
        }
    });
}

#[test]
fn steady_client_takes_a_long_response_whole_and_is_idle_after_it() {
    let cases = [
        (StreamLimits::default().idle(LIMIT), Idle(LIMIT)),
        (StreamLimits::default().read_idle(LIMIT), ReadIdle(LIMIT)),
    ];
    let rate = DataRate::new(1, STALL);
    thread::scope(|scope| {
        for (limits, expected) in cases {
            let bounds = [limits.write_stall(STALL), limits.min_write_rate(rate)];
            for (limits, path) in bounds.into_iter().zip(["/long", "/one-frame"]) {
                scope.spawn(move || {
                    check_each(|side, version, case| {
                        let case = format!("{case}, {expected:?}, {path}");
                        let server = Server::start(side, limits);
                        let mut client = Client::connect(server.address, version, 32 << 20);
                        client.get(1, path);
                        client.read_steadily(LONG, &case);
                        server.check_ended(Some(expected), &case);
                    });
                });
            }
        }
    });
}

/// A window of a response, far less than a long one.
const WINDOW: u32 = 40_000;

#[test]
fn http2_client_that_gives_windows_now_and_then_takes_its_response_whole() {
    let limits = StreamLimits::default().idle(LIMIT).write_stall(STALL);
    thread::scope(|scope| {
        for side in SIDES {
            scope.spawn(move || {
                let case = format!("{side:?}");
                let server = Server::start(side, limits);
                let mut client = Client::connect(server.address, Version::Http2, WINDOW);
                client.get(1, "/long");
                let mut received = client.read_data(WINDOW as usize);
                while received < LONG {
                    thread::sleep(2 * LIMIT);
                    client.give_window(1, WINDOW);
                    let next = (LONG - received).min(WINDOW as usize);
                    received += client.read_data(next);
                }
                server.check_ended(Some(Idle(LIMIT)), &case);
            });
        }
    });
}

#[test]
fn client_without_a_window_is_a_stalled_write_whatever_else_it_sends() {
    let limits = StreamLimits::default().write_stall(LIMIT).idle(STALL);
    thread::scope(|scope| {
        for side in SIDES {
            for (window, pings) in [(0, false), (0, true), (1, false), (1, true)] {
                scope.spawn(move || {
                    let case = format!("{side:?}, a window of {window}, pings: {pings}");
                    let server = Server::start(side, limits);
                    let begin = Instant::now();
                    let mut client = Client::connect(server.address, Version::Http2, window);
                    client.get(1, "/long");
                    if pings {
                        client.send_until_cut(&clients::ping());
                    }
                    server.check_ended(Some(WriteStall(LIMIT)), &case);
                    assert!(begin.elapsed() >= LIMIT, "{case}");
                });
            }
        }
    });
}

#[test]
fn client_that_gives_a_byte_of_window_at_a_time_is_too_slow() {
    let rate = DataRate::new(10_000, LIMIT);
    let limits = StreamLimits::default().write_stall(STALL).min_write_rate(rate).idle(STALL);
    thread::scope(|scope| {
        for side in SIDES {
            scope.spawn(move || {
                let server = Server::start(side, limits);
                let mut client = Client::connect(server.address, Version::Http2, 0);
                client.get(1, "/long");
                client.send_until_cut(&clients::window(1, 1));
                server.check_ended(Some(WriteRate(rate)), &format!("{side:?}"));
            });
        }
    });
}

#[test]
fn response_that_no_client_takes_is_a_stalled_write_or_idle_without_that_limit() {
    check_each(|side, version, case| {
        let idle = StreamLimits::default().idle(LIMIT);
        for (limits, expected) in
            [(idle, Idle(LIMIT)), (idle.idle(STALL).write_stall(LIMIT), WriteStall(LIMIT))]
        {
            let server = Server::start(side, limits);
            let mut client = Client::connect(server.address, version, 32 << 20);
            client.get(1, "/long");
            server.check_ended(Some(expected), case);
        }
    });
}

#[test]
fn connection_on_which_a_response_is_on_its_way_is_not_the_idlest() {
    let limits = StreamLimits::default().idle(2 * STALL).write_stall(STALL);
    check_each(|side, version, case| {
        let server = Server::start(side, limits);
        let mut busy = Client::connect(server.address, version, 32 << 20);
        busy.get(1, "/long");
        // What the buffers do not hold waits now.
        thread::sleep(2 * LIMIT);
        let mut idle = Client::connect(server.address, version, 1 << 16);
        idle.get(1, "/");
        idle.read_short();
        thread::sleep(LIMIT);
        server.service.close_idlest(1);
        let (ended, limit) = server.ended.recv_timeout(PATIENCE).unwrap();
        assert_eq!((ended, limit), (idle.address(), Some(Told)), "{case}");
        busy.read_steadily(LONG, case);
    });
}

#[test]
fn drain_does_not_cut_a_response_within_its_window() {
    let limits = StreamLimits::default().idle(LIMIT).write_stall(STALL).max_age_grace(STALL);
    check_each(|side, version, case| {
        let server = Server::start(side, limits);
        let mut client = Client::connect(server.address, version, 32 << 20);
        client.get(1, "/long");
        thread::sleep(LIMIT);
        server.service.drain(STALL);
        client.read_steadily(LONG, case);
        server.check_ended(Some(Idle(LIMIT)), case);
    });
}

#[test]
fn request_idle_time_begins_when_a_response_was_taken() {
    let limits = StreamLimits::default().request_idle(LIMIT).write_stall(STALL);
    check_each(|side, version, case| {
        let server = Server::start(side, limits);
        let mut client = Client::connect(server.address, version, 32 << 20);
        client.get(1, "/long");
        client.read_steadily(LONG, case);
        server.check_ended(None, case);
    });
}

#[test]
fn greatest_age_does_not_cut_a_response_within_its_grace() {
    let limits = StreamLimits::default().max_age(LIMIT).max_age_grace(STALL);
    let limits = limits.idle(LIMIT).write_stall(STALL);
    check_each(|side, version, case| {
        let server = Server::start(side, limits);
        let mut client = Client::connect(server.address, version, 32 << 20);
        client.get(1, "/long");
        client.read_steadily(LONG, case);
        // A client of HTTP/2 that answers no PING is idle after its response.
        let expected = (version == Version::Http2).then_some(Idle(LIMIT));
        server.check_ended(expected, case);
    });
}

//! Responses on their way, over real sockets with small buffers, of HTTP/1 and HTTP/2, on a shard
//! and on any thread: a client that takes its response at a steady pace is not idle, and one that
//! takes nothing of it is a stalled write.

pub(crate) mod clients;
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
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpSocket};

use self::clients::{Client, VERSIONS, Version, window};
use crate::http::{PATIENCE, check_at_once, ms, ping};

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
    let empty = |head: http::response::Builder| head.body(whole(Bytes::new())).unwrap();
    let head = Response::builder();
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
        "/204" => empty(head.status(204)),
        "/304" => empty(head.status(304)),
        "/panic" => panic!("a handler panics"),
        "/echo" => {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            Response::new(whole(body))
        }
        "/upgrade" => empty(head.status(101).header(CONNECTION, "upgrade").header(UPGRADE, "test")),
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

/// A listener whose connections have small send buffers.
fn listen() -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_send_buffer_size(16 << 10).unwrap();
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
        let builder = TimerService::builder().shards(1).runtime(Runtime::Tokio);
        let service = builder.start_with(|_| |_: Fired<u64>, _: &Timers<u64>| {}).unwrap();
        let (sender, ended) = mpsc::channel();
        let (address, runtime) = match side {
            On::Shard => (start_on_shard(&service, limits, sender), None),
            On::AnyThread => {
                let mut builder = tokio::runtime::Builder::new_multi_thread();
                let runtime = builder.worker_threads(2).enable_all().build().unwrap();
                let address = start_on_any_thread(&runtime, &service, limits, sender);
                (address, Some(runtime))
            }
        };
        Self { address, ended, service, _runtime: runtime }
    }

    /// A server, and a client that has asked it for a path.
    fn ask(
        side: On,
        limits: StreamLimits,
        version: Version,
        window: u32,
        path: &str,
    ) -> (Self, Client) {
        let server = Self::start(side, limits);
        let mut client = Client::connect(server.address, version, window);
        client.get(1, path);
        (server, client)
    }

    /// Checks by which limit the only connection has ended.
    #[track_caller]
    fn check_ended(&self, expected: Option<StreamTimeout>, case: &str) {
        let (_, ended) = self.ended.recv_timeout(PATIENCE).expect(case);
        assert_eq!(ended, expected, "{case}");
    }
}

fn start_on_shard(service: &TimerService<u64>, limits: StreamLimits, ended: Ended) -> SocketAddr {
    let (ready, address) = mpsc::channel();
    drop(service.spawn_on(service.shard_for(0), move |timers| async move {
        let listener = listen();
        ready.send(listener.local_addr().unwrap()).unwrap();
        loop {
            let (socket, peer) = listener.accept().await.unwrap();
            let stream = TimedIo::on_shard(socket, &timers, limits).unwrap();
            tokio::task::spawn_local(serve!(stream, peer, ended.clone(), Here));
        }
    }));
    address.recv().unwrap()
}

fn start_on_any_thread(
    runtime: &tokio::runtime::Runtime,
    service: &TimerService<u64>,
    limits: StreamLimits,
    ended: Ended,
) -> SocketAddr {
    let timers = service.handle();
    let listener = runtime.block_on(async { listen() });
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move {
        loop {
            let (socket, peer) = listener.accept().await.unwrap();
            let stream = TimedIo::new(socket, timers, limits);
            tokio::spawn(serve!(stream, peer, ended.clone(), TokioExecutor::new()));
        }
    });
    address
}

/// Runs a check for each version, on each side, all at once.
fn check_each(check: impl Fn(On, Version, &str) + Sync) {
    let sides = SIDES.into_iter().flat_map(|side| VERSIONS.map(|version| (side, version)));
    check_at_once(sides, |(side, version)| check(side, version, &format!("{version:?}, {side:?}")));
}

/// No limit but those of these times.
fn limits(idle: Duration, write_stall: Duration) -> StreamLimits {
    StreamLimits::default().idle(idle).write_stall(write_stall)
}

/// A client whose window is larger than any response.
const WIDE: u32 = 32 << 20;

#[test]
fn steady_client_takes_a_long_response_whole_and_is_idle_after_it() {
    let (none, rate) = (StreamLimits::default(), DataRate::new(1, STALL));
    let (idle, read_idle) = (none.idle(LIMIT), none.read_idle(LIMIT));
    let (is_idle, is_read_idle) = ([Some(Idle(LIMIT)); 2], [Some(ReadIdle(LIMIT)); 2]);
    // Limits, the response, whether the service drains, and the limit that ends a connection of
    // each version. Idle times begin when the response was taken, and neither a drain nor the
    // greatest age cuts it within its grace.
    let cases = [
        (idle.write_stall(STALL), "/long", false, is_idle),
        (idle.min_write_rate(rate), "/one-frame", false, is_idle),
        (read_idle.write_stall(STALL), "/long", false, is_read_idle),
        (read_idle.min_write_rate(rate), "/one-frame", false, is_read_idle),
        (none.request_idle(LIMIT).write_stall(STALL), "/long", false, [None; 2]),
        (limits(LIMIT, STALL).max_age_grace(STALL), "/long", true, is_idle),
        // A client of HTTP/2 that answers no PING is idle after its response.
        (
            limits(LIMIT, STALL).max_age(LIMIT).max_age_grace(STALL),
            "/long",
            false,
            [None, Some(Idle(LIMIT))],
        ),
    ];
    check_at_once(cases, |(limits, path, drains, expected)| {
        check_each(|side, version, case| {
            let case = format!("{case}, {expected:?}, {path}, drain: {drains}");
            let (server, mut client) = Server::ask(side, limits, version, WIDE, path);
            if drains {
                thread::sleep(LIMIT);
                server.service.drain(STALL);
            }
            client.read_steadily(LONG, &case);
            server.check_ended(expected[usize::from(version == Version::Http2)], &case);
        });
    });
}

/// Far longer than a round of a client that fills the socket takes.
const SLOW: Duration = ms(1_000);
/// A window of a response, far less than a long one.
const WINDOW: u32 = 40_000;

#[test]
fn http2_client_that_gives_windows_now_and_then_takes_its_response_whole() {
    check_at_once(SIDES, |side| {
        let limits = limits(LIMIT, STALL);
        let (server, mut client) = Server::ask(side, limits, Version::Http2, WINDOW, "/long");
        let mut received = client.read_data(WINDOW as usize);
        while received < LONG {
            thread::sleep(2 * LIMIT);
            client.give_window(1, WINDOW);
            received += client.read_data((LONG - received).min(WINDOW as usize));
        }
        server.check_ended(Some(Idle(LIMIT)), &format!("{side:?}"));
    });
}

#[test]
fn http2_client_without_a_window_is_cut_whatever_else_it_sends() {
    type Sends = fn(&mut Client);
    let rate = DataRate::new(10_000, LIMIT);
    let (stalls, slow) = (limits(STALL, LIMIT), limits(STALL, STALL).min_write_rate(rate));
    let stalls_later = limits(STALL, SLOW);
    let cases: [(&str, StreamLimits, u32, &str, Sends); 9] = [
        ("no window", stalls, 0, "/long", |_| {}),
        ("a byte of window", stalls, 1, "/long", |_| {}),
        ("PINGs", stalls, 0, "/long", |client| client.send_until_cut(&ping())),
        ("PINGs and a byte", stalls, 1, "/long", |client| client.send_until_cut(&ping())),
        ("a byte at a time", slow, 0, "/long", |client| client.send_until_cut(&window(1, 1))),
        ("full", stalls_later, 0, "/long", |client| client.flood_until_cut(&ping(), false)),
        ("full and emptied", stalls_later, 0, "/long", |client| {
            client.flood_until_cut(&ping(), true);
        }),
        // The data comes after all was flushed.
        ("late data", stalls, 0, "/late", |_| {}),
        // The responses that it takes have no data.
        ("more requests", stalls_later, 0, "/long", |client| {
            client.get(3, "/204");
            client.get(5, "/304");
        }),
    ];
    let cases = SIDES.into_iter().flat_map(|side| cases.map(|case| (side, case)));
    check_at_once(cases, |(side, (name, limits, window, path, sends))| {
        let (case, begin) = (format!("{side:?}, {name}"), Instant::now());
        let (server, mut client) = Server::ask(side, limits, Version::Http2, window, path);
        sends(&mut client);
        if limits == slow {
            return server.check_ended(Some(WriteRate(rate)), &case);
        }
        server.check_ended(Some(WriteStall(limits.write_stall)), &case);
        let late = if path == "/late" { LATE } else { Duration::ZERO };
        let is_late = begin.elapsed() >= limits.write_stall + late;
        assert!(is_late || name == "more requests", "{case}");
    });
}

#[test]
fn response_that_no_client_takes_is_a_stalled_write_or_idle_without_that_limit() {
    check_each(|side, version, case| {
        for (limits, expected) in [
            (StreamLimits::default().idle(LIMIT), Idle(LIMIT)),
            (limits(STALL, LIMIT), WriteStall(LIMIT)),
        ] {
            let (server, _client) = Server::ask(side, limits, version, WIDE, "/long");
            server.check_ended(Some(expected), case);
        }
    });
}

#[test]
fn connection_on_which_a_response_is_on_its_way_is_not_the_idlest() {
    check_each(|side, version, case| {
        let limits = limits(2 * STALL, STALL);
        let (server, mut busy) = Server::ask(side, limits, version, WIDE, "/long");
        // What the buffers do not hold waits now.
        thread::sleep(2 * LIMIT);
        let mut idle = Client::connect(server.address, version, 1 << 16);
        idle.get(1, "/");
        idle.read_short();
        thread::sleep(LIMIT);
        server.service.close_idlest(1);
        let (ended, limit) = server.ended.recv_timeout(PATIENCE).unwrap();
        assert_eq!((ended, limit), (idle.address(), Some(Told)), "{case}");
        busy.read_data(LONG);
        drop(busy);
        server.check_ended(None, case);
    });
}

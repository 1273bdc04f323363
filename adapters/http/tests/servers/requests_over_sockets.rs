//! `TimedHttp` in servers of hyper, with real sockets, HTTP/1 and HTTP/2: no limit of a
//! connection ends a request that the server works on, and every limit comes when it has ended.

use std::convert::Infallible;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::conn::DataRate;
use corewheel::stream::StreamTimeout::{self, Head, Idle, ReadRate};
use corewheel::stream::{StreamLimits, TimedIo};
use corewheel::{Handle, TimerService};
use corewheel_http::hyper::{TimedBody, TimedHttp};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Collected, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::http::{PATIENCE, Slow, ask, connect, connect_http2, get, ms, read_until};

/// The idle limit, and that of heads.
const LIMIT: Duration = ms(1_000);
/// How long a handler works: longer than the limit.
const WORK: Duration = ms(1_500);
const RATE: DataRate = DataRate::new(1_000, LIMIT);
/// The parts of a slow response, and the pause after each.
const PARTS: u32 = 3;
const PAUSE: Duration = ms(500);

type Answer = Result<Response<BoxBody<Bytes, Infallible>>, Infallible>;

async fn answer(request: Request<TimedBody<Incoming>>, timers: Handle) -> Answer {
    match request.uri().path() {
        "/late" => timers.sleep(WORK).await.unwrap(),
        "/slow" => return Ok(Response::new(Slow::new(timers, PARTS, PAUSE).boxed())),
        "/panic" => panic!("a handler panics"),
        _ => {}
    }
    let body = request.into_body().collect().await.map(Collected::to_bytes).unwrap_or_default();
    Ok(Response::new(Full::new(body).boxed()))
}

/// Tells the test when a handler's future is dropped before its end.
struct Dropped(Option<Sender<()>>);

impl Dropped {
    fn has_ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Dropped {
    fn drop(&mut self) {
        if let Some(sender) = self.0.take() {
            let _ = sender.send(());
        }
    }
}

struct Server {
    address: SocketAddr,
    /// The limit that has ended each connection.
    ended: Receiver<Option<StreamTimeout>>,
    /// The futures of handlers that were dropped.
    dropped: Receiver<()>,
    runtime: Runtime,
    _service: TimerService,
}

impl Server {
    fn start(limits: StreamLimits) -> Self {
        let service = TimerService::beside_runtime().start().unwrap();
        let timers = service.handle();
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, ended) = mpsc::channel();
        let (drops, dropped) = mpsc::channel();
        runtime.spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let stream = TimedIo::new(socket, timers, limits);
                let control = stream.control();
                let drops = drops.clone();
                let service = service_fn(move |request| {
                    let dropped = Dropped(Some(drops.clone()));
                    async move {
                        let answer = answer(request, timers).await;
                        dropped.has_ended();
                        answer
                    }
                });
                let service = TimedHttp::new(service, control.clone());
                let sender = sender.clone();
                tokio::spawn(async move {
                    let server = auto::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                    let _ = sender.send(control.limit_reached());
                });
            }
        });
        Self { address, ended, dropped, runtime, _service: service }
    }

    /// Checks that one connection has ended, and by which limit.
    #[track_caller]
    fn check_ended(&self, expected: Option<StreamTimeout>) {
        assert_eq!(self.ended.recv_timeout(PATIENCE).unwrap(), expected);
    }
}

#[test]
fn http1_handler_that_takes_longer_than_the_idle_limit_answers() {
    let server = Server::start(StreamLimits::default().idle(LIMIT).read_idle(LIMIT).head(LIMIT));
    let mut client = connect(server.address);
    let begin = Instant::now();
    // The second request is there before the first is answered.
    client.write_all(&[get("/late"), get("/late")].concat()).unwrap();
    for _ in 0..2 {
        let head = read_until(&mut client, b"\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200"), "{head:?}");
    }
    // Both idle limits are due at the same time.
    assert_eq!(read_until(&mut client, b"\0"), "");
    assert!(begin.elapsed() >= 2 * WORK + LIMIT, "after {:?}", begin.elapsed());
    assert!(server.ended.recv_timeout(PATIENCE).unwrap().is_some());
}

#[test]
fn http1_response_that_takes_longer_than_the_idle_limit_arrives_whole() {
    let server = Server::start(StreamLimits::default().idle(LIMIT).read_idle(LIMIT));
    let mut client = connect(server.address);
    client.write_all(&get("/slow")).unwrap();
    let answer = read_until(&mut client, b"0\r\n\r\n");
    assert_eq!(answer.matches("part").count(), PARTS as usize, "{answer:?}");
    drop(client);
    server.check_ended(None);
}

#[test]
fn http1_client_that_leaves_ends_its_request() {
    let server = Server::start(StreamLimits::default().idle(LIMIT));
    let mut client = connect(server.address);
    client.write_all(&get("/late")).unwrap();
    thread::sleep(PAUSE);
    drop(client);
    server.dropped.recv_timeout(PATIENCE).unwrap();
    server.check_ended(None);
}

#[test]
fn http1_client_that_stops_in_a_body_is_cut_by_each_limit_that_counts() {
    let head = b"POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 9\r\n\r\nhalf";
    let check = |limits, expected| {
        let server = Server::start(limits);
        let mut client = connect(server.address);
        let begin = Instant::now();
        client.write_all(head).unwrap();
        read_until(&mut client, b"\0");
        assert!(begin.elapsed() >= LIMIT, "{expected:?} after {:?}", begin.elapsed());
        server.check_ended(Some(expected));
    };
    thread::scope(|scope| {
        scope.spawn(|| check(StreamLimits::default().idle(LIMIT), Idle(LIMIT)));
        scope.spawn(|| check(StreamLimits::default().min_read_rate(RATE), ReadRate(RATE)));
    });
}

#[test]
fn http1_client_that_is_slow_in_a_second_head_is_cut() {
    let server = Server::start(StreamLimits::default().head(LIMIT));
    let mut client = connect(server.address);
    client.write_all(&get("/late")).unwrap();
    assert!(read_until(&mut client, b"\r\n\r\n").starts_with("HTTP/1.1 200"));
    let begin = Instant::now();
    client.write_all(b"GET / HTTP/1.1\r\nhost:").unwrap();
    read_until(&mut client, b"\0");
    assert!(begin.elapsed() >= LIMIT, "after {:?}", begin.elapsed());
    server.check_ended(Some(Head(LIMIT)));
}

#[test]
fn http1_head_that_comes_with_the_body_before_it_is_cut_as_a_slow_head() {
    let head = "POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 8\r\n\r\n";
    let body = "bo\r\n\r\ndy";
    let check = |parted: usize, sent: &str, idle: Duration, expected: StreamTimeout| {
        let server = Server::start(StreamLimits::default().head(LIMIT).idle(idle));
        let mut client = connect(server.address);
        let (first, second) = sent.as_bytes().split_at(parted);
        client.write_all(first).unwrap();
        thread::sleep(PAUSE);
        let begin = Instant::now();
        client.write_all(second).unwrap();
        assert!(read_until(&mut client, body.as_bytes()).starts_with("HTTP/1.1 200"));
        read_until(&mut client, b"\0");
        assert!(begin.elapsed() >= LIMIT, "{expected:?} after {:?}", begin.elapsed());
        server.check_ended(Some(expected));
    };
    let (whole, with_more) = (&[head, body].concat(), &[head, body, "GET"].concat());
    thread::scope(|scope| {
        // All in one read, the body in another one, and a part of it.
        for parted in [0, head.len(), whole.len() - 3] {
            scope.spawn(move || check(parted, with_more, Duration::ZERO, Head(LIMIT)));
            // No byte is behind the body.
            scope.spawn(move || check(parted, whole, 2 * LIMIT, Idle(2 * LIMIT)));
        }
    });
}

#[test]
fn http2_requests_hold_the_idle_limit_back_until_the_last_has_ended() {
    let server = Server::start(StreamLimits::default().idle(LIMIT).head(LIMIT).min_read_rate(RATE));
    // Without a client, the connection would end at once.
    let _client = server.runtime.block_on(async {
        let client = connect_http2(server.address).await;
        // They end at different times: at once, by a panic, after a while, with a long response.
        let (at_once, panicked, late, slow) = tokio::join!(
            ask(client.clone(), "/"),
            ask(client.clone(), "/panic"),
            ask(client.clone(), "/late"),
            ask(client.clone(), "/slow"),
        );
        assert_eq!(at_once.unwrap(), "");
        assert!(panicked.is_err());
        assert_eq!(late.unwrap(), "");
        assert_eq!(slow.unwrap().len(), PARTS as usize * b"part".len());
        client
    });
    server.check_ended(Some(Idle(LIMIT)));
}

#[test]
fn http2_request_that_the_client_cancels_holds_nothing() {
    let server = Server::start(StreamLimits::default().idle(LIMIT));
    server.runtime.block_on(async {
        let client = connect_http2(server.address).await;
        let request = tokio::spawn(ask(client.clone(), "/late"));
        tokio::time::sleep(PAUSE).await;
        request.abort();
        // The client itself stays.
        let dropped = tokio::task::block_in_place(|| server.dropped.recv_timeout(PATIENCE));
        dropped.unwrap();
        let ended = tokio::task::block_in_place(|| server.ended.recv_timeout(PATIENCE));
        assert_eq!(ended.unwrap(), Some(Idle(LIMIT)));
        drop(client);
    });
}

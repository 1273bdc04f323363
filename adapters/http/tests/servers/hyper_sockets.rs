//! The timer of hyper and the layer of tower in servers with real sockets: on a multi-thread
//! runtime, and on a shard's own runtime. No deadline comes early by the clock of the client.

use std::convert::Infallible;
use std::future::pending;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use corewheel::{Handle, Runtime, ShutdownPolicy, TimerService};
use corewheel_http::hyper::HyperTimer;
use corewheel_http::tower::TimeoutLayer;
use corewheel_test_support::sockets::read_to_end;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::runtime::Builder;

use crate::http::{PATIENCE, PING, connect, frames, ms, preface};

const HEAD: Duration = ms(150);
const INTERVAL: Duration = ms(100);
const ANSWER: Duration = ms(80);
const LIMIT: Duration = ms(120);

fn app(handle: Handle) -> Router {
    let late = || StatusCode::GATEWAY_TIMEOUT.into_response();
    let routes = Router::new().route("/late", get(pending::<()>));
    let routes = routes.route("/", get(|| async { "hello" }));
    routes.layer(TimeoutLayer::with_response(handle, LIMIT, late))
}

fn server(handle: Handle) -> auto::Builder<TokioExecutor> {
    let timer = HyperTimer::new(handle);
    let mut server = auto::Builder::new(TokioExecutor::new());
    server.http1().timer(timer).header_read_timeout(HEAD);
    server.http2().timer(timer).keep_alive_interval(INTERVAL).keep_alive_timeout(ANSWER);
    server
}

async fn serve(handle: Handle, listener: TcpListener) -> Infallible {
    let (server, app) = (server(handle), app(handle));
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (server, app) = (server.clone(), TowerToHyperService::new(app.clone()));
        tokio::spawn(async move { server.serve_connection(TokioIo::new(stream), app).await });
    }
}

#[track_caller]
fn check_not_early(begin: Instant, least: Duration) {
    let since = begin.elapsed();
    assert!(since >= least, "after {since:?} of {least:?}");
}

/// Sends half a head, after a request that was answered.
fn check_half_a_head(server: SocketAddr) {
    let mut client = connect(server);
    let mut answer = [0; 512];
    // The time of the next head begins when this request has come.
    let begin = Instant::now();
    client.write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n").unwrap();
    let count = client.read(&mut answer).unwrap();
    assert!(answer[..count].starts_with(b"HTTP/1.1 200"));
    client.write_all(b"GET / HTTP/1.1\r\nho").unwrap();
    read_to_end(&mut client);
    check_not_early(begin, HEAD);
}

/// Speaks HTTP/2 and answers no PING.
fn check_no_pong(server: SocketAddr) {
    let begin = Instant::now();
    let mut client = connect(server);
    client.write_all(&preface()).unwrap();
    let read = read_to_end(&mut client);
    check_not_early(begin, INTERVAL + ANSWER);
    let pings = frames(&read).into_iter().filter(|frame| (frame.0, frame.1) == (PING, 0));
    assert!(pings.count() > 0);
}

/// Asks for a response that does not come.
fn check_late(server: SocketAddr) {
    let mut client = connect(server);
    let begin = Instant::now();
    client.write_all(b"GET /late HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").unwrap();
    let answer = read_to_end(&mut client);
    check_not_early(begin, LIMIT);
    assert!(answer.starts_with(b"HTTP/1.1 504"), "{}", String::from_utf8_lossy(&answer));
}

fn check_clients(server: SocketAddr) {
    thread::scope(|scope| {
        for _ in 0..8 {
            for check in [check_half_a_head, check_no_pong, check_late] {
                scope.spawn(move || check(server));
            }
        }
    });
}

#[test]
fn multi_thread_server_ends_each_wait_and_none_early() {
    let service = TimerService::beside_runtime().start().unwrap();
    let handle = service.handle();
    // The runtime's own timers are off.
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_io().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let server = listener.local_addr().unwrap();
    runtime.spawn(serve(handle, listener));
    check_clients(server);
    assert!(service.stats().shards.iter().any(|shard| shard.counts.scheduled_remote > 0));
    runtime.shutdown_background();
    service.shutdown(ShutdownPolicy::Drop).unwrap();
}

#[test]
fn server_on_the_shards_own_runtimes_ends_each_wait_by_its_own_shard() {
    let builder = TimerService::builder().shards(2).runtime(Runtime::Tokio);
    let service = builder.start().unwrap();
    let handle = service.handle();
    let (sender, addresses) = mpsc::channel();
    for shard in service.shards() {
        let sender = sender.clone();
        let serving = move |_| async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            serve(handle, listener).await
        };
        drop(service.spawn_on(shard, serving).unwrap());
    }
    for _ in service.shards() {
        check_clients(addresses.recv_timeout(PATIENCE).unwrap());
    }
    for shard in service.stats().shards {
        let counts = shard.counts;
        assert!(counts.scheduled_local > 0);
        assert_eq!((counts.scheduled_remote, counts.requests), (0, 0), "a sleep is elsewhere");
    }
    service.shutdown(ShutdownPolicy::Drop).unwrap();
}

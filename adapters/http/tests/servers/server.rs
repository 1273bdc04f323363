//! A `Server` of this package with a loop of the test's own, over real sockets.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Instant;

use corewheel::TimerService;
use corewheel_http::hyper::{BodyLimits, Exchange, TimedBody};
use corewheel_http::server::Server;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::http::{
    Body, PATIENCE, SETTINGS, connect, frames, get, ms, preface, read_until, wait_until,
};

const GOAWAY: u8 = 7;

/// A server with one listener, until it is dropped.
struct Loop {
    address: SocketAddr,
    /// The exchange of each request. Those to `/work` are not answered.
    exchanges: Receiver<Exchange>,
    shut_down: watch::Sender<()>,
    _runtime: Runtime,
    _timers: TimerService,
}

impl Loop {
    fn start(set: impl FnOnce(Server) -> Server) -> Self {
        Self::start_behind(0, set)
    }

    /// The loop reads so many bytes of each connection itself.
    fn start_behind(header: usize, set: impl FnOnce(Server) -> Server) -> Self {
        let timers = TimerService::beside_runtime().start().unwrap();
        // Without the timers of tokio.
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_io().build().unwrap();
        let server = Arc::new(set(Server::new(timers.handle())));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, exchanges) = mpsc::channel();
        let (shut_down, order) = watch::channel(());
        runtime.spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (server, sender, mut order) =
                    (Arc::clone(&server), sender.clone(), order.clone());
                tokio::spawn(async move {
                    let answer = move |request: Request<TimedBody<Incoming>>| {
                        sender.send(request.body().exchange().clone()).unwrap();
                        let is_work = request.uri().path() == "/work";
                        async move {
                            if is_work {
                                std::future::pending::<()>().await;
                            }
                            Ok::<_, Infallible>(Response::new(Body::new(Bytes::from("hello"))))
                        }
                    };
                    let is_told = async { drop(order.changed().await) };
                    let mut stream = server.stream(socket);
                    stream.read_exact(&mut vec![0; header]).await.unwrap();
                    server.serve(stream, service_fn(answer), is_told).await;
                });
            }
        });
        Self { address, exchanges, shut_down, _runtime: runtime, _timers: timers }
    }
}

#[test]
fn service_has_the_exchange_of_each_request_which_ends_when_the_client_leaves() {
    let server = Loop::start(|server| server);
    let mut client = connect(server.address);
    client.write_all(&get("/work")).unwrap();
    let exchange = server.exchanges.recv_timeout(PATIENCE).unwrap();
    let (sender, ended) = mpsc::channel();
    exchange.on_end(move || sender.send(()).unwrap());
    drop(client);
    ended.recv_timeout(PATIENCE).unwrap();
}

/// Sends a request that is not answered, and more behind it. Returns its client and its exchange.
fn ask(server: &Loop, behind: &[u8]) -> (TcpStream, Exchange) {
    let mut client = connect(server.address);
    client.write_all(&[&get("/work"), behind].concat()).unwrap();
    (client, server.exchanges.recv_timeout(PATIENCE).unwrap())
}

#[test]
fn request_of_a_client_that_has_sent_the_next_one_ends_when_the_client_leaves() {
    let server = Loop::start(|server| server);
    for behind in [get("/"), b"GET / HT".to_vec(), get("/").repeat(1_000)] {
        let (client, exchange) = ask(&server, &behind);
        drop(client);
        wait_until(|| exchange.has_ended());
    }
}

#[test]
fn client_that_has_shut_its_side_down_is_answered_within_the_time_for_that() {
    let server = Loop::start(|server| server.half_close(PATIENCE));
    let mut client = connect(server.address);
    client.write_all(&get("/").repeat(3)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut said = String::new();
    client.read_to_string(&mut said).unwrap();
    assert_eq!(said.matches("hello").count(), 3, "{said}");

    let server = Loop::start(|server| server.half_close(ms(300)));
    for behind in [Vec::new(), get("/")] {
        let begin = Instant::now();
        let (client, exchange) = ask(&server, &behind);
        client.shutdown(Shutdown::Write).unwrap();
        wait_until(|| exchange.has_ended());
        assert!(begin.elapsed() >= ms(300));
    }
}

#[test]
fn client_of_http2_that_does_not_take_a_response_is_told() {
    let windows = |limits: BodyLimits| limits.next_poll(ms(300));
    let server = Loop::start(|server| server.http2_response(windows));
    let mut client = connect(server.address);
    // The first setting is a window of zero for each response.
    let no_window = [0, 0, 6, SETTINGS, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0];
    let block = b"\x82\x86\x84\x01\x04test";
    let head = [&[0, 0, 8, 1, 5, 0, 0, 0, 1][..], block].concat();
    client.write_all(&[&preface()[..], &no_window, &head].concat()).unwrap();
    let mut told = Vec::new();
    client.read_to_end(&mut told).unwrap();
    assert!(frames(&told).iter().any(|frame| frame.0 == GOAWAY), "{told:?}");
}

#[test]
fn shutdown_tells_each_connection() {
    let server = Loop::start(|server| server);
    let mut client = connect(server.address);
    client.write_all(&get("/")).unwrap();
    read_until(&mut client, b"hello");
    let mut http2 = connect(server.address);
    http2.write_all(&preface()).unwrap();
    // With bytes that the server has not read, its close would be a reset.
    let mut told = Vec::new();
    while !told.ends_with(&[0, 0, 0, SETTINGS, 1, 0, 0, 0, 0]) {
        let mut byte = [0];
        http2.read_exact(&mut byte).unwrap();
        told.extend(byte);
    }
    server.shut_down.send(()).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    http2.read_to_end(&mut told).unwrap();
    assert!(frames(&told).iter().any(|frame| frame.0 == GOAWAY), "{told:?}");
}

#[test]
fn idle_client_of_http2_behind_a_header_of_the_loops_own_is_told() {
    let header = b"PROXY UNKNOWN\r\n";
    let idle = |server: Server| server.limits(|limits| limits.idle(ms(300)));
    let server = Loop::start_behind(header.len(), idle);
    let mut client = connect(server.address);
    client.write_all(&[&header[..], &preface()].concat()).unwrap();
    let mut told = Vec::new();
    client.read_to_end(&mut told).unwrap();
    assert!(frames(&told).iter().any(|frame| frame.0 == GOAWAY), "{told:?}");
}

#[test]
fn slow_head_is_answered_408() {
    let server = Loop::start(|server| server.limits(|limits| limits.head(ms(300))));
    let mut client = connect(server.address);
    client.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    assert!(read_until(&mut client, b"\r\n\r\n").starts_with("HTTP/1.1 408 "));
}

#[test]
fn client_of_http2_is_cut_where_hyper_is_set_to_http1_only() {
    let server =
        Loop::start(|server| server.hyper(hyper_util::server::conn::auto::Builder::http1_only));
    let mut http2 = connect(server.address);
    http2.write_all(&preface()).unwrap();
    let mut told = Vec::new();
    // The socket may be reset, as the rest of the preface is not read.
    let _ = http2.read_to_end(&mut told);
    assert_eq!(told, b"");
    let mut client = connect(server.address);
    client.write_all(&get("/")).unwrap();
    assert!(read_until(&mut client, b"hello").starts_with("HTTP/1.1 200 "));
}

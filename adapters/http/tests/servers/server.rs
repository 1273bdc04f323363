//! A `Server` of this package with a loop of the test's own, over real sockets.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use corewheel::TimerService;
use corewheel_http::hyper::{BodyLimits, Exchange, TimedBody};
use corewheel_http::server::Server;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use tokio::io::AsyncReadExt;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::http::{
    Body, PATIENCE, SETTINGS, beside_runtime, connect, frames, get, ms, preface, read_until,
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
    /// A client that has sent some bytes.
    fn send(&self, sent: &[u8]) -> TcpStream {
        let mut client = connect(self.address);
        client.write_all(sent).unwrap();
        client
    }

    fn start(set: impl FnOnce(Server) -> Server) -> Self {
        Self::start_behind(0, set)
    }

    /// The loop reads so many bytes of each connection itself.
    fn start_behind(header: usize, set: impl FnOnce(Server) -> Server) -> Self {
        // Without the timers of tokio.
        let (timers, runtime, listener, address) = beside_runtime(Builder::enable_io);
        let server = Arc::new(set(Server::new(timers.handle())));
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
fn request_of_a_client_that_has_sent_the_next_one_ends_when_the_client_leaves() {
    let server = Loop::start(|server| server);
    for behind in [Vec::new(), get("/"), b"GET / HT".to_vec(), get("/").repeat(1_000)] {
        let client = server.send(&[get("/work"), behind].concat());
        let exchange = server.exchanges.recv_timeout(PATIENCE).unwrap();
        let (sender, ended) = mpsc::channel();
        exchange.on_end(move || sender.send(()).unwrap());
        drop(client);
        ended.recv_timeout(PATIENCE).unwrap();
        assert!(exchange.has_ended());
    }
}

/// Checks that a client of HTTP/2 that has read a part is told that its connection ends.
#[track_caller]
fn check_told(client: &mut TcpStream, mut read: Vec<u8>) {
    client.read_to_end(&mut read).unwrap();
    assert!(frames(&read).iter().any(|frame| frame.0 == GOAWAY), "{read:?}");
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
    check_told(&mut client, Vec::new());
}

#[test]
fn shutdown_tells_each_connection() {
    let server = Loop::start(|server| server);
    let mut client = server.send(&get("/"));
    read_until(&mut client, b"hello");
    let mut http2 = server.send(&preface());
    // With bytes that the server has not read, its close would be a reset.
    let mut told = Vec::new();
    while !told.ends_with(&[0, 0, 0, SETTINGS, 1, 0, 0, 0, 0]) {
        let mut byte = [0];
        http2.read_exact(&mut byte).unwrap();
        told.extend(byte);
    }
    server.shut_down.send(()).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    check_told(&mut http2, told);
}

#[test]
fn idle_client_of_http2_behind_a_header_of_the_loops_own_is_told() {
    let header = b"PROXY UNKNOWN\r\n";
    let idle = |server: Server| server.limits(|limits| limits.idle(ms(300)));
    let server = Loop::start_behind(header.len(), idle);
    let mut client = server.send(&[&header[..], &preface()].concat());
    check_told(&mut client, Vec::new());
}

#[test]
fn slow_head_is_answered_408() {
    let server = Loop::start(|server| server.limits(|limits| limits.head(ms(300))));
    let mut client = server.send(b"GET / HTTP/1.1\r\n");
    assert!(read_until(&mut client, b"\r\n\r\n").starts_with("HTTP/1.1 408 "));
}

#[test]
fn client_of_http2_is_cut_where_hyper_is_set_to_http1_only() {
    let server =
        Loop::start(|server| server.hyper(hyper_util::server::conn::auto::Builder::http1_only));
    let mut http2 = server.send(&preface());
    let mut told = Vec::new();
    // The socket may be reset, as the rest of the preface is not read.
    let _ = http2.read_to_end(&mut told);
    assert_eq!(told, b"");
    let mut client = server.send(&get("/"));
    assert!(read_until(&mut client, b"hello").starts_with("HTTP/1.1 200 "));
}

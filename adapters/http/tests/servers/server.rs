//! A `Server` of this package with a loop of the test's own, over real sockets.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use corewheel::TimerService;
use corewheel_http::hyper::{Exchange, TimedBody};
use corewheel_http::server::Server;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::http::{Body, PATIENCE, connect, frames, get, ms, preface, read_until};

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
        let timers = TimerService::beside_runtime().start().unwrap();
        // Without the timers of tokio.
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_io().build().unwrap();
        let server = Arc::new(set(Server::new(timers.handle())));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, exchanges) = mpsc::channel();
        let (shut_down, shutdown) = watch::channel(());
        runtime.spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (server, sender, mut shutdown) =
                    (Arc::clone(&server), sender.clone(), shutdown.clone());
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
                    let shutdown = async { drop(shutdown.changed().await) };
                    server.serve(server.stream(socket), service_fn(answer), shutdown).await;
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

#[test]
fn shutdown_tells_each_connection() {
    let server = Loop::start(|server| server);
    let mut client = connect(server.address);
    client.write_all(&get("/")).unwrap();
    read_until(&mut client, b"hello");
    let mut http2 = connect(server.address);
    http2.write_all(&preface()).unwrap();
    server.shut_down.send(()).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    let mut told = Vec::new();
    http2.read_to_end(&mut told).unwrap();
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
    let server = Loop::start(|server| server.hyper(|hyper| hyper.http1_only()));
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

//! A `Server` of this package with a loop of the test's own, over real sockets.

use std::convert::Infallible;
use std::future::pending;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Instant;

use corewheel::TimerService;
use corewheel_http::hyper::{Exchange, TimedBody};
use corewheel_http::server::Server;
use corewheel_test_support::stream::NONE as OFF;
use futures_lite::stream::{self, StreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Request, Response};
use tokio::io::AsyncReadExt;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::http::{
    GOAWAY, PATIENCE, SETTINGS, beside_runtime, connect, frame, frames, get, head, ms, preface,
    preface_with, read_until,
};
use crate::keep_alive::{INTERVAL, TIMEOUT, check_pings, next_ping};
use crate::served::Http2;

/// What the streams of events begin with.
pub(crate) const EVENT: &[u8] = b"data: 1\n\n";

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Answers `/` at once, and `/work` never. The answers to all other paths have a part, after which
/// they rest. The part of `/large` is more than the buffers of a socket hold.
async fn answer(request: Request<TimedBody<Incoming>>) -> Response<Body> {
    let part = match request.uri().path() {
        "/" => return Response::new(Full::from("hello").boxed_unsync()),
        "/work" => pending().await,
        "/large" => vec![b'x'; 24 << 20].into(),
        _ => Bytes::from_static(EVENT),
    };
    let media = if request.uri().path() == "/file" { "text/plain" } else { "text/event-stream" };
    let rests = stream::once(Ok(Frame::data(part))).chain(stream::pending());
    let response = Response::builder().header(CONTENT_TYPE, media);
    response.body(StreamBody::new(rests).boxed_unsync()).unwrap()
}

/// A server with one listener, until it is dropped.
pub(crate) struct Loop {
    address: SocketAddr,
    /// The exchange of each request.
    exchanges: Receiver<Exchange>,
    shut_down: watch::Sender<()>,
    _runtime: Runtime,
    pub(crate) timers: TimerService,
}

impl Loop {
    /// A client that has sent some bytes.
    pub(crate) fn send(&self, sent: &[u8]) -> TcpStream {
        let mut client = connect(self.address);
        client.write_all(sent).unwrap();
        client
    }

    /// The exchange of the next request.
    fn exchange(&self) -> Exchange {
        self.exchanges.recv_timeout(PATIENCE).unwrap()
    }

    pub(crate) fn start(set: fn(Server) -> Server) -> Self {
        Self::start_behind(0, set)
    }

    /// The loop reads so many bytes of each connection itself.
    fn start_behind(header: usize, set: fn(Server) -> Server) -> Self {
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
                        async move { Ok::<_, Infallible>(answer(request).await) }
                    };
                    let is_told = async { drop(order.changed().await) };
                    let mut stream = server.stream(socket);
                    stream.read_exact(&mut vec![0; header]).await.unwrap();
                    server.serve(stream, service_fn(answer), is_told).await;
                });
            }
        });
        Self { address, exchanges, shut_down, _runtime: runtime, timers }
    }
}

/// Waits until an exchange has ended.
fn wait_for_end(exchange: &Exchange) {
    let (sender, ended) = mpsc::channel();
    exchange.on_end(move || sender.send(()).unwrap());
    ended.recv_timeout(PATIENCE).unwrap();
    assert!(exchange.has_ended());
}

#[test]
fn request_of_a_client_that_has_sent_the_next_one_ends_when_the_client_leaves() {
    let server = Loop::start(|server| server);
    for behind in [Vec::new(), get("/"), b"GET / HT".to_vec(), get("/").repeat(1_000)] {
        let client = server.send(&[get("/work"), behind].concat());
        let exchange = server.exchange();
        drop(client);
        wait_for_end(&exchange);
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
    let server = Loop::start(|server| server.http2_response(|limits| limits.next_poll(ms(300))));
    // The setting is a window of zero for each response.
    let sent = [preface_with(&[0, 4, 0, 0, 0, 0]), head(1, "/", false)].concat();
    let mut client = server.send(&sent);
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
    while !told.ends_with(&frame(SETTINGS, 1, 0, b"")) {
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
    let server =
        Loop::start_behind(header.len(), |server| server.limits(|limits| limits.idle(ms(300))));
    let mut client = server.send(&[&header[..], &preface()].concat());
    check_told(&mut client, Vec::new());
}

/// Its server has the timers of the process.
#[test]
fn client_of_a_loop_that_answers_no_ping_loses_its_exchange() {
    let server = Loop::start(|_| Server::default().limits(|_| OFF).keep_alive(INTERVAL, TIMEOUT));
    let begin = Instant::now();
    let mut client = Http2(server.send(&[preface(), head(1, "/events", false)].concat()));
    let exchange = server.exchange();
    check_pings(&mut client);
    assert!(!exchange.has_ended());
    wait_for_end(&exchange);
    assert_eq!(next_ping(&mut client), None);
    assert!(begin.elapsed() >= 4 * INTERVAL + TIMEOUT, "{:?}", begin.elapsed());
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

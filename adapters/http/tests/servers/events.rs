//! Streams of events that a drain or a greatest age ends, over real sockets: the last chunk, where
//! there can be one.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use corewheel::TimerService;
use corewheel_http::hyper::TimedBody;
use corewheel_http::server::Server;
use futures_lite::stream::{self, Stream, StreamExt};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Request, Response};
use tokio::runtime::{Builder, Runtime};

use crate::http::{beside_runtime, connect, ms, read_until};

const EVENT: &[u8] = b"data: 1\n\n";
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Answers each request with a part, after which its stream rests. The part of `/large` is more
/// than the buffers of a socket hold.
struct Events {
    address: SocketAddr,
    timers: TimerService,
    _runtime: Runtime,
}

fn rests(part: Bytes) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + Unpin {
    stream::once(Ok(Frame::data(part))).chain(stream::pending())
}

async fn answer(
    request: Request<TimedBody<Incoming>>,
) -> Result<Response<StreamBody<impl Stream<Item = Result<Frame<Bytes>, Infallible>>>>, Infallible>
{
    let part = match request.uri().path() {
        "/large" => vec![b'x'; 24 << 20].into(),
        _ => Bytes::from_static(EVENT),
    };
    let media = if request.uri().path() == "/file" { "text/plain" } else { "text/event-stream" };
    let response = Response::builder().header(CONTENT_TYPE, media);
    Ok(response.body(StreamBody::new(rests(part))).unwrap())
}

impl Events {
    fn start(set: impl FnOnce(Server) -> Server) -> Self {
        let (timers, runtime, listener, address) = beside_runtime(Builder::enable_io);
        let server = Arc::new(set(Server::new(timers.handle())));
        runtime.spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let server = Arc::clone(&server);
                tokio::spawn(async move {
                    let stream = server.stream(socket);
                    server.serve(stream, service_fn(answer), std::future::pending()).await;
                });
            }
        });
        Self { address, timers, _runtime: runtime }
    }

    /// A client that has the beginning of a stream.
    fn begin(&self, line: &str) -> TcpStream {
        let mut client = self.ask(line);
        read_until(&mut client, EVENT);
        client
    }

    fn ask(&self, line: &str) -> TcpStream {
        let mut client = connect(self.address);
        client.write_all(format!("GET {line}\r\nhost: a\r\n\r\n").as_bytes()).unwrap();
        client
    }
}

/// All that the client of a stream still gets. It must be closed, and not reset.
fn rest_of(mut client: TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    rest
}

#[test]
fn stream_of_events_that_a_drain_or_a_greatest_age_ends_has_its_last_chunk() {
    let server = Events::start(|server| server);
    let client = server.begin("/ HTTP/1.1");
    server.timers.drain(ms(300));
    assert_eq!(rest_of(client), [b"\r\n", LAST_CHUNK].concat());

    let aged =
        |server: Server| server.limits(|limits| limits.max_age(ms(200)).max_age_grace(ms(200)));
    let server = Events::start(aged);
    let client = server.begin("/ HTTP/1.1");
    assert_eq!(rest_of(client), [b"\r\n", LAST_CHUNK].concat());
}

#[test]
fn response_whose_end_the_last_chunk_would_claim_or_break_has_none() {
    let server = Events::start(|server| server);
    let others = ["/file HTTP/1.1", "/ HTTP/1.0"].map(|line| server.begin(line));
    // The chunk is not written when the drain is over.
    let large = server.ask("/large HTTP/1.1");
    thread::sleep(ms(300));
    server.timers.drain(ms(300));
    thread::sleep(Duration::from_secs(1));
    for client in others {
        assert!(!rest_of(client).ends_with(LAST_CHUNK));
    }
    let mut rest = Vec::new();
    // It may be reset, too: it takes nothing.
    let _ = (&large).read_to_end(&mut rest);
    assert!(rest.len() < 24 << 20 && !rest.ends_with(LAST_CHUNK), "{} bytes", rest.len());
}

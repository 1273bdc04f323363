//! Helpers of the tests of HTTP: a lab with a manual clock, and peers that write HTTP by hand.

use std::convert::Infallible;
use std::future::Future;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream as Client};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use corewheel::Handle;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::{Method, Request, Response, Version, client};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

pub(crate) use corewheel_test_support::wait_for as wait_until;
pub(crate) use corewheel_test_support::{Alarm, FAR, Lab, PATIENCE, builder, ms, poll_with};

/// The body of each answer.
pub(crate) type Body = http_body_util::Full<Bytes>;

/// Answers each request at once.
pub(crate) async fn answer(_request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    Ok(Response::new(Body::from("hello")))
}

/// A lab with one shard, whose thread runs the tasks.
pub(crate) fn lab() -> Lab {
    Lab::new(builder(1)).with_tasks()
}

/// A peer that writes and reads bytes, and answers nothing by itself.
pub(crate) struct Peer(pub(crate) DuplexStream);

impl Peer {
    pub(crate) fn write(&mut self, lab: &mut Lab, bytes: &[u8]) {
        lab.block_on(self.0.write_all(bytes)).unwrap();
        lab.settle();
    }

    /// What has come and was not read.
    pub(crate) fn read(&mut self, lab: &mut Lab) -> Vec<u8> {
        lab.settle();
        let mut read = Vec::new();
        lab.block_on(async {
            let mut buffer = [0; 4096];
            loop {
                let more = self.0.read(&mut buffer);
                let more = std::pin::pin!(more);
                match poll_with(more, Waker::noop()) {
                    Poll::Ready(Ok(count)) if count > 0 => read.extend(&buffer[..count]),
                    _ => return,
                }
            }
        });
        read
    }
}

/// The types of the HTTP/2 frames that the tests name.
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;

/// The beginning of an HTTP/2 connection: the preface, empty settings, and the acknowledgement of
/// the server's.
pub(crate) fn preface() -> Vec<u8> {
    let mut preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    preface.extend([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]);
    preface.extend([0, 0, 0, SETTINGS, 1, 0, 0, 0, 0]);
    preface
}

/// The frames in some bytes: the type, the flags and the payload of each.
pub(crate) fn frames(mut bytes: &[u8]) -> Vec<(u8, u8, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(9) {
        let length = usize::from(head[1]) << 8 | usize::from(head[2]);
        let (payload, rest) = rest.split_at(length);
        frames.push((head[3], head[4], payload.to_vec()));
        bytes = rest;
    }
    frames
}

/// The answer to a PING.
pub(crate) fn pong(payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0, 0, 8, PING, 1, 0, 0, 0, 0];
    frame.extend(payload);
    frame
}

/// Whether an error, or a cause of it, is a timeout of hyper.
pub(crate) fn is_timeout(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut errors = std::iter::successors(Some(error), |error| error.source());
    errors.any(|error| error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_timeout))
}

/// An error that a task returns.
pub(crate) type Failed = Box<dyn std::error::Error + Send + Sync>;

/// A body whose parts come slowly.
pub(crate) struct Slow {
    timers: Handle,
    left: u32,
    pause: Duration,
    pausing: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
}

impl Slow {
    /// A body of so many parts, with a pause before each.
    pub(crate) fn new(timers: Handle, left: u32, pause: Duration) -> Self {
        let pausing = Box::pin(async move { timers.sleep(pause).await.unwrap() });
        Self { timers, left, pause, pausing }
    }
}

impl hyper::body::Body for Slow {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.pausing.as_mut().poll(cx).map(|()| {
            *self = Self::new(self.timers, self.left - 1, self.pause);
            Some(Ok(Frame::data(Bytes::from_static(b"part"))))
        })
    }
}

/// Connects to a server. A read that takes too long fails the test.
pub(crate) fn connect(server: SocketAddr) -> Client {
    let client = Client::connect(server).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.set_nodelay(true).unwrap();
    client
}

/// Checks all cases at once, each by a thread of its own, as each waits for its limits.
pub(crate) fn check_at_once<C: Send>(cases: impl IntoIterator<Item = C>, check: impl Fn(C) + Sync) {
    thread::scope(|scope| {
        for case in cases {
            let check = &check;
            scope.spawn(move || check(case));
        }
    });
}

/// A request by HTTP/1.1.
pub(crate) fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n").into_bytes()
}

/// Reads until what was read ends with some bytes, or to the end. Returns all of it.
pub(crate) fn read_until(client: &mut Client, end: &[u8]) -> String {
    let mut read = Vec::new();
    let mut byte = [0];
    while !read.ends_with(end) {
        match client.read(&mut byte) {
            Ok(1) => read.push(byte[0]),
            Ok(_) => break,
            // The server had not read all.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            // A signal that stopped this process interrupts the read.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("the connection is not closed: {error}"),
        }
    }
    String::from_utf8(read).unwrap()
}

pub(crate) type Http2 = client::conn::http2::SendRequest<Empty<Bytes>>;

/// Connects by HTTP/2.
pub(crate) async fn connect_http2(address: SocketAddr) -> Http2 {
    let socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let executor = TokioExecutor::new();
    let (client, connection) =
        client::conn::http2::handshake(executor, TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Asks by HTTP/2, and reads the response to its end.
pub(crate) async fn ask(mut client: Http2, path: &str) -> hyper::Result<Bytes> {
    let uri = format!("http://test{path}");
    let request = Request::builder().version(Version::HTTP_2).method(Method::GET).uri(uri);
    let response = client.send_request(request.body(Empty::new()).unwrap()).await?;
    Ok(response.into_body().collect().await?.to_bytes())
}

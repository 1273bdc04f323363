//! Helpers of the tests of HTTP: a lab with a manual clock, and peers that write HTTP by hand.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream as Client};
use std::pin::{Pin, pin};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::{Handle, TimerService};
use futures_lite::stream;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::{Method, Request, Response, Version, client};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

pub(crate) use corewheel_test_support::sockets::connect;
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

/// Checks that something comes so long from now, and not a tick before.
#[track_caller]
pub(crate) fn check_comes(lab: &mut Lab, after: Duration, mut has_come: impl FnMut() -> bool) {
    lab.advance(after.saturating_sub(ms(1)));
    assert!(!has_come(), "a tick early");
    lab.advance(ms(1));
    assert!(has_come(), "a tick late");
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
                match poll_with(pin!(self.0.read(&mut buffer)), Waker::noop()) {
                    Poll::Ready(Ok(count)) if count > 0 => read.extend(&buffer[..count]),
                    _ => return,
                }
            }
        });
        read
    }

    /// The payloads of the PINGs that have come.
    pub(crate) fn pings(&mut self, lab: &mut Lab) -> Vec<Vec<u8>> {
        let frames = frames(&self.read(lab)).into_iter();
        frames.filter(|frame| (frame.0, frame.1) == (PING, 0)).map(|frame| frame.2).collect()
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

/// A body of so many parts, with a pause before each.
pub(crate) fn slow(
    timers: Handle,
    parts: u32,
    pause: Duration,
) -> impl hyper::body::Body<Data = Bytes, Error = Infallible> + Send + Sync {
    StreamBody::new(Box::pin(stream::unfold(parts, move |left| async move {
        let left = left.checked_sub(1)?;
        timers.sleep(pause).await.unwrap();
        Some((Ok(Frame::data(Bytes::from_static(b"part"))), left))
    })))
}

/// A body whose frames come from the test, which has a clone. A poll that finds none waits.
#[derive(Clone, Default)]
pub(crate) struct Feed(Arc<Fed>);

#[derive(Default)]
struct Fed {
    /// `None` is the end.
    frames: Mutex<VecDeque<Option<&'static [u8]>>>,
    /// The next poll says that it has begun, and waits until it may go on.
    gate: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Feed {
    /// A body without a frame.
    pub(crate) fn empty() -> Self {
        let feed = Self::default();
        feed.end();
        feed
    }

    pub(crate) fn push(&self, frame: &'static [u8]) {
        self.0.frames.lock().unwrap().push_back(Some(frame));
    }

    pub(crate) fn end(&self) {
        self.0.frames.lock().unwrap().push_back(None);
    }

    /// Whether only the test has it.
    pub(crate) fn is_dropped(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Holds the next poll up. Returns what says that it has begun, and what lets it go on.
    pub(crate) fn hold(&self) -> (Receiver<()>, Sender<()>) {
        let ((begun, has_begun), (go, may_go)) = (mpsc::channel(), mpsc::channel());
        *self.0.gate.lock().unwrap() = Some((begun, may_go));
        (has_begun, go)
    }
}

impl hyper::body::Body for Feed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some((has_begun, may_go)) = self.0.gate.lock().unwrap().take() {
            has_begun.send(()).unwrap();
            may_go.recv().unwrap();
        }
        match self.0.frames.lock().unwrap().pop_front() {
            Some(bytes) => Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes.into())))),
            None => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.frames.lock().unwrap().front() == Some(&None)
    }
}

/// Says when it is dropped.
pub(crate) struct Dropped(pub(crate) Sender<Instant>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send(Instant::now());
    }
}

/// A service beside a runtime of two threads, which has the drivers that a test names, and a
/// listener of that runtime.
pub(crate) fn beside_runtime(
    enable: fn(&mut Builder) -> &mut Builder,
) -> (TimerService, Runtime, TcpListener, SocketAddr) {
    let service = TimerService::beside_runtime().start().unwrap();
    let mut builder = Builder::new_multi_thread();
    let runtime = enable(builder.worker_threads(2)).build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    (service, runtime, listener, address)
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

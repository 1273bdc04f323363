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
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame, Incoming};
use hyper::{Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

pub(crate) use corewheel_test_support::sockets::connect;
pub(crate) use corewheel_test_support::wait_for as wait_until;
pub(crate) use corewheel_test_support::{
    Alarm, FAR, Lab, OnDrop, PATIENCE, builder, ms, poll_with,
};

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

/// The types of the frames of HTTP/2.
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;

pub(crate) fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![0, length[0], length[1], kind, flags, 0, 0, 0, stream];
    frame.extend(payload);
    frame
}

pub(crate) fn ping() -> Vec<u8> {
    frame(PING, 0, 0, b"12345678")
}

/// The answer to a PING.
pub(crate) fn pong(payload: &[u8]) -> Vec<u8> {
    frame(PING, 1, 0, payload)
}

/// The head of a request of HTTP/2 with further fields, on a stream that ends with it if the
/// request has no body.
pub(crate) fn head_of(
    method: &str,
    stream: u8,
    path: &str,
    more: &[u8],
    has_body: bool,
) -> Vec<u8> {
    let literal = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    // A literal method, the scheme, a literal path, a literal authority.
    let head = [&[2][..], &literal(method), b"\x86\x04", &literal(path), b"\x01\x04test", more];
    frame(HEADERS, if has_body { 4 } else { 5 }, stream, &head.concat())
}

/// The head of a GET or a POST.
pub(crate) fn head(stream: u8, path: &str, has_body: bool) -> Vec<u8> {
    head_of(if has_body { "POST" } else { "GET" }, stream, path, b"", has_body)
}

/// The beginning of an HTTP/2 connection: the preface, settings, and the acknowledgement of the
/// server's.
pub(crate) fn preface_with(settings: &[u8]) -> Vec<u8> {
    let settings = [frame(SETTINGS, 0, 0, settings), frame(SETTINGS, 1, 0, b"")].concat();
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..]].concat()
}

pub(crate) fn preface() -> Vec<u8> {
    preface_with(b"")
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
pub(crate) fn dropped(drops: Sender<Instant>) -> OnDrop<impl FnMut() + Send + Sync> {
    OnDrop(move || _ = drops.send(Instant::now()))
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
            // One type for all cases: the code of a thread is compiled once.
            let check = &check;
            let run: Box<dyn FnOnce() + Send + '_> = Box::new(move || check(case));
            scope.spawn(run);
        }
    });
}

/// How many connections of a service have ended by each limit, and how many without one.
pub(crate) fn ended<T: Send + 'static>(service: &TimerService<T>) -> Vec<(&'static str, u64)> {
    let stats = service.stats();
    let by_limit = stats.deadlines.iter().map(|of| (of.kind, of.ended));
    let all = by_limit.chain([("close", stats.connections_closed)]);
    all.filter(|(_, count)| *count > 0).collect()
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

/// All that a client still gets. Then it leaves.
pub(crate) fn rest_of(mut client: Client) -> String {
    read_until(&mut client, b"\0")
}

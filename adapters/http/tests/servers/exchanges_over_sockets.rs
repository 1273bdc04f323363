//! `TimedHttp` in servers of hyper, with real sockets and hyper's clients, HTTP/1 and HTTP/2:
//! a body that waits for too long ends, and no task stays behind.

use std::convert::Infallible;
use std::future::Future;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::mpsc::{self, Receiver, Sender};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use corewheel::TimerService;
use corewheel::conn::DataRate;
use corewheel::stream::{StreamLimits, TimedIo};
use corewheel_http::hyper::{BodyLimits, TimedBody, TimedHttp};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Version, client};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use crate::http::{PATIENCE, connect, ms, wait_until};

const LIMIT: Duration = ms(300);
const VERSIONS: [Version; 2] = [Version::HTTP_11, Version::HTTP_2];

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// A body of the test: one frame after another, or one frame and then nothing. Its drop is told.
struct Frames {
    is_endless: bool,
    has_begun: bool,
    dropped: Sender<()>,
}

impl Body for Frames {
    type Data = Bytes;
    type Error = Failed;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failed>>> {
        if self.has_begun && !self.is_endless {
            return Poll::Pending;
        }
        self.has_begun = true;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 1 << 14])))))
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        let _ = self.dropped.send(());
    }
}

type Answer = Result<Response<BoxBody<Bytes, Failed>>, Infallible>;

async fn answer(request: Request<TimedBody<Incoming>>, dropped: Sender<()>) -> Answer {
    let is_endless = match request.uri().path() {
        "/endless" => true,
        "/stalls" => false,
        _ => {
            let collected = request.into_body().collect().await;
            let mut response = Response::new(Full::default().map_err(Into::into).boxed());
            if collected.is_err() {
                *response.status_mut() = StatusCode::REQUEST_TIMEOUT;
            }
            return Ok(response);
        }
    };
    Ok(Response::new(Frames { is_endless, has_begun: false, dropped }.boxed()))
}

struct Server {
    address: SocketAddr,
    runtime: Runtime,
    /// The bodies of responses that were dropped.
    dropped: Receiver<()>,
    _service: TimerService,
}

impl Server {
    fn start(request: BodyLimits, response: BodyLimits) -> Self {
        let service = TimerService::beside_runtime().start().unwrap();
        let timers = service.handle();
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (drops, dropped) = mpsc::channel();
        runtime.spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let drops = drops.clone();
                let answers = service_fn(move |request| answer(request, drops.clone()));
                let stream = TimedIo::new(socket, timers, StreamLimits::default());
                let service =
                    TimedHttp::new(answers, stream.control()).request(request).response(response);
                tokio::spawn(async move {
                    let server = auto::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, runtime, dropped, _service: service }
    }

    /// Sends a request with hyper's client, and runs a check on the response. No task is left then.
    fn check<B, F>(
        &self,
        version: Version,
        path: &str,
        body: B,
        check: impl FnOnce(Response<Incoming>) -> F,
    ) where
        B: Body<Data = Bytes, Error = Failed> + Send + Unpin + 'static,
        F: Future<Output = ()>,
    {
        let metrics = self.runtime.metrics();
        let before = metrics.num_alive_tasks();
        let uri = format!("http://test{path}");
        let request = Request::builder().method("POST").uri(uri).header("host", "test");
        let request = request.body(body).unwrap();
        self.runtime.block_on(async {
            let socket = TokioIo::new(TcpStream::connect(self.address).await.unwrap());
            let asked = async {
                if version == Version::HTTP_2 {
                    let executor = TokioExecutor::new();
                    let mut builder = client::conn::http2::Builder::new(executor);
                    builder.initial_stream_window_size(1 << 16);
                    let (mut sender, connection) = builder.handshake(socket).await.unwrap();
                    tokio::spawn(connection);
                    check(sender.send_request(request).await.unwrap()).await;
                } else {
                    let (mut sender, connection) =
                        client::conn::http1::handshake(socket).await.unwrap();
                    tokio::spawn(connection);
                    check(sender.send_request(request).await.unwrap()).await;
                }
            };
            tokio::time::timeout(PATIENCE, asked).await.unwrap();
        });
        wait_until(|| metrics.num_alive_tasks() <= before);
    }
}

fn no_body() -> BoxBody<Bytes, Failed> {
    Full::default().map_err(Into::into).boxed()
}

#[test]
fn upload_that_stops_is_answered_by_its_handler() {
    let limits = BodyLimits::default().next_frame(LIMIT);
    let server = Server::start(limits, BodyLimits::default());
    for version in VERSIONS {
        let begin = Instant::now();
        let (dropped, _drops) = mpsc::channel();
        let body = Frames { is_endless: false, has_begun: false, dropped };
        server.check(version, "/", body, |response| async move {
            assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT, "{version:?}");
        });
        assert!(begin.elapsed() >= LIMIT, "{version:?}");
    }
}

/// A size alone is no fault: HTTP sets no bound, and the bytes may come.
#[test]
fn chunk_of_an_impossible_size_is_ended_by_the_stall_and_by_the_rate_as_any_other() {
    let drips = BodyLimits::default().min_frame_rate(DataRate::new(1_000, LIMIT));
    for (limits, drips) in [(BodyLimits::default().next_frame(LIMIT), false), (drips, true)] {
        let server = Server::start(limits, BodyLimits::default());
        let mut client = connect(server.address);
        let head = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
        client.write_all(&[&head[..], b"ffffffffffffffff\r\nhello"].concat()).unwrap();
        let begun = Instant::now();
        client.set_read_timeout(Some(ms(50))).unwrap();
        let mut answer = [0; 12];
        // A byte each 50 ms is too few for the rate, and never a stall.
        while client.peek(&mut answer).is_err() {
            assert!(begun.elapsed() < PATIENCE, "it goes on");
            if drips {
                // It fails once the server has answered.
                let _ = client.write_all(b"x");
            }
        }
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.read_exact(&mut answer).unwrap();
        assert_eq!(answer.escape_ascii().to_string(), "HTTP/1.1 408");
        assert!(begun.elapsed() >= LIMIT, "after {:?}", begun.elapsed());
    }
}

#[test]
fn response_whose_handler_stops_is_broken_off() {
    let limits = BodyLimits::default().next_frame(LIMIT);
    let server = Server::start(BodyLimits::default(), limits);
    for version in VERSIONS {
        server.check(version, "/stalls", no_body(), |response| async move {
            let received = response.into_body().collect().await;
            assert!(received.is_err(), "{version:?}");
        });
        server.dropped.recv_timeout(PATIENCE).unwrap();
    }
}

#[test]
fn response_that_its_client_does_not_take_is_dropped_while_the_client_stays() {
    let limits = BodyLimits::default().next_poll(LIMIT);
    let server = Server::start(BodyLimits::default(), limits);
    for version in VERSIONS {
        server.check(version, "/endless", no_body(), |response| {
            // The client holds the response, and reads nothing of it.
            let dropped = tokio::task::block_in_place(|| server.dropped.recv_timeout(PATIENCE));
            dropped.expect("the body stays");
            drop(response);
            async {}
        });
    }
}

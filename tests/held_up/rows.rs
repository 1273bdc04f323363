//! What guards the clients: a row for each kind of limit.

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;

use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::serve::Listener;
use corewheel::conn::Raced;
use corewheel::fallback::InfallibleSleep;
use corewheel::pass::Guarded;
use corewheel::stream::{StreamControl, StreamLimits, TimedIo};
use corewheel::time;
use corewheel::{ConnLimits, Handle};
use corewheel_http::axum::serve;
use corewheel_http::hyper::{BodyLimits, HyperTimer, TimedBody, TimedHttp};
use corewheel_http::tower::TimeoutLayer;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::{Service as HttpService, service_fn};
use hyper::{Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tower::{Layer, ServiceExt};

use corewheel_test_support::stream::NONE;

/// Serves a client. The connection is closed at its end.
pub(crate) type Served = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// What a client sends first. If that is nothing, the server does not reply to it.
    pub(crate) first: &'static [u8],
    /// What a client sends while the runtime is held up.
    pub(crate) second: &'static [u8],
    /// What the server's reply to each of them contains. Nothing, if there is none to the first.
    pub(crate) replies: [&'static [u8]; 2],
    pub(crate) serve: fn(TcpStream, Handle, Duration) -> Served,
    /// Whether the future that waits for the deadline reads the socket itself.
    pub(crate) is_plain: bool,
}

/// Answers the first byte of a client, and the second if `$read` is true.
macro_rules! guarded {
    ($stream:expr, |$socket:ident| $read:expr) => {{
        let mut $socket = $stream;
        Box::pin(async move {
            if $socket.read_u8().await.is_err() || $socket.write_all(b"k").await.is_err() {
                return;
            }
            let is_read = $read;
            if is_read {
                let _ = $socket.write_all(b"k").await;
            }
        })
    }};
}

/// A row of which a byte is answered with a byte.
const fn bytes(name: &'static str, serve: fn(TcpStream, Handle, Duration) -> Served) -> Row {
    Row { name, first: b"a", second: b"z", replies: [b"k", b"k"], serve, is_plain: true }
}

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

/// A row of HTTP/1.
const fn http(name: &'static str, serve: fn(TcpStream, Handle, Duration) -> Served) -> Row {
    Row {
        name,
        first: REQUEST,
        second: REQUEST,
        replies: [b"\r\n\r\nk"; 2],
        serve,
        is_plain: false,
    }
}

const HEAD: &[u8] = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\nconnection: close\r\n\
    expect: 100-continue\r\n\r\n";

/// The answer to a PING, by which a client finds that the server has its request.
const PONG: &[u8] = b"\0\0\x08\x06\x01\0\0\0\0request?";

/// The preface, the head of a `POST`, and a PING.
const HEAD_HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\
    \0\0\x06\x01\x04\0\0\0\x01\x83\x86\x84\x41\x01a\0\0\x08\x06\0\0\0\0\0request?";

/// The preface with an initial window of zero, a `GET`, and a PING.
const WINDOWLESS: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\
    \0\x04\0\0\0\0\0\0\x06\x01\x05\0\0\0\x01\x82\x86\x84\x41\x01a\
    \0\0\x08\x06\0\0\0\0\0request?";

/// A row of HTTP/2 whose limit is for the body of a request.
const fn body_http2(name: &'static str, serve: fn(TcpStream, Handle, Duration) -> Served) -> Row {
    let replies: [&[u8]; 2] = [PONG, b"\0\0\x01\0\x01\0\0\0\x01k"];
    let second = b"\0\0\x01\0\x01\0\0\0\x01z";
    Row { name, first: HEAD_HTTP2, second, replies, serve, is_plain: false }
}

/// A row of HTTP/1 whose limit is for the body of a request.
const fn body(name: &'static str, serve: fn(TcpStream, Handle, Duration) -> Served) -> Row {
    let replies: [&[u8]; 2] = [b" 100 Continue\r\n\r\n", b"\r\n\r\nk"];
    Row { name, first: HEAD, second: b"z", replies, serve, is_plain: false }
}

pub(crate) static ROWS: [Row; 21] = [
    bytes("Handle::timeout", |socket, timers, limit| {
        guarded!(socket, |socket| {
            timers.timeout(limit, socket.read_u8()).await.is_ok_and(|read| read.is_ok())
        })
    }),
    bytes("TimedIo, idle", |socket, timers, limit| timed(socket, timers, NONE.idle(limit))),
    bytes("time::timeout", |socket, _timers, limit| {
        guarded!(socket, |socket| {
            time::timeout(limit, socket.read_u8()).await.is_ok_and(|read| read.is_ok())
        })
    }),
    bytes("Guarded by InfallibleSleep", |socket, timers, limit| {
        guarded!(socket, |socket| {
            own_timeout(timers, limit, socket.read_u8()).await.is_some_and(|read| read.is_ok())
        })
    }),
    bytes("race", |socket, timers, limit| {
        guarded!(socket, |socket| {
            let conn = timers.connection(ConnLimits::default().read_idle(limit));
            matches!(conn.race(pin!(socket.read_u8())).await, Ok(Raced::Done(Ok(_))))
        })
    }),
    bytes("select! with next", |socket, timers, limit| {
        guarded!(socket, |socket| {
            let conn = timers.connection(ConnLimits::default().read_idle(limit));
            tokio::select! {
                _ = conn.next() => false,
                read = socket.read_u8() => read.is_ok(),
            }
        })
    }),
    Row {
        first: b"",
        ..bytes("TimedIo, first_byte", |socket, timers, limit| {
            timed(socket, timers, NONE.first_byte(limit))
        })
    },
    bytes("TimedIo, head", |socket, timers, limit| timed(socket, timers, NONE.head(limit))),
    bytes("StreamControl::timeout", |socket, timers, limit| {
        let stream = TimedIo::new(socket, timers, NONE);
        let control = stream.control();
        guarded!(stream, |stream| {
            control.timeout(limit, stream.read_u8()).await.is_ok_and(|read| read.is_ok())
        })
    }),
    bytes("tower, TimeoutLayer", |socket, timers, limit| {
        guarded!(socket, |socket| {
            let layer = TimeoutLayer::new(timers, limit);
            let read = layer.layer(tower::service_fn(TcpStream::read_u8));
            read.oneshot(&mut socket).await.is_ok()
        })
    }),
    http("HyperTimer, header_read_timeout", |socket, timers, limit| {
        Box::pin(async move {
            let _ = http1::Builder::new()
                .timer(HyperTimer::new(timers))
                .header_read_timeout(limit)
                .serve_connection(TokioIo::new(socket), service_fn(answer))
                .await;
        })
    }),
    http("TimedHttp, idle", |socket, timers, limit| {
        let limits = NONE.idle(limit);
        serve_hyper(Version::HTTP_11, (socket, timers, limits), |control, _| {
            TimedHttp::new(service_fn(answer), control)
        })
    }),
    http("axum, idle", |socket, timers, limit| {
        Box::pin(serve_axum(socket, timers, NONE.idle(limit), get_k()))
    }),
    Row {
        first: b"GET / HTTP/1.1\r\nhost:",
        second: b" a\r\n\r\n",
        replies: [b"", b"\r\n\r\nk"],
        ..http("axum, half a head", |socket, timers, limit| {
            Box::pin(serve_axum(socket, timers, NONE.head(limit), get_k()))
        })
    },
    Row {
        name: "HyperTimer, keep_alive_timeout",
        first: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        // The acknowledgement of the server's PING, and a PING of the client's own.
        second: b"\0\0\x08\x06\x01\0\0\0\0\x3b\x7c\xdb\x7a\x0b\x87\x16\xb4\
            \0\0\x08\x06\0\0\0\0\0in time?",
        replies: [
            b"\0\0\x08\x06\0\0\0\0\0\x3b\x7c\xdb\x7a\x0b\x87\x16\xb4",
            b"\0\0\x08\x06\x01\0\0\0\0in time?",
        ],
        serve: |socket, timers, limit| {
            Box::pin(async move {
                let _ = http2::Builder::new(TokioExecutor::new())
                    .timer(HyperTimer::new(timers))
                    .keep_alive_interval(limit / 8)
                    .keep_alive_timeout(limit)
                    .serve_connection(TokioIo::new(socket), service_fn(answer))
                    .await;
            })
        },
        is_plain: false,
    },
    body("TimeoutLayer around a body", |socket, timers, limit| {
        let late = || StatusCode::REQUEST_TIMEOUT.into_response();
        let layer = TimeoutLayer::with_response(timers, limit, late);
        let read = async |request: Request| read_to_end(request.into_body()).await.unwrap_or("no");
        let app = Router::new().route("/", post(read)).layer(layer);
        Box::pin(serve_axum(socket, timers, NONE, app))
    }),
    body("StreamControl::timeout around a body", |socket, timers, limit| {
        serve_hyper(Version::HTTP_11, (socket, timers, NONE), |control, _| {
            TimedHttp::new(reader(Arc::default(), Some((control.clone(), limit))), control)
        })
    }),
    body("TimedHttp, body", |socket, timers, limit| {
        serve_hyper(Version::HTTP_11, (socket, timers, NONE), |control, _| {
            let service = TimedHttp::new(reader(Arc::default(), None), control);
            service.request(BodyLimits::default().next_frame(limit))
        })
    }),
    body_http2("TimedHttp, body of HTTP/2", |socket, timers, limit| {
        serve_hyper(Version::HTTP_2, (socket, timers, NONE), |control, cut| {
            let service = TimedHttp::new(reader(cut, None), control);
            service.request(BodyLimits::default().next_frame(limit))
        })
    }),
    body_http2("StreamControl::timeout around a body of HTTP/2", |socket, timers, limit| {
        serve_hyper(Version::HTTP_2, (socket, timers, NONE), |control, cut| {
            TimedHttp::new(reader(cut, Some((control.clone(), limit))), control)
        })
    }),
    Row {
        name: "TimedHttp, window of HTTP/2",
        first: WINDOWLESS,
        second: b"\0\0\x04\x08\0\0\0\0\x01\0\0\x10\0",
        replies: [PONG, b"\0\0\x01\0\0\0\0\0\x01k"],
        serve: |socket, timers, limit| {
            serve_hyper(Version::HTTP_2, (socket, timers, NONE), |control, cut| {
                let service = service_fn(move |request: hyper::Request<TimedBody<Incoming>>| {
                    let cut = Arc::clone(&cut);
                    request.body().exchange().on_end(move || cut.notify_one());
                    std::future::ready(Ok::<_, Infallible>(text(Some("k"))))
                });
                TimedHttp::new(service, control).response(BodyLimits::default().next_poll(limit))
            })
        },
        is_plain: false,
    },
];

fn text(text: Option<&'static str>) -> Response<Full<Bytes>> {
    Response::new(Full::new(Bytes::from_static(text.unwrap_or("no").as_bytes())))
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send>>;

/// A service that reads the bodies of its requests, with a time or without, and tells of one that
/// is cut.
fn reader(
    cut: Arc<Notify>,
    timeout: Option<(StreamControl, Duration)>,
) -> impl HttpService<
    hyper::Request<TimedBody<Incoming>>,
    Response = Response<Full<Bytes>>,
    Error = Infallible,
    Future = Answering,
> {
    service_fn(move |request: hyper::Request<TimedBody<Incoming>>| {
        let (cut, timeout) = (Arc::clone(&cut), timeout.clone());
        Box::pin(async move {
            let reading = read_to_end(request.into_body());
            let read = match timeout {
                Some((control, limit)) => control.timeout(limit, reading).await.ok().flatten(),
                None => reading.await,
            };
            if read.is_none() {
                cut.notify_one();
            }
            Ok(text(read))
        }) as Answering
    })
}

/// Serves a connection to its end, one of HTTP/2 until a body is cut.
fn serve_hyper<S, B>(
    version: Version,
    (socket, timers, limits): (TcpStream, Handle, StreamLimits),
    service: impl FnOnce(StreamControl, Arc<Notify>) -> S,
) -> Served
where
    S: HttpService<hyper::Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let stream = TimedIo::new(socket, timers, limits);
    let cut = Arc::<Notify>::default();
    let service = service(stream.control(), Arc::clone(&cut));
    Box::pin(async move {
        let io = TokioIo::new(stream);
        if version == Version::HTTP_11 {
            let _ = http1::Builder::new().serve_connection(io, service).await;
            return;
        }
        tokio::select! {
            _ = http2::Builder::new(TokioExecutor::new()).serve_connection(io, service) => {}
            () = cut.notified() => {}
        }
    })
}

/// A timeout as a program makes it of public items. `None` if the time is up.
async fn own_timeout<F: Future>(timers: Handle, limit: Duration, future: F) -> Option<F::Output> {
    Guarded::new(future, InfallibleSleep::after(timers, limit)).await.ok()
}

fn get_k() -> Router {
    Router::new().route("/", get(|| async { "k" }))
}

async fn serve_axum(socket: TcpStream, timers: Handle, limits: StreamLimits, app: Router) {
    let _ = serve(One(Some(socket)), app).timers(timers).limits(|_| limits).await;
}

/// Waits for the body of a request, by which the client goes on.
async fn read_to_end<B: Body<Error: Debug>>(body: B) -> Option<&'static str> {
    body.collect().await.ok().map(|_| "k")
}

async fn answer<B>(_request: hyper::Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(text(Some("k")))
}

/// Answers each byte of a client, until a limit ends the stream or the last byte has come.
fn timed(socket: TcpStream, timers: Handle, limits: StreamLimits) -> Served {
    Box::pin(async move {
        let mut stream = TimedIo::new(socket, timers, limits);
        let control = stream.control();
        while let Ok(byte) = stream.read_u8().await {
            if byte == b'z' {
                control.head_complete();
            }
            if stream.write_all(b"k").await.is_err() || byte == b'z' {
                return;
            }
        }
    })
}

/// A listener that accepts one connection.
struct One(Option<TcpStream>);

impl Listener for One {
    type Io = TcpStream;
    type Addr = ();

    async fn accept(&mut self) -> (TcpStream, ()) {
        match self.0.take() {
            Some(socket) => (socket, ()),
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

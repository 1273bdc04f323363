//! What guards the clients: a row for each kind of limit.

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::serve::Listener;
use corewheel::adapters::axum::{TimedListener, TimedMakeService};
use corewheel::adapters::hyper::{HyperTimer, TimedService};
use corewheel::adapters::tower::TimeoutLayer;
use corewheel::conn::Raced;
use corewheel::stream::{StreamLimits, TimedIo};
use corewheel::time::{self, FutureExt};
use corewheel::{ConnLimits, Handle};
use http_body_util::{BodyExt, Full};
use hyper::Response;
use hyper::body::{Body, Bytes};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::{Layer, ServiceExt};

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

/// A row of HTTP/1 whose limit is for the body of a request.
const fn body(name: &'static str, serve: fn(TcpStream, Handle, Duration) -> Served) -> Row {
    let replies: [&[u8]; 2] = [b" 100 Continue\r\n\r\n", b"\r\n\r\nk"];
    Row { name, first: HEAD, second: b"z", replies, serve, is_plain: false }
}

pub(crate) static ROWS: [Row; 18] = [
    bytes("Handle::timeout", |socket, timers, limit| {
        guarded!(socket, |socket| {
            timers.timeout(limit, socket.read_u8()).await.is_ok_and(|read| read.is_ok())
        })
    }),
    bytes("TimedIo, idle", |socket, timers, limit| {
        timed(socket, timers, StreamLimits::default().idle(limit))
    }),
    bytes("time::timeout", |socket, _timers, limit| {
        guarded!(socket, |socket| {
            time::timeout(limit, socket.read_u8()).await.is_ok_and(|read| read.is_ok())
        })
    }),
    bytes("time::timeout_at", |socket, _timers, limit| {
        guarded!(socket, |socket| {
            let deadline = time::Instant::now() + limit;
            time::timeout_at(deadline, socket.read_u8()).await.is_ok_and(|read| read.is_ok())
        })
    }),
    bytes("FutureExt::timeout", |socket, _timers, limit| {
        guarded!(socket, |socket| {
            socket.read_u8().timeout(limit).await.is_ok_and(|read| read.is_ok())
        })
    }),
    bytes("race", |socket, timers, limit| {
        guarded!(socket, |socket| {
            let conn = timers.connection(ConnLimits::default().read_idle(limit));
            matches!(conn.race(socket.read_u8()).await, Ok(Raced::Done(Ok(_))))
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
            timed(socket, timers, StreamLimits::default().first_byte(limit))
        })
    },
    bytes("TimedIo, head", |socket, timers, limit| {
        timed(socket, timers, StreamLimits::default().head(limit))
    }),
    bytes("StreamControl::timeout", |socket, timers, limit| {
        let stream = TimedIo::new(socket, timers, StreamLimits::default());
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
    http("TimedService, idle", |socket, timers, limit| {
        Box::pin(async move {
            let stream = TimedIo::new(socket, timers, StreamLimits::default().idle(limit));
            let service = TimedService::new(service_fn(answer), stream.control());
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        })
    }),
    http("axum::serve, idle", |socket, timers, limit| {
        let limits = StreamLimits::default().idle(limit);
        let app = Router::new().route("/", get(|| async { "k" }));
        Box::pin(serve_axum(socket, timers, limits, app))
    }),
    Row {
        first: b"GET / HTTP/1.1\r\nhost:",
        second: b" a\r\n\r\n",
        replies: [b"", b"\r\n\r\nk"],
        ..http("axum::serve, half a head", |socket, timers, limit| {
            let limits = StreamLimits::default().head(limit);
            let app = Router::new().route("/", get(|| async { "k" }));
            Box::pin(serve_axum(socket, timers, limits, app))
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
        Box::pin(serve_axum(socket, timers, StreamLimits::default(), app))
    }),
    body("StreamControl::timeout around a body", |socket, timers, limit| {
        Box::pin(async move {
            let stream = TimedIo::new(socket, timers, StreamLimits::default());
            let control = stream.control();
            let service = service_fn(|request: hyper::Request<_>| {
                let control = control.clone();
                async move {
                    let read = control.timeout(limit, read_to_end(request.into_body())).await;
                    let text = read.ok().flatten().unwrap_or("no");
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(
                        text.as_bytes(),
                    ))))
                }
            });
            let service = TimedService::new(service, stream.control());
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        })
    }),
];

async fn serve_axum(socket: TcpStream, timers: Handle, limits: StreamLimits, app: Router) {
    let listener = TimedListener::new(One(Some(socket)), timers, limits);
    let _ = axum::serve(listener, TimedMakeService::new(app)).await;
}

/// Waits for the body of a request, by which the client goes on.
async fn read_to_end<B: Body<Error: Debug>>(body: B) -> Option<&'static str> {
    body.collect().await.ok().map(|_| "k")
}

async fn answer<B>(_request: hyper::Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from_static(b"k"))))
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

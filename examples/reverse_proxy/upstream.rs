//! A small upstream server, for demonstrations, tests and measurements. It has no timeouts.
//!
//! | path | answer |
//! |---|---|
//! | `/slow?ms=N` | `slow`, after N milliseconds, 2,000 if none are named |
//! | `/big?bytes=N` | N bytes, a mebibyte if none are named |
//! | any other | how many bytes the body of the request had, once all of it has come |

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

/// A part of the body of `/big`.
static PART: [u8; 1 << 14] = [b'x'; 1 << 14];

/// A body of so many bytes, which takes no memory.
#[derive(Debug)]
struct Big(u64);

impl Body for Big {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = usize::try_from(self.0).unwrap_or(PART.len()).min(PART.len());
        self.0 -= length as u64;
        let frame = || Ok(Frame::data(Bytes::from_static(&PART[..length])));
        Poll::Ready((length > 0).then(frame))
    }

    fn is_end_stream(&self) -> bool {
        self.0 == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0)
    }
}

type Answer = Either<Big, Full<Bytes>>;

/// Starts the server on a thread of its own, which ends with the process.
pub(crate) fn start(listener: TcpListener) -> io::Result<SocketAddr> {
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let serve = move || {
        LocalSet::new().block_on(&runtime, async move {
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => accept(listener).await,
                Err(error) => tracing::error!(%error, "the upstream server cannot listen"),
            }
        });
    };
    thread::Builder::new().name("upstream".to_owned()).spawn(serve)?;
    Ok(address)
}

async fn accept(listener: tokio::net::TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        // The client may have left already, which the first read finds.
        let _ = stream.set_nodelay(true);
        tokio::task::spawn_local(async move {
            let service = service_fn(answer);
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection of the upstream server failed");
            }
        });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Answer>, Infallible> {
    let uri = request.uri().clone();
    let number = |name: &str, default: u64| {
        let pairs = uri.query().unwrap_or_default().split('&');
        let mut values = pairs.filter_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        values.next().and_then(|value| value.parse().ok()).unwrap_or(default)
    };
    let mut received = 0;
    let mut body = request.into_body();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            let mut response = Response::new(Either::Right(Full::default()));
            *response.status_mut() = StatusCode::BAD_REQUEST;
            return Ok(response);
        };
        received += frame.data_ref().map_or(0, Bytes::len);
    }
    let body = match uri.path() {
        "/slow" => {
            tokio::time::sleep(Duration::from_millis(number("ms", 2_000))).await;
            Bytes::from_static(b"slow\n")
        }
        "/big" => return Ok(Response::new(Either::Left(Big(number("bytes", 1 << 20))))),
        _ => Bytes::from(format!("the body of the request had {received} bytes\n")),
    };
    Ok(Response::new(Either::Right(Full::new(body))))
}

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

/// A part of the body of `/big`.
static PART: [u8; 1 << 14] = [b'x'; 1 << 14];

/// A body of so many bytes, which takes no memory.
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

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0)
    }
}

/// Starts the server on a thread of its own, which ends with the process.
pub(crate) fn start(listener: TcpListener) -> io::Result<SocketAddr> {
    let address = listener.local_addr()?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let listener = {
        let _entered = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    let serve = move || runtime.block_on(accept(listener));
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
        tokio::spawn(
            http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)),
        );
    }
}

async fn answer(
    request: Request<Incoming>,
) -> Result<Response<Either<Big, Full<Bytes>>>, Infallible> {
    let uri = request.uri().clone();
    let number = |name: &str, default: u64| {
        let pairs = uri.query().unwrap_or_default().split('&');
        let mut values = pairs.filter_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        values.next().and_then(|value| value.parse().ok()).unwrap_or(default)
    };
    let mut response = Response::new(Either::Right(Full::default()));
    let Ok(body) = request.into_body().collect().await else {
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return Ok(response);
    };
    *response.body_mut() = match uri.path() {
        "/slow" => {
            tokio::time::sleep(Duration::from_millis(number("ms", 2_000))).await;
            Either::Right(Bytes::from_static(b"slow\n").into())
        }
        "/big" => Either::Left(Big(number("bytes", 1 << 20))),
        _ => {
            let received = body.to_bytes().len();
            let line = format!("the body of the request had {received} bytes\n");
            Either::Right(Bytes::from(line).into())
        }
    };
    Ok(response)
}

//! A small upstream server, for demonstrations, tests and measurements. It has no timeouts.
//!
//! | path | answer |
//! |---|---|
//! | `/slow?ms=N` | `slow`, after N milliseconds, 2,000 if none are named |
//! | `/big?bytes=N` | N bytes, at most 32 MiB, a mebibyte if none are named |
//! | any other | how many bytes the body of the request had, once all of it has come |

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::runtime::Builder;

/// What `/big` answers with: each body is a part of these bytes, and takes no memory of its own.
static BIG: LazyLock<Bytes> = LazyLock::new(|| vec![b'x'; 1 << 25].into());

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

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let uri = request.uri().clone();
    let number = |name: &str, default: usize| {
        let pairs = uri.query().unwrap_or_default().split('&');
        let mut values = pairs.filter_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        values.next().and_then(|value| value.parse().ok()).unwrap_or(default)
    };
    let Ok(body) = request.into_body().collect().await else {
        let mut response = Response::default();
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return Ok(response);
    };
    let body = match uri.path() {
        "/slow" => {
            tokio::time::sleep(Duration::from_millis(number("ms", 2_000) as u64)).await;
            Bytes::from_static(b"slow\n")
        }
        "/big" => BIG.slice(..number("bytes", 1 << 20).min(BIG.len())),
        _ => {
            let received = body.to_bytes().len();
            format!("the body of the request had {received} bytes\n").into()
        }
    };
    Ok(Response::new(body.into()))
}

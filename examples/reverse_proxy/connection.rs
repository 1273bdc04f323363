//! One connection of a client.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::forward::Answer;
use crate::server::{Http, Server, Shutdown};
use crate::timers::{Control, Stream};

/// What a client gets whose request does not become complete in time.
const HEAD_TOO_SLOW: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n\
    content-type: text/plain\r\ncontent-length: 20\r\n\r\n408 Request Timeout\n";
/// How long a client has to take that.
const LAST_WORDS_TIME: Duration = Duration::from_secs(1);

/// Serves a client until it leaves, a deadline ends the connection, or the proxy is shut down.
pub(crate) async fn serve(
    server: Arc<Server>,
    stream: TcpStream,
    client: IpAddr,
    mut shutdown: Shutdown,
) {
    // The client may have left already, which the first read finds.
    let _ = stream.set_nodelay(true);
    let ended = match server.timers.stream(stream, &server.limits) {
        Stream::Timed(stream) => {
            let control = Control(Some(stream.control()));
            serve_on(&server, TokioIo::new(stream), client, &control, &mut shutdown).await
        }
        Stream::Plain(stream) => {
            let control = Control(None);
            serve_on(&server, TokioIo::new(stream), client, &control, &mut shutdown).await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%client, error = &*error, "a connection was cut off");
    }
}

type Failed = Box<dyn std::error::Error + Send + Sync>;

async fn serve_on<S>(
    server: &Arc<Server>,
    stream: S,
    client: IpAddr,
    control: &Control,
    shutdown: &mut Shutdown,
) -> Result<(), Failed>
where
    S: Read + Write + Unpin + Send + 'static,
{
    let service = service_fn(|request: Request<Incoming>| {
        let (server, control) = (Arc::clone(server), control.clone());
        async move {
            let answer = server.forwarder.forward(request, client, control).await;
            Ok::<Response<Answer>, Infallible>(answer)
        }
    });
    match &server.http {
        Http::One(settings) => {
            let mut connection = settings.serve_connection(stream, service);
            let ended = tokio::select! {
                biased;
                ended = &mut connection => ended,
                () = shutdown.begun() => {
                    Pin::new(&mut connection).graceful_shutdown();
                    (&mut connection).await
                }
            };
            if let Err(error) = &ended
                && error.is_timeout()
            {
                let write = answer_408(connection.into_parts());
                // A client that does not take the answer has less than it asked for.
                let _ = server.timers.timeout(LAST_WORDS_TIME, write).await;
            }
            Ok(ended?)
        }
        Http::OneOrTwo(settings) => {
            let mut connection = pin!(settings.serve_connection(stream, service));
            tokio::select! {
                biased;
                ended = connection.as_mut() => ended,
                () = shutdown.begun() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }
    }
}

/// Tells a client that has sent a part of a request's head that the time for the rest is over.
async fn answer_408<S, F>(connection: http1::Parts<S, F>)
where
    S: Read + Write + Unpin,
{
    if connection.read_buf.is_empty() {
        return;
    }
    let mut stream = TokioIo::new(connection.io);
    // It fails if the client has left.
    if stream.write_all(HEAD_TOO_SLOW).await.is_ok() {
        let _ = stream.shutdown().await;
    }
}

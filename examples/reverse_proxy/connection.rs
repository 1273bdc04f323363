//! One connection of a client.

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use corewheel::adapters::hyper::TimedService;
use corewheel::stream::TimedIo;
use hyper::body::{Body, Bytes, Incoming};
use hyper::rt::{Read, Write};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::forward::{Answer, ClientBody};
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
    let is_http1 = matches!(server.http, Http::One(_));
    let ended = match server.timers.stream(stream, &server.limits, is_http1) {
        Stream::Timed(stream) => {
            let control = Control(Some(Arc::new(stream.control())));
            let answer = answers(&server, client, &control, ClientBody::Left);
            // The deadlines of the stream end no request on which the proxy works.
            let service = TimedService::new(answer, stream.control());
            let socket = |stream: TokioIo<TimedIo<TcpStream>>| stream.into_inner().into_inner();
            let stream = TokioIo::new(stream);
            serve_on(&server, stream, socket, service, &control, &mut shutdown).await
        }
        Stream::Plain(stream) => {
            let (control, stream) = (Control(None), TokioIo::new(stream));
            let service = answers(&server, client, &control, ClientBody::Right);
            let socket = TokioIo::into_inner;
            serve_on(&server, stream, socket, service, &control, &mut shutdown).await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%client, error = &*error, "a connection was cut off");
    }
}

type Failed = Box<dyn std::error::Error + Send + Sync>;
/// The answer to a request.
type Answering = Pin<Box<dyn Future<Output = Result<Response<Answer>, Infallible>> + Send>>;

/// A service that answers the requests of a client. `body` wraps the body of each request.
fn answers<B>(
    server: &Arc<Server>,
    client: IpAddr,
    control: &Control,
    body: fn(B) -> ClientBody,
) -> impl Service<Request<B>, Response = Response<Answer>, Error = Infallible, Future = Answering>
where
    B: Body + Send + 'static,
{
    let (server, control) = (Arc::clone(server), control.clone());
    service_fn(move |request: Request<B>| {
        let (server, control) = (Arc::clone(&server), control.clone());
        let answer =
            async move { Ok(server.forwarder.forward(request.map(body), client, &control).await) };
        Box::pin(answer) as Answering
    })
}

/// `socket` takes a stream without its deadlines, which would not let an answer through.
async fn serve_on<S, V, B>(
    server: &Arc<Server>,
    stream: S,
    socket: impl FnOnce(S) -> TcpStream,
    service: V,
    control: &Control,
    shutdown: &mut Shutdown,
) -> Result<(), Failed>
where
    S: Read + Write + Unpin + Send + 'static,
    V: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    V::Future: Send + 'static,
    B: Body<Data = Bytes, Error: Into<Failed>> + Send + 'static,
{
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
                && (error.is_timeout() || control.is_read_late())
            {
                let http1::Parts { io, read_buf, .. } = connection.into_parts();
                let write = answer_408(socket(io), &read_buf);
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
async fn answer_408(mut socket: TcpStream, part: &[u8]) {
    if part.is_empty() {
        return;
    }
    // It fails if the client has left.
    if socket.write_all(HEAD_TOO_SLOW).await.is_ok() {
        let _ = socket.shutdown().await;
    }
}

//! One connection of a client.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use corewheel_http::hyper::{Exchange, TimedBody, TimedHttp};
use hyper::body::{Body, Bytes, Incoming};
use hyper::rt::{Read, Write};
use hyper::server::conn::http2;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::sync::oneshot::error::RecvError;

use crate::forward::{Answer, Asked};
use crate::preface::{self, Rewound};
use crate::server::{Server, Shutdown};
use crate::socket::ClientSocket;
use crate::spawn::Spawner;
use crate::timers::{Control, LAST_WORDS_TIME, Stream, Timers};

/// What a client gets whose request does not become complete in time.
const HEAD_TOO_SLOW: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n\
    content-type: text/plain\r\ncontent-length: 20\r\n\r\n408 Request Timeout\n";

/// What ends a connection before its client does.
#[derive(Debug)]
struct Ends {
    control: Control,
    shutdown: Shutdown,
    /// A client of HTTP/2 does not take a response.
    stalled: Arc<Notify>,
}

impl Ends {
    /// Waits until the connection is to end, after the requests in progress. The drain of the
    /// service tells each connection that has deadlines in its turn.
    async fn begun(&mut self) {
        let is_told = self.control.0.is_some();
        tokio::select! {
            biased;
            () = self.control.is_over() => {}
            () = self.stalled.notified() => {}
            () = self.shutdown.begun(), if !is_told => {}
        }
    }
}

/// Serves a client until it leaves, a deadline ends the connection, or the proxy is shut down.
pub(crate) async fn serve(
    server: Arc<Server>,
    stream: TcpStream,
    client: IpAddr,
    shutdown: Shutdown,
) {
    // The client may have left already, which the first read finds.
    let _ = stream.set_nodelay(true);
    if let Err(error) = serve_version(&server, stream, client, shutdown).await {
        tracing::debug!(%client, error = &*error, "a connection was cut off");
    }
}

type Failed = Box<dyn std::error::Error + Send + Sync>;

async fn serve_version(
    server: &Arc<Server>,
    stream: TcpStream,
    client: IpAddr,
    shutdown: Shutdown,
) -> Result<(), Failed> {
    let stalled = Arc::<Notify>::default();
    let limits = &server.limits;
    match server.timers.stream(stream, limits) {
        Stream::Timed(mut stream) => {
            let control = Control(Some(Arc::new(stream.control())));
            let mut ends = Ends { control, shutdown, stalled };
            let requests = Requests::new(server, client, &ends);
            // The deadlines of the stream end no request on which the proxy works.
            let service =
                TimedHttp::new(requests.answers(), stream.control()).request(limits.of_request());
            let Some((read, is_http2)) = server.version(&mut stream, &mut ends).await? else {
                return Ok(());
            };
            if is_http2 {
                limits.set_http2(&stream.control());
            }
            let service = service.response(limits.of_response(is_http2));
            if !is_http2 {
                stream.get_mut().watch();
            }
            let (stream, back) = Rewound::new(read, TokioIo::new(stream));
            // Without its deadlines, which would not let an answer through.
            let back = async { back.await.map(|stream| stream.into_inner().into_inner()) };
            if is_http2 {
                return serve_http2(server, stream, back, service, ends).await;
            }
            serve_http1(server, stream, back, service, ends).await
        }
        Stream::Plain(mut stream) => {
            let mut ends = Ends { control: Control(None), shutdown, stalled };
            let service = Requests::new(server, client, &ends).answers();
            let version = server.version(&mut stream, &mut ends);
            let version = server.timers.timeout(limits.header, version);
            let Some((read, is_http2)) = version.await?? else { return Ok(()) };
            if !is_http2 {
                stream.watch();
            }
            let (stream, back) = Rewound::new(read, TokioIo::new(stream));
            let back = async { back.await.map(TokioIo::into_inner) };
            if is_http2 {
                return serve_http2(server, stream, back, service, ends).await;
            }
            serve_http1(server, stream, back, service, ends).await
        }
    }
}

impl Server {
    /// What was read to find out whether the client uses HTTP/2, and whether it does; `None` if the
    /// connection is to end before that is known.
    async fn version<S: AsyncReadExt + Unpin>(
        &self,
        stream: &mut S,
        ends: &mut Ends,
    ) -> std::io::Result<Option<(Bytes, bool)>> {
        if self.http.two.is_none() {
            return Ok(Some((Bytes::new(), false)));
        }
        tokio::select! {
            biased;
            read = preface::read(stream) => read.map(Some),
            () = ends.begun() => Ok(None),
        }
    }
}

/// The answer to a request.
type Answering = Pin<Box<dyn Future<Output = Result<Response<Answer>, Infallible>> + Send>>;

/// The body of a request, as a client sends it.
trait ClientBody: Body + Send + 'static {
    fn asked(self) -> Asked;

    /// The exchange of the request; `None` without deadlines.
    fn exchange(&self) -> Option<&Exchange>;
}

impl ClientBody for TimedBody<Incoming> {
    fn asked(self) -> Asked {
        Asked::Timed(self)
    }

    fn exchange(&self) -> Option<&Exchange> {
        Some(TimedBody::exchange(self))
    }
}

impl ClientBody for Incoming {
    fn asked(self) -> Asked {
        Asked::Plain(self)
    }

    fn exchange(&self) -> Option<&Exchange> {
        None
    }
}

/// A service that answers the requests of a client.
trait Answers<B>:
    Service<Request<B>, Response = Response<Answer>, Error = Infallible, Future = Answering>
{
}

impl<B, S> Answers<B> for S where
    S: Service<Request<B>, Response = Response<Answer>, Error = Infallible, Future = Answering>
{
}

/// What the requests of a connection share.
struct Requests {
    server: Arc<Server>,
    client: IpAddr,
    control: Control,
    stalled: Arc<Notify>,
    shutdown: Shutdown,
}

impl Requests {
    fn new(server: &Arc<Server>, client: IpAddr, ends: &Ends) -> Self {
        let (server, control) = (Arc::clone(server), ends.control.clone());
        let (stalled, shutdown) = (Arc::clone(&ends.stalled), ends.shutdown.clone());
        Self { server, client, control, stalled, shutdown }
    }

    /// A service that answers the requests of a client.
    fn answers<B>(self) -> impl Answers<B>
    where
        B: ClientBody,
    {
        service_fn(move |request: Request<B>| self.answer(request))
    }

    /// Sends a request to the upstream server. The future that is left is small, as it has no part
    /// of the request: each of a kilobyte or more costs hundreds of instructions to allocate.
    fn answer<B: ClientBody>(&self, request: Request<B>) -> Answering {
        let exchange = request.body().exchange().cloned();
        if let Some(exchange) = &exchange
            && request.version() == hyper::Version::HTTP_2
        {
            let (stalled, ended) = (Arc::clone(&self.stalled), exchange.clone());
            let (control, shutdown) = (self.control.clone(), self.shutdown.clone());
            exchange.on_end(move || {
                use corewheel_http::hyper::BodyError::{NextPoll, PollRate};
                if control.is_cut_by_drain() {
                    shutdown.has_cut();
                }
                if let Some(NextPoll(_) | PollRate(_)) = ended.response_limit_reached() {
                    stalled.notify_one();
                }
            });
        }
        let request = request.map(B::asked);
        let sent = self.server.forwarder.send(request, self.client, exchange.as_ref());
        let (server, client) = (Arc::clone(&self.server), self.client);
        let control = self.control.clone();
        Box::pin(async move {
            Ok(server.forwarder.answer(sent, client, exchange.as_ref(), &control).await)
        })
    }
}

/// `back` has the socket when hyper has dropped the stream.
async fn serve_http1<S, V, B>(
    server: &Server,
    stream: S,
    back: impl Future<Output = Result<ClientSocket, RecvError>>,
    service: V,
    mut ends: Ends,
) -> Result<(), Failed>
where
    S: Read + Write + Unpin + Send + 'static,
    V: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Unpin,
    V::Future: Send + Unpin + 'static,
    B: Body<Data: Send, Error: Into<Failed>> + Send + 'static,
{
    let mut connection = server.http.one.serve_connection(stream, service);
    let ended = tokio::select! {
        biased;
        ended = poll_fn(|cx| connection.poll_without_shutdown(cx)) => ended,
        () = ends.begun() => {
            Pin::new(&mut connection).graceful_shutdown();
            poll_fn(|cx| connection.poll_without_shutdown(cx)).await
        }
    };
    let read_buf = connection.into_parts().read_buf;
    if ends.control.is_cut_by_drain() {
        // A connection without a request has ended when it was told.
        ends.shutdown.has_cut();
    }
    let is_late = match &ended {
        Ok(()) => false,
        Err(error) => error.is_timeout() || ends.control.is_head_late(),
    };
    let last_words: &[u8] = if is_late && !read_buf.is_empty() { HEAD_TOO_SLOW } else { b"" };
    close(server, &ends, back.await?, last_words).await;
    Ok(ended?)
}

/// Closes the socket of a connection. What lies in its send buffer still goes to the client.
async fn close(server: &Server, ends: &Ends, socket: ClientSocket, last_words: &[u8]) {
    let Some(mut socket) = socket.into_inner() else { return };
    if ends.control.is_write_late() {
        // The client does not read: a reset leaves nothing for it in the kernel.
        let _ = SockRef::from(&socket).set_linger(Some(Duration::ZERO));
        return;
    }
    if matches!(server.timers, Timers::None) {
        // Without a time, the client could hold the socket for ever.
        return;
    }
    // A client that does not take the answer has less than it asked for.
    let _ = server.timers.timeout(LAST_WORDS_TIME, part(&mut socket, last_words)).await;
}

/// Sends a last answer, and takes what the client still sends: a socket that is closed before is
/// reset, and the client may lose the answer, or the rest of a response.
async fn part(socket: &mut TcpStream, last_words: &[u8]) -> std::io::Result<()> {
    socket.write_all(last_words).await?;
    socket.shutdown().await?;
    let mut rest = vec![0; 1 << 12];
    while socket.read(&mut rest).await? > 0 {}
    Ok(())
}

async fn serve_http2<S, V, B>(
    server: &Server,
    stream: S,
    back: impl Future<Output = Result<ClientSocket, RecvError>>,
    service: V,
    mut ends: Ends,
) -> Result<(), Failed>
where
    S: Read + Write + Unpin + Send + 'static,
    V: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    V::Future: Send + 'static,
    B: Body<Data: Send, Error: Into<Failed>> + Send + 'static,
{
    let Some(settings) = &server.http.two else { return Ok(()) };
    let connection = settings.serve_connection(stream, service);
    let ended = drive_http2(connection, &mut ends).await;
    close(server, &ends, back.await?, b"").await;
    Ok(ended?)
}

/// Serves an HTTP/2 connection to its end.
async fn drive_http2<S, V, B>(
    connection: http2::Connection<S, V, Spawner>,
    ends: &mut Ends,
) -> hyper::Result<()>
where
    S: Read + Write + Unpin + Send + 'static,
    V: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    V::Future: Send + 'static,
    B: Body<Data: Send, Error: Into<Failed>> + Send + 'static,
{
    let mut connection = pin!(connection);
    let stalled = Arc::clone(&ends.stalled);
    tokio::select! {
        biased;
        // First, so that the client is told also where the process was held up until the socket has
        // reached its limit, too.
        () = stalled.notified() => {}
        ended = connection.as_mut() => return ended,
        () = ends.begun() => {}
    }
    // The client is told by a GOAWAY. It need not close the connection, and need not take the
    // responses that have reached a limit.
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = ends.control.is_unused() => Ok(()),
    }
}

//! A server of axum whose connections and requests have timeouts.
//!
//! [`serve`] stands for `axum::serve`: it has the same arguments and the same graceful shutdown. So
//! a server changes one path, and has the limits of [`Serve`].
//!
//! Why not `axum::serve` over streams with timeouts: it owns the connection, and has no call for
//! what a limit of an HTTP connection needs. Such a limit tells the client before it cuts: by a
//! `GOAWAY`, by `Connection: close`, or by a `408`.
//!
//! Cost: see [`serve`].

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, Pending, Ready, pending, poll_fn, ready};
use std::io;
use std::marker::PhantomData;
#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::extract::connect_info::Connected;
use axum::handler::HandlerService;
use axum::http::header::{CONNECTION, HeaderValue};
use axum::http::{StatusCode, Version};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use axum::serve::Listener;
use corewheel::Handle;
#[cfg(doc)]
use corewheel::stream::TimedIo;
use corewheel::stream::{StreamControl, StreamLimits};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::service::TowerToHyperService;
use tokio::sync::watch;
use tower_service::Service;

use super::hyper::BodyError::{FrameRate, NextFrame};
use super::hyper::{BodyLimits, TimedBody};
use super::server::Server;

/// Serves connections of a listener, as `axum::serve` does, with timeouts.
///
/// The arguments are those of `axum::serve`: a listener, and a router, a handler's service, or what
/// `into_make_service` and `into_make_service_with_connect_info` make. It serves HTTP/1 and HTTP/2,
/// with upgrades. The future never ends, unless it has a
/// [graceful shutdown](Serve::with_graceful_shutdown).
///
/// ```
/// use axum::{Router, routing::get};
/// use corewheel_http::axum::serve;
///
/// # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// let app = Router::new().route("/", get(|| async { "hello" }));
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// # let stop = async {};
/// serve(listener, app).with_graceful_shutdown(stop).await?;
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// See [`Serve`] for the limits, and how a server sets them.
///
/// # Connections
///
/// A handler has the address of its client by `ConnectInfo<SocketAddr>`, and the control of its
/// connection by `ConnectInfo<StreamControl>`, behind
/// `into_make_service_with_connect_info`. Other such types implement axum's `Connected` for
/// [`IncomingStream`].
///
/// # Cost
///
/// That of a [`TimedHttp`](super::hyper::TimedHttp), and an allocation for each of the two bodies,
/// as axum's bodies are boxed. A connection costs a task, as in `axum::serve`.
pub fn serve<L, M, S>(listener: L, make_service: M) -> Serve<L, M, S>
where
    L: Listener,
    M: for<'a> Service<IncomingStream<'a, L>, Error = Infallible, Response = S>,
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let server = Server::default();
    Serve {
        listener,
        make_service,
        server,
        #[cfg(unix)]
        socket: None,
        signal: pending(),
        service: PhantomData,
    }
}

/// Finds the TCP socket below a stream.
#[cfg(unix)]
type SocketOf<I> = fn(&I) -> Option<BorrowedFd<'_>>;

/// A server that [`serve`] has made: a future that serves when it is awaited.
///
/// # Limits
///
/// All of these are on, unless the server sets others:
///
/// | state | limit | the client is told |
/// |---|---|---|
/// | nothing has come, or the handshake of TLS goes on | `first_byte`, 10 s | – |
/// | a head comes | `head`, 10 s | `408`; of HTTP/2, nothing |
/// | the body of a request comes | `next_frame`, 20 s; `min_frame_rate`, 240 bytes/s | `408` |
/// | no request is in progress | `idle`, 60 s | `GOAWAY`; of HTTP/1, the close |
/// | the client does not take its response | `write_stall`, 30 s | – |
/// | the connection is too old | `max_age`, off | `GOAWAY`, or `Connection: close` |
/// | it was told that, and goes on | `max_age_grace`, 30 s | – |
///
/// The system holds 256 KiB for a client that takes its response slowly, and what that client's own
/// system has taken ([`unsent_max`](StreamLimits::unsent_max), on Linux), in place of up to 4 MB.
///
/// The bodies of requests have the limits of [`request`](Self::request), and all else those of
/// [`limits`](Self::limits). No limit but `max_age_grace` ends a connection while a handler works,
/// or a response is on its way to a client that takes it, however long that takes. A client takes
/// it whose kernel acknowledges some of it within each `write_stall`, see
/// [`with_socket`](TimedIo::with_socket); where the listener's stream is no `TcpStream` and
/// [`socket`](Self::socket) says nothing of it, for which the stream accepts some of it.
///
/// ```no_run
/// use axum::{Router, routing::get};
/// use corewheel::TimerService;
/// use corewheel_http::axum::{Serve, serve};
/// use std::time::Duration;
/// use tokio::net::TcpListener;
///
/// async fn run(listener: TcpListener, app: Router) -> Result<(), Box<dyn std::error::Error>> {
///     let service = TimerService::beside_runtime().start()?;
///     let server: Serve<_, _, _> = serve(listener, app);
///     let seconds = Duration::from_secs;
///     server
///         .timers(service.handle())
///         .limits(|limits| limits.head(seconds(5)).idle(seconds(30)).write_stall(seconds(20)))
///         .request(|limits| limits.next_frame(seconds(10)))
///         .await?;
///     Ok(())
/// }
/// ```
///
/// A connection is idle while no request is in progress, whatever its client sends: PINGs do not
/// keep it. A client of HTTP/2 that is gone without a word while it has a response is found by
/// [`keep_alive`](Self::keep_alive). After an upgrade of HTTP/1 or a success to CONNECT, as of a
/// WebSocket, `idle` counts from the last byte of such a tunnel. A connection that was told to end
/// has its tunnels until both sides have ended them, or until `max_age_grace`.
///
/// A [drain](corewheel::TimerService::drain) of the service tells each connection as its greatest
/// age does, and [`close_idlest`](corewheel::TimerService::close_idlest) does as well. A connection
/// that begins in a drain has one request.
///
/// The body of a request ends with an error where the client has sent too little of it in time. If
/// the handler answers with an error then, as axum's extractors do, the client receives `408`. Time
/// in which another request of its HTTP/2 connection has used up the server's window does not
/// count, up to a minute. A client whose response has begun has no such limit, as in a stream of
/// gRPC in both directions: it is in progress until the response ends.
///
/// A client of HTTP/1 that closes its own side has left, unless
/// [`half_close`](Self::half_close) is set.
///
/// # The close
///
/// A socket that is closed while bytes lie unread in it, or to which bytes come after that, is
/// reset, and the client loses what it has not received. So the server shuts its side down first,
/// and reads and forgets what the client still sends, until the client closes its side too, for
/// [`close_time`](Self::close_time) at most. A client to which nothing was sent is closed at once.
///
/// A client that reaches `write_stall` or `min_write_rate` is reset instead, so that the system
/// frees what it keeps for that client. This is so for a `TcpStream`, for one below a `TlsListener`
/// of this package, and for one that [`socket`](Self::socket) finds. A stream of another type is
/// closed at once, and the system keeps what the client has not taken until it gives that client
/// up.
///
/// # When there is no timer
///
/// A connection for whose timer its shard has no room serves what is ready at once, and is closed
/// where it would wait: see [`TimedIo`](TimedIo#when-there-is-no-timer).
#[must_use = "a server does nothing unless it is awaited"]
pub struct Serve<L: Listener, M, S, F = Pending<()>> {
    listener: L,
    make_service: M,
    server: Server,
    /// Where the TCP socket of a stream is; `None` if the stream itself may be one.
    #[cfg(unix)]
    socket: Option<SocketOf<L::Io>>,
    /// Ready when the server is to stop.
    signal: F,
    service: PhantomData<fn() -> S>,
}

impl<L: Listener, M, S, F> Serve<L, M, S, F> {
    /// Sets whose shards have the timers: those of [`time::handle`](corewheel::time::handle), the
    /// default service of the process, unless this is called. With [`Handle::of_class`] the
    /// statistics count the timers for a class.
    pub fn timers<T: 'static>(mut self, timers: Handle<T>) -> Self {
        self.server = self.server.timers(timers);
        self
    }

    /// Changes the limits of connections, beginning from those that the server has. A limit that is
    /// zero is off.
    ///
    /// [`idle`](StreamLimits::idle) and [`request_idle`](StreamLimits::request_idle) are one limit
    /// here, the shorter of the two.
    pub fn limits(mut self, change: impl FnOnce(StreamLimits) -> StreamLimits) -> Self {
        self.server = self.server.limits(change);
        self
    }

    /// Changes the limits of the bodies of requests, beginning from those that the server has. With
    /// [`BodyLimits::NONE`], a client that stops in the middle of a body is idle, and is cut.
    pub fn request(mut self, change: impl FnOnce(BodyLimits) -> BodyLimits) -> Self {
        self.server = self.server.request(change);
        self
    }

    /// Changes the limits of the bodies of responses: off unless this is called, as a stream of
    /// events may rest for long.
    pub fn response(mut self, change: impl FnOnce(BodyLimits) -> BodyLimits) -> Self {
        self.server = self.server.response(change);
        self
    }

    /// Sets for how long a connection is closed, 5 seconds by default: the time that the client has
    /// to take what lies in the system's send buffer. Zero closes each socket at once.
    pub fn close_time(mut self, close_time: Duration) -> Self {
        self.server = self.server.close_time(close_time);
        self
    }

    /// Sets for how long a client is answered that has closed its own side; see
    /// [`Server::half_close`]. Off by default.
    pub fn half_close(mut self, time: Duration) -> Self {
        self.server = self.server.half_close(time);
        self
    }

    /// Finds clients of HTTP/2 that are gone without a word while a response goes on, by a PING
    /// after `interval` that is to be answered within `timeout`; see [`Server::keep_alive`]. Off by
    /// default.
    pub fn keep_alive(mut self, interval: Duration, timeout: Duration) -> Self {
        self.server = self.server.keep_alive(interval, timeout);
        self
    }

    /// Says which TCP socket lies below a stream of the listener, so that its clients are judged by
    /// what they have acknowledged: see [`with_socket`](TimedIo::with_socket). A `TcpStream` is
    /// found without it, also below the stream of a `TlsListener` of this package.
    ///
    /// Of a stream of `tokio-rustls` it is `|stream| Some(stream.get_ref().0.as_fd())`.
    #[cfg(unix)]
    pub fn socket(mut self, find: fn(&L::Io) -> Option<BorrowedFd<'_>>) -> Self {
        self.socket = Some(find);
        self
    }

    /// Stops the server when the signal is ready: it accepts no more connections, tells each by a
    /// `GOAWAY` or `Connection: close`, and ends when all have ended. Their limits go on. A
    /// connection that was upgraded is not waited for.
    pub fn with_graceful_shutdown<G>(self, signal: G) -> Serve<L, M, S, G>
    where
        G: Future<Output = ()> + Send + 'static,
    {
        Serve {
            listener: self.listener,
            make_service: self.make_service,
            server: self.server,
            #[cfg(unix)]
            socket: self.socket,
            signal,
            service: self.service,
        }
    }

    /// Where the listener listens.
    ///
    /// # Errors
    ///
    /// Those of the listener.
    pub fn local_addr(&self) -> io::Result<L::Addr> {
        self.listener.local_addr()
    }
}

impl<L, M, S, F> IntoFuture for Serve<L, M, S, F>
where
    L: Listener,
    M: for<'a> Service<IncomingStream<'a, L>, Error = Infallible, Response = S> + Send + 'static,
    for<'a> <M as Service<IncomingStream<'a, L>>>::Future: Send,
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    F: Future<Output = ()> + Send + 'static,
{
    type Output = io::Result<()>;
    type IntoFuture = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { mut listener, mut make_service, server, signal, .. } = self;
            let timers = server.handle();
            let server = Arc::new(server.timers(timers));
            // Its drop, with this future, begins the shutdown of each connection.
            let (running, shutdown) = watch::channel(());
            let mut signal = pin!(signal);
            loop {
                let (socket, remote_addr) = tokio::select! {
                    biased;
                    () = &mut signal => break,
                    accepted = listener.accept() => accepted,
                };
                let stream = server.stream(socket);
                #[cfg(unix)]
                let stream = match self.socket {
                    Some(find) => stream.with_socket(find),
                    None => stream,
                };
                let Ok(()) = poll_fn(|cx| make_service.poll_ready(cx)).await;
                let control = stream.control();
                let incoming = IncomingStream { io: stream.get_ref(), remote_addr, control };
                let Ok(app) = make_service.call(incoming).await;
                let (server, mut shutdown) = (Arc::clone(&server), shutdown.clone());
                tokio::spawn(async move {
                    // An error says that the server was dropped.
                    let is_shut_down = async { drop(shutdown.changed().await) };
                    let app = TowerToHyperService::new(app);
                    let service = service_fn(move |request| answer(&app, request));
                    server.serve(stream, service, is_shut_down).await;
                    // The shutdown has waited for this connection.
                    drop(shutdown);
                });
            }
            drop((listener, make_service, shutdown));
            // Each connection has a receiver until it has ended.
            running.send_replace(());
            running.closed().await;
            Ok(())
        })
    }
}

/// The answer of an app to a request: `408` in place of an error, where the client has sent too
/// little of the body of the request in time.
fn answer<S>(
    app: &TowerToHyperService<S>,
    request: hyper::Request<TimedBody<Incoming>>,
) -> impl Future<Output = Result<Response, Infallible>> + use<S>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone,
{
    let (exchange, version) = (request.body().exchange().clone(), request.version());
    let answer = hyper::service::Service::call(app, request.map(Body::new));
    async move {
        let Ok(answer) = answer.await;
        let has_failed = answer.status().is_client_error() || answer.status().is_server_error();
        let is_late =
            || matches!(exchange.request_limit_reached(), Some(NextFrame(_) | FrameRate(_)));
        if !(has_failed && is_late()) {
            return Ok(answer);
        }
        let mut late = StatusCode::REQUEST_TIMEOUT.into_response();
        if version < Version::HTTP_2 {
            late.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(late)
    }
}

/// A connection that was accepted, for what makes its service. It takes the place of axum's type of
/// this name.
///
/// ```
/// use axum::extract::connect_info::Connected;
/// use axum::serve::Listener;
/// use corewheel_http::axum::IncomingStream;
/// use tokio::net::TcpListener;
///
/// #[derive(Clone)]
/// struct Hops(Option<u32>);
///
/// impl Connected<IncomingStream<'_, TcpListener>> for Hops {
///     fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
///         Self(stream.io().ttl().ok())
///     }
/// }
/// ```
#[derive(Debug)]
pub struct IncomingStream<'a, L: Listener> {
    io: &'a L::Io,
    remote_addr: L::Addr,
    control: StreamControl,
}

impl<L: Listener> IncomingStream<'_, L> {
    /// The stream, as the listener has it.
    pub fn io(&self) -> &L::Io {
        self.io
    }

    /// The address of the client.
    pub fn remote_addr(&self) -> &L::Addr {
        &self.remote_addr
    }

    /// The control of the connection.
    pub fn control(&self) -> &StreamControl {
        &self.control
    }
}

impl<L: Listener<Addr = Self>> Connected<IncomingStream<'_, L>> for std::net::SocketAddr {
    fn connect_info(stream: IncomingStream<'_, L>) -> Self {
        stream.remote_addr
    }
}

impl<L: Listener> Connected<IncomingStream<'_, L>> for StreamControl {
    fn connect_info(stream: IncomingStream<'_, L>) -> Self {
        stream.control
    }
}

/// What `axum::serve` takes without `into_make_service`.
macro_rules! serve_each_connection {
    ([$($generics:tt)*] $type:ty, |$it:ident| $copy:expr) => {
        impl<L: Listener, $($generics)*> Service<IncomingStream<'_, L>> for $type {
            type Response = $type;
            type Error = Infallible;
            type Future = Ready<Result<Self::Response, Infallible>>;

            fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
                Poll::Ready(Ok(()))
            }

            fn call(&mut self, _stream: IncomingStream<'_, L>) -> Self::Future {
                let $it = self;
                ready(Ok($copy))
            }
        }
    };
}
// A state makes a copy for each request cheaper.
serve_each_connection!([] Router, |it| it.clone().with_state(()));
serve_each_connection!([] MethodRouter, |it| it.clone().with_state(()));
serve_each_connection!([H: Clone, T, S: Clone] HandlerService<H, T, S>, |it| it.clone());

debug_fields!([L: Listener + fmt::Debug, M: fmt::Debug, S, F] Serve<L, M, S, F>, |it|
    listener: it.listener, make_service: it.make_service, server: it.server
);

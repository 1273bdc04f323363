//! A server of axum whose connections and requests have timeouts.
//!
//! [`serve`] stands for `axum::serve`: it has the same arguments and the same graceful shutdown. So
//! a server changes one path, and has the limits of a [`Server`].
//!
//! Why not `axum::serve` over streams with timeouts: it owns the connection, and has no call for
//! what a limit of an HTTP connection needs. Such a limit tells the client before it cuts: by a
//! `GOAWAY`, by `Connection: close`, or by a `408`.
//!
//! Cost: see [`serve`].

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, Ready, pending, poll_fn, ready};
use std::io;
use std::marker::PhantomData;
#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

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
use corewheel::stream::StreamControl;
#[cfg(doc)]
use corewheel::stream::TimedIo;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::service::TowerToHyperService;
use tokio::sync::watch;
use tower_service::Service;

use super::hyper::BodyError::{FrameRate, NextFrame};
use super::hyper::TimedBody;
use super::server::{Server, Settings};

/// Serves connections of a listener, as `axum::serve` does, with timeouts.
///
/// The arguments are those of `axum::serve`: a listener, and a router, a handler's service, or what
/// `into_make_service` and `into_make_service_with_connect_info` make. It serves HTTP/1 and HTTP/2,
/// with upgrades. The future never ends, unless it has a
/// [graceful shutdown](Server::with_graceful_shutdown).
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
/// See [`Server`] for the limits, and how a server sets them.
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
#[must_use = "a server does nothing unless it is awaited"]
pub fn serve<L, M, S>(listener: L, make_service: M) -> Server<App<L, M, S>>
where
    L: Listener,
    M: for<'a> Service<IncomingStream<'a, L>, Error = Infallible, Response = S>,
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let app = App {
        listener,
        make_service,
        #[cfg(unix)]
        socket: None,
        signal: Box::pin(pending()),
        service: PhantomData,
    };
    Server { settings: Settings::default(), app }
}

/// Finds the TCP socket below a stream.
#[cfg(unix)]
type SocketOf<I> = fn(&I) -> Option<BorrowedFd<'_>>;

/// A listener with what makes the service of each connection, for a [`Server`]; made by [`serve`].
pub struct App<L: Listener, M, S> {
    listener: L,
    make_service: M,
    /// Where the TCP socket of a stream is; `None` if the stream itself may be one.
    #[cfg(unix)]
    socket: Option<SocketOf<L::Io>>,
    /// Ready when the server is to stop.
    signal: Pin<Box<dyn Future<Output = ()> + Send>>,
    service: PhantomData<fn() -> S>,
}

/// What a server that [`serve`] has made does besides: it serves when it is awaited.
impl<L: Listener, M, S> Server<App<L, M, S>> {
    /// Says which TCP socket lies below a stream of the listener, so that its clients are judged by
    /// what they have acknowledged: see [`with_socket`](TimedIo::with_socket). A `TcpStream` is
    /// found without it, also below the stream of a `TlsListener` of this package.
    ///
    /// Of a stream of `tokio-rustls` it is `|stream| Some(stream.get_ref().0.as_fd())`.
    #[cfg(unix)]
    pub fn socket(mut self, find: fn(&L::Io) -> Option<BorrowedFd<'_>>) -> Self {
        self.app.socket = Some(find);
        self
    }

    /// Stops the server when the signal is ready: it accepts no more connections, tells each by a
    /// `GOAWAY` or `Connection: close`, and ends when all have ended. Their limits go on. A
    /// connection that was upgraded is not waited for.
    pub fn with_graceful_shutdown(
        mut self,
        signal: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        self.app.signal = Box::pin(signal);
        self
    }
}

impl<L, M, S> IntoFuture for Server<App<L, M, S>>
where
    L: Listener,
    M: for<'a> Service<IncomingStream<'a, L>, Error = Infallible, Response = S> + Send + 'static,
    for<'a> <M as Service<IncomingStream<'a, L>>>::Future: Send,
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Output = io::Result<()>;
    type IntoFuture = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let timers = self.handle();
            let Self { settings, app } = self.timers(timers);
            let server = Arc::new(Server { settings, app: () });
            let App { mut listener, mut make_service, mut signal, .. } = app;
            // Its drop, with this future, begins the shutdown of each connection.
            let (running, shutdown) = watch::channel(());
            loop {
                let (socket, remote_addr) = tokio::select! {
                    biased;
                    () = &mut signal => break,
                    accepted = listener.accept() => accepted,
                };
                let stream = server.stream(socket);
                #[cfg(unix)]
                let stream = match app.socket {
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

debug_fields!([L: Listener + fmt::Debug, M: fmt::Debug, S] App<L, M, S>, |it|
    listener: it.listener, make_service: it.make_service
);

//! `axum::serve` over streams with their timeouts.
//!
//! `axum::serve` builds hyper's server itself, so a server cannot give it a timer. It takes the
//! listener and the service of each connection from its caller, and these two have all that the
//! timeouts need: [`TimedListener`] accepts streams with limits, and [`TimedMakeService`] tells
//! each stream about its requests.
//!
//! Why not a middleware on the router: it would have to find the control of its connection in each
//! request, and would run behind other layers that may wait.
//!
//! Cost: see [`TimedMakeService`].

mod closing;

use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::extract::connect_info::Connected;
use axum::response::Response;
use axum::serve::{IncomingStream, Listener};
use hyper::body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite};
use tower_service::Service;

pub use self::closing::ServedIo;
use super::hyper::{BodyData, TimedBody, TimedHttp, TimedResponse};
use crate::face::handle::{AnyHandle, Handle};
use crate::stream::{StreamControl, StreamLimits, TimedIo};

/// How long a connection that a limit has ended is closed for.
const CLOSE_TIME: Duration = Duration::from_secs(5);

/// A listener for `axum::serve` whose connections have timeouts: each is a [`TimedIo`] within a
/// [`ServedIo`], which lets the client have the rest of its response when a limit is reached.
///
/// The service goes into a [`TimedMakeService`]. Without that, the connection of a handler that
/// takes longer than the idle limit is closed. Each connection is closed after the
/// [`head`](StreamLimits::head) limit too, as nothing says that a head is complete.
///
/// ```
/// use axum::Router;
/// use axum::routing::get;
/// use corewheel::TimerService;
/// use corewheel::adapters::axum::{TimedListener, TimedMakeService};
/// use corewheel::stream::StreamLimits;
/// use std::time::Duration;
/// use tokio::net::TcpListener;
///
/// # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// let service = TimerService::beside_runtime().start()?;
/// let limits = StreamLimits::default()
///     .first_byte(Duration::from_secs(10))
///     .head(Duration::from_secs(10))
///     .write_stall(Duration::from_secs(30))
///     .idle(Duration::from_secs(60));
///
/// let app = Router::new().route("/", get(|| async { "hello" }));
/// let listener = TcpListener::bind("127.0.0.1:0").await?;
/// let listener = TimedListener::new(listener, service.handle(), limits);
/// # let stop = async {};
/// axum::serve(listener, TimedMakeService::new(app)).with_graceful_shutdown(stop).await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # When there is no timer
///
/// A connection for whose timer its shard has no room serves what is ready at once, and is closed
/// where it would wait: see [`TimedIo`](TimedIo#when-there-is-no-timer).
#[derive(Clone, Copy, Debug)]
pub struct TimedListener<L> {
    listener: L,
    handle: AnyHandle,
    limits: StreamLimits,
    close_time: Duration,
}

impl<L> TimedListener<L> {
    /// The connections of a listener, with limits. Their timers are on the shards of `handle`; with
    /// [`Handle::of_class`] the statistics count them for a class.
    pub fn new<T: 'static>(listener: L, handle: Handle<T>, limits: StreamLimits) -> Self {
        Self { listener, handle: handle.untyped(), limits, close_time: CLOSE_TIME }
    }

    /// Sets for how long a connection is closed that a limit has ended, 5 seconds by default: the
    /// time that the client has to take what lies in the system's send buffer. See [`ServedIo`].
    /// Zero closes each socket at once.
    #[must_use]
    pub fn close_time(self, close_time: Duration) -> Self {
        Self { close_time, ..self }
    }

    /// The listener.
    pub fn get_ref(&self) -> &L {
        &self.listener
    }

    /// The listener.
    pub fn get_mut(&mut self) -> &mut L {
        &mut self.listener
    }

    /// The listener, without limits.
    pub fn into_inner(self) -> L {
        self.listener
    }
}

impl<L: Listener> Listener for TimedListener<L> {
    type Io = ServedIo<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (ServedIo<L::Io>, L::Addr) {
        let (stream, address) = self.listener.accept().await;
        let stream = TimedIo::new(stream, self.handle, self.limits);
        (ServedIo::new(stream, self.handle, self.close_time), address)
    }

    fn local_addr(&self) -> io::Result<L::Addr> {
        self.listener.local_addr()
    }
}

/// Lets a handler have the control of its connection: `ConnectInfo<StreamControl>` is an extractor
/// behind `into_make_service_with_connect_info::<StreamControl>()`.
impl<L: Listener> Connected<IncomingStream<'_, TimedListener<L>>> for StreamControl {
    fn connect_info(stream: IncomingStream<'_, TimedListener<L>>) -> Self {
        stream.io().control()
    }
}

/// Wraps what makes the service of each connection for `axum::serve`, such as a `Router` or its
/// `into_make_service_with_connect_info`: the service tells the [`ServedIo`] of its connection
/// about each request. [`TimedListener`] has an example.
///
/// What it tells is what a [`TimedHttp`] says: no idle limit ends a connection while its server
/// works on a request, and the limits of heads and of rates know where the messages of HTTP/1 begin
/// and end. A server sets [`write_stall`](StreamLimits::write_stall), too, since an idle limit does
/// not find a client that does not read its response.
///
/// # Heads
///
/// hyper reads on before it polls the service, so a read may wait before the service can say that
/// the head is complete. Such a read arms the deadline of the head, and the service disarms it in
/// the same poll of the connection. A head that lay in the socket at its limit is in time, also
/// where the server was held up meanwhile.
///
/// # Cost
///
/// That of a [`TimedHttp`], an allocation for each of the two bodies, as axum's bodies are
/// boxed, and the deadline of each head. Of an HTTP/2 response, each frame and each 16 KiB of it
/// allocate some 50 bytes, for a guard that says when they are written. axum's data does not say
/// how much of it is written, so what the socket accepts counts, up to 32 KiB for each guard. For
/// as long, PINGs keep a response without a window.
#[derive(Clone, Copy, Debug)]
pub struct TimedMakeService<M> {
    inner: M,
}

impl<M> TimedMakeService<M> {
    /// Wraps what makes a service for each connection.
    pub fn new(inner: M) -> Self {
        Self { inner }
    }

    /// What makes the services.
    pub fn get_ref(&self) -> &M {
        &self.inner
    }

    /// What makes the services, without streams.
    pub fn into_inner(self) -> M {
        self.inner
    }
}

impl<'a, L, S, M> Service<IncomingStream<'a, L>> for TimedMakeService<M>
where
    L: Listener<Io = ServedIo<S>>,
    M: Service<IncomingStream<'a, L>>,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Response = TimedHttp<M::Response>;
    type Error = M::Error;
    type Future = MakeFuture<M::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), M::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, stream: IncomingStream<'a, L>) -> Self::Future {
        let control = stream.io().control();
        MakeFuture { future: self.inner.call(stream), control: Some(control) }
    }
}

pin_project! {
    /// The service that a [`TimedMakeService`] makes for a connection.
    #[derive(Debug)]
    pub struct MakeFuture<F> {
        #[pin]
        future: F,
        // `None` when the service is made.
        control: Option<StreamControl>,
    }
}

impl<F, S, E> Future for MakeFuture<F>
where
    F: Future<Output = Result<S, E>>,
{
    type Output = Result<TimedHttp<S>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        this.future.poll(cx).map_ok(|service| {
            let control = this.control.take().expect("the future is not polled after its end");
            TimedHttp::new(service, control)
        })
    }
}

/// As `axum::serve` calls it. In other servers of hyper, the service of tower goes into
/// hyper-util's `TowerToHyperService` before.
impl<S> Service<Request> for TimedHttp<S>
where
    S: Service<Request, Response = Response>,
{
    type Response = Response;
    type Error = S::Error;
    type Future = RouteFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.get_mut().poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let (inner, caller) = self.split();
        let wrap = |body| Body::new(Plain { body, rest: None });
        RouteFuture { future: caller.call(request, |request| inner.call(request.map(wrap))) }
    }
}

pin_project! {
    /// The response of a [`TimedHttp`] in `axum::serve`.
    #[derive(Debug)]
    pub struct RouteFuture<F> {
        #[pin]
        future: TimedResponse<F>,
    }
}

impl<F, E> Future for RouteFuture<F>
where
    F: Future<Output = Result<Response, E>>,
{
    type Output = Result<Response, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let wrap = |body| Body::new(Plain { body, rest: None });
        self.project().future.poll(cx).map_ok(|response| response.map(wrap))
    }
}

/// How much of a response one guard stands for at most, in bytes: an HTTP/2 frame.
const GUARDED: usize = 16 << 10;

pin_project! {
    /// A body with the data that axum's bodies have.
    struct Plain {
        #[pin]
        body: TimedBody<Body>,
        // Of the last frame, what the consumer has not asked for; `None` if it has all.
        rest: Option<BodyData<Bytes>>,
    }
}

impl HttpBody for Plain {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.project();
        if let Some(data) = this.rest.take() {
            return Poll::Ready(Some(Ok(Frame::data(guarded(data, this.rest)))));
        }
        let frame = ready!(this.body.poll_frame(cx));
        let plain = |data: BodyData<Bytes>| {
            data.into_plain().unwrap_or_else(|data| guarded(data, this.rest))
        };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(plain))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let rest = self.rest.as_ref().map_or(0, |rest| rest.get_ref().len() as u64);
        if let Some(most) = hint.upper() {
            hint.set_upper(most.saturating_add(rest));
        }
        hint.set_lower(hint.lower().saturating_add(rest));
        hint
    }
}

type BoxError = Box<dyn Error + Send + Sync>;

/// The first of the data as bytes, which keep a guard for as long as a part of them is used.
fn guarded(data: BodyData<Bytes>, rest: &mut Option<BodyData<Bytes>>) -> Bytes {
    struct Owner(BodyData<Bytes>);

    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            self.0.get_ref()
        }
    }

    data.set_opaque();
    let (first, others) = data.split(GUARDED);
    *rest = others;
    Bytes::from_owner(Owner(first))
}

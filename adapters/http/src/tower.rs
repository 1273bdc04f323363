//! A layer of tower that gives each request a time, by the timers of a service.
//!
//! Why not tower's layer and tower-http's: they take a timer of tokio's runtime for each request,
//! behind the lock that all its threads share.
//!
//! Invariants: a response that is ready at the deadline wins. A request that no shard has a timer
//! for keeps its deadline, and is not refused.
//!
//! Cost: see [`TimeoutLayer`].

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use corewheel::fallback::InfallibleSleep;
use corewheel::pass::Pass;
use corewheel::{AnyHandle, Handle, TimeoutError};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

/// An error of a service or its timeout, as tower has it.
type BoxError = Box<dyn Error + Send + Sync>;

/// Gives each request of a service a time, until its response.
///
/// - [`new`](TimeoutLayer::new): a request whose time is up ends with an error, a
///   [`TimeoutError`] in a box, as with tower's own layer. In axum a `HandleErrorLayer` makes a
///   response of it.
/// - [`with_response`](TimeoutLayer::with_response): it ends with a response that a function makes.
///   The errors are those of the service, so an axum router takes this layer as it is.
///
/// The time begins with the call of the service and ends with the response, which is its head; a
/// body that is sent afterwards is not limited. A request whose time is up is dropped with all that
/// it has not done. A response that is ready at the same time as the deadline wins, and so does one
/// for which the data lay in a socket then, see [`corewheel::Timeout`](corewheel::Timeout#in-time).
/// [`guide::tower`](crate::guide::tower) has an example of each form.
///
/// ```
/// use axum::Router;
/// use axum::http::StatusCode;
/// use axum::response::IntoResponse;
/// use axum::routing::get;
/// use corewheel::TimerService;
/// use corewheel_http::tower::TimeoutLayer;
/// use std::time::Duration;
///
/// let service = TimerService::beside_runtime().start()?;
/// let late = || StatusCode::GATEWAY_TIMEOUT.into_response();
/// let limit = TimeoutLayer::with_response(service.handle(), Duration::from_secs(10), late);
/// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(limit);
/// # let _ = app;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # When there is no timer
///
/// A request is neither refused nor left without a limit: where the shard is full, or the service
/// has ended, the *fallback thread* of the process keeps its deadline, in an ordered map behind a
/// lock, and [`InfallibleSleep::fallback_count`] counts it. A server that refuses requests under
/// such a load calls [`Handle::timeout`] in its handlers, whose error says that there was no timer.
///
/// [`InfallibleSleep::fallback_count`]: corewheel::fallback::InfallibleSleep::fallback_count
///
/// With the feature `test-util` of `corewheel`, the time follows a paused clock of tokio, as
/// `corewheel::time` does.
///
/// # Cost
///
/// A request that is ready at its first poll costs a reading of the near clock, and another one
/// what a [`Sleep`](corewheel::Sleep) costs. The future takes 112 bytes more than the
/// service's, and allocates nothing.
#[derive(Clone, Copy)]
pub struct TimeoutLayer<F = ()> {
    handle: AnyHandle,
    limit: Duration,
    /// Makes the response of a request whose time is up; `()` if that is an error.
    respond: F,
}

impl TimeoutLayer {
    /// A layer whose services end a request with [`TimeoutError::Elapsed`] in a box when its time
    /// is up. The service's own errors are put into a box, too.
    ///
    /// The timers are on the shards of `handle`: [`Handle::on`] chooses one, and with
    /// [`Handle::of_class`] the statistics count the requests for a class. A limit that does not
    /// fit never comes.
    pub fn new<T: 'static>(handle: Handle<T>, limit: Duration) -> Self {
        Self { handle: handle.untyped(), limit, respond: () }
    }
}

impl<F> TimeoutLayer<F> {
    /// A layer whose services return the response that `respond` makes when the time of a request
    /// is up. `respond` runs on the thread that polls the request.
    pub fn with_response<T: 'static, R>(handle: Handle<T>, limit: Duration, respond: F) -> Self
    where
        F: Fn() -> R,
    {
        Self { handle: handle.untyped(), limit, respond }
    }
}

impl<S, F: Clone> Layer<S> for TimeoutLayer<F> {
    type Service = Timeout<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        Timeout { inner, layer: self.clone() }
    }
}

debug_fields!([F] TimeoutLayer<F>, |it| handle: it.handle, limit: it.limit);

/// A service whose requests have a time; made by [`TimeoutLayer`].
#[derive(Clone, Copy, Debug)]
pub struct Timeout<S, F = ()> {
    inner: S,
    layer: TimeoutLayer<F>,
}

impl<S, F> Timeout<S, F> {
    /// The service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The service, without a timeout.
    pub fn into_inner(self) -> S {
        self.inner
    }

    fn sleep(&self) -> InfallibleSleep {
        InfallibleSleep::after(self.layer.handle, self.layer.limit)
    }
}

impl<S, Request> Service<Request> for Timeout<S>
where
    S: Service<Request, Error: Into<BoxError>>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let sleep = self.sleep();
        ResponseFuture {
            request: self.inner.call(request),
            sleep,
            pass: Pass::default(),
            respond: (),
        }
    }
}

impl<S, F, Request> Service<Request> for Timeout<S, F>
where
    S: Service<Request>,
    F: Fn() -> S::Response + Clone,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, F>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let (sleep, respond) = (self.sleep(), self.layer.respond.clone());
        ResponseFuture { request: self.inner.call(request), sleep, pass: Pass::default(), respond }
    }
}

pin_project! {
    /// The response of a [`Timeout`]. It is `Send` and `Sync` if the future of the service is.
    pub struct ResponseFuture<T, F = ()> {
        #[pin]
        request: T,
        sleep: InfallibleSleep,
        pass: Pass,
        respond: F,
    }
}

impl<T: Future, F> ResponseFuture<T, F> {
    /// Polls the request. `Err` with what makes the response if the time is up.
    fn poll_limited(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T::Output, &mut F>> {
        let this = self.project();
        let was_over = this.pass.is_over();
        // The request first: a response that is there at the deadline is there in time.
        if let Poll::Ready(response) = this.request.poll(cx) {
            return Poll::Ready(Ok(response));
        }
        ready!(Pin::new(&mut *this.sleep).poll(cx));
        ready!(this.pass.decide(was_over, this.sleep.needs_pass(), cx));
        Poll::Ready(Err(this.respond))
    }
}

impl<T, R, E> Future for ResponseFuture<T>
where
    T: Future<Output = Result<R, E>>,
    E: Into<BoxError>,
{
    type Output = Result<R, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_limited(cx).map(|limited| match limited {
            Ok(response) => response.map_err(Into::into),
            Err(()) => Err(TimeoutError::Elapsed.into()),
        })
    }
}

impl<T, R, E, F> Future for ResponseFuture<T, F>
where
    T: Future<Output = Result<R, E>>,
    F: Fn() -> R,
{
    type Output = Result<R, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_limited(cx).map(|limited| limited.unwrap_or_else(|respond| Ok(respond())))
    }
}

debug_fields!([T, F] ResponseFuture<T, F>, |it| sleep: it.sleep);

const _: () = {
    const fn is_any_threads<X: Clone + Send + Sync + 'static>() {}
    is_any_threads::<TimeoutLayer>();
    is_any_threads::<Timeout<()>>();
    is_any_threads::<TimeoutLayer<fn()>>();
    assert!(size_of::<ResponseFuture<()>>() <= size_of::<InfallibleSleep>() + 16);
};

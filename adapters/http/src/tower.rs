//! A layer of tower that gives each request a time, by the timers of a service.
//!
//! Why not tower's layer and tower-http's: they take a timer of tokio's runtime for each request,
//! behind the lock that all its threads share.
//!
//! Invariants: a response that is ready at the deadline wins. A request that no shard has a timer
//! for keeps its deadline, and is not refused. No request has longer than the layer's limit.
//!
//! Cost: see [`TimeoutLayer`].

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use corewheel::fallback::InfallibleSleep;
use corewheel::pass::Guarded;
use corewheel::{AnyHandle, Handle};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::BoxError;

/// Gives each request of a service a time, until its response.
///
/// - [`new`](TimeoutLayer::new): a request whose time is up ends with an error, a
///   [`TimeoutError`](corewheel::TimeoutError) in a box, as with tower's own layer. In axum a
///   `HandleErrorLayer` makes a response of it.
/// - [`with_response`](TimeoutLayer::with_response): it ends with a response that a function makes.
///   The errors are those of the service, so an axum router takes this layer as it is.
/// - [`grpc`](TimeoutLayer::grpc): it ends with the status `DEADLINE_EXCEEDED` of gRPC, when the
///   time is up that its client has sent with it.
///
/// All requests have the same time, unless [`by_request`](TimeoutLayer::by_request) gives one a
/// shorter one.
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
pub struct TimeoutLayer<F = (), L = ()> {
    handle: AnyHandle,
    limit: Duration,
    /// Makes the response of a request whose time is up; `()` if that is an error.
    respond: F,
    /// Says which requests have a shorter time; `()` if none has.
    by_request: L,
}

impl TimeoutLayer {
    /// A layer whose services end a request with
    /// [`TimeoutError::Elapsed`](corewheel::TimeoutError::Elapsed) in a box when its time is up.
    /// The service's own errors are put into a box, too.
    ///
    /// The timers are on the shards of `handle`: [`Handle::on`] chooses one, and with
    /// [`Handle::of_class`] the statistics count the requests for a class. A limit that does not
    /// fit never comes.
    pub fn new<T: 'static>(handle: Handle<T>, limit: Duration) -> Self {
        Self { handle: handle.untyped(), limit, respond: (), by_request: () }
    }
}

impl<F> TimeoutLayer<F> {
    /// A layer whose services return the response that `respond` makes when the time of a request
    /// is up. `respond` runs on the thread that polls the request.
    pub fn with_response<T: 'static, R>(handle: Handle<T>, limit: Duration, respond: F) -> Self
    where
        F: Fn() -> R,
    {
        Self { handle: handle.untyped(), limit, respond, by_request: () }
    }

    /// Gives a request the time that `time` returns for it, if that is shorter than the layer's
    /// limit. `None` leaves it the limit.
    ///
    /// ```
    /// use axum::extract::Request;
    /// use axum::http::{Method, StatusCode};
    /// use corewheel_http::tower::TimeoutLayer;
    /// use std::time::Duration;
    ///
    /// # let service = corewheel::TimerService::beside_runtime().start()?;
    /// # let timers = service.handle();
    /// let late = || axum::response::IntoResponse::into_response(StatusCode::GATEWAY_TIMEOUT);
    /// let short = |request: &Request| {
    ///     (request.method() == Method::GET).then_some(Duration::from_secs(2))
    /// };
    /// let most = Duration::from_secs(30);
    /// let limit = TimeoutLayer::with_response(timers, most, late).by_request(short);
    /// # let _: axum::Router = axum::Router::new().layer(limit);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn by_request<R, L>(self, time: L) -> TimeoutLayer<F, L>
    where
        L: Fn(&R) -> Option<Duration>,
    {
        let Self { handle, limit, respond, .. } = self;
        TimeoutLayer { handle, limit, respond, by_request: time }
    }
}

impl<B: Default, R> TimeoutLayer<fn() -> Response<B>, fn(&Request<R>) -> Option<Duration>> {
    /// A layer for services of gRPC: a request has the time of its header `grpc-timeout`, and
    /// `limit` if that is shorter, or if there is no valid header. When the time is up, the
    /// response is the status `DEADLINE_EXCEEDED`.
    ///
    /// It is for the router of a server, as tonic's `Routes` make one, and for a client's channel.
    /// tonic's own servers and channels read the header themselves, and end a request by
    /// `CANCELLED`. As theirs, the time ends with the head of the response: a stream of messages
    /// goes on.
    ///
    /// ```
    /// use axum::Router;
    /// use corewheel_http::tower::TimeoutLayer;
    /// use std::time::Duration;
    ///
    /// # let service = corewheel::TimerService::beside_runtime().start()?;
    /// // In place of a service of tonic's: `Routes::new(service).into_axum_router()`.
    /// let app: Router = Router::new();
    /// let app = app.layer(TimeoutLayer::grpc(service.handle(), Duration::from_secs(60)));
    /// # let _ = app;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn grpc<T: 'static>(handle: Handle<T>, limit: Duration) -> Self {
        let respond: fn() -> _ = deadline_exceeded;
        let time: fn(&Request<R>) -> _ = |request| grpc_timeout(request.headers());
        TimeoutLayer::with_response(handle, limit, respond).by_request(time)
    }
}

/// A response of gRPC that has nothing but a status.
fn deadline_exceeded<B: Default>() -> Response<B> {
    let mut response = Response::new(B::default());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from_static("4"));
    headers.insert("grpc-message", HeaderValue::from_static("the time of the request is up"));
    response
}

/// The time that a header says: up to eight digits and a unit. `None` if there is none, or another
/// value.
fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("grpc-timeout")?.to_str().ok()?;
    let digits = value.trim_end_matches(|c: char| !c.is_ascii_digit());
    let is_number = digits.len() <= 8 && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.parse().ok().filter(|_| is_number)?;
    match &value[digits.len()..] {
        "H" => Some(Duration::from_secs(number * 3_600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// The time of a request, if it has one of its own.
trait TimeOf<R> {
    fn time_of(&self, request: &R) -> Option<Duration>;
}

impl<R> TimeOf<R> for () {
    fn time_of(&self, _request: &R) -> Option<Duration> {
        None
    }
}

impl<R, L: Fn(&R) -> Option<Duration>> TimeOf<R> for L {
    fn time_of(&self, request: &R) -> Option<Duration> {
        self(request)
    }
}

impl<S, F: Clone, L: Clone> Layer<S> for TimeoutLayer<F, L> {
    type Service = Timeout<S, F, L>;

    fn layer(&self, inner: S) -> Self::Service {
        Timeout { inner, layer: self.clone() }
    }
}

debug_fields!([F, L] TimeoutLayer<F, L>, |it| handle: it.handle, limit: it.limit);

/// A service whose requests have a time; made by [`TimeoutLayer`].
#[derive(Clone, Copy, Debug)]
pub struct Timeout<S, F = (), L = ()> {
    inner: S,
    layer: TimeoutLayer<F, L>,
}

impl<S, F, L> Timeout<S, F, L> {
    fn sleep<R>(&self, request: &R) -> InfallibleSleep
    where
        L: TimeOf<R>,
    {
        let TimeoutLayer { handle, limit, by_request, .. } = &self.layer;
        let time = by_request.time_of(request).unwrap_or(*limit);
        InfallibleSleep::after(*handle, time.min(*limit))
    }
}

impl<S, R, L> Service<R> for Timeout<S, (), L>
where
    S: Service<R, Error: Into<BoxError>>,
    L: TimeOf<R>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let sleep = self.sleep(&request);
        ResponseFuture { limited: Guarded::new(self.inner.call(request), sleep), respond: () }
    }
}

impl<S, F, R, L> Service<R> for Timeout<S, F, L>
where
    S: Service<R>,
    F: Fn() -> S::Response + Clone,
    L: TimeOf<R>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, F>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let (sleep, respond) = (self.sleep(&request), self.layer.respond.clone());
        ResponseFuture { limited: Guarded::new(self.inner.call(request), sleep), respond }
    }
}

pin_project! {
    /// The response of a [`Timeout`]. It is `Send` and `Sync` if the future of the service is.
    pub struct ResponseFuture<T, F = ()> {
        #[pin]
        limited: Guarded<T, InfallibleSleep>,
        respond: F,
    }
}

impl<T, R, E> Future for ResponseFuture<T>
where
    T: Future<Output = Result<R, E>>,
    E: Into<BoxError>,
{
    type Output = Result<R, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().limited.poll(cx).map(|limited| limited?.map_err(Into::into))
    }
}

impl<T, R, E, F> Future for ResponseFuture<T, F>
where
    T: Future<Output = Result<R, E>>,
    F: Fn() -> R,
{
    type Output = Result<R, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        this.limited.poll(cx).map(|limited| limited.unwrap_or_else(|_| Ok((this.respond)())))
    }
}

debug_fields!([T, F] ResponseFuture<T, F>, |it| sleep: it.limited.deadline());

const _: () = assert!(size_of::<ResponseFuture<()>>() <= size_of::<InfallibleSleep>() + 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_timeout_is_up_to_eight_digits_and_a_unit() {
        let check = |value: &'static str, expected: Option<Duration>| {
            let headers = HeaderMap::from_iter([("grpc-timeout", value)].map(|(name, value)| {
                (http::HeaderName::from_static(name), HeaderValue::from_static(value))
            }));
            assert_eq!(grpc_timeout(&headers), expected, "{value}");
        };
        check("3H", Some(Duration::from_secs(10_800)));
        check("99999999H", Some(Duration::from_secs(99_999_999 * 3_600)));
        check("2M", Some(Duration::from_secs(120)));
        check("0S", Some(Duration::ZERO));
        check("00000042m", Some(Duration::from_millis(42)));
        check("7u", Some(Duration::from_micros(7)));
        check("9n", Some(Duration::from_nanos(9)));
        for other in ["", "H", "5", "100000000m", "+5m", "-5m", "5 m", "5s", "5mm", "5.0S", "m5"] {
            check(other, None);
        }
        assert_eq!(grpc_timeout(&HeaderMap::new()), None);
    }
}

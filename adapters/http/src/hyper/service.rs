//! A service of hyper whose requests have limits, and which tells the stream of its connection
//! about each of them.

use std::fmt;
use std::future::Future;
use std::mem;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use corewheel::Handle;
use corewheel::conn::Side;
use corewheel::stream::StreamControl;
use hyper::body::Body;
use hyper::service::Service;
use hyper::{Request, Response};
use pin_project_lite::pin_project;

use super::body::{ResponseBody, TimedBody};
#[cfg(feature = "server")]
use super::exchange::Told;
use super::exchange::{Connection, Exchange, Kind};
use super::limits::BodyLimits;
use crate::BoxError;

/// A service of hyper whose requests have limits.
///
/// It gives the bodies of each request and of its response limits, and lets them end as one
/// [`Exchange`]. It tells the [`TimedIo`](corewheel::stream::TimedIo) of its connection about each
/// request, so that no limit of the stream ends a request that the server works on.
///
/// It wraps the service of one connection. The body of a request is a [`TimedBody`], by which
/// a handler finds the exchange, and that of a response is a [`ResponseBody`]. Bodies are `Send`
/// and `Unpin`; a body that is not goes into a box. For each request:
///
/// - It says that the head is complete, in [`call`](Service::call): a handler would say so too
///   late.
/// - The request is [in flight](StreamControl::begin_request) from the call until the stream has
///   accepted the last byte of the response, or the response is broken off. Meanwhile neither
///   [`idle`](corewheel::stream::StreamLimits::idle) nor
///   [`read_idle`](corewheel::stream::StreamLimits::read_idle) ends the connection, however long
///   the handler takes. While a read of the body of the request waits for the client, both count,
///   also where the handler does something else meanwhile: a client that stops sending is idle.
///   Where such a wait has a [limit](Self::request) of its own, it holds the idle times back, too,
///   so that the handler can answer. Of several requests at once, each holds the idle times back.
/// - A message of HTTP/1 is measured against
///   [`min_read_rate`](corewheel::stream::StreamLimits::min_read_rate) from its first byte until
///   the body of the request has ended or was dropped.
/// - The next message of HTTP/1 begins when both bodies have ended. After a response that hands the
///   connection to another protocol, `101` or a success to `CONNECT`, no message begins.
/// - After a success to `CONNECT` of HTTP/2, as for a WebSocket, the data of its stream keeps the
///   connection from [`request_idle`](corewheel::stream::StreamLimits::request_idle), until
///   [both sides](StreamControl::has_tunnel) have ended it.
///
/// A client that does not read its response is found by
/// [`write_stall`](corewheel::stream::StreamLimits::write_stall) or
/// [`min_write_rate`](corewheel::stream::StreamLimits::min_write_rate), so a server sets one of
/// them. Both count as well while an HTTP/2 client gives no window for a response, and then only
/// bytes of responses count as accepted. Without these limits, a request ends when hyper has taken
/// its response, and idle times alone bound the client.
///
/// What the stream has accepted lies in the system's send buffer, and goes to the client after the
/// connection is idle. So the owner shuts the writing side down and reads to the end before it
/// closes the socket, for a time: a socket that is closed with unread input takes the rest back.
///
/// A future of a response that is dropped, because the client has left or the handler has panicked,
/// ends its request and its exchange, too.
///
/// The bytes of an HTTP/2 connection are those of several requests: only what comes before its
/// first request has the limits of a head and of a rate, and later requests have that of idle
/// times.
///
/// A service of tower, such as an axum router or those of tonic, goes into hyper-util's
/// `TowerToHyperService` before, as in the
/// [guide](crate::guide::servers#a-router-under-timedhttp). A server of axum has the module `axum`
/// instead.
///
/// # In time
///
/// A limit is reached when the stream of the connection was read to its end after the deadline, and
/// the tasks that this has woken had their turn. Then a poll of the body finds nothing, or the body
/// goes on: see [`corewheel::Timeout`](corewheel::Timeout#in-time). So no client of HTTP/1 or
/// HTTP/2 is cut whose bytes lay in the socket, where the runtime was held up. A task of the
/// connection's runtime decides, which polls the body once for that. Outside of a tokio runtime,
/// the thread of the timer polls it, without such a proof.
///
/// A request of HTTP/2 whose handler does not read may use up the server's window for the
/// connection. Until the server gives more, no time counts for the other requests, up to a minute
/// for each body.
///
/// # Cost
///
/// A request costs an allocation of some 250 bytes, and the body of a request or of a response
/// another one. A response costs none if it has ended before. Nor does one of HTTP/1 to a complete
/// request, if all of it is there when hyper first polls it. The first wait of a body that has a
/// limit costs a [`Sleep`](corewheel::Sleep), which later waits use again.
///
/// ```
/// use corewheel_http::hyper::{BodyError, BodyLimits, TimedBody, TimedHttp};
/// use corewheel::stream::{StreamLimits, TimedIo};
/// use http_body_util::{BodyExt, Full};
/// use hyper::body::{Bytes, Incoming};
/// use hyper::server::conn::http1;
/// use hyper::service::service_fn;
/// use hyper::{Request, Response, StatusCode};
/// use hyper_util::rt::TokioIo;
/// use std::time::Duration;
///
/// type Answer = Result<Response<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>>;
///
/// async fn answer(request: Request<TimedBody<Incoming>>) -> Answer {
///     match request.into_body().collect().await {
///         Ok(body) => Ok(Response::new(Full::new(body.to_bytes()))),
///         Err(error) if error.is::<BodyError>() => {
///             let mut late = Response::new(Full::default());
///             *late.status_mut() = StatusCode::REQUEST_TIMEOUT;
///             Ok(late)
///         }
///         Err(error) => Err(error),
///     }
/// }
///
/// # use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
/// # runtime.block_on(async {
/// # let service = corewheel::TimerService::beside_runtime().start().unwrap();
/// # let timers = service.handle();
/// # let (socket, mut client) = tokio::io::duplex(4096);
/// let limits = StreamLimits::default()
///     .head(Duration::from_secs(10))
///     .write_stall(Duration::from_secs(30))
///     .idle(Duration::from_secs(60));
/// let stream = TimedIo::new(socket, timers, limits);
/// let service = TimedHttp::new(service_fn(answer), stream.control())
///     .request(BodyLimits::default().next_frame(Duration::from_millis(20)));
/// let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
/// # let serving = tokio::spawn(serving);
/// # let request = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhel";
/// # client.write_all(request).await.unwrap();
/// # let mut received = [0; 12];
/// # client.read_exact(&mut received).await.unwrap();
/// # assert_eq!(&received, b"HTTP/1.1 408");
/// # });
/// ```
#[derive(Clone)]
#[must_use = "a service does nothing unless a connection has it"]
pub struct TimedHttp<S, M: Side = Handle> {
    inner: S,
    control: StreamControl<M>,
    connection: Arc<Connection>,
}

impl<S, M: Side> TimedHttp<S, M> {
    /// The service of one connection, whose stream has this control. Its first message begins with
    /// the next byte, so this is called before the connection is served.
    ///
    /// Without [limits](Self::request) for bodies, an exchange ends by no time.
    pub fn new(inner: S, control: StreamControl<M>) -> Self {
        control.begin_message();
        let connection = Arc::new(Connection::new(control.handle()));
        Self { inner, control, connection }
    }

    /// Sets the limits for the bodies of requests.
    pub fn request(self, limits: BodyLimits) -> Self {
        self.with_limits(limits, 0..1)
    }

    /// Sets the limits for the bodies of responses.
    pub fn response(self, limits: BodyLimits) -> Self {
        self.with_limits(limits, 1..3)
    }

    /// Sets the limits for the bodies of HTTP/2 responses, after [`response`](Self::response). The
    /// client of HTTP/2 has a window for each response, of which the limits of the socket say
    /// nothing.
    pub fn http2_response(self, limits: BodyLimits) -> Self {
        self.with_limits(limits, 2..3)
    }

    fn with_limits(mut self, limits: BodyLimits, of: Range<usize>) -> Self {
        Arc::make_mut(&mut self.connection).limits[of].fill(limits);
        self
    }

    #[cfg(feature = "server")]
    pub(crate) fn told(&self) -> Arc<Told> {
        Arc::clone(&self.connection.told)
    }
}

impl<S, M, B, R> Service<Request<B>> for TimedHttp<S, M>
where
    S: Service<Request<TimedBody<B, M>>, Response = Response<R>>,
    M: Side,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
    R: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    type Response = Response<ResponseBody<R, M>>;
    type Error = S::Error;
    type Future = TimedResponse<S::Future, M>;

    fn call(&self, request: Request<B>) -> Self::Future {
        let (kind, control) = (Kind::of(&request, &self.control), &self.control);
        let request =
            request.map(|body| TimedBody::of_request(kind, body, &self.connection, control));
        // Before the call, whose panic ends the request.
        let waiting = Waiting(Some((request.body().exchange().clone(), control.clone())));
        TimedResponse { future: self.inner.call(request), waiting }
    }
}

debug_fields!([S: fmt::Debug, M: Side] TimedHttp<S, M>, |it|
    inner: it.inner, control: it.control,
    request: it.connection.limits[0], response: it.connection.limits[1]
);

/// A request that waits for its response; `None` when the response is there. Its drop ends the
/// exchange.
struct Waiting<M: Side>(Option<(Exchange, StreamControl<M>)>);

impl<M: Side> Drop for Waiting<M> {
    fn drop(&mut self) {
        if let Some((exchange, control)) = &self.0 {
            exchange.core.end_with_response();
            exchange.core.response_over(control, false);
        }
    }
}

pin_project! {
    /// The response of a [`TimedHttp`] to a request.
    pub struct TimedResponse<F, M = Handle>
    where
        M: Side,
    {
        #[pin]
        future: F,
        waiting: Waiting<M>,
    }
}

impl<F, M, R, E> Future for TimedResponse<F, M>
where
    F: Future<Output = Result<Response<R>, E>>,
    M: Side,
    R: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    type Output = Result<Response<ResponseBody<R, M>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.future.poll(cx));
        // Its drop ends the exchange of an error.
        let mut waiting = mem::replace(this.waiting, Waiting(None));
        Poll::Ready(response.map(move |response| {
            let (exchange, control) = waiting.0.take().expect("no poll comes after the end");
            let has_pieces = exchange.core.respond(&control, &response);
            response.map(|body| ResponseBody::new(body, exchange, control, has_pieces))
        }))
    }
}

debug_fields!([F: fmt::Debug, M: Side] TimedResponse<F, M>, |it| future: it.future);

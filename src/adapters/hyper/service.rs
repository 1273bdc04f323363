//! A service of hyper that tells the stream of its connection about each request.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::Body;
use hyper::service::Service;
use hyper::{Request, Response};
use pin_project_lite::pin_project;

use super::request::{InFlight, RequestBody, RequestPart, ResponseBody, ResponsePart};
use crate::conn::Side;
use crate::face::handle::Handle;
use crate::stream::StreamControl;

/// A service of hyper that tells the [`TimedIo`](crate::stream::TimedIo) of its connection about
/// each request, so that no limit of the stream ends a request that the server works on.
///
/// It wraps the service of one connection. For each request:
///
/// - It says that the head is complete, in [`call`](Service::call): a handler would say so too
///   late.
/// - The request is [in flight](StreamControl::begin_request) from the call until the stream has
///   accepted the last byte of the response, or the response is broken off. Meanwhile neither
///   [`idle`](crate::stream::StreamLimits::idle) nor
///   [`read_idle`](crate::stream::StreamLimits::read_idle) ends the connection, however long the
///   handler takes. While a read of the body of the request waits for the client, both count,
///   also where the handler does something else meanwhile: a client that stops sending is idle. Of
///   several requests at once, each holds the idle times back.
/// - A message of HTTP/1 is measured against
///   [`min_read_rate`](crate::stream::StreamLimits::min_read_rate) from its first byte until the
///   body of the request has ended or was dropped.
/// - The next message of HTTP/1 begins when both bodies have ended. After a response that hands the
///   connection to another protocol, `101` or a success to `CONNECT`, no message begins.
///
/// A client that does not read its response is found by
/// [`write_stall`](crate::stream::StreamLimits::write_stall) or
/// [`min_write_rate`](crate::stream::StreamLimits::min_write_rate), so a server sets one of them.
/// Both count as well while an HTTP/2 client gives no window for a response, and then only bytes of
/// responses count as accepted. Without these limits, a request ends when hyper has taken its
/// response, and idle times alone bound the client.
///
/// What the stream has accepted lies in the system's send buffer, and goes to the client after the
/// connection is idle. So the owner shuts the writing side down and reads to the end before it
/// closes the socket, for a time: a socket that is closed with unread input takes the rest back.
///
/// A future of a response that is dropped, because the client has left or the handler has panicked,
/// ends its request, too.
///
/// The bytes of an HTTP/2 connection are those of several requests: only what comes before its
/// first request has the limits of a head and of a rate, and later requests have that of idle
/// times.
///
/// The body of a request is a [`RequestBody`], and that of a response becomes a [`ResponseBody`],
/// whose data is [`ResponseData`](super::ResponseData). A
/// service of tower, such as an axum router, goes into hyper-util's `TowerToHyperService` before;
/// `axum::serve` takes `adapters::axum` instead.
///
/// # Cost
///
/// A request costs an allocation of some 100 bytes, and twice a lock that only the connection's
/// own tasks take, as [`begin_request`](StreamControl::begin_request) does; each wait for the body
/// of the request costs that again. Each frame of an HTTP/2 response costs a lock of its request
/// twice, and allocates nothing.
///
/// ```
/// # #[cfg(feature = "tokio")] {
/// use corewheel::adapters::hyper::{RequestBody, TimedService};
/// use corewheel::stream::{StreamLimits, TimedIo};
/// use http_body_util::{BodyExt, Full};
/// use hyper::body::{Bytes, Incoming};
/// use hyper::server::conn::http1;
/// use hyper::service::service_fn;
/// use hyper::{Request, Response};
/// use hyper_util::rt::TokioIo;
/// use std::time::Duration;
///
/// type Answer = hyper::Result<Response<Full<Bytes>>>;
///
/// async fn answer(request: Request<RequestBody<Incoming>>) -> Answer {
///     let body = request.into_body().collect().await?.to_bytes();
///     // Longer than the idle limit.
///     # corewheel::time::sleep(Duration::from_millis(60)).await;
///     Ok(Response::new(Full::new(body)))
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
///     .idle(Duration::from_millis(20));
/// let stream = TimedIo::new(socket, timers, limits);
/// let service = TimedService::new(service_fn(answer), stream.control());
/// let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
/// # let serving = tokio::spawn(serving);
/// # let request = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello";
/// # client.write_all(request).await.unwrap();
/// # let mut received = String::new();
/// # client.read_to_string(&mut received).await.unwrap();
/// # assert!(received.ends_with("hello"), "{received}");
/// # assert!(serving.await.unwrap().is_err(), "after the answer, the connection is idle");
/// # });
/// # }
/// ```
pub struct TimedService<S, M = Handle>
where
    M: Side,
{
    inner: S,
    control: StreamControl<M>,
    has_body_limits: bool,
}

impl<S, M: Side> TimedService<S, M> {
    /// The service of one connection, whose stream has this control. Its first message begins with
    /// the next byte, so this is called before the connection is served.
    pub fn new(inner: S, control: StreamControl<M>) -> Self {
        control.begin_message();
        Self { inner, control, has_body_limits: false }
    }

    /// A wait for the body of a request has a limit of its own, as in a
    /// [`TimedExchanges`](super::TimedExchanges), so it holds the idle times back like all else
    /// that a request does. Without this, the connection ends as idle where the limit of the body
    /// is greater, and its handler cannot answer.
    #[must_use]
    pub fn bodies_have_limits(self) -> Self {
        Self { has_body_limits: true, ..self }
    }

    /// The control of the connection's stream.
    pub fn control(&self) -> &StreamControl<M> {
        &self.control
    }

    /// The service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The service, without the stream.
    pub fn into_inner(self) -> S {
        self.inner
    }

    /// Calls the service by `call`.
    pub(in crate::adapters) fn call_with<B: Body, F>(
        control: &StreamControl<M>,
        has_body_limits: bool,
        request: Request<B>,
        call: impl FnOnce(Request<RequestBody<B, M>>) -> F,
    ) -> ResponseFuture<F, M> {
        let in_flight = InFlight::new(&request, control, has_body_limits);
        // Before the call, whose panic ends the request.
        let part = ResponsePart::new(Arc::clone(&in_flight));
        let future = call(request.map(|body| {
            let part = (!body.is_end_stream()).then_some(RequestPart(in_flight));
            RequestBody::new(body, part)
        }));
        ResponseFuture { future, part: Some(part) }
    }
}

impl<S, M, B, R> Service<Request<B>> for TimedService<S, M>
where
    S: Service<Request<RequestBody<B, M>>, Response = Response<R>>,
    M: Side,
    B: Body,
{
    type Response = Response<ResponseBody<R, M>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, M>;

    fn call(&self, request: Request<B>) -> Self::Future {
        let call = |request| self.inner.call(request);
        Self::call_with(&self.control, self.has_body_limits, request, call)
    }
}

impl<S: Clone, M: Side> Clone for TimedService<S, M> {
    fn clone(&self) -> Self {
        let (inner, control) = (self.inner.clone(), self.control.clone());
        Self { inner, control, has_body_limits: self.has_body_limits }
    }
}

debug_fields!([S: fmt::Debug, M: Side] TimedService<S, M>, |it|
    inner: it.inner, control: it.control
);

pin_project! {
    /// The response of a [`TimedService`] to a request.
    pub struct ResponseFuture<F, M = Handle>
    where
        M: Side,
    {
        #[pin]
        future: F,
        // `None` when the response is there.
        part: Option<ResponsePart<M>>,
    }
}

impl<F, M, R, E> Future for ResponseFuture<F, M>
where
    F: Future<Output = Result<Response<R>, E>>,
    M: Side,
{
    type Output = Result<Response<ResponseBody<R, M>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let polled = this.future.poll(cx);
        polled.map(|response| {
            let mut part = this.part.take();
            let response = response?;
            if let Some(part) = &mut part {
                part.respond(&response);
            }
            Ok(response.map(|body| ResponseBody::new(body, part)))
        })
    }
}

debug_fields!([F: fmt::Debug, M: Side] ResponseFuture<F, M>, |it| future: it.future);

/// With shared timers, it goes from thread to thread.
const _: () = {
    const fn is_shared<T: Clone + Send + Sync + Unpin + 'static>() {}
    const fn is_sent<T: Send + Sync + 'static>() {}
    is_shared::<TimedService<()>>();
    is_sent::<(ResponseFuture<()>, RequestBody<()>, ResponseBody<()>)>();
};

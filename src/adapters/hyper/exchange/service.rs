//! A service of hyper whose exchanges have limits.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::Body;
use hyper::service::Service;
use hyper::{Request, Response};
use pin_project_lite::pin_project;

use super::{BodyLimits, BodyTimers, Exchange, TimedBody};

/// A service of hyper that gives the bodies of each request and of its response limits, and lets
/// them end as one [`Exchange`].
///
/// It wraps the service of one connection, and comes around a
/// [`TimedService`](crate::adapters::hyper::TimedService) if there is one, with
/// [`bodies_have_limits`](crate::adapters::hyper::TimedService::bodies_have_limits): then a body
/// that has reached a limit holds the idle times of its connection back no longer.
///
/// The handler finds the exchange by [`TimedBody::exchange`]. The bodies are `Send` and `Unpin`; a
/// body that is not goes into a box.
///
/// ```
/// # #[cfg(feature = "tokio")] {
/// use corewheel::adapters::hyper::{BodyError, BodyLimits, BodyTimers, TimedBody, TimedExchanges};
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
/// # let (stream, mut client) = tokio::io::duplex(4096);
/// let service = TimedExchanges::new(service_fn(answer), BodyTimers::new(timers))
///     .request_limits(BodyLimits::default().next_frame(Duration::from_millis(20)));
/// let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
/// # let serving = tokio::spawn(serving);
/// # let request = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhel";
/// # client.write_all(request).await.unwrap();
/// # let mut received = [0; 12];
/// # client.read_exact(&mut received).await.unwrap();
/// # assert_eq!(&received, b"HTTP/1.1 408");
/// # });
/// # }
/// ```
#[derive(Clone)]
pub struct TimedExchanges<S> {
    inner: S,
    timers: BodyTimers,
    request: BodyLimits,
    response: BodyLimits,
}

impl<S> TimedExchanges<S> {
    /// The service of one connection, whose bodies have this timer. Without limits, its exchanges
    /// end as one, and by no time.
    pub fn new(inner: S, timers: BodyTimers) -> Self {
        let (request, response) = (BodyLimits::default(), BodyLimits::default());
        Self { inner, timers, request, response }
    }

    /// Sets the limits for the bodies of requests.
    #[must_use]
    pub fn request_limits(self, request: BodyLimits) -> Self {
        Self { request, ..self }
    }

    /// Sets the limits for the bodies of responses.
    #[must_use]
    pub fn response_limits(self, response: BodyLimits) -> Self {
        Self { response, ..self }
    }

    /// The service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B, R> Service<Request<B>> for TimedExchanges<S>
where
    S: Service<Request<TimedBody<B>>, Response = Response<R>>,
    B: Body + Send + Unpin + 'static,
    R: Body + Send + Unpin + 'static,
{
    type Response = Response<TimedBody<R>>;
    type Error = S::Error;
    type Future = ExchangeFuture<S::Future>;

    fn call(&self, request: Request<B>) -> Self::Future {
        let exchange = self.timers.exchange();
        // Before the call, whose panic ends the exchange.
        let waiting = Waiting { exchange: Some(exchange.clone()) };
        let request = request.map(|body| exchange.request(body, self.request));
        ExchangeFuture { future: self.inner.call(request), waiting, limits: self.response }
    }
}

debug_fields!([S: fmt::Debug] TimedExchanges<S>, |it|
    inner: it.inner, request: it.request, response: it.response
);

/// An exchange that waits for its response. Its drop ends the exchange.
struct Waiting {
    /// `None` when the response is there.
    exchange: Option<Exchange>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(exchange) = &self.exchange {
            exchange.end();
        }
    }
}

pin_project! {
    /// The response of a [`TimedExchanges`] to a request.
    pub struct ExchangeFuture<F> {
        #[pin]
        future: F,
        waiting: Waiting,
        limits: BodyLimits,
    }
}

impl<F, R, E> Future for ExchangeFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Body + Send + Unpin + 'static,
{
    type Output = Result<Response<TimedBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Poll::Ready(response) = this.future.poll(cx) else { return Poll::Pending };
        let exchange = this.waiting.exchange.take().expect("no poll comes after the end");
        if response.is_err() {
            exchange.end();
        }
        let (exchange, limits) = (exchange.of_response(), *this.limits);
        Poll::Ready(response.map(|response| response.map(|body| exchange.response(body, limits))))
    }
}

debug_fields!([F: fmt::Debug] ExchangeFuture<F>, |it| future: it.future);

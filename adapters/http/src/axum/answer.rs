//! The service of one connection: an app of axum as hyper calls it.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONNECTION, HeaderValue};
use axum::http::{StatusCode, Version};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::{TowerToHyperService, TowerToHyperServiceFuture};
use pin_project_lite::pin_project;
use tower_service::Service as TowerService;

use crate::hyper::{BodyError, Exchange, TimedBody};

/// An app of axum. Its requests are those of a [`TimedHttp`](crate::hyper::TimedHttp).
pub(super) struct App<S>(TowerToHyperService<S>);

impl<S> App<S> {
    pub(super) fn new(app: S) -> Self {
        Self(TowerToHyperService::new(app))
    }
}

impl<S> Service<hyper::Request<TimedBody<Incoming>>> for App<S>
where
    S: TowerService<Request, Response = Response, Error = Infallible> + Clone,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Answering<S>;

    fn call(&self, request: hyper::Request<TimedBody<Incoming>>) -> Answering<S> {
        let (exchange, version) = (request.body().exchange().clone(), request.version());
        let answer = self.0.call(request.map(Body::new));
        Answering { answer, exchange, version }
    }
}

pin_project! {
    /// The answer of an app.
    pub(super) struct Answering<S>
    where
        S: TowerService<Request>,
    {
        #[pin]
        answer: TowerToHyperServiceFuture<S, Request>,
        exchange: Exchange,
        version: Version,
    }
}

impl<S> Future for Answering<S>
where
    S: TowerService<Request, Response = Response, Error = Infallible>,
{
    type Output = Result<Response, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Ok(answer) = ready!(this.answer.poll(cx));
        let status = answer.status();
        if !(status.is_client_error() || status.is_server_error()) || !is_late(this.exchange) {
            return Poll::Ready(Ok(answer));
        }
        let mut late = StatusCode::REQUEST_TIMEOUT.into_response();
        if *this.version < Version::HTTP_2 {
            late.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Poll::Ready(Ok(late))
    }
}

/// Whether the client has sent too little of the body of its request in time.
fn is_late(exchange: &Exchange) -> bool {
    use BodyError::{FrameRate, NextFrame};
    matches!(exchange.request_limit_reached(), Some(NextFrame(_) | FrameRate(_)))
}

//! One connection: it is served, told to end when a limit says so, and closed.
//!
//! Invariants: a client is told before its connection is cut for being idle or too old. A request
//! that is in progress then ends first, within the grace of the limit.

use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use corewheel::AnyHandle;
use corewheel::fallback::InfallibleSleep;
use corewheel::stream::{StreamControl, TimedIo};
use hyper::body::{Body, Incoming};
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::Server;
use super::closing::ServedIo;
use crate::BoxError;
use crate::hyper::{TimedBody, TimedHttp, Told};

/// How long a client may hold a connection that was told to end, after its last request: the time
/// in which it takes the rest of what was sent.
const TOLD_TIME: Duration = Duration::from_secs(1);

impl Server {
    /// Serves the client of a stream of [`stream`](Self::stream) to its end, and closes the socket.
    /// It tells the client to end when `shutdown` is ready.
    ///
    /// A connection that was upgraded is not waited for.
    pub async fn serve<I, S, B>(
        &self,
        stream: TimedIo<I>,
        service: S,
        shutdown: impl Future<Output = ()>,
    ) where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        S: Service<Request<TimedBody<Incoming>>, Response = Response<B>>,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
        B: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let control = stream.control();
        let service = TimedHttp::new(service, control.clone());
        let service = service.request(self.settings.request).response(self.settings.response);
        let service =
            service.http2_response(self.settings.http2_response.unwrap_or(self.settings.response));
        let (told, terms) = (service.told(), self.terms());
        let (stream, mut back) = ServedIo::new(stream, terms, Arc::clone(&told));
        {
            // Those that were not named are known only now.
            let known = self.settings.timers.is_none().then(|| self.clone().timers(terms.timers));
            let hyper = &known.as_ref().unwrap_or(self).settings.hyper;
            let serving = hyper.serve_connection_with_upgrades(TokioIo::new(stream), service);
            let mut serving = pin!(serving);
            let (mut aged, mut idle) =
                (pin!(is_aged(&control, &told, terms.timers)), pin!(comes(control.request_idle())));
            let mut shutdown = pin!(shutdown);
            // Each poll of a connection polls all of this, which is why it is no `select!`.
            let end = poll_fn(|cx| {
                // First, so that the client is told also where the process was held up until the
                // socket has reached its limit, too.
                if told.is_stalled.get() {
                    return Poll::Ready(Some(End::Told));
                }
                // An error says that the client has left, or by which limit the stream has ended.
                if serving.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                if told.poll_stalled(cx).is_ready() || aged.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Some(End::Told));
                }
                if idle.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Some(End::Idle));
                }
                shutdown.as_mut().poll(cx).map(|()| Some(End::Told))
            })
            .await;
            if let Some(end) = end {
                serving.as_mut().graceful_shutdown();
                // A client of HTTP/2 need not close the connection.
                tokio::select! {
                    biased;
                    _ = serving.as_mut() => {}
                    () = is_unused(&control, end) => {}
                }
            }
        }
        // It does not come back from a client that has another protocol now.
        if let Ok(ended) = back.try_recv() {
            ended.close(terms.timers, self.settings.close_time).await;
        }
    }
}

/// The preface of HTTP/2 has come, whose client may send for ever without a request.
pub(super) fn set_http2(control: &StreamControl, limits_windows: bool) {
    // No request is due before the time of an idle connection.
    control.message_complete();
    let (timers, limits) = (control.timers(), control.timers().limits());
    let idle = limits.all_idle;
    // The client is told when the time is over. The stream ends later, if the owner has not.
    let later = if idle.is_zero() { idle } else { idle.saturating_add(idle.max(TOLD_TIME)) };
    let mut limits = limits.all_idle(later).request_idle(idle);
    if limits_windows {
        // A response that the client does not take reaches its own limit before.
        limits.write_timeout = limits.write_timeout.saturating_mul(2);
        limits.min_write_rate.grace = limits.min_write_rate.grace.saturating_mul(2);
    }
    timers.set_limits(limits);
}

/// Why a connection is to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// It is idle, with its tunnels.
    Idle,
    /// It is too old, a drain has come to it, or the server stops.
    Told,
}

/// Waits until the connection is too old, or a drain has come to it.
async fn is_aged(control: &StreamControl, told: &Told, timers: AnyHandle) {
    comes(control.max_age_reached()).await;
    // A connection that begins in a drain has one request, for which it has some time: a load
    // balancer sends more clients until it knows that the server drains.
    tokio::select! {
        () = told.first.wait() => {}
        () = InfallibleSleep::after(timers, TOLD_TIME) => {}
    }
}

/// Waits for an event of a stream. An error says that the stream has ended, which the connection
/// finds out itself.
async fn comes(event: impl Future<Output = io::Result<()>>) {
    if event.await.is_err() {
        pending::<()>().await;
    }
}

/// Waits until no request and no tunnel of a connection that was told to end is in progress, and
/// then for a time. Silent tunnels are none where that is why it ends.
async fn is_unused(control: &StreamControl, end: End) {
    let timers = control.timers();
    timers.set_limits(timers.limits().request_idle(TOLD_TIME));
    loop {
        comes(control.request_idle()).await;
        if end == End::Idle || !control.has_tunnel() {
            return;
        }
    }
}

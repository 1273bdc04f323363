//! One connection: it is served, told to end when a limit says so, and closed.
//!
//! Invariants: a client is told before its connection is cut for being idle or too old. A request
//! that is in progress then ends first, within the grace of the limit.

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use corewheel::AnyHandle;
use corewheel::stream::{StreamControl, StreamLimits, TimedIo};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{SetOnce, watch};
use tower_service::Service;

use super::answer::App;
use super::closing::ServedIo;
use crate::hyper::{BodyLimits, TimedHttp};

/// How long a client may hold a connection that was told to end, after its last request: the time
/// in which it takes the rest of what was sent.
pub(super) const TOLD_TIME: Duration = Duration::from_secs(1);

/// How connections are served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// `None` for those of the default service.
    pub(super) timers: Option<AnyHandle>,
    pub(super) stream: StreamLimits,
    pub(super) request: BodyLimits,
    pub(super) response: BodyLimits,
    pub(super) close_time: Duration,
}

impl Settings {
    /// The limits of a stream, until it is known to be one of HTTP/2.
    pub(super) fn of_stream(&self) -> StreamLimits {
        let StreamLimits { idle, request_idle, .. } = self.stream;
        let limits = [idle, request_idle].into_iter().filter(|limit| !limit.is_zero());
        self.stream.idle(limits.min().unwrap_or_default()).request_idle(Duration::ZERO)
    }
}

/// A connection that was accepted.
pub(super) struct Connection<I, S> {
    pub(super) stream: TimedIo<I>,
    pub(super) app: S,
    pub(super) settings: Settings,
    pub(super) timers: AnyHandle,
}

impl<I, S> Connection<I, S>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    /// Serves the client to its end. The receiver is dropped when the socket is closed, and has a
    /// change when the server is shut down.
    pub(super) async fn serve(self, mut shutdown: watch::Receiver<()>) {
        let Self { stream, app, settings, timers } = self;
        let control = stream.control();
        let first = Arc::<SetOnce<()>>::default();
        let app = TimedHttp::new(App::new(app, &first), control.clone());
        let app = app.request(settings.request).response(settings.response);
        let (stream, mut back) = ServedIo::new(stream);
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // The stream has the deadlines of heads.
        builder.http1().header_read_timeout(None);
        // For WebSockets over HTTP/2, as in `axum::serve`.
        builder.http2().enable_connect_protocol();
        {
            let serving = builder.serve_connection_with_upgrades(TokioIo::new(stream), app);
            let mut serving = pin!(serving);
            let is_to_end = tokio::select! {
                biased;
                // An error says that the client has left, or by which limit the stream has ended.
                _ = serving.as_mut() => false,
                () = is_over(&control, &first) => true,
                // An error says that the server was dropped.
                _ = shutdown.changed() => true,
            };
            if is_to_end {
                serving.as_mut().graceful_shutdown();
                // A client of HTTP/2 need not close the connection.
                tokio::select! {
                    biased;
                    _ = serving.as_mut() => {}
                    () = is_unused(&control) => {}
                }
            }
        }
        // It does not come back from a client that has another protocol now.
        if let Ok(ended) = back.try_recv() {
            ended.close(timers, settings.close_time).await;
        }
        drop(shutdown);
    }
}

/// The preface of HTTP/2 has come, whose client may send for ever without a request.
pub(super) fn set_http2(control: &StreamControl) {
    // No request is due before the time of an idle connection.
    control.message_complete();
    let (timers, limits) = (control.timers(), control.timers().limits());
    let idle = limits.all_idle;
    // The client is told when the time is over. The stream ends later, if the owner has not.
    let later = if idle.is_zero() { idle } else { idle.saturating_add(idle.max(TOLD_TIME)) };
    timers.set_limits(limits.all_idle(later).request_idle(idle));
}

/// Waits until the connection is to end, because it is too old, no client uses it, or a drain has
/// come to it.
async fn is_over(control: &StreamControl, first: &SetOnce<()>) {
    // A connection that begins in a drain has one request: a load balancer sends more clients until
    // it knows that the server drains.
    let is_aged = async {
        control.max_age_reached().await?;
        first.wait().await;
        std::io::Result::Ok(())
    };
    // Each returns an error if the stream has ended, which the connection finds out itself.
    tokio::select! {
        biased;
        Ok(()) = is_aged => {}
        Ok(()) = control.request_idle() => {}
        else => pending().await,
    }
}

/// Waits until no request of a connection that was told to end is in progress, and then for a time.
async fn is_unused(control: &StreamControl) {
    let timers = control.timers();
    timers.set_limits(timers.limits().request_idle(TOLD_TIME));
    if control.request_idle().await.is_err() {
        pending::<()>().await;
    }
}

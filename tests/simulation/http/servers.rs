//! The servers: hyper with the adapters' services, on any thread and on a shard.

use std::rc::Rc;
use std::time::Duration;

use corewheel::AnyHandle;
use corewheel::conn::{DataRate, Side};
use corewheel::sim::net::{Runtime, Stream};
use corewheel::stream::{StreamControl, StreamLimits};
use corewheel_http::hyper::{BodyLimits, HyperTimer, TimedHttp};
use corewheel_http::tower::TimeoutLayer;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes};
use hyper::server::conn::{http1, http2};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tower::Layer;

use super::seen::{Phase, Seen};
use super::{WRITE_RATE, World};
use crate::judge::Place;

/// hyper's tasks run in a runtime of the simulation.
#[derive(Clone)]
pub(crate) struct InRuntime(pub(crate) Runtime);

impl<F: Future + 'static> hyper::rt::Executor<F> for InRuntime {
    fn execute(&self, future: F) {
        drop(self.0.spawn(future));
    }
}

/// A request that is handled; its drop counts its end.
struct Handled(Rc<World>);

impl Handled {
    fn new(world: &Rc<World>) -> Self {
        world.handled.set(world.handled.get() + 1);
        Self(Rc::clone(world))
    }
}

impl Drop for Handled {
    fn drop(&mut self) {
        self.0.ended.set(self.0.ended.get() + 1);
    }
}

pub(crate) type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Answers with as many bytes as the request's path says.
async fn answer<B>(
    world: Rc<World>,
    seen: Rc<Seen>,
    request: Request<B>,
) -> Result<Response<Full<Bytes>>, Failed>
where
    B: Body,
    B::Error: Into<Failed>,
{
    let length = request.uri().path()[1..].parse::<usize>()?;
    let works = length.is_multiple_of(5);
    seen.phase.set(Phase::Body { works });
    let _body = request.into_body().collect().await.map_err(Into::into)?;
    // Until here, the server waits for its client.
    seen.begin_request(&world, length);
    if works {
        // Longer than the idle time.
        let time = seen.limits.limit + Duration::from_millis(3);
        seen.phase.set(Phase::Works { until: world.now() + time });
        world.time.sleep(time).await;
    }
    seen.phase.set(Phase::Answered);
    seen.answer(&world);
    Ok(Response::new(Full::new(vec![b'b'; length].into())))
}

/// Waits until a connection is to end. Returns whether that is since no request has come.
pub(super) async fn is_told<M: Side>(control: &StreamControl<M>) -> bool {
    tokio::select! {
        biased;
        Ok(()) = control.max_age_reached() => false,
        Ok(()) = control.request_idle() => true,
        else => std::future::pending().await,
    }
}

/// Drives a connection of hyper until it ends, and lets it end when its owner is told to.
macro_rules! drive {
    ($serving:expr, $told:expr) => {{
        let mut serving = std::pin::pin!($serving);
        let told = std::pin::pin!($told);
        let has_ended = tokio::select! {
            biased;
            _ = &mut serving => true,
            () = told => false,
        };
        if !has_ended {
            serving.as_mut().graceful_shutdown();
            drop(serving.await);
        }
    }};
}
pub(super) use drive;

fn limits_of(world: &World, seen: &Seen) -> StreamLimits {
    let limit = seen.limits.limit;
    let limits = if seen.has_write_rate() {
        StreamLimits::default().min_write_rate(DataRate::new(WRITE_RATE, limit))
    } else {
        StreamLimits::default().write_stall(limit)
    };
    let read_rate = if seen.is_patient() { DataRate::OFF } else { seen.body_rate() };
    let limits = limits
        .first_byte(limit)
        .head(limit)
        .min_read_rate(read_rate)
        .max_age(seen.limits.max_age.unwrap_or_default())
        .max_age_grace(world.grace);
    match (seen.is_http2, world.has_large_buffers()) {
        (true, true) => limits.request_idle(limit),
        (false, true) if seen.number.is_multiple_of(2) => limits.request_idle(limit).idle(limit),
        _ => limits.idle(limit),
    }
}

/// Serves a connection. On a shard, idle times bound the bodies of its requests.
pub(crate) async fn serve(
    world: Rc<World>,
    seen: Rc<Seen>,
    stream: Stream,
    place: impl Place,
    timers: AnyHandle,
) {
    seen.begin(&world);
    let stream = place.stream(stream, limits_of(&world, &seen), seen.asks);
    let control = stream.control();
    let (shared, known) = (Rc::clone(&world), Rc::clone(&seen));
    let inner = tower::service_fn(move |request| {
        let world = Rc::clone(&shared);
        known.is_called(&world);
        // Before the first poll, so that it counts if none comes.
        let handled = Handled::new(&world);
        let answered = answer(world, Rc::clone(&known), request);
        async move {
            let _handled = handled;
            answered.await
        }
    });
    let (shared, known) = (Rc::clone(&world), Rc::clone(&seen));
    let late = move || {
        known.is_too_late(&shared);
        let mut late = Response::new(Full::default());
        *late.status_mut() = StatusCode::GATEWAY_TIMEOUT;
        late
    };
    let layer = TimeoutLayer::with_response(timers, seen.limits.request, late);
    let inner = TowerToHyperService::new(layer.layer(inner));
    let mut body_limits = BodyLimits::default();
    if !seen.is_on_shard {
        body_limits = body_limits.next_frame(seen.limits.frame);
    }
    if !seen.is_on_shard && !seen.is_patient() {
        body_limits = body_limits.min_frame_rate(seen.body_rate());
    }
    let service = TimedHttp::new(inner, control.clone()).request(body_limits);
    let told = async {
        if is_told(&control).await {
            seen.is_without_request(&world);
        } else {
            seen.tell(&world);
        }
    };
    let io = TokioIo::new(stream);
    if seen.is_http2 {
        let server = http2::Builder::new(InRuntime(seen.runtime.clone()));
        drive!(server.serve_connection(io, service), told);
    } else {
        let mut server = http1::Builder::new();
        drive!(server.timer(HyperTimer::new(timers)).serve_connection(io, service), told);
    }
}

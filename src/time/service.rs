//! The service behind the drop-in for `tokio::time`: the default one, or one that was set.
//!
//! Why a static and not a context of the runtime, as tokio has: `sleep(duration)` has no parameter
//! for a service, and works on every thread, with a runtime and without one.
//!
//! Invariants: the service is chosen once and stays. The default service is never dropped.
//!
//! Cost: an atomic load for each sleep, timeout and interval that is made.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::{NearClock, Timeline};
use crate::face::handle::AnyHandle;
use crate::fallback;
use crate::service::TimerService;
use crate::stats::ServiceStats;
use crate::values::error::ConfigError;

struct Chosen {
    handle: AnyHandle,
    time: Timeline,
    clock: NearClock,
    stats: Box<dyn Fn() -> ServiceStats + Send + Sync>,
    /// The default service; `None` if a service was set.
    _default: Option<TimerService>,
}

impl Chosen {
    fn new<T: Send + 'static>(service: &TimerService<T>) -> Self {
        let handle = service.handle().untyped();
        let time = service.timeline().clone();
        let clock = NearClock::new(time.clock().clone());
        let stats = Box::new(service.stats_source());
        Self { handle, time, clock, stats, _default: None }
    }
}

static CHOSEN: OnceLock<Chosen> = OnceLock::new();

/// The service. Starts the default service if there is none.
fn chosen() -> &'static Chosen {
    CHOSEN.get_or_init(|| match TimerService::beside_runtime().name("time").start() {
        Ok(service) => {
            let chosen = Chosen::new(&service);
            Chosen { _default: Some(service), ..chosen }
        }
        Err(error) => panic!("corewheel::time could not start its default service: {error}"),
    })
}

/// Sets the service whose shards hold the timers of this module, before the first of them is made.
/// Without it, [the default service](super#the-service) starts.
///
/// The service remains the caller's. It must live as long as the program uses this module: after
/// its end, and where a shard of it is full, [a thread](super#refused-timers) keeps the deadlines.
/// Its shards must run: a sleep whose shard is [attached](crate::attach) to no thread waits.
///
/// ```
/// use corewheel::{TimerService, time};
/// use std::time::Duration;
///
/// let builder = TimerService::beside_runtime().capacity(1 << 22).name("timers");
/// let service = builder.start()?;
/// time::set_service(&service)?;
///
/// let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
/// runtime.block_on(async { time::sleep(Duration::from_millis(2)).await });
/// assert_eq!(time::stats().name, "timers");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// The module has a service already: one was set, or the default service has started. Or the
/// service goes by a [`ManualClock`](crate::clock::ManualClock), and the instants of this module go
/// by the system's clock.
pub fn set_service<T: Send + 'static>(service: &TimerService<T>) -> Result<(), ConfigError> {
    let chosen = Chosen::new(service);
    let clock = chosen.handle.clock();
    if clock.is_manual() {
        let limit = "corewheel::time goes by the system's clock";
        let remedy = "set a service without a manual clock";
        return Err(ConfigError::new("clock", clock, limit, remedy));
    }
    CHOSEN.set(chosen).map_err(|refused| {
        let limit = "corewheel::time has a service already";
        let remedy = "set one before the first sleep, timeout or interval is made";
        ConfigError::new("service", refused.handle, limit, remedy)
    })
}

/// A handle of the service whose shards hold the timers of this module. Starts the default service
/// if there is none.
///
/// # Panics
///
/// The default service cannot start.
pub fn handle() -> AnyHandle {
    chosen().handle
}

/// The present moment.
pub(super) fn present() -> Instant {
    fallback::now().into()
}

/// The present moment, once the service runs: the start of the default service takes milliseconds,
/// which are not part of the time that begins then.
pub(super) fn present_of_service() -> Instant {
    let _starts = chosen();
    present()
}

/// The deadline that is a delay from now: in nanoseconds, and as a moment. Both come in registers,
/// so that the caller writes each field of what it makes once.
#[inline(never)]
pub(super) fn due_after(delay: Duration) -> (u64, fallback::Moment) {
    let Chosen { time, clock, .. } = chosen();
    match clock.count() {
        Some(now) => fallback::due_after(time, now, delay),
        None => fallback::due_after(time, clock.ask_anew(), delay),
    }
}

/// The statistics of the service whose shards hold the timers of this module. The function itself
/// is the source for a `StatsEndpoint`. Starts the default service if there is none.
///
/// # Panics
///
/// The default service cannot start.
pub fn stats() -> ServiceStats {
    (chosen().stats)()
}

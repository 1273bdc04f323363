//! The one place where a clock is read.
//!
//! Inside the service, time is nanoseconds since the service's epoch, and deadlines are ticks. At
//! the edge it is [`Duration`] and [`Instant`]. The clock is monotonic; the wall clock is not used
//! anywhere.
//!
//! A command on a timer takes a fraction of what asking the system for the time takes, so commands
//! go by a [`NearClock`], which counts on from the last time that was asked for. A turn asks.

mod near;
pub(crate) mod timeline;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(crate) use self::near::NearClock;
pub(crate) use self::timeline::Timeline;

/// Where a service takes its time from: the monotonic clock, or a clock that a test moves.
#[derive(Clone)]
pub struct Clock {
    epoch: Instant,
    source: Source,
}

#[derive(Clone)]
enum Source {
    Monotonic,
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The monotonic clock of the system. Its epoch is this call.
    pub fn monotonic() -> Self {
        Self { epoch: Instant::now(), source: Source::Monotonic }
    }

    /// Nanoseconds since the epoch.
    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        match &self.source {
            Source::Monotonic => saturating_nanos(self.epoch.elapsed()),
            // Relaxed: time carries no other data.
            Source::Manual(nanos) => nanos.load(Ordering::Relaxed),
        }
    }

    /// The present moment.
    pub fn now(&self) -> Instant {
        match self.source {
            Source::Monotonic => Instant::now(),
            Source::Manual(_) => self.epoch + Duration::from_nanos(self.nanos()),
        }
    }

    /// The moment that came this many nanoseconds after the epoch.
    pub(crate) fn instant(&self, nanos: u64) -> Instant {
        // An instant that the system cannot represent is clamped to a century.
        let century = Duration::from_hours(100 * 365 * 24);
        self.epoch.checked_add(Duration::from_nanos(nanos)).unwrap_or(self.epoch + century)
    }

    /// The moment that comes `after` another, or the last that there is.
    pub(crate) fn after(&self, moment: Instant, after: Duration) -> Instant {
        moment.checked_add(after).unwrap_or_else(|| self.instant(u64::MAX))
    }

    /// Nanoseconds from the epoch to `instant`, 0 if it came before.
    #[inline]
    pub(crate) fn nanos_at(&self, instant: Instant) -> u64 {
        saturating_nanos(instant.saturating_duration_since(self.epoch))
    }

    pub(crate) fn is_manual(&self) -> bool {
        matches!(self.source, Source::Manual(_))
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_manual() { "Clock(manual)" } else { "Clock(monotonic)" })
    }
}

/// A clock that stands still until it is told otherwise, for tests.
///
/// It goes with shards that the test drives itself, see
/// [`Attachment::into_loop`](crate::Attachment::into_loop).
///
/// ```
/// use corewheel::{Fired, ManualClock, TimerService, Timers, Turn};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let builder = TimerService::builder().shards(1).clock(clock.clock());
/// let service = builder.start_attached::<&str>()?;
/// let shard = service.attach(service.shards().next().unwrap())?;
/// let mut shard = shard.into_loop(|timer: Fired<&str>, _: &Timers<&str>| {
///     assert_eq!((timer.task, timer.lateness), ("lease", Duration::from_secs(2)));
/// })?;
/// shard.timers().schedule(Duration::from_secs(3_600), "lease")?;
/// clock.advance(Duration::from_secs(3_602));
/// assert_eq!(shard.turn(), Turn::Idle);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock {
    clock: Clock,
    nanos: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock that shows its epoch.
    pub fn new() -> Self {
        let nanos = Arc::new(AtomicU64::new(0));
        let source = Source::Manual(Arc::clone(&nanos));
        Self { clock: Clock { epoch: Instant::now(), source }, nanos }
    }

    /// The clock to hand to a service.
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let add = |nanos: u64| Some(nanos.saturating_add(saturating_nanos(by)));
        // Relaxed: time carries no other data. The update cannot fail, as `add` always answers.
        let _ = self.nanos.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// What the clock shows.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

/// Nanoseconds from the epoch to `delay` after `now`; `u64::MAX` if that does not fit.
#[inline]
pub(crate) fn nanos_after(now: u64, delay: Duration) -> u64 {
    now.saturating_add(saturating_nanos(delay))
}

#[inline]
pub(crate) fn saturating_nanos(duration: Duration) -> u64 {
    // Not by `as_nanos`, whose 128 bits take three times as long.
    let seconds = duration.as_secs().checked_mul(1_000_000_000);
    seconds
        .and_then(|nanos| nanos.checked_add(u64::from(duration.subsec_nanos())))
        .unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_that_does_not_fit_saturates() {
        let clock = Clock::monotonic();
        assert_eq!(nanos_after(5, Duration::MAX), u64::MAX);
        assert_eq!(nanos_after(5, Duration::from_nanos(7)), 12);
        assert!(clock.instant(u64::MAX) > clock.now());
    }

    #[test]
    fn a_moment_before_the_epoch_is_the_epoch() {
        let before = Instant::now();
        let clock = Clock::monotonic();
        assert_eq!(clock.nanos_at(before), 0);
    }

    #[test]
    fn a_manual_clock_moves_when_it_is_told() {
        let manual = ManualClock::new();
        let clock = manual.clock();
        assert_eq!(clock.nanos(), 0);
        manual.advance(Duration::from_millis(3));
        assert_eq!(clock.nanos(), 3_000_000);
        assert_eq!(clock.nanos_at(clock.now()), 3_000_000);
    }
}

//! The clock of a service, and a clock that tests move.
//!
//! ```
//! use corewheel::TimerService;
//! use corewheel::attach::Turn;
//! use corewheel::clock::ManualClock;
//! use std::time::Duration;
//!
//! let clock = ManualClock::new();
//! let service = TimerService::builder().shards(1).clock(&clock).start_attached_with::<&str>()?;
//! let shard = service.attach(service.shards().next().unwrap())?;
//! let mut shard = shard.into_loop(|fired, _timers| {
//!     assert_eq!((fired.payload, fired.lateness), ("lease", Duration::from_secs(2)));
//! })?;
//! shard.timers().schedule(Duration::from_secs(3_600), "lease")?;
//! clock.advance(Duration::from_secs(3_602));
//! assert_eq!(shard.turn(), Turn::Idle);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This is the only module that reads the system's clock. Inside the service, time is nanoseconds
//! since the service's epoch, and deadlines in the wheel are ticks. At the edge it is [`Duration`]
//! and [`Instant`]. The clock is monotonic; the wall clock is not used anywhere.
//!
//! A command on a timer takes a fraction of what asking the system for the time takes. So commands
//! go by a `NearClock`, which counts on from the last time that was asked for. A turn asks.

mod counter;
mod near;
pub(crate) mod timeline;
pub(crate) mod when;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_utils::atomic::AtomicCell;

pub(crate) use self::near::NearClock;
pub(crate) use self::timeline::Timeline;

/// The clock of a service: the monotonic clock of the system, or a [`ManualClock`]. It is made by
/// [`Handle::clock`](crate::Handle::clock), and outlives the service.
#[derive(Clone)]
pub struct Clock {
    epoch: Instant,
    /// Nanoseconds from the [`first_epoch`] to this clock's.
    pub(crate) since_first: u64,
    source: Source,
}

#[derive(Clone)]
enum Source {
    Monotonic,
    Manual(Arc<AtomicCell<u64>>),
}

impl Clock {
    /// The monotonic clock of the system. Its epoch is this call.
    pub(crate) fn monotonic() -> Self {
        Self::new(Source::Monotonic)
    }

    fn new(source: Source) -> Self {
        let first = first_epoch();
        let epoch = Instant::now();
        Self { epoch, since_first: saturating_nanos(epoch - first), source }
    }

    /// Nanoseconds since the epoch.
    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        match &self.source {
            Source::Monotonic => saturating_nanos(self.epoch.elapsed()),
            // Relaxed: time carries no other data.
            Source::Manual(nanos) => nanos.load(),
        }
    }

    /// The present moment. Costs a reading of the system's clock, or a load.
    pub fn now(&self) -> Instant {
        match self.source {
            Source::Monotonic => now(),
            Source::Manual(_) => self.epoch + Duration::from_nanos(self.nanos()),
        }
    }

    /// The present moment, or up to some microseconds later: it counts on from the last time that
    /// the system gave to this thread, for less than half of what [`now`](Self::now) costs. On
    /// processors other than x86-64, and where the system's clock does not use the processor's
    /// counter, it asks the system as [`now`](Self::now) does.
    ///
    /// It is never behind [`now`](Self::now), so a deadline that is computed from it is not early.
    /// On one thread it never goes back; on another one it may show less. A
    /// [`ManualClock`] shows the same by both.
    ///
    /// ```
    /// let service = corewheel::TimerService::builder().shards(1).start()?;
    /// let clock = service.handle().clock();
    /// let (before, near) = (clock.now(), clock.near());
    /// assert!(near >= before);
    /// # Ok::<(), corewheel::StartError>(())
    /// ```
    #[inline]
    pub fn near(&self) -> Instant {
        self.instant(NearClock::new(self).nanos())
    }

    /// The instant this many nanoseconds after the epoch.
    pub(crate) fn instant(&self, nanos: u64) -> Instant {
        instant_after(self.epoch, nanos)
    }

    /// The moment `after` another moment, or the latest moment that the clock has, centuries from
    /// now.
    pub fn after(&self, moment: Instant, after: Duration) -> Instant {
        moment.checked_add(after).unwrap_or_else(|| self.instant(u64::MAX))
    }

    /// Nanoseconds from the epoch to `instant`; 0 for an instant before the epoch.
    #[inline]
    pub(crate) fn nanos_at(&self, instant: Instant) -> u64 {
        saturating_nanos(instant.saturating_duration_since(self.epoch))
    }

    /// Whether a test moves it: whether it is a [`ManualClock`].
    #[inline]
    pub fn is_manual(&self) -> bool {
        matches!(self.source, Source::Manual(_))
    }

    /// Whether this is the clock that `manual` and its clones move.
    pub(crate) fn is_moved_by(&self, manual: &ManualClock) -> bool {
        matches!(&self.source, Source::Manual(nanos) if Arc::ptr_eq(nanos, &manual.nanos))
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_manual() { "Clock(manual)" } else { "Clock(monotonic)" })
    }
}

/// The epoch of the first clock of the process. No clock has an earlier one.
pub(crate) fn first_epoch() -> Instant {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    *FIRST.get_or_init(Instant::now)
}

/// The instant this many nanoseconds after another one. One that the system cannot represent
/// becomes a century after it.
pub(crate) fn instant_after(start: Instant, nanos: u64) -> Instant {
    let century = Duration::from_secs(100 * 365 * 24 * 3_600);
    start.checked_add(Duration::from_nanos(nanos)).unwrap_or_else(|| start + century)
}

/// The present moment, by the system's clock.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A clock that moves only when a test says so, for instance by [`advance`](Self::advance).
///
/// It is used with shards that the test drives itself in
/// [`Attachment::into_loop`](crate::attach::Attachment::into_loop). Clones show the same time. See
/// the [module](self) for an example. [`run_until_idle`](Self::run_until_idle) takes the turns of
/// such shards and moves the clock from deadline to deadline.
#[derive(Clone, Debug)]
pub struct ManualClock {
    clock: Clock,
    nanos: Arc<AtomicCell<u64>>,
}

impl ManualClock {
    /// A clock that shows the present, and stands still.
    pub fn new() -> Self {
        let nanos = Arc::new(AtomicCell::new(0));
        Self { clock: Clock::new(Source::Manual(Arc::clone(&nanos))), nanos }
    }

    /// The clock of a service that this one moves.
    pub(crate) fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let add = |nanos: u64| Some(nanos.saturating_add(saturating_nanos(by)));
        // The update cannot fail, as `add` returns `Some`.
        let _ = self.nanos.fetch_update(add);
    }

    /// The instant that the clock shows.
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
    // `as_nanos` computes with 128 bits, which takes longer.
    let seconds = duration.as_secs().checked_mul(1_000_000_000);
    seconds
        .and_then(|nanos| nanos.checked_add(u64::from(duration.subsec_nanos())))
        .unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_that_does_not_fit_saturates() {
        let clock = Clock::monotonic();
        assert_eq!(nanos_after(5, Duration::MAX), u64::MAX);
        assert_eq!(nanos_after(5, Duration::from_nanos(7)), 12);
        assert!(clock.instant(u64::MAX) > clock.now());
    }

    #[test]
    fn instant_before_the_epoch_is_zero_nanoseconds() {
        let before = Instant::now();
        let clock = Clock::monotonic();
        assert_eq!(clock.nanos_at(before), 0);
    }

    #[test]
    fn near_reading_is_not_behind_the_clock_and_a_manual_clock_shows_itself() {
        let clock = Clock::monotonic();
        for _ in 0..1_000 {
            let before = clock.now();
            assert!(clock.near() >= before);
        }
        let manual = ManualClock::new();
        manual.advance(Duration::from_nanos(7));
        assert_eq!(manual.clock().near(), manual.now());
    }

    #[test]
    fn manual_clock_advances_by_the_given_duration() {
        let manual = ManualClock::new();
        let clock = manual.clock();
        assert_eq!(clock.nanos(), 0);
        manual.advance(Duration::from_millis(3));
        assert_eq!(clock.nanos(), 3_000_000);
        assert_eq!(clock.nanos_at(clock.now()), 3_000_000);
    }
}

//! The time when a timer is due: a delay, an instant, or a deadline that was computed before.

use std::time::{Duration, Instant};

use corewheel_shard::Tick;

use super::Timeline;

/// The time when a timer is due: a [`Duration`] from now, an [`Instant`], or a [`Deadline`] that
/// was computed before. Every method that takes a time accepts all of these types.
///
/// | type | due | reads a clock |
/// |---|---|---|
/// | `Duration` | that long after the call, rounded up to a tick | the near clock |
/// | `Instant` | at that time, rounded up to a tick | no |
/// | [`Deadline`] | at that tick | no, and nothing is converted |
///
/// A duration of zero, and a time that has passed, are due in the next turn.
///
/// A duration that does not fit (584 years) means never. The trait is sealed.
///
/// ```
/// use corewheel::{Timers, When};
/// # use corewheel::TimerService;
/// # use std::time::{Duration, Instant};
///
/// /// Counts how many timers are pending after one more.
/// fn add(timers: &Timers<u64>, at: impl When) -> usize {
///     let _ = timers.schedule(at, 1);
///     timers.len()
/// }
/// # let service = TimerService::builder().shards(1).start_attached_with::<u64>()?;
/// # let shard = service.attach(service.shard_for(0))?.into_loop(|_, _| {})?;
/// # let timers = shard.timers();
/// assert_eq!(add(timers, Duration::from_secs(5)), 1);
/// assert_eq!(add(timers, Instant::now() + Duration::from_secs(5)), 2);
/// assert_eq!(add(timers, timers.deadline(Duration::from_secs(5))), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no time at which a timer can be due",
    label = "expected a `Duration` from now, an `Instant` or a `Deadline`",
    note = "a number has no unit: `Duration::from_millis(5)` has one"
)]
#[allow(private_bounds, reason = "what a time does is internal, and names internal types")]
pub trait When: Copy + Send + Sync + 'static + Sealed {}

impl When for Duration {}
impl When for Instant {}
impl When for Deadline {}

/// A deadline, computed once for all timers that share it. [`Timers::deadline`] makes it. It has no
/// meaning in another service.
///
/// [`Timers::deadline`]: crate::Timers::deadline
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Deadline(pub(crate) Tick);

/// For a wheel of your own, which counts in the ticks of the service.
impl From<Tick> for Deadline {
    #[inline]
    fn from(tick: Tick) -> Self {
        Self(tick)
    }
}

/// The tick of the service at which it is due.
impl From<Deadline> for Tick {
    #[inline]
    fn from(deadline: Deadline) -> Self {
        deadline.0
    }
}

/// The three forms of a time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Due {
    After(Duration),
    At(Instant),
    Tick(Tick),
}

pub(crate) trait Sealed {
    fn due(self) -> Due;
    /// The tick of the time; `now` returns nanoseconds, and is called only for a delay. Not by way
    /// of [`Due`], so that each form compiles to its own conversion: a reset takes a third fewer
    /// instructions (callgrind, x86-64).
    fn tick(self, time: &Timeline, now: impl FnOnce() -> u64) -> Tick;
}

impl Sealed for Duration {
    #[inline]
    fn due(self) -> Due {
        Due::After(self)
    }

    // A call of it is a third of the instructions of a reset (callgrind, x86-64).
    #[allow(clippy::inline_always, reason = "counted in instructions")]
    #[inline(always)]
    fn tick(self, time: &Timeline, now: impl FnOnce() -> u64) -> Tick {
        time.deadline_after(now(), self)
    }
}

impl Sealed for Instant {
    #[inline]
    fn due(self) -> Due {
        Due::At(self)
    }

    #[inline]
    fn tick(self, time: &Timeline, _now: impl FnOnce() -> u64) -> Tick {
        time.deadline_at(self)
    }
}

impl Sealed for Deadline {
    #[inline]
    fn due(self) -> Due {
        Due::Tick(self.0)
    }

    #[inline]
    fn tick(self, _time: &Timeline, _now: impl FnOnce() -> u64) -> Tick {
        self.0
    }
}

impl Timeline {
    /// The tick at which a timer is due. Calls `now`, which returns nanoseconds, only for a delay.
    #[inline]
    pub(crate) fn tick_of(&self, when: impl When, now: impl FnOnce() -> u64) -> Tick {
        when.tick(self, now)
    }

    /// The time at which a timer is due, in nanoseconds. Only a [`Deadline`] is rounded to a tick.
    /// Calls `now`, which returns nanoseconds, only for a delay.
    #[inline]
    pub(crate) fn nanos_of(&self, when: impl When, now: impl FnOnce() -> u64) -> u64 {
        match when.due() {
            Due::After(delay) => super::nanos_after(now(), delay),
            Due::At(at) => self.nanos_at(at),
            Due::Tick(tick) => self.start_of(tick),
        }
    }

    /// When something is due, in nanoseconds, before that is rounded up to the tick of
    /// [`tick_of`](Self::tick_of). Calls `now`, which returns nanoseconds, only for a delay.
    #[inline]
    pub(crate) fn due_of(&self, when: impl When, now: impl FnOnce() -> u64) -> u64 {
        match when.due() {
            Due::After(Duration::ZERO) => self.start_of(self.floor(now())),
            _ => self.nanos_of(when, now),
        }
    }

    /// The instant of a stored time, by the rules of [`instant_due`](Self::instant_due).
    pub(crate) fn instant_of_due(&self, due: Due) -> Instant {
        match due {
            Due::After(delay) => self.clock().after(self.now(), delay),
            Due::At(at) => at,
            Due::Tick(tick) => self.instant(tick),
        }
    }
}

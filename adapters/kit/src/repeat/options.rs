//! When a periodic callback runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use corewheel::clock::Clock;
use corewheel::interval::{Interval, MissedTickBehavior};
use corewheel::{ConfigError, Deadline, Handle};

use crate::herd::Jitter;

/// When a periodic callback runs: at a fixed rate or with a fixed delay, from when on, and how
/// exactly.
///
/// A fixed rate keeps to its grid: each run is due a period after the run before it was due, not
/// after it ran, so nothing drifts, and a run that takes long or comes late moves no other. A fixed
/// delay is counted from the end of each run to the beginning of the next.
///
/// Jitter and slack make single runs later, up to their length, and never earlier; they do not move
/// the grid. Where together they are longer than the period, a run comes after later ones are due,
/// which are then made up for or missed. A period that does not fit (584 years) means never again.
/// A period that is shorter than a tick cannot be kept: with [`MissedTickBehavior::Burst`] the
/// callback runs in every turn and falls behind without end.
///
/// A clone has the same jitter: two callbacks with it run in step.
///
/// ```
/// use corewheel_kit::herd::Jitter;
/// use corewheel::interval::MissedTickBehavior;
/// use corewheel_kit::repeat::Repeat;
/// use std::time::Duration;
///
/// // A heartbeat that leaves out the periods that it was too late for. Each run comes up to a
/// // second later, so that servers that start together do not beat together.
/// let seed = u64::from(std::process::id());
/// let heartbeat = Repeat::at_fixed_rate(Duration::from_secs(10))?
///     .missed_tick_behavior(MissedTickBehavior::Skip)
///     .jitter(Jitter::random(Duration::from_secs(1), seed));
/// // A run at once and one each minute, which may wait up to five seconds for other timers.
/// let cleaning = Repeat::with_fixed_delay(Duration::from_secs(60))?
///     .first(Duration::ZERO)
///     .slack(Duration::from_secs(5))
///     .end_on_panic();
/// # Ok::<(), corewheel::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Repeat {
    pattern: Pattern<NoPlan>,
    /// `None` if the first run is due in a period or a delay.
    first: Option<First>,
    ends_on_panic: bool,
    jitter: Option<Jitter>,
    slack: Duration,
}

/// When a periodic callback runs first: a delay, an instant or a deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum First {
    /// So long after it has begun.
    After(Duration),
    /// At an instant.
    At(Instant),
    /// At a deadline that was computed before.
    Deadline(Deadline),
}

impl From<Duration> for First {
    fn from(delay: Duration) -> Self {
        Self::After(delay)
    }
}

impl From<Instant> for First {
    fn from(at: Instant) -> Self {
        Self::At(at)
    }
}

impl From<Deadline> for First {
    fn from(deadline: Deadline) -> Self {
        Self::Deadline(deadline)
    }
}

impl First {
    /// The instant, for a callback that begins now.
    pub(crate) fn instant<T: 'static>(self, handle: Handle<T>) -> Instant {
        match self {
            Self::After(delay) => handle.instant_of(delay),
            Self::At(at) => at,
            Self::Deadline(deadline) => handle.instant_of(deadline),
        }
    }
}

/// How the instant at which a run is due follows from the run before.
#[derive(Clone, Debug)]
pub(super) enum Pattern<N> {
    Rate { period: Duration, behavior: MissedTickBehavior },
    Delay(Duration),
    Plan(N),
}

/// The plan of a callback that has none.
pub(crate) type NoPlan = fn(Instant) -> Option<Instant>;

/// A callback with all that says when it runs.
pub(crate) struct Body<F, N> {
    pub(super) call: F,
    pub(super) pattern: Apart<Pattern<N>>,
    pub(super) ends_on_panic: bool,
    pub(super) slack: Duration,
    jitter: Option<Jitter>,
}

impl<F, N> Body<F, N> {
    pub(crate) fn planned(next: N, call: F) -> Self {
        let pattern = Apart(Some(Pattern::Plan(next)));
        Self { call, pattern, ends_on_panic: false, slack: Duration::ZERO, jitter: None }
    }

    /// The instant to aim at for a run: when it is due, and later by the jitter.
    pub(super) fn aim(&mut self, clock: &Clock, due: Instant) -> Instant {
        self.jitter.as_mut().map_or(due, |jitter| clock.after(due, jitter.after(Duration::ZERO)))
    }
}

/// A value that may panic when it is dropped, beside another one that may: two panics at a time
/// would abort the process.
pub(super) struct Apart<V>(Option<V>);

impl<V> Apart<V> {
    pub(super) fn get_mut(&mut self) -> &mut V {
        self.0.as_mut().expect("the value is there until it is taken or dropped")
    }

    /// Gives the value away.
    pub(super) fn take(&mut self) -> Option<V> {
        self.0.take()
    }
}

impl<V> Drop for Apart<V> {
    fn drop(&mut self) {
        let value = self.0.take();
        if let Err(message) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
            // It may panic, too.
            std::mem::forget(message);
        }
    }
}

impl Repeat {
    /// A run at the end of each period. The first run is due in a period, unless
    /// [`first`](Self::first) says otherwise.
    ///
    /// # Errors
    ///
    /// The period is zero.
    #[doc(alias = "schedule_at_fixed_rate")]
    pub fn at_fixed_rate(period: Duration) -> Result<Self, ConfigError> {
        ConfigError::if_zero("period", period)?;
        Ok(Self::of(Pattern::Rate { period, behavior: MissedTickBehavior::default() }))
    }

    /// A run `delay` after the end of the run before. The first run is due in `delay`, unless
    /// [`first`](Self::first) says otherwise.
    ///
    /// # Errors
    ///
    /// The delay is zero.
    #[doc(alias = "schedule_with_fixed_delay")]
    pub fn with_fixed_delay(delay: Duration) -> Result<Self, ConfigError> {
        ConfigError::if_zero("delay", delay)?;
        Ok(Self::of(Pattern::Delay(delay)))
    }

    fn of(pattern: Pattern<NoPlan>) -> Self {
        let slack = Duration::ZERO;
        Self { pattern, first: None, ends_on_panic: false, jitter: None, slack }
    }

    /// When the first run is due. A delay is counted from when the callback is handed over; an
    /// instant that has passed is due in the next turn.
    #[must_use]
    pub fn first(mut self, when: impl Into<First>) -> Self {
        self.first = Some(when.into());
        self
    }

    /// Makes the first run due at a random moment within a period, or within a delay, from when the
    /// callback is handed over. The later runs keep that distance, so callbacks that begin together
    /// do not run together. It takes the place of [`first`](Self::first).
    ///
    /// Equal seeds make equal moments, so each callback takes a seed of its own.
    #[must_use]
    pub fn phase(mut self, seed: u64) -> Self {
        if let Pattern::Rate { period: time, .. } | Pattern::Delay(time) = self.pattern {
            self.first = Some(First::After(Interval::phase_of(time, seed)));
        }
        self
    }

    /// What happens to periods at whose end the callback could not run, because its run before, or
    /// other work on the core, took too long. By default all of their runs come, one in each turn,
    /// until none is late. Without effect on a fixed delay, which misses none.
    #[must_use]
    pub fn missed_tick_behavior(mut self, missed: MissedTickBehavior) -> Self {
        if let Pattern::Rate { behavior, .. } = &mut self.pattern {
            *behavior = missed;
        }
        self
    }

    /// Ends the callback when it panics, and drops it. By default its later runs come all the same.
    /// The panic is contained, logged and counted either way.
    #[must_use]
    pub fn end_on_panic(mut self) -> Self {
        self.ends_on_panic = true;
        self
    }

    /// Makes each run later by a time of its own. Whether a period was missed is counted from the
    /// later instant.
    #[must_use]
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = Some(jitter);
        self
    }

    /// Lets each run be up to so much later, so that it shares a tick with other timers: see
    /// [`Timers::deadline_with_slack`](corewheel::Timers::deadline_with_slack).
    #[must_use]
    pub fn slack(mut self, slack: Duration) -> Self {
        self.slack = slack;
        self
    }

    /// When the first run is due if the callback is handed over now.
    pub(crate) fn first_due(&self) -> First {
        self.first.unwrap_or(match self.pattern {
            Pattern::Rate { period: delay, .. } | Pattern::Delay(delay) => First::After(delay),
            Pattern::Plan(_) => First::After(Duration::ZERO),
        })
    }

    pub(crate) fn with<F>(self, call: F) -> Body<F, NoPlan> {
        let Self { pattern, ends_on_panic, jitter, slack, .. } = self;
        Body { call, pattern: Apart(Some(pattern)), ends_on_panic, slack, jitter }
    }
}

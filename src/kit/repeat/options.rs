//! When a callback runs again, and what becomes of it when it panics.

use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::kit::herd::Jitter;
use crate::kit::interval::{MissedTickBehavior, check};
use crate::values::contain::Contained;
use crate::values::error::ConfigError;

/// What becomes of a periodic callback that has panicked. The panic is contained, logged and
/// counted either way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum OnPanic {
    /// It runs again when it would have run anyway.
    #[default]
    GoOn,
    /// It does not run any more, and is dropped.
    End,
}

/// When a periodic callback runs: at a fixed rate or with a fixed delay, from when on, and how
/// exactly.
///
/// A fixed rate keeps to its grid: each moment is worked out from the one before, not from when the
/// callback ran, so nothing drifts, and a run that takes long or comes late moves no other. A fixed
/// delay is counted from the end of each run to the beginning of the next.
///
/// Jitter and slack make single runs later, up to their length, and never earlier; they do not move
/// the grid. Where together they are longer than the period, runs come after the moments of later
/// ones, which are then made up for or missed. A period that does not fit (584 years) means never
/// again. One that is shorter than a tick cannot be kept: with
/// [`MissedTickBehavior::Burst`] it is run in every turn and falls behind for ever.
///
/// A clone has the same jitter: two callbacks with it go in step.
///
/// ```
/// use corewheel::{Jitter, MissedTickBehavior, OnPanic, Repeat};
/// use std::time::Duration;
///
/// // A heartbeat that leaves out what it was too late for, and is up to a second after the others.
/// let heartbeat = Repeat::at_fixed_rate(Duration::from_secs(10))?
///     .missed_tick_behavior(MissedTickBehavior::Skip)
///     .jitter(Jitter::up_to(Duration::from_secs(1), u64::from(std::process::id())));
/// // A look every minute, the first at once, that may wait for what else is due.
/// let cleaning = Repeat::with_fixed_delay(Duration::from_mins(1))?
///     .first_in(Duration::ZERO)
///     .slack(Duration::from_secs(5))
///     .on_panic(OnPanic::End);
/// # Ok::<(), corewheel::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Repeat {
    pattern: Pattern<NoPlan>,
    first: Option<First>,
    on_panic: OnPanic,
    jitter: Option<Jitter>,
    slack: Duration,
}

#[derive(Clone, Copy, Debug)]
enum First {
    In(Duration),
    At(Instant),
}

/// How the moment of one run follows from that of the run before.
#[derive(Clone, Debug)]
pub(super) enum Pattern<N> {
    Rate { period: Duration, behavior: MissedTickBehavior },
    Delay(Duration),
    Plan(N),
}

/// In place of the plan where there is none.
pub(super) type NoPlan = fn(Instant) -> Option<Instant>;

/// A callback with all that says when it runs.
pub(super) struct Body<F, N> {
    pub(super) call: F,
    /// Contained, as a plan may hold something that panics when it is dropped, beside the callback.
    pub(super) pattern: Contained<Pattern<N>>,
    pub(super) on_panic: OnPanic,
    pub(super) slack: Duration,
    jitter: Option<Jitter>,
}

impl<F, N> Body<F, N> {
    pub(super) fn planned(next: N, call: F) -> Self {
        let pattern = Contained::new(Pattern::Plan(next));
        Self { call, pattern, on_panic: OnPanic::GoOn, slack: Duration::ZERO, jitter: None }
    }

    /// The moment to aim at for a run that is due at another.
    pub(super) fn aim(&mut self, clock: &Clock, due: Instant) -> Instant {
        self.jitter.as_mut().map_or(due, |jitter| clock.after(due, jitter.sample()))
    }
}

impl Repeat {
    /// A run at the end of each period. The first comes in a period from now, unless told
    /// otherwise.
    ///
    /// # Errors
    ///
    /// The period is zero.
    #[doc(alias = "schedule_at_fixed_rate")]
    pub fn at_fixed_rate(period: Duration) -> Result<Self, ConfigError> {
        check("period", period)?;
        Ok(Self::of(Pattern::Rate { period, behavior: MissedTickBehavior::default() }))
    }

    /// A run `delay` after the end of the one before. The first comes in `delay` from now, unless
    /// told otherwise.
    ///
    /// # Errors
    ///
    /// The delay is zero.
    #[doc(alias = "schedule_with_fixed_delay")]
    pub fn with_fixed_delay(delay: Duration) -> Result<Self, ConfigError> {
        check("delay", delay)?;
        Ok(Self::of(Pattern::Delay(delay)))
    }

    fn of(pattern: Pattern<NoPlan>) -> Self {
        let slack = Duration::ZERO;
        Self { pattern, first: None, on_panic: OnPanic::default(), jitter: None, slack }
    }

    /// The first run comes in `delay` from when the callback is handed over; at once if zero.
    #[must_use]
    pub fn first_in(mut self, delay: Duration) -> Self {
        self.first = Some(First::In(delay));
        self
    }

    /// The first run comes at this moment; at once if that has passed.
    #[must_use]
    pub fn first_at(mut self, at: Instant) -> Self {
        self.first = Some(First::At(at));
        self
    }

    /// What is done about periods at whose end the callback could not run, because it, or another,
    /// took too long: by default all of its runs come, one in each turn, until it has caught up.
    /// Without effect on a fixed delay, which misses none.
    #[must_use]
    pub fn missed_tick_behavior(mut self, missed: MissedTickBehavior) -> Self {
        if let Pattern::Rate { behavior, .. } = &mut self.pattern {
            *behavior = missed;
        }
        self
    }

    /// What becomes of the callback when it panics: by default it goes on.
    #[must_use]
    pub fn on_panic(mut self, on_panic: OnPanic) -> Self {
        self.on_panic = on_panic;
        self
    }

    /// Each run comes so much later, by a time of its own. Whether a period was missed is counted
    /// from there.
    #[must_use]
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = Some(jitter);
        self
    }

    /// Each run may come up to so much later, with other timers: see
    /// [`Timers::deadline_with_slack`](crate::Timers::deadline_with_slack).
    #[must_use]
    pub fn slack(mut self, slack: Duration) -> Self {
        self.slack = slack;
        self
    }

    /// When the first run is due if it is handed over `now`.
    pub(super) fn first(&self, clock: &Clock, now: Instant) -> Instant {
        match (self.first, &self.pattern) {
            (Some(First::At(at)), _) => at,
            (Some(First::In(delay)), _) => clock.after(now, delay),
            (None, Pattern::Rate { period, .. }) => clock.after(now, *period),
            (None, Pattern::Delay(delay)) => clock.after(now, *delay),
            (None, Pattern::Plan(_)) => now,
        }
    }

    pub(super) fn with<F>(self, call: F) -> Body<F, NoPlan> {
        let Self { pattern, on_panic, jitter, slack, .. } = self;
        Body { call, pattern: Contained::new(pattern), on_panic, slack, jitter }
    }
}

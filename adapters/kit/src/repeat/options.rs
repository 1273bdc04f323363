//! When a periodic callback runs.

use std::time::{Duration, Instant};

use corewheel::ConfigError;
use corewheel::interval::{Interval, MissedTickBehavior};

use crate::herd::Jitter;

/// When a periodic callback runs: at a fixed rate or with a fixed delay, from when on, and how
/// exactly.
///
/// A fixed rate keeps to its grid: each run is due a period after the run before it was due, not
/// after it ran, so nothing drifts, and a run that takes long or comes late moves no other. A fixed
/// delay is counted from the end of each run to the beginning of the next.
///
/// Jitter makes single runs later, up to its length, and never earlier; it does not move the grid.
/// Where it is longer than the period, a run comes after later ones are due, which are then made up
/// for or missed. A period that does not fit (584 years) means never again.
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
/// // A run at once and one each minute.
/// let cleaning = Repeat::with_fixed_delay(Duration::from_secs(60))?.first(Duration::ZERO);
/// # Ok::<(), corewheel::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Repeat {
    period: Duration,
    /// What happens to missed periods at a fixed rate. `None` with a fixed delay.
    behavior: Option<MissedTickBehavior>,
    /// How long after it has begun the first run is due.
    pub(crate) first: Duration,
    pub(crate) jitter: Option<Jitter>,
}

/// How the instant at which a run is due follows from the run before.
pub(crate) enum Pattern {
    Rate(Duration, MissedTickBehavior),
    Delay(Duration),
    Plan(Box<dyn FnMut(Instant) -> Option<Instant>>),
}

/// How much later a run comes than it is due.
pub(super) fn later(jitter: &mut Option<Jitter>) -> Duration {
    jitter.as_mut().map_or(Duration::ZERO, |jitter| jitter.after(Duration::ZERO))
}

/// A callback with all that says when it runs.
pub(crate) struct Body<F> {
    pub(crate) call: F,
    pub(crate) pattern: Pattern,
    pub(crate) jitter: Option<Jitter>,
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
        let behavior = Some(MissedTickBehavior::default());
        Ok(Self { period, behavior, first: period, jitter: None })
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
        Ok(Self { period: delay, behavior: None, first: delay, jitter: None })
    }

    /// When the first run is due, from when the callback is handed over.
    #[must_use]
    pub fn first(mut self, delay: Duration) -> Self {
        self.first = delay;
        self
    }

    /// Makes the first run due at a random moment within a period, or within a delay, from when the
    /// callback is handed over. The later runs keep that distance, so callbacks that begin together
    /// do not run together. It takes the place of [`first`](Self::first).
    ///
    /// Equal seeds make equal moments, so each callback takes a seed of its own.
    #[must_use]
    pub fn phase(self, seed: u64) -> Self {
        let first = Interval::phase_of(self.period, seed);
        self.first(first)
    }

    /// What happens to periods at whose end the callback could not run, because its run before, or
    /// other work on the core, took too long. By default all of their runs come, one in each turn,
    /// until none is late. Without effect on a fixed delay, which misses none.
    #[must_use]
    pub fn missed_tick_behavior(mut self, missed: MissedTickBehavior) -> Self {
        self.behavior = self.behavior.map(|_| missed);
        self
    }

    /// Makes each run later by a time of its own. Whether a period was missed is counted from the
    /// later instant.
    #[must_use]
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = Some(jitter);
        self
    }

    pub(crate) fn with<F>(self, jitter: Option<Jitter>, call: F) -> Body<F> {
        let pattern = match self.behavior {
            Some(behavior) => Pattern::Rate(self.period, behavior),
            None => Pattern::Delay(self.period),
        };
        Body { call, pattern, jitter }
    }
}

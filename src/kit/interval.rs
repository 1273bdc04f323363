//! Ticks for futures of a shard: at a fixed rate, or with a fixed delay.
//!
//! ```
//! use corewheel::interval::MissedTickBehavior;
//! use corewheel::attach::Turn;
//! use corewheel::clock::ManualClock;
//! use corewheel::{Fired, TimerService};
//! use std::cell::Cell;
//! use std::future::Future;
//! use std::pin::pin;
//! use std::rc::Rc;
//! use std::task::{Context, Waker};
//! use std::time::Duration;
//!
//! // One shard in a loop of our own, with a clock that the example moves.
//! let clock = ManualClock::new();
//! let builder = TimerService::builder().shards(1).clock(&clock);
//! let service = builder.start_attached::<()>()?;
//! let shard = service.attach(service.shards().next().unwrap())?;
//! let mut shard = shard.into_loop(|_: Fired<()>, _: &_| {})?;
//!
//! let mut heartbeat = shard.timers().interval(Duration::from_secs(10))?;
//! heartbeat.set_missed_tick_behavior(MissedTickBehavior::Skip);
//! let beats = Rc::new(Cell::new(0));
//! let counted = Rc::clone(&beats);
//! let mut task = pin!(async move {
//!     while heartbeat.tick().await.is_ok() {
//!         counted.set(counted.get() + 1);
//!     }
//! });
//! let mut context = Context::from_waker(Waker::noop());
//! for seconds in [0, 10, 10, 35] {
//!     clock.advance(Duration::from_secs(seconds));
//!     while shard.turn() == Turn::More {}
//!     assert!(task.as_mut().poll(&mut context).is_pending());
//! }
//! // At 0, 10 and 20 seconds, and once for those of 30, 40 and 50.
//! assert_eq!(beats.get(), 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Each tick is due a period after the tick before was due, not after a future saw it, so nothing
//! drifts. [`MissedTickBehavior`] says what happens to ticks whose time passes before a future
//! waits for them.
//!
//! Ticks at other times, such as a backoff or the hours of a calendar, need no type: a loop sleeps
//! until each of them. For callbacks there is
//! [`repeat_by_plan`](crate::Timers::repeat_by_plan).
//!
//! ```
//! # use corewheel::{RefusedKind, Timers};
//! # use std::time::{Duration, Instant};
//! # type Attempted = Result<(), RefusedKind>;
//! # async fn run(timers: Timers<()>, first: Instant, attempt: impl Fn()) -> Attempted {
//! let (mut due, mut wait) = (first, Duration::from_secs(1));
//! while wait < Duration::from_mins(1) {
//!     timers.sleep(due).await?;
//!     attempt();
//!     (due, wait) = (due + wait, wait * 2);
//! }
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::clock::when::When;
use crate::face::sleep::Sleep;
use crate::face::timers::Timers;
use crate::values::error::ConfigError;
use crate::values::refused::RefusedKind;

/// What happens to ticks, or to runs of a periodic callback, whose time passed before they could
/// come. The names and meanings are tokio's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MissedTickBehavior {
    /// All of them come, each without a wait after the one before, until none is late.
    #[default]
    Burst,
    /// They are left out, and the next is due a whole period from now.
    Delay,
    /// They are left out, and the next is due when it would have been due without them.
    Skip,
}

/// Ticks at a fixed rate or with a fixed delay, for a future; made by [`Timers::interval`],
/// [`Timers::interval_at`] and [`Timers::fixed_delay`].
///
/// It takes a timer of the shard when a future first waits for a tick, and gives the timer back
/// when it is dropped. A tick costs what a [`Sleep`] does, and allocates nothing. A tick that is
/// due already comes without a wait.
#[must_use = "an interval ticks only when its ticks are awaited"]
pub struct Interval {
    sleep: Sleep,
    /// When the next tick is due; exact, where the timer's deadline is rounded up.
    due: Instant,
    period: Duration,
    kind: Kind,
    missed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Rate(MissedTickBehavior),
    /// `seen` if a tick has come, and the delay begins when a future waits for the next tick.
    Delay {
        seen: bool,
    },
}

impl Interval {
    fn new(sleep: Sleep, start: Instant, period: Duration, kind: Kind) -> Self {
        Self { sleep, due: start, period, kind, missed: 0 }
    }

    fn at_rate(sleep: Sleep, start: Instant, period: Duration) -> Result<Self, ConfigError> {
        let kind = Kind::Rate(MissedTickBehavior::default());
        check("period", period).map(|()| Self::new(sleep, start, period, kind))
    }

    fn with_delay(sleep: Sleep, start: Instant, delay: Duration) -> Result<Self, ConfigError> {
        let kind = Kind::Delay { seen: false };
        check("delay", delay).map(|()| Self::new(sleep, start, delay, kind))
    }

    /// Waits for the next tick, and returns when it was due. A future that is dropped before it is
    /// done loses no tick.
    ///
    /// # Errors
    ///
    /// The shard has no room for another timer, or is closed.
    pub async fn tick(&mut self) -> Result<Instant, RefusedKind> {
        poll_fn(|cx| self.poll_tick(cx)).await
    }

    /// Polls for the next tick, and returns when it was due.
    ///
    /// # Errors
    ///
    /// The errors of [`tick`](Self::tick).
    pub fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Result<Instant, RefusedKind>> {
        if self.kind == (Kind::Delay { seen: true }) {
            self.kind = Kind::Delay { seen: false };
            self.aim_at(self.after_now(self.period));
        }
        ready!(wait(self.due, &mut self.sleep, cx))?;
        let due = self.due;
        match self.kind {
            Kind::Delay { .. } => self.kind = Kind::Delay { seen: true },
            Kind::Rate(behavior) => {
                let next = self.next_after(due, behavior);
                self.aim_at(next);
            }
        }
        Poll::Ready(Ok(due))
    }

    /// Makes the next tick due a period from now, and the later ones a period after one another.
    pub fn reset(&mut self) {
        self.reset_to(self.after_now(self.period));
    }

    /// Makes the next tick due at `when`, and the later ones a period after one another from then
    /// on. With `Duration::ZERO` the next tick comes without a wait.
    pub fn reset_at<W: When>(&mut self, when: W) {
        self.reset_to(self.sleep.shard().time().instant_due(when));
    }

    fn reset_to(&mut self, due: Instant) {
        if let Kind::Delay { seen } = &mut self.kind {
            *seen = false;
        }
        self.aim_at(due);
    }

    /// The time from tick to tick.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// How many ticks were left out so far, because their time passed before a future waited for
    /// them. Ticks that come late in a burst are not left out.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// What happens to ticks that are missed. It is `Delay` with a fixed delay, which misses none.
    pub fn missed_tick_behavior(&self) -> MissedTickBehavior {
        match self.kind {
            Kind::Rate(behavior) => behavior,
            Kind::Delay { .. } => MissedTickBehavior::Delay,
        }
    }

    /// Sets what happens to ticks that are missed. Without effect with a fixed delay.
    pub fn set_missed_tick_behavior(&mut self, behavior: MissedTickBehavior) {
        if let Kind::Rate(present) = &mut self.kind {
            *present = behavior;
        }
    }

    fn aim_at(&mut self, due: Instant) {
        self.due = due;
        self.sleep.reset(due);
    }

    fn now(&self) -> Instant {
        self.sleep.shard().time().now()
    }

    fn after_now(&self, after: Duration) -> Instant {
        self.sleep.shard().time().clock().after(self.now(), after)
    }

    /// When the tick after this one is due, which has just come.
    fn next_after(&mut self, due: Instant, behavior: MissedTickBehavior) -> Instant {
        let now = self.now();
        let late = now.saturating_duration_since(due);
        let clock = self.sleep.shard().time().clock();
        let next = next_tick(clock, due, (now, late), self.period, behavior);
        self.missed = self.missed.saturating_add(next.missed);
        next.due
    }
}

/// The tick after one that has just come.
pub(crate) struct NextTick {
    pub(crate) due: Instant,
    /// How many ticks in between are left out.
    pub(crate) missed: u64,
}

impl fmt::Debug for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interval")
            .field("period", &self.period)
            .field("kind", &self.kind)
            .field("missed", &self.missed)
            .finish_non_exhaustive()
    }
}

/// Ticks.
impl<T: Send + 'static> Timers<T> {
    /// A tick now, and one at the end of each period from then on. For an example see
    /// [`corewheel::interval`](crate::interval).
    ///
    /// # Errors
    ///
    /// The period is zero.
    pub fn interval(&self, period: Duration) -> Result<Interval, ConfigError> {
        self.interval_at(self.now(), period)
    }

    /// A tick when `first` is due, and one at the end of each period from then on.
    ///
    /// # Errors
    ///
    /// The period is zero.
    pub fn interval_at<W: When>(
        &self,
        first: W,
        period: Duration,
    ) -> Result<Interval, ConfigError> {
        let start = self.core().time().instant_due(first);
        Interval::at_rate(self.sleep(start), start, period)
    }

    /// A tick in `delay` from now. Each later tick is due `delay` after a future begins to wait for
    /// it, so the work at a tick is not part of the delay.
    ///
    /// # Errors
    ///
    /// The delay is zero.
    pub fn fixed_delay(&self, delay: Duration) -> Result<Interval, ConfigError> {
        let start = self.core().time().clock().after(self.now(), delay);
        Interval::with_delay(self.sleep(start), start, delay)
    }
}

/// The tick after the one that was due at `due` and has come `late`, at `now`.
pub(crate) fn next_tick(
    clock: &Clock,
    due: Instant,
    (now, late): (Instant, Duration),
    period: Duration,
    behavior: MissedTickBehavior,
) -> NextTick {
    // The first tick may have been due before the service started, so this need not fit.
    let behind = u64::try_from(late.as_nanos() / period.as_nanos()).unwrap_or(u64::MAX);
    if behind == 0 || behavior == MissedTickBehavior::Burst {
        return NextTick { due: clock.after(due, period), missed: 0 };
    }
    if behavior == MissedTickBehavior::Delay {
        return NextTick { due: clock.after(now, period), missed: behind };
    }
    let rest = late.as_nanos() % period.as_nanos();
    // Less than a period.
    let rest = Duration::new((rest / 1_000_000_000) as u64, (rest % 1_000_000_000) as u32);
    let last = clock.after(due, late.saturating_sub(rest));
    NextTick { due: clock.after(last, period), missed: behind }
}

/// Waits until an instant by a timer, unless it has passed already.
fn wait(until: Instant, sleep: &mut Sleep, cx: &mut Context<'_>) -> Poll<Result<(), RefusedKind>> {
    let shard = sleep.shard();
    if until <= shard.time().now() && !shard.is_closed() {
        return Poll::Ready(Ok(()));
    }
    Pin::new(sleep).poll(cx)
}

/// Refuses a period or a delay of zero, by the name of the parameter.
pub(crate) fn check(field: &'static str, time: Duration) -> Result<(), ConfigError> {
    if time.is_zero() {
        let limit = "it must be longer than zero";
        return Err(ConfigError::new(field, time, limit, "use one tick or more"));
    }
    Ok(())
}

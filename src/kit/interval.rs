//! Ticks that come again and again: at a fixed rate, with a fixed delay, by a plan.
//!
//! A tick's time is worked out from the one before and not from when that was seen, so nothing
//! drifts. What becomes of ticks that nobody was there to see is said by [`MissedTickBehavior`].

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use crate::face::classed::Classed;
use crate::face::sleep::Sleep;
use crate::face::timers::Timers;
use crate::values::error::{ConfigError, SleepError};

/// What an [`Interval`] does about ticks whose time passed before they were asked for. The names
/// and meanings are tokio's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MissedTickBehavior {
    /// All of them come, one right after the other, until it has caught up.
    #[default]
    Burst,
    /// They are left out, and the next one comes a whole period from now.
    Delay,
    /// They are left out, and the next one comes when it would have come anyway.
    Skip,
}

/// A tick at the beginning of each period; made by [`Timers::interval`], [`Timers::interval_at`]
/// and [`Timers::fixed_delay`].
///
/// It takes a timer of the shard when a tick is first waited for and gives it back when it is
/// dropped. A tick costs what a [`Sleep`] does, and allocates nothing. One that is due already
/// comes at once.
///
/// ```
/// use corewheel::{Fired, ManualClock, MissedTickBehavior, TimerService, Timers, Turn};
/// use std::cell::Cell;
/// use std::future::Future;
/// use std::pin::pin;
/// use std::rc::Rc;
/// use std::task::{Context, Waker};
/// use std::time::Duration;
///
/// // A shard in a loop of our own, by a clock that we move.
/// let clock = ManualClock::new();
/// let service: TimerService<u64> =
///     TimerService::builder().shards(1).clock(clock.clock()).start_attached()?;
/// let shard = service.attach(service.shards().next().unwrap())?;
/// let mut shard = shard.into_loop(|_: Fired<u64>, _: &Timers<u64>| {})?;
///
/// let mut heartbeat = shard.timers().interval(Duration::from_secs(10))?;
/// heartbeat.set_missed_tick_behavior(MissedTickBehavior::Skip);
/// let beats = Rc::new(Cell::new(0));
/// let counted = Rc::clone(&beats);
/// let mut task = pin!(async move {
///     while heartbeat.tick().await.is_ok() {
///         counted.set(counted.get() + 1);
///     }
/// });
/// let mut context = Context::from_waker(Waker::noop());
/// for seconds in [0, 10, 10, 35] {
///     clock.advance(Duration::from_secs(seconds));
///     while shard.turn() == Turn::More {}
///     assert!(task.as_mut().poll(&mut context).is_pending());
/// }
/// // At 0, 10 and 20 seconds, and once for those of 30, 40 and 50.
/// assert_eq!(beats.get(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "an interval ticks only for who asks for its ticks"]
pub struct Interval<T: Send + 'static> {
    sleep: Sleep<T>,
    timers: Timers<T>,
    /// When the next tick is due; exact, where the timer's deadline is rounded up.
    due: Instant,
    period: Duration,
    kind: Kind,
    missed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Rate(MissedTickBehavior),
    /// A tick has been seen, and the next is counted from when it is asked for; or has been.
    Delay {
        seen: bool,
    },
}

impl<T: Send + 'static> Interval<T> {
    fn new(sleep: Sleep<T>, start: Instant, period: Duration, kind: Kind) -> Self {
        let timers = sleep.timers().clone();
        Self { sleep, timers, due: start, period, kind, missed: 0 }
    }

    fn at_rate(sleep: Sleep<T>, start: Instant, period: Duration) -> Result<Self, ConfigError> {
        let kind = Kind::Rate(MissedTickBehavior::default());
        check("period", period).map(|()| Self::new(sleep, start, period, kind))
    }

    fn with_delay(sleep: Sleep<T>, start: Instant, delay: Duration) -> Result<Self, ConfigError> {
        let kind = Kind::Delay { seen: false };
        check("delay", delay).map(|()| Self::new(sleep, start, delay, kind))
    }

    /// Waits for the next tick, and returns when it was due. It may be dropped and called again
    /// without a tick being lost.
    ///
    /// # Errors
    ///
    /// The shard has no room for another timer, or is closed.
    pub async fn tick(&mut self) -> Result<Instant, SleepError> {
        poll_fn(|cx| self.poll_tick(cx)).await
    }

    /// The same as a plain poll.
    ///
    /// # Errors
    ///
    /// As for [`tick`](Self::tick).
    pub fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Result<Instant, SleepError>> {
        if self.kind == (Kind::Delay { seen: true }) {
            self.kind = Kind::Delay { seen: false };
            self.aim_at(self.timers.after(self.timers.now(), self.period));
        }
        ready!(wait(&self.timers, self.due, &mut self.sleep, cx))?;
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

    /// Begins anew: the next tick comes a period from now.
    pub fn reset(&mut self) {
        self.reset_at(self.timers.after(self.timers.now(), self.period));
    }

    /// Begins anew: the next tick comes now.
    pub fn reset_immediately(&mut self) {
        self.reset_at(self.timers.now());
    }

    /// Begins anew: the next tick comes in so long.
    pub fn reset_after(&mut self, after: Duration) {
        self.reset_at(self.timers.after(self.timers.now(), after));
    }

    /// Begins anew: the next tick comes at this moment.
    pub fn reset_at(&mut self, at: Instant) {
        if let Kind::Delay { seen } = &mut self.kind {
            *seen = false;
        }
        self.aim_at(at);
    }

    /// How long it is from tick to tick.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// How many ticks were left out so far, because their time passed before they were asked for.
    /// Those that come late in a burst are not left out.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// What is done about ticks that are missed. An interval with a fixed delay misses none.
    pub fn missed_tick_behavior(&self) -> MissedTickBehavior {
        match self.kind {
            Kind::Rate(behavior) => behavior,
            Kind::Delay { .. } => MissedTickBehavior::Delay,
        }
    }

    /// Says what is to be done about ticks that are missed. Without effect on an interval with a
    /// fixed delay.
    pub fn set_missed_tick_behavior(&mut self, behavior: MissedTickBehavior) {
        if let Kind::Rate(present) = &mut self.kind {
            *present = behavior;
        }
    }

    fn aim_at(&mut self, due: Instant) {
        self.due = due;
        self.sleep.reset_at(due);
    }

    /// When the tick after the one of `due` is due, of which the time has come.
    fn next_after(&mut self, due: Instant, behavior: MissedTickBehavior) -> Instant {
        let now = self.timers.now();
        let late = now.saturating_duration_since(due);
        let next = self.timers.next_tick(due, (now, late), self.period, behavior);
        self.missed = self.missed.saturating_add(next.missed);
        next.due
    }
}

/// What comes after a tick of which the time has come.
pub(crate) struct NextTick {
    pub(crate) due: Instant,
    /// How many ticks in between are left out.
    pub(crate) missed: u64,
    /// How many whole periods the tick was late.
    pub(crate) behind: u64,
}

impl<T: Send + 'static> fmt::Debug for Interval<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interval")
            .field("period", &self.period)
            .field("kind", &self.kind)
            .field("missed", &self.missed)
            .finish_non_exhaustive()
    }
}

/// Moments that the caller works out, each from the one before; made by [`Timers::plan`].
///
/// ```
/// use corewheel::{Runtime, ShardId, TimerService};
/// use std::time::{Duration, Instant};
///
/// let service = TimerService::builder().shards(1).runtime(Runtime::Tokio).start()?;
/// let attempts = service.spawn_on(ShardId::new(0), |timers| async move {
///     // After 1, 3 and 7 ms, and then no more.
///     let mut wait = Duration::from_millis(1);
///     let first = timers.now() + wait;
///     let mut backoff = timers.plan(first, move |before: Instant| {
///         wait *= 2;
///         (wait < Duration::from_millis(8)).then(|| before + wait)
///     });
///     let mut attempts = 0;
///     while let Ok(Some(_due)) = backoff.next().await {
///         attempts += 1;
///     }
///     attempts
/// })?;
/// assert_eq!(attempts.wait()?, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a plan is carried out only for who asks for its moments"]
pub struct Plan<T: Send + 'static, F> {
    sleep: Sleep<T>,
    timers: Timers<T>,
    due: Option<Instant>,
    next: F,
}

impl<T: Send + 'static, F: FnMut(Instant) -> Option<Instant>> Plan<T, F> {
    fn new(sleep: Sleep<T>, first: Instant, next: F) -> Self {
        let timers = sleep.timers().clone();
        Self { sleep, timers, due: Some(first), next }
    }

    /// Waits for the next moment and returns it; `None` when the plan is over.
    ///
    /// # Errors
    ///
    /// The shard has no room for another timer, or is closed.
    pub async fn next(&mut self) -> Result<Option<Instant>, SleepError> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The same as a plain poll.
    ///
    /// # Errors
    ///
    /// As for [`next`](Self::next).
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Instant>, SleepError>> {
        let Some(due) = self.due else { return Poll::Ready(Ok(None)) };
        ready!(wait(&self.timers, due, &mut self.sleep, cx))?;
        self.due = (self.next)(due);
        if let Some(next) = self.due {
            self.sleep.reset_at(next);
        }
        Poll::Ready(Ok(Some(due)))
    }
}

impl<T: Send + 'static, F> fmt::Debug for Plan<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("due", &self.due).finish_non_exhaustive()
    }
}

/// Ticks.
impl<T: Send + 'static> Timers<T> {
    /// A tick now, and one at the end of each period from then on.
    ///
    /// # Errors
    ///
    /// The period is zero.
    pub fn interval(&self, period: Duration) -> Result<Interval<T>, ConfigError> {
        self.interval_at(self.now(), period)
    }

    /// A tick at `start`, and one at the end of each period from then on.
    ///
    /// # Errors
    ///
    /// The period is zero.
    pub fn interval_at(
        &self,
        start: Instant,
        period: Duration,
    ) -> Result<Interval<T>, ConfigError> {
        Interval::at_rate(self.sleep_until(start), start, period)
    }

    /// A tick in `delay` from now, and from then on one in `delay` from when the next is asked for:
    /// what is done at a tick is not counted.
    ///
    /// # Errors
    ///
    /// The delay is zero.
    pub fn fixed_delay(&self, delay: Duration) -> Result<Interval<T>, ConfigError> {
        let start = self.after(self.now(), delay);
        Interval::with_delay(self.sleep_until(start), start, delay)
    }

    /// A moment at `first`, and then whatever `next` makes of the moment before, until it makes
    /// nothing of it: a backoff, the hours of a calendar. What it names that is over comes at once.
    pub fn plan<F>(&self, first: Instant, next: F) -> Plan<T, F>
    where
        F: FnMut(Instant) -> Option<Instant>,
    {
        Plan::new(self.sleep_until(first), first, next)
    }

    /// The moment that comes `after` another, or the last that there is.
    fn after(&self, moment: Instant, after: Duration) -> Instant {
        self.core().time().clock().after(moment, after)
    }

    /// What comes after the tick of `due`, if it is `now` and that tick is so `late`.
    pub(crate) fn next_tick(
        &self,
        due: Instant,
        (now, late): (Instant, Duration),
        period: Duration,
        behavior: MissedTickBehavior,
    ) -> NextTick {
        // The first may have been due before there was a service, so this need not fit.
        let behind = u64::try_from(late.as_nanos() / period.as_nanos()).unwrap_or(u64::MAX);
        if behind == 0 || behavior == MissedTickBehavior::Burst {
            return NextTick { due: self.after(due, period), missed: 0, behind };
        }
        if behavior == MissedTickBehavior::Delay {
            return NextTick { due: self.after(now, period), missed: behind, behind };
        }
        let rest = late.as_nanos() % period.as_nanos();
        // Less than a period.
        let rest = Duration::new((rest / 1_000_000_000) as u64, (rest % 1_000_000_000) as u32);
        let last = self.after(due, late.saturating_sub(rest));
        NextTick { due: self.after(last, period), missed: behind, behind }
    }
}

/// Ticks. Each is a timer of its own, so the oldest tells the age of a tick.
impl<T: Send + 'static> Classed<'_, T> {
    /// As [`Timers::interval`].
    ///
    /// # Errors
    ///
    /// The period is zero.
    pub fn interval(&self, period: Duration) -> Result<Interval<T>, ConfigError> {
        self.interval_at(self.timers().now(), period)
    }

    /// As [`Timers::interval_at`].
    ///
    /// # Errors
    ///
    /// The period is zero.
    pub fn interval_at(
        &self,
        start: Instant,
        period: Duration,
    ) -> Result<Interval<T>, ConfigError> {
        Interval::at_rate(self.sleep_until(start), start, period)
    }

    /// As [`Timers::fixed_delay`].
    ///
    /// # Errors
    ///
    /// The delay is zero.
    pub fn fixed_delay(&self, delay: Duration) -> Result<Interval<T>, ConfigError> {
        let start = self.timers().after(self.timers().now(), delay);
        Interval::with_delay(self.sleep_until(start), start, delay)
    }

    /// As [`Timers::plan`].
    pub fn plan<F>(&self, first: Instant, next: F) -> Plan<T, F>
    where
        F: FnMut(Instant) -> Option<Instant>,
    {
        Plan::new(self.sleep_until(first), first, next)
    }
}

/// Waits until a moment by a timer, if it is not over already.
fn wait<T: Send + 'static>(
    timers: &Timers<T>,
    until: Instant,
    sleep: &mut Sleep<T>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), SleepError>> {
    if until <= timers.now() && !timers.core().is_closed() {
        return Poll::Ready(Ok(()));
    }
    Pin::new(sleep).poll(cx)
}

/// Refuses what would come again without time in between, by the name of the parameter.
pub(crate) fn check(field: &'static str, time: Duration) -> Result<(), ConfigError> {
    if time.is_zero() {
        let limit = "some time must pass before it comes again";
        return Err(ConfigError::new(field, time, limit, "use one tick or more"));
    }
    Ok(())
}

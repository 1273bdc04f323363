//! Ticks for futures of a shard: at a fixed rate, or with a fixed delay.
//!
//! For tasks that do something in each period. By hand it is a sleep in a loop that adds the period
//! to its deadline, at the same cost; the loop then has to say what becomes of missed ticks.
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
//! let service = builder.start_attached_with::<()>()?;
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
//! until each of them. For callbacks there is `Repeat::by_plan` of the package `corewheel-kit`.
//!
//! ```
//! # use corewheel::{RefusedKind, Timers};
//! # use std::time::{Duration, Instant};
//! # type Attempted = Result<(), RefusedKind>;
//! # async fn run(timers: Timers<()>, first: Instant, attempt: impl Fn()) -> Attempted {
//! let (mut due, mut wait) = (first, Duration::from_secs(1));
//! while wait < Duration::from_secs(60) {
//!     timers.sleep(due).await?;
//!     attempt();
//!     (due, wait) = (due + wait, wait * 2);
//! }
//! # Ok(())
//! # }
//! ```

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::clock::when::When;
use crate::face::handle::Handle;
use crate::face::handle::sleep::Sleep;
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

impl MissedTickBehavior {
    /// When the next tick is due after one that was due at `due` and has come at `now`, and how
    /// many ticks in between are left out. `late` is how late that one has come: less than `now`
    /// says if it was put off on purpose.
    ///
    /// ```
    /// use corewheel::interval::MissedTickBehavior;
    /// use std::time::Duration;
    ///
    /// let service = corewheel::TimerService::builder().shards(1).start_attached()?;
    /// let clock = service.handle().clock();
    /// let (due, second) = (clock.now(), Duration::from_secs(1));
    /// let late = second * 7 / 2;
    /// let next = MissedTickBehavior::Skip.next_tick(&clock, due, (due + late, late), second);
    /// assert_eq!(next, (due + second * 4, 3));
    /// # Ok::<(), corewheel::StartError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If the period is zero.
    pub fn next_tick(
        self,
        clock: &Clock,
        due: Instant,
        (now, late): (Instant, Duration),
        period: Duration,
    ) -> (Instant, u64) {
        // The first tick may have been due before the service started, so this need not fit.
        let behind = u64::try_from(late.as_nanos() / period.as_nanos()).unwrap_or(u64::MAX);
        if behind == 0 || self == Self::Burst {
            return (clock.after(due, period), 0);
        }
        if self == Self::Delay {
            return (clock.after(now, period), behind);
        }
        let rest = late.as_nanos() % period.as_nanos();
        // Less than a period.
        let rest = Duration::new((rest / 1_000_000_000) as u64, (rest % 1_000_000_000) as u32);
        let last = clock.after(due, late.saturating_sub(rest));
        (clock.after(last, period), behind)
    }
}

/// Ticks at a fixed rate or with a fixed delay, for a future; made by [`Handle::interval`],
/// [`Handle::interval_at`] and [`Handle::fixed_delay`] for every thread, and by
/// [`Timers::interval`] on a shard's own.
///
/// It takes a timer when a future first waits for a tick, and gives the timer back when it is
/// dropped. A tick costs what a [`Sleep`] does, and allocates nothing. A tick
/// that is due already comes without a wait.
#[must_use = "an interval ticks only when its ticks are awaited"]
pub struct Interval {
    sleep: Sleep,
    clock: Clock,
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

const RATE: Kind = Kind::Rate(MissedTickBehavior::Burst);
const DELAY: Kind = Kind::Delay { seen: false };

impl Interval {
    fn new(
        sleep: Sleep,
        clock: Clock,
        start: Instant,
        period: Duration,
        kind: Kind,
    ) -> Result<Self, ConfigError> {
        let field = if matches!(kind, Kind::Rate(_)) { "period" } else { "delay" };
        ConfigError::if_zero(field, period)?;
        Ok(Self { sleep, clock, due: start, period, kind, missed: 0 })
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
        ready!(self.wait(cx))?;
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
        self.reset_to(self.sleep.handle().instant_of(when));
    }

    fn reset_to(&mut self, due: Instant) {
        if let Kind::Delay { seen } = &mut self.kind {
            *seen = false;
        }
        self.aim_at(due);
    }

    /// How many ticks were left out so far, because their time passed before a future waited for
    /// them. Ticks that come late in a burst are not left out.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Sets what happens to ticks that are missed. Without effect with a fixed delay.
    pub fn set_missed_tick_behavior(&mut self, behavior: MissedTickBehavior) {
        if let Kind::Rate(present) = &mut self.kind {
            *present = behavior;
        }
    }

    /// Waits until the next tick is due by a timer, unless its time has passed already.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RefusedKind>> {
        if self.due <= self.now() && !self.sleep.has_ended() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.sleep).poll(cx)
    }

    fn aim_at(&mut self, due: Instant) {
        self.due = due;
        self.sleep.reset(due);
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn after_now(&self, after: Duration) -> Instant {
        self.clock.after(self.now(), after)
    }

    /// When the tick after this one is due, which has just come.
    fn next_after(&mut self, due: Instant, behavior: MissedTickBehavior) -> Instant {
        let now = self.now();
        let late = now.saturating_duration_since(due);
        let (next, missed) = behavior.next_tick(&self.clock, due, (now, late), self.period);
        self.missed = self.missed.saturating_add(missed);
        next
    }
}

debug_fields!([] Interval, |it| period: it.period, kind: it.kind, missed: it.missed);

/// Ticks. [`Timers::handle`] makes those with another beginning or with a fixed delay.
impl<T: Send + 'static> Timers<T> {
    /// A tick now, and one at the end of each period from then on. For an example see
    /// [`corewheel::interval`](crate::interval).
    ///
    /// # Errors
    ///
    /// The period is zero.
    pub fn interval(&self, period: Duration) -> Result<Interval, ConfigError> {
        let (start, clock) = (self.now(), self.time().clock().clone());
        Interval::new(self.sleep(start), clock, start, period, RATE)
    }
}

/// Ticks, for any thread. The futures of a handle whose service has ended return `Closed`.
impl<T: 'static> Handle<T> {
    /// A tick now, and one at the end of each period from then on.
    ///
    /// # Errors
    ///
    /// The period is zero.
    pub fn interval(&self, period: Duration) -> Result<Interval, ConfigError> {
        self.interval_at(self.clock().now(), period)
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
        let start = self.instant_of(first);
        Interval::new(self.sleep(start), self.clock(), start, period, RATE)
    }

    /// A tick in `delay` from now. Each later tick is due `delay` after a future begins to wait for
    /// it, so the work at a tick is not part of the delay.
    ///
    /// # Errors
    ///
    /// The delay is zero.
    pub fn fixed_delay(&self, delay: Duration) -> Result<Interval, ConfigError> {
        let clock = self.clock();
        let start = clock.after(clock.now(), delay);
        Interval::new(self.sleep(start), clock, start, delay, DELAY)
    }
}

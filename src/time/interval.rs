//! The interval of the drop-in for `tokio::time`.
//!
//! Why not [`corewheel::interval`](crate::interval): its ticks return errors, its periods are
//! checked without a panic, and it counts a tick as missed without tokio's tolerance of 5 ms.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::task::coop;
use tokio::time::Instant;

use super::service::{present, present_of_service};
use super::sleep::{Sleep, at_most_max, sleep_until};
use crate::kit::interval::MissedTickBehavior;

/// A tick is missed if it is seen later than this after it was due.
const TOLERANCE: Duration = Duration::from_millis(5);

/// A tick now, and one at the end of each period, as of `tokio::time::interval`.
///
/// # Panics
///
/// The period is zero, or [the default service](super#the-service) cannot start. No runtime is
/// needed.
#[track_caller]
pub fn interval(period: Duration) -> Interval {
    interval_at(present_of_service(), period)
}

/// A tick at `start`, and one at the end of each period from then on, as of
/// `tokio::time::interval_at`.
///
/// # Panics
///
/// The period is zero, or [the default service](super#the-service) cannot start. No runtime is
/// needed.
#[track_caller]
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    assert!(!period.is_zero(), "`period` must be non-zero.");
    let (period, missed_tick_behavior) = (at_most_max(period), MissedTickBehavior::default());
    Interval { delay: sleep_until(start), period, missed_tick_behavior }
}

/// Ticks with a period; made by [`interval`] and [`interval_at`], with the methods of
/// `tokio::time::Interval`.
///
/// A tick that is due already comes without a wait. It is not missed if it is seen at most 5 ms
/// after it was due.
#[derive(Debug)]
pub struct Interval {
    delay: Sleep,
    period: Duration,
    missed_tick_behavior: MissedTickBehavior,
}

impl Interval {
    /// Waits for the next tick, and returns when it was due. A future that is dropped before it is
    /// done loses no tick.
    pub async fn tick(&mut self) -> Instant {
        poll_fn(|cx| self.poll_tick(cx)).await
    }

    /// Polls for the next tick, and returns when it was due. If it is pending, the task is woken at
    /// the tick.
    pub fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        let due = self.delay.deadline();
        let mut now = present();
        if now < due {
            ready!(Pin::new(&mut self.delay).poll(cx));
            now = present();
        } else {
            ready!(coop::poll_proceed(cx)).made_progress();
        }
        let next =
            if now > due + TOLERANCE { self.next_after(due, now) } else { due + self.period };
        self.delay.reset_unbegun(next);
        Poll::Ready(due)
    }

    /// When the tick is due that follows one that was missed.
    fn next_after(&self, due: Instant, now: Instant) -> Instant {
        match self.missed_tick_behavior {
            MissedTickBehavior::Burst => due + self.period,
            MissedTickBehavior::Delay => now + self.period,
            MissedTickBehavior::Skip => {
                let rest = (now - due).as_nanos() % self.period.as_nanos();
                // Less than a period, which is at most 30 years, so it fits.
                now + self.period.saturating_sub(Duration::from_nanos(rest as u64))
            }
        }
    }

    /// Makes the next tick due a period from now.
    pub fn reset(&mut self) {
        self.reset_at(present() + self.period);
    }

    /// Makes the next tick due now.
    pub fn reset_immediately(&mut self) {
        self.reset_at(present());
    }

    /// Makes the next tick due at a time from now.
    pub fn reset_after(&mut self, after: Duration) {
        self.reset_at(present() + at_most_max(after));
    }

    /// Makes the next tick due at a deadline, and the later ones a period after one another from
    /// then on.
    pub fn reset_at(&mut self, deadline: Instant) {
        Pin::new(&mut self.delay).reset(deadline);
    }

    /// What happens to ticks that are missed; `Burst` unless it was set.
    pub fn missed_tick_behavior(&self) -> MissedTickBehavior {
        self.missed_tick_behavior
    }

    /// Sets what happens to ticks that are missed.
    pub fn set_missed_tick_behavior(&mut self, behavior: MissedTickBehavior) {
        self.missed_tick_behavior = behavior;
    }

    /// The time from tick to tick.
    pub fn period(&self) -> Duration {
        self.period
    }
}

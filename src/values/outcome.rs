//! The outcomes of commands on timers.

use std::time::Duration;

use corewheel_shard::ResetOutcome as ShardReset;

use super::ids::ShardId;

/// The outcome of a cancel.
///
/// ```
/// # use corewheel::clock::ManualClock;
/// # use corewheel::{CancelOutcome, Fired, TimerService, Timers};
/// # let clock = ManualClock::new();
/// # let service: TimerService<u64> =
/// #     TimerService::builder().shards(1).clock(&clock).start_attached_with()?;
/// # let shard = service.attach(service.shards().next().unwrap())?;
/// # let mut shard = shard.into_loop(|_: Fired<u64>, _: &Timers<u64>| {})?;
/// # let timers = shard.timers().clone();
/// # use std::time::Duration;
/// let request = timers.schedule(Duration::from_millis(30), 7)?;
/// match timers.cancel(request) {
///     CancelOutcome::Cancelled { remaining, payload } => {
///         assert_eq!((remaining, payload.into_value()), (Duration::from_millis(30), Some(7)));
///     }
///     too_late => println!("the request has timed out before its reply came: {too_late:?}"),
/// }
/// assert_eq!(timers.cancel(request).won(), false, "once");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "it says whether the timer can still fire, and holds its payload"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CancelOutcome<K> {
    /// The timer has not fired and will not.
    Cancelled {
        /// The time that was left until its deadline; zero if it was due.
        remaining: Duration,
        /// The payload that the timer carried.
        payload: K,
    },
    /// The cancel arrived before the timer, which is still in the lane of its sender. The timer is
    /// dropped when it arrives.
    Overtook,
    /// The timer has fired. Once another timer uses its slot, the outcome is
    /// [`Stale`](Self::Stale).
    AlreadyFired,
    /// The id names no timer: the timer was cancelled before, fired long ago, or was returned or
    /// dropped at the end of its shard.
    Stale,
    /// The timer is on this other shard, where it was scheduled. The command had no effect; send it
    /// with [`Timers::handle`](crate::Timers::handle).
    Elsewhere(ShardId),
    /// The id belongs to another service. The command had no effect.
    Foreign,
}

impl<K> CancelOutcome<K> {
    /// The payload, if this cancel won.
    pub fn payload(self) -> Option<K> {
        match self {
            Self::Cancelled { payload, .. } => Some(payload),
            _ => None,
        }
    }

    /// The outcome with another payload, if it has one.
    #[inline(always)]
    pub(crate) fn map<L>(self, f: impl FnOnce(K) -> L) -> CancelOutcome<L> {
        match self {
            Self::Cancelled { remaining, payload } => {
                CancelOutcome::Cancelled { remaining, payload: f(payload) }
            }
            Self::Overtook => CancelOutcome::Overtook,
            Self::AlreadyFired => CancelOutcome::AlreadyFired,
            Self::Stale => CancelOutcome::Stale,
            Self::Elsewhere(shard) => CancelOutcome::Elsewhere(shard),
            Self::Foreign => CancelOutcome::Foreign,
        }
    }

    /// Whether this cancel prevented the timer from firing.
    pub fn won(&self) -> bool {
        matches!(self, Self::Cancelled { .. } | Self::Overtook)
    }
}

/// The outcome of a reset.
#[must_use = "it says whether there was still a timer to move"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResetOutcome {
    /// The timer is due at the new deadline.
    Reset,
    /// The reset arrived before the timer, which is still in the lane of its sender. The timer is
    /// due at the new deadline.
    Overtook,
    /// The timer has fired. Once another timer uses its slot, the outcome is
    /// [`Stale`](Self::Stale).
    AlreadyFired,
    /// The id names no timer: the timer was cancelled before, or fired long ago.
    Stale,
    /// The timer is on this other shard, where it was scheduled. The command had no effect; send it
    /// with [`Timers::handle`](crate::Timers::handle).
    Elsewhere(ShardId),
    /// The id belongs to another service. The command had no effect.
    Foreign,
}

impl From<ShardReset> for ResetOutcome {
    fn from(outcome: ShardReset) -> Self {
        match outcome {
            ShardReset::Reset => Self::Reset,
            ShardReset::Overtook => Self::Overtook,
            ShardReset::AlreadyFired => Self::AlreadyFired,
            ShardReset::Stale => Self::Stale,
        }
    }
}

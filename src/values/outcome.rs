//! What the commands on timers answer.

use std::time::Duration;

use corewheel_shard::ResetOutcome as ShardReset;

use super::handle::ShardId;

/// What became of a cancel.
///
/// ```
/// # use corewheel::{CancelOutcome, Fired, ManualClock, TimerService, Timers};
/// # let clock = ManualClock::new();
/// # let service: TimerService<u64> =
/// #     TimerService::builder().shards(1).clock(clock.clock()).start_attached()?;
/// # let shard = service.attach(service.shards().next().unwrap())?;
/// # let mut shard = shard.into_loop(|_: Fired<u64>, _: &Timers<u64>| {})?;
/// # let timers = shard.timers().clone();
/// # use std::time::Duration;
/// let request = timers.schedule(Duration::from_millis(30), 7)?;
/// match timers.cancel(request) {
///     CancelOutcome::Cancelled { remaining, task } => {
///         assert_eq!((remaining, task.into_value()), (Duration::from_millis(30), Some(7)));
///     }
///     too_late => println!("the request has timed out before its answer came: {too_late:?}"),
/// }
/// assert_eq!(timers.cancel(request).won(), false, "once");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "it says whether the timer can still fire, and holds its task"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CancelOutcome<K> {
    /// The timer has not fired and will not.
    Cancelled {
        /// How long it still had; zero if it was due.
        remaining: Duration,
        /// What it was scheduled with.
        task: K,
    },
    /// The cancel was here before the timer, which is still under way from its sender and will be
    /// dropped on arrival.
    Overtook,
    /// The timer has fired. Told until its slot is used again; [`Stale`](Self::Stale) thereafter.
    AlreadyFired,
    /// The handle names no timer: it was cancelled before, fired long ago, or never was.
    Stale,
    /// The handle belongs to this other shard, or its timer was moved there, and nothing was done.
    /// Use [`Timers::client`](crate::Timers::client).
    Elsewhere(ShardId),
    /// The handle belongs to another service, and nothing was done.
    Foreign,
}

impl<K> CancelOutcome<K> {
    /// The task, if this cancel won.
    pub fn task(self) -> Option<K> {
        match self {
            Self::Cancelled { task, .. } => Some(task),
            _ => None,
        }
    }

    /// The outcome with another payload, if it has one.
    pub(crate) fn map<L>(self, f: impl FnOnce(K) -> L) -> CancelOutcome<L> {
        match self {
            Self::Cancelled { remaining, task } => {
                CancelOutcome::Cancelled { remaining, task: f(task) }
            }
            Self::Overtook => CancelOutcome::Overtook,
            Self::AlreadyFired => CancelOutcome::AlreadyFired,
            Self::Stale => CancelOutcome::Stale,
            Self::Elsewhere(shard) => CancelOutcome::Elsewhere(shard),
            Self::Foreign => CancelOutcome::Foreign,
        }
    }

    /// Whether the timer was still to fire and now will not.
    pub fn won(&self) -> bool {
        matches!(self, Self::Cancelled { .. } | Self::Overtook)
    }
}

/// What became of a reset.
#[must_use = "it says whether there was still a timer to move"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResetOutcome {
    /// The timer is due at the new deadline.
    Moved,
    /// The reset was here before the timer, which is still under way from its sender and will be
    /// due at the new deadline.
    Overtook,
    /// The timer has fired. Told until its slot is used again; [`Stale`](Self::Stale) thereafter.
    AlreadyFired,
    /// The handle names no timer: it was cancelled before, fired long ago, or never was.
    Stale,
    /// The handle belongs to this other shard, or its timer was moved there, and nothing was done.
    /// Use [`Timers::client`](crate::Timers::client).
    Elsewhere(ShardId),
    /// The handle belongs to another service, and nothing was done.
    Foreign,
}

impl From<ShardReset> for ResetOutcome {
    fn from(outcome: ShardReset) -> Self {
        match outcome {
            ShardReset::Moved => Self::Moved,
            ShardReset::Overtook => Self::Overtook,
            ShardReset::AlreadyFired => Self::AlreadyFired,
            ShardReset::Stale => Self::Stale,
        }
    }
}

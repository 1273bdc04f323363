//! The outcomes of commands on timers.

use std::time::Duration;

use corewheel_shard::ResetOutcome as ShardReset;

use super::handle::ShardId;

/// The outcome of a cancel.
///
/// ```
/// # use corewheel::clock::ManualClock;
/// # use corewheel::{CancelOutcome, Fired, TimerService, Timers};
/// # let clock = ManualClock::new();
/// # let service: TimerService<u64> =
/// #     TimerService::builder().shards(1).clock(&clock).start_attached()?;
/// # let shard = service.attach(service.shards().next().unwrap())?;
/// # let mut shard = shard.into_loop(|_: Fired<u64>, _: &Timers<u64>| {})?;
/// # let timers = shard.timers().clone();
/// # use std::time::Duration;
/// let request = timers.schedule(Duration::from_millis(30), 7)?;
/// match timers.cancel(request) {
///     CancelOutcome::Cancelled { remaining, payload } => {
///         assert_eq!((remaining, payload.into_value()), (Duration::from_millis(30), Some(7)));
///     }
///     too_late => println!("the request has timed out before its answer came: {too_late:?}"),
/// }
/// assert_eq!(timers.cancel(request).won(), false, "once");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "it says whether the timer can still fire, and holds its payload"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CancelOutcome<K> {
    /// The timer has not fired and will not.
    Cancelled {
        /// How long it still had; zero if it was due.
        remaining: Duration,
        /// The payload that the timer carried.
        payload: K,
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
    /// The payload, if this cancel won.
    pub fn payload(self) -> Option<K> {
        match self {
            Self::Cancelled { payload, .. } => Some(payload),
            _ => None,
        }
    }

    /// The outcome with another payload, if it has one.
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

    /// Whether the timer was still to fire and now will not.
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
            ShardReset::Reset => Self::Reset,
            ShardReset::Overtook => Self::Overtook,
            ShardReset::AlreadyFired => Self::AlreadyFired,
            ShardReset::Stale => Self::Stale,
        }
    }
}

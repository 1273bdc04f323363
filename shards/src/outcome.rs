//! The outcomes that the methods of a shard return, and the budget of a turn.

use core::fmt;

use crate::key::TimerKey;
use crate::tick::Tick;

/// The shard has no slot left; the error returns the payload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Full<T>(pub T);

impl<T> fmt::Debug for Full<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Full(..)")
    }
}

impl<T> fmt::Display for Full<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the shard holds as many timers as its capacity; raise it or shed load")
    }
}

impl<T> core::error::Error for Full<T> {}

/// A timer that a shard hands out: an expired one, or a pending one from
/// [`Shard::drain`](crate::Shard::drain).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expired<T> {
    /// The key that named the timer. It names no timer any more.
    pub key: TimerKey,
    /// The deadline of the timer.
    pub deadline: Tick,
    /// The payload with which the timer was scheduled.
    pub payload: T,
}

/// The outcome of [`Shard::cancel`](crate::Shard::cancel).
#[must_use = "it says whether the timer can still fire, and holds its payload"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CancelOutcome<T> {
    /// The timer has not fired and will not.
    Cancelled {
        /// The deadline of the timer.
        deadline: Tick,
        /// The payload with which the timer was scheduled.
        payload: T,
    },
    /// The key is granted and its timer has not arrived yet; [`Shard::arm`](crate::Shard::arm) will
    /// return the payload as [`ArmOutcome::Overtaken`].
    Overtook,
    /// The timer has fired. Reported until the slot of the timer is used again, and after that as
    /// [`Stale`](Self::Stale).
    AlreadyFired,
    /// The key names no timer: the timer was cancelled or returned before, fired before its slot
    /// was used again, or never existed.
    Stale,
}

impl<T> CancelOutcome<T> {
    /// The payload, if the outcome is [`Cancelled`](Self::Cancelled).
    pub fn payload(self) -> Option<T> {
        match self {
            Self::Cancelled { payload, .. } => Some(payload),
            _ => None,
        }
    }
}

/// The outcome of [`Shard::reset`](crate::Shard::reset).
#[must_use = "it says whether there was still a timer to reset"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResetOutcome {
    /// The timer is pending with the new deadline.
    Reset,
    /// The key is granted and its timer has not arrived yet; it will have the new deadline.
    Overtook,
    /// The timer has fired. Reported until the slot of the timer is used again, and after that as
    /// [`Stale`](Self::Stale).
    AlreadyFired,
    /// The key names no timer: the timer was cancelled or returned before, fired before its slot
    /// was used again, or never existed.
    Stale,
}

/// The outcome of [`Shard::arm`](crate::Shard::arm).
#[must_use = "it returns the payload of a timer that was not armed"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArmOutcome<T> {
    /// The timer is pending.
    Armed,
    /// A cancel of the key came first. The timer counts as scheduled and cancelled.
    Overtaken(T),
    /// The key is not granted, or not any more; the shard is unchanged.
    NotGranted(T),
}

/// The limits of the work of one turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// The most timers to hand out.
    pub expired_max: u32,
    /// The most entries to look at, whether they expire, cascade or are stale.
    ///
    /// A turn may exceed it by less than a chunk of 15 entries. It also looks at up to 64 entries
    /// that an earlier turn with a larger budget took off the wheel and did not hand out.
    /// The sweep of stale entries is not counted: while there are many stale entries, every 16th
    /// operation that hands out a timer, cancels it or resets it to an earlier deadline also looks
    /// at about 240 entries for the sweep.
    pub work_max: u32,
}

impl Budget {
    /// No limits.
    pub const UNLIMITED: Self = Self { expired_max: u32::MAX, work_max: u32::MAX };
}

impl Default for Budget {
    /// 384 timers and 1,024 entries: on an Intel Xeon, some 25 µs of work where timers are due, and
    /// some 40 where entries are filed again, if nothing is in the cache.
    fn default() -> Self {
        Self { expired_max: 384, work_max: 1_024 }
    }
}

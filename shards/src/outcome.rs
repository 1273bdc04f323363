//! What the methods of a shard answer.

use core::fmt;

use crate::key::TimerKey;
use crate::tick::Tick;

/// The shard has no slot left; the task comes back.
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

/// A timer that is due, handed out to be delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expired<T> {
    /// What it was known by. Stale from now on.
    pub key: TimerKey,
    /// When it was due.
    pub deadline: Tick,
    /// What it was scheduled with.
    pub task: T,
}

/// What became of a cancel.
#[must_use = "it says whether the timer can still fire, and holds its task"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CancelOutcome<T> {
    /// The timer has not fired and will not.
    Cancelled {
        /// When it would have been due.
        deadline: Tick,
        /// What it was scheduled with.
        task: T,
    },
    /// The key is granted and its timer has not come yet; it will be dropped when it does.
    Overtook,
    /// The timer has fired. Told until its slot is used again; [`Stale`](Self::Stale) thereafter.
    AlreadyFired,
    /// The key names no timer: it was cancelled before, fired long ago, or never was.
    Stale,
}

impl<T> CancelOutcome<T> {
    /// The task, if this cancel won.
    pub fn task(self) -> Option<T> {
        match self {
            Self::Cancelled { task, .. } => Some(task),
            _ => None,
        }
    }
}

/// What became of a reset.
#[must_use = "it says whether there was still a timer to move"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResetOutcome {
    /// The timer is due at the new deadline.
    Moved,
    /// The key is granted and its timer has not come yet; it will be due at the new deadline.
    Overtook,
    /// The timer has fired. Told until its slot is used again; [`Stale`](Self::Stale) thereafter.
    AlreadyFired,
    /// The key names no timer: it was cancelled before, fired long ago, or never was.
    Stale,
}

/// What became of a task that was sent after its granted key.
#[must_use = "a task that was not armed is handed back"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArmOutcome<T> {
    /// The timer is pending.
    Armed,
    /// A cancel of the key was here first. The timer counts as scheduled and cancelled.
    Overtaken(T),
    /// The key is not granted, or not any more; nothing was done.
    NotGranted(T),
}

/// How much one turn may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// The most timers to hand out.
    pub expired_max: u32,
    /// The most entries to look at, whether they expire, cascade or turn out to be stale. May be
    /// passed by a chunk of entries (15), and is where a turn of a larger budget has left more than
    /// this (64 at most) in the shard's hands. The sweep is not counted: of the timers that are
    /// handed out, cancelled or moved one in four pays for a slice of it, about 60 entries, while
    /// there is much to sweep.
    pub work_max: u32,
}

impl Budget {
    /// As much as there is to do.
    pub const UNLIMITED: Self = Self { expired_max: u32::MAX, work_max: u32::MAX };
}

impl Default for Budget {
    /// 512 timers and 1,024 entries: some 40 µs of work where nothing is in the cache.
    fn default() -> Self {
        Self { expired_max: 512, work_max: 1_024 }
    }
}

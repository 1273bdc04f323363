//! What comes out of a queue or of keyed timers, and what these and scaled timeouts refuse.

use std::fmt;
use std::time::Instant;

use corewheel_shard::TimerKey;

use crate::values::error::{CLOSED, refusal};

/// Names one value in a [`DelayQueue`](crate::DelayQueue).
///
/// Harmless for ever: once the value has left the queue, the key names nothing. It belongs to its
/// queue; another one may know a value of its own by the same key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DelayKey(pub(crate) TimerKey);

impl fmt::Debug for DelayKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A value whose time has come, or that was taken out before.
///
/// The methods are those of tokio-util's `Expired`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Expired<V, K = DelayKey> {
    /// What it was known by; not any more.
    pub key: K,
    /// When it was due: the deadline as asked for, rounded up to a tick.
    pub deadline: Instant,
    /// What was put in.
    pub value: V,
}

impl<V, K> Expired<V, K> {
    /// The value.
    pub fn get_ref(&self) -> &V {
        &self.value
    }

    /// The value.
    pub fn get_mut(&mut self) -> &mut V {
        &mut self.value
    }

    /// The value alone.
    pub fn into_inner(self) -> V {
        self.value
    }

    /// When it was due.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
}

impl<V, K: Copy> Expired<V, K> {
    /// What it was known by.
    pub fn key(&self) -> K {
        self.key
    }
}

/// A value was not taken in; it comes back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum InsertError<V> {
    /// There are as many as there may be, or the shard has no timer left. Shed load, or try again
    /// when some have gone.
    Full(V),
    /// The shard is shut down.
    Closed(V),
}

impl<V> InsertError<V> {
    /// What was to be put in.
    pub fn into_value(self) -> V {
        match self {
            Self::Full(value) | Self::Closed(value) => value,
        }
    }

    pub(crate) fn map<W>(self, f: impl FnOnce(V) -> W) -> InsertError<W> {
        match self {
            Self::Full(value) => InsertError::Full(f(value)),
            Self::Closed(value) => InsertError::Closed(f(value)),
        }
    }
}

refusal!(
    InsertError: "there is no room for another; raise the capacity given at the start or that of \
                  the shard, or shed load",
    CLOSED
);

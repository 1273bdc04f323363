//! What comes out of a delay queue or of keyed timers.

use std::fmt;
use std::time::Instant;

use corewheel_shard::TimerKey;

/// Names one value in a [`DelayQueue`](crate::queue::DelayQueue).
///
/// A key is never reused: once its value has left the queue, the key is stale, and each method
/// answers that there is no such value. A key belongs to its queue; in another queue it may name
/// another value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DelayKey(pub(crate) TimerKey);

impl fmt::Debug for DelayKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A value that has expired, or that was taken out before: with its key and its deadline.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Expired<V, K = DelayKey> {
    /// The key of the value, which is free or stale by now.
    pub key: K,
    /// When the value was due: the deadline as asked for, rounded up to a tick.
    pub deadline: Instant,
    /// The value.
    pub value: V,
}

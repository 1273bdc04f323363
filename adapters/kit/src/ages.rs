//! Since when values have been there, in that order.
//!
//! Why not in the values themselves: a queue without a class needs no ages.
//!
//! Cost: 16 bytes for each value. Each method is O(1).

use std::time::{Duration, Instant};

use corewheel_shard::{List, MarkedLinks};

/// For each value, by its index, since when it has been there; oldest first.
pub(crate) struct Ages {
    /// The marks are nanoseconds since then.
    epoch: Instant,
    since: MarkedLinks,
    order: List,
    /// The last mark.
    latest: u64,
}

impl Ages {
    pub(crate) fn new(epoch: Instant) -> Self {
        let (since, order) = (MarkedLinks::default(), List::default());
        Self { epoch, since, order, latest: 0 }
    }

    /// Makes room for the values with indices below `len`.
    #[inline]
    pub(crate) fn reserve(&mut self, len: usize) {
        self.since.reserve(len);
    }

    /// A value has come. No value is younger than one that came later, whatever the clock does.
    #[inline]
    pub(crate) fn begin(&mut self, index: u32, now: Instant) {
        // `as_nanos` computes with 128 bits and takes three times as long.
        let since = now.saturating_duration_since(self.epoch);
        let since = since.as_secs() * 1_000_000_000 + u64::from(since.subsec_nanos());
        self.latest = self.latest.max(since);
        self.since.set_mark(index, self.latest);
        self.order.append(&mut self.since, index);
    }

    /// A value has left. Returns since when it was there.
    #[inline]
    pub(crate) fn end(&mut self, index: u32) -> Instant {
        self.order.remove(&mut self.since, index);
        self.since(index)
    }

    /// The oldest value.
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        self.order.first()
    }

    /// Since when the oldest value has been there.
    #[inline]
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.first().map(|first| self.since(first))
    }

    /// Since when a value has been there that has not left.
    #[inline]
    pub(crate) fn since(&self, index: u32) -> Instant {
        self.epoch + Duration::from_nanos(self.since.mark(index))
    }
}

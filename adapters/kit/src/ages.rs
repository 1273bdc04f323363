//! Since when values have been there, in that order.
//!
//! Why not in the values themselves: a queue without a class needs no ages.
//!
//! Cost: 16 bytes for each value. Each method is O(1).

use std::time::Duration;

use corewheel_shard::{List, MarkedLinks};

/// For each value, by its index, since when it has been there, oldest first: a reading of
/// [`since_start`](corewheel::part::PartHandle::since_start).
#[derive(Default)]
pub(crate) struct Ages {
    /// The marks are nanoseconds.
    since: MarkedLinks,
    order: List,
    /// The last mark.
    latest: u64,
}

impl Ages {
    /// Makes room for the values with indices below `len`.
    #[inline]
    pub(crate) fn reserve(&mut self, len: usize) {
        self.since.reserve(len);
    }

    /// A value has come. None is older than one that came before it, whatever the clock does.
    #[inline]
    pub(crate) fn begin(&mut self, index: u32, now: Duration) {
        // `as_nanos` computes with 128 bits, which takes longer.
        let now = now.as_secs() * 1_000_000_000 + u64::from(now.subsec_nanos());
        self.latest = self.latest.max(now);
        self.since.set_mark(index, self.latest);
        self.order.append(&mut self.since, index);
    }

    /// A value has left. It can still be asked [since](Self::since) when it was there.
    #[inline]
    pub(crate) fn end(&mut self, index: u32) {
        self.order.remove(&mut self.since, index);
    }

    /// The oldest value.
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        self.order.first()
    }

    /// Since when a value has been there, or was when it left.
    #[inline]
    pub(crate) fn since(&self, index: u32) -> Duration {
        Duration::from_nanos(self.since.mark(index))
    }

    /// Since when the oldest value has been there.
    #[inline]
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.first().map(|first| self.since(first))
    }
}

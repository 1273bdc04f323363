//! What each shard has counted for each class of timers.
//!
//! They are published with the shard's own counts, under the same version, so that one reading
//! shows them together. A class that has not changed since is not stored again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use serde::Serialize;

use super::counts::counts;

counts! {
    /// What one shard has counted for one class. All but `live` only grow.
    ///
    /// In every reading `live = scheduled − fired − cancelled − returned`.
    struct ClassCounts, published in PublishedClassCounts:

    /// Timers pending now. Those on the way from another thread are not counted.
    live,
    /// Timers scheduled, on the shard's own core and from other threads.
    scheduled,
    /// Timers delivered.
    fired,
    /// Timers cancelled, those included whose cancel came before they did.
    cancelled,
    /// Timers handed back or dropped unfired at shutdown.
    returned,
    /// Timers delivered later than the service's lateness bound; they count as fired too.
    late,
    /// Schedules refused for want of room, on the shard's own core and by clients.
    refused,
    /// Deliveries that took longer than the service's `overrun` limit.
    overrun,
}

impl ClassCounts {
    /// Adds those of another shard.
    fn add(&mut self, other: &Self) {
        self.live += other.live;
        self.scheduled += other.scheduled;
        self.fired += other.fired;
        self.cancelled += other.cancelled;
        self.returned += other.returned;
        self.late += other.late;
        self.refused += other.refused;
        self.overrun += other.overrun;
    }
}

/// The timers of one class at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct ClassStats {
    /// The name of the class.
    pub class: &'static str,
    /// What was counted for it.
    #[serde(flatten)]
    pub counts: ClassCounts,
    /// The age of its oldest timer that is pending: how long ago that was scheduled or, if it is
    /// from another thread, came to the shard. Exact to the microsecond. Moving a timer does not
    /// make it younger.
    pub oldest: Option<Duration>,
}

impl ClassStats {
    /// Adds up the classes of several shards, which are those of one service.
    pub(crate) fn sum<'a>(shards: impl Iterator<Item = &'a [Self]>) -> Vec<Self> {
        let mut sum: Vec<Self> = Vec::new();
        for classes in shards {
            if sum.is_empty() {
                sum.extend_from_slice(classes);
                continue;
            }
            for (total, class) in sum.iter_mut().zip(classes) {
                total.counts.add(&class.counts);
                // None is less than any.
                total.oldest = total.oldest.max(class.oldest);
            }
        }
        sum
    }
}

/// Where a shard publishes what it has counted for one class.
#[derive(Debug, Default)]
pub(crate) struct PublishedClass {
    counts: PublishedClassCounts,
    /// When its oldest timer was scheduled, in microseconds and one; 0 if there is none.
    since: AtomicU64,
}

impl PublishedClass {
    /// For as many classes, on lines of their own.
    pub(crate) fn row(classes: usize) -> Box<[CachePadded<Self>]> {
        (0..classes).map(|_| CachePadded::default()).collect()
    }

    /// With the time in microseconds at which its oldest timer was scheduled.
    pub(crate) fn store(&self, counts: &ClassCounts, since: Option<u64>) {
        self.counts.store(counts);
        // Relaxed, as all of them.
        self.since.store(since.map_or(0, |since| since + 1), Ordering::Relaxed);
    }

    pub(crate) fn load(&self) -> (ClassCounts, Option<u64>) {
        (self.counts.load(), self.since.load(Ordering::Relaxed).checked_sub(1))
    }
}

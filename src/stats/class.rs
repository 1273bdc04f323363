//! The counts of each shard for each class of timers.
//!
//! They are published with the shard's own counts, under one version, so that one reading shows
//! them together. A class that has not changed since is not stored again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use super::counts::counts;

counts! {
    /// The timers of one class at one moment, on one shard or on all shards of a service. All
    /// counts but `pending` only grow.
    ///
    /// In every reading `pending = scheduled − fired − cancelled − returned − dropped`.
    struct ClassStats, published in PublishedCounts:
    {
        /// The name of the class.
        class: &'static str,
        /// The age of the oldest pending timer of the class: the time since it was scheduled or, if
        /// it is from another thread, since it came to the shard. Exact to the microsecond. A reset
        /// does not change it. `None` if no timer is pending.
        oldest: Option<Duration>,
    }

    /// Timers and scaled timeouts pending now, without timers on the way from another thread.
    pending,
    /// Timers scheduled, on the shard's own core and from other threads.
    scheduled,
    /// Timers delivered.
    fired,
    /// Timers cancelled, including timers whose cancel arrived first.
    cancelled,
    /// Pending timers that a shutdown returned in its report.
    returned,
    /// Pending timers that were dropped when their shard ended.
    dropped,
    /// Timers delivered later than the service's lateness bound; they count as fired too.
    late,
    /// Schedules refused for want of room, on the shard's own core and by clients.
    refused,
    /// Deliveries that took longer than the service's `overrun` limit.
    overrun,
}

impl ClassStats {
    /// Adds the counts of the class on another shard.
    fn add(&mut self, other: &Self) {
        // None is less than any.
        self.oldest = self.oldest.max(other.oldest);
        self.pending += other.pending;
        self.scheduled += other.scheduled;
        self.fired += other.fired;
        self.cancelled += other.cancelled;
        self.returned += other.returned;
        self.dropped += other.dropped;
        self.late += other.late;
        self.refused += other.refused;
        self.overrun += other.overrun;
    }

    /// Adds up the classes of several shards, which are those of one service.
    pub(crate) fn sum<'a>(shards: impl Iterator<Item = &'a [Self]>) -> Vec<Self> {
        let mut sum: Vec<Self> = Vec::new();
        for classes in shards {
            if sum.is_empty() {
                sum.extend_from_slice(classes);
                continue;
            }
            for (total, class) in sum.iter_mut().zip(classes) {
                total.add(class);
            }
        }
        sum
    }
}

/// Where a shard publishes its counts for one class.
#[derive(Debug, Default)]
pub(crate) struct PublishedClass {
    counts: PublishedCounts,
    /// When its oldest timer was scheduled, in microseconds and one; 0 if there is none.
    since: AtomicU64,
}

impl PublishedClass {
    /// For as many classes, on lines of their own.
    pub(crate) fn row(classes: usize) -> Box<[CachePadded<Self>]> {
        (0..classes).map(|_| CachePadded::default()).collect()
    }

    /// With the time in microseconds at which its oldest timer was scheduled.
    pub(crate) fn store(&self, counts: &ClassStats, since: Option<u64>) {
        self.counts.store(counts);
        // Relaxed, as all of them.
        self.since.store(since.map_or(0, |since| since + 1), Ordering::Relaxed);
    }

    pub(crate) fn load(&self) -> (ClassStats, Option<u64>) {
        (self.counts.load(), self.since.load(Ordering::Relaxed).checked_sub(1))
    }
}

//! The counts of each shard for each class of timers.
//!
//! They are published with the shard's own counts, under one version, so that one reading shows
//! them together. A class that has not changed since is not stored again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use super::counts::counts;

counts! {
    /// The timers of one class at one moment, on one shard or on all shards of a service.
    ///
    /// In every reading `pending = scheduled − fired − cancelled − returned − dropped`.
    struct ClassStats, published in PublishedCounts:
    {
        /// The name of the class.
        class: &'static str,
        /// The age of the oldest pending timer of the class: the time since it was scheduled or, if
        /// it is from another thread, since it came to the shard. Exact to the microsecond. A reset
        /// does not change it; that of a scaled timeout begins again. `None` if none is pending.
        oldest: Option<Duration>,
    }

    /// Timers and scaled timeouts pending now, without timers on the way from another thread.
    pending: gauge,
    /// Timers scheduled, on the shard's own core and from other threads.
    scheduled: sum,
    /// Timers delivered.
    fired: sum,
    /// Timers cancelled, including timers whose cancel arrived first.
    cancelled: sum,
    /// Pending timers that a shutdown returned in its report.
    returned: sum,
    /// Pending timers that were dropped when their shard ended.
    dropped: sum,
    /// Timers delivered later than the service's lateness bound; they count as fired too.
    late: sum,
    /// Schedules refused for want of room, on the shard's own core and from other threads.
    refused: sum,
    /// Deliveries that took longer than the service's `overrun` limit.
    overrun: sum,
    /// Deliveries whose lateness was measured: those of timers and scaled timeouts. Values of a
    /// delay queue are not, as their taker decides when they come out.
    measured: sum,
    /// The lateness of the measured deliveries, from the deadline, rounded up to a tick, to the
    /// delivery; all of it added up, in nanoseconds.
    lateness_ns: sum,
    /// The greatest lateness of them, in nanoseconds.
    lateness_max_ns: maximum,
}

impl ClassStats {
    /// The part of the ended timers that were cancelled, 0 to 1; `None` if none has ended.
    pub fn cancel_ratio(&self) -> Option<f64> {
        let ended = self.cancelled + self.fired + self.returned + self.dropped;
        (ended > 0).then(|| self.cancelled as f64 / ended as f64)
    }

    /// Measures the lateness of a delivery.
    pub(crate) fn measure(&mut self, nanos: u64) {
        self.measured += 1;
        self.lateness_ns = self.lateness_ns.saturating_add(nanos);
        self.lateness_max_ns = self.lateness_max_ns.max(nanos);
    }

    /// Adds the counts of the class on another shard.
    fn add(&mut self, other: &Self) {
        // None is less than any.
        self.oldest = self.oldest.max(other.oldest);
        self.add_counts(other);
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

/// Since when a container has had the first of its values, in nanoseconds plus one; 0 if it is
/// empty. Its shard writes it, and readers look for the oldest.
#[derive(Debug, Default)]
pub(crate) struct FirstHeld(AtomicU64);

impl FirstHeld {
    #[inline]
    pub(crate) fn set(&self, since: Option<u64>) {
        // Relaxed: it stands for itself.
        self.0.store(since.map_or(0, |since| since.saturating_add(1)), Ordering::Relaxed);
    }

    fn micros(&self) -> Option<u64> {
        self.0.load(Ordering::Relaxed).checked_sub(1).map(|nanos| nanos / 1_000)
    }
}

/// Where a shard publishes its counts for one class.
#[derive(Debug, Default)]
pub(crate) struct PublishedClass {
    counts: PublishedCounts,
    /// The containers whose values are of the class. A reader takes the lock, and so does the shard
    /// when a container is made.
    held: Mutex<Vec<Weak<FirstHeld>>>,
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
        // Relaxed, as all of them.
        self.counts.store(counts);
        self.since.store(since.map_or(0, |since| since + 1), Ordering::Relaxed);
    }

    /// A container is made whose values are of the class.
    pub(crate) fn hold(&self) -> Arc<FirstHeld> {
        let first = Arc::default();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|first| first.strong_count() > 0);
        held.push(Arc::downgrade(&first));
        first
    }

    pub(crate) fn load(&self) -> (ClassStats, Option<u64>) {
        let of_timers = self.since.load(Ordering::Relaxed).checked_sub(1);
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let held = held.iter().filter_map(|first| first.upgrade()?.micros());
        let since = held.chain(of_timers).min();
        (self.counts.load(), since)
    }
}

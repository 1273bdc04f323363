//! Where a shard publishes its counts, for readers on any thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use corewheel_shard::Counters;
use crossbeam_utils::CachePadded;

use super::class::{ClassStats, FirstHeld, PublishedClass};
use super::counts::{ACT, COMMAND, PublishedCounts, ShardCounts};
use super::gauges::PublishedGauges;
use super::late::{LateLog, LateRecord, PublishedLate};
use super::live::Live;
use super::times::{PublishedTimes, Recorder, Times};
use crate::link::version::Version;

/// Where a shard publishes: written by its own thread alone.
#[derive(Debug)]
pub(crate) struct Published {
    version: Version,
    counts: CachePadded<PublishedCounts>,
    classes: Box<[CachePadded<PublishedClass>]>,
    lateness: PublishedTimes,
    ring_delay: PublishedTimes,
    turn_time: PublishedTimes,
    late: PublishedLate,
    pub(crate) gauges: PublishedGauges,
    /// On a line of its own, as the shard writes it at each delivery.
    pub(crate) live: Arc<CachePadded<Live>>,
}

/// The times that a shard has measured since it last published.
pub(crate) struct Measured<'a> {
    pub(crate) lateness: &'a mut Recorder,
    pub(crate) ring_delay: &'a mut Recorder,
    pub(crate) turn_time: &'a mut Recorder,
    pub(crate) late: &'a mut LateLog,
}

impl Published {
    pub(crate) fn new(classes: usize) -> Self {
        Self {
            version: Version::new(),
            counts: CachePadded::new(PublishedCounts::default()),
            classes: PublishedClass::row(classes),
            lateness: PublishedTimes::new(),
            ring_delay: PublishedTimes::new(),
            turn_time: PublishedTimes::new(),
            late: PublishedLate::new(),
            gauges: PublishedGauges::default(),
            live: Arc::new(CachePadded::new(Live::new())),
        }
    }

    /// Stores the counts, and the classes that `classes` stores with
    /// [`store_class`](Self::store_class).
    #[inline]
    pub(crate) fn store(
        &self,
        counts: &ShardCounts,
        measured: Measured<'_>,
        classes: impl FnOnce(&Self),
    ) {
        self.store_counts(|published| {
            published.store(counts);
            classes(self);
        });
        self.lateness.store(measured.lateness);
        self.ring_delay.store(measured.ring_delay);
        self.turn_time.store(measured.turn_time);
        self.late.store(measured.late);
    }

    /// Stores the counts that commands of the shard's own core change, between turns.
    #[inline]
    pub(crate) fn store_commands(&self, counters: &Counters, classes: impl FnOnce(&Self)) {
        self.store_counts(|published| {
            published.store_at(COMMAND, counters);
            classes(self);
        });
    }

    /// Stores what `take` takes over from threads. A reader that reads their counts in
    /// [`load_with`](Self::load_with) finds each timer there or here.
    pub(crate) fn store_taken(&self, take: impl FnOnce(&Self) -> (Counters, u64)) {
        self.store_counts(|published| {
            let (counters, ended_young) = take(self);
            published.store_at(ACT, &counters);
            // Relaxed, as in a turn.
            published.ended_young.store(ended_young, Ordering::Relaxed);
        });
    }

    /// Stores the counts that parts write, between turns.
    #[inline]
    pub(crate) fn store_parts(&self, counts: &ShardCounts) {
        self.store_counts(|published| published.store_parts(counts));
    }

    /// Stores the counts of a class, while counts are stored.
    pub(crate) fn store_class(&self, index: usize, counts: &ClassStats, since: Option<u64>) {
        if let Some(class) = self.classes.get(index) {
            class.store(counts, since);
        }
    }

    /// A container is made whose values are of the class with this index, which there is.
    pub(crate) fn hold(&self, class: usize) -> Arc<FirstHeld> {
        self.classes[class].hold()
    }

    #[inline]
    fn store_counts(&self, store: impl FnOnce(&PublishedCounts)) {
        self.version.store(|| store(&self.counts));
    }

    /// Loads everything, and what `beside` loads at the same time as the counts. `beside` is called
    /// again if the shard stores meanwhile.
    pub(crate) fn load_with<V>(&self, mut beside: impl FnMut() -> V) -> (Reading, V) {
        let mut classes = Vec::with_capacity(self.classes.len());
        let (counts, beside) = self.version.load(|| {
            classes.clear();
            classes.extend(self.classes.iter().map(|class| class.load()));
            (self.counts.load(), beside())
        });
        let (parts, late) = self.late.load();
        let reading = Reading {
            counts,
            classes,
            lateness: self.lateness.load(),
            ring_delay: self.ring_delay.load(),
            turn_time: self.turn_time.load(),
            parts,
            late,
        };
        (reading, beside)
    }
}

/// The counts of a class, with the microsecond in which its oldest timer was scheduled.
pub(crate) type ClassReading = (ClassStats, Option<u64>);

/// A reading of everything that a shard has published.
pub(crate) struct Reading {
    pub(crate) counts: ShardCounts,
    pub(crate) classes: Vec<ClassReading>,
    pub(crate) lateness: Times,
    pub(crate) ring_delay: Times,
    pub(crate) turn_time: Times,
    pub(crate) parts: BTreeMap<&'static str, Times>,
    pub(crate) late: Vec<LateRecord>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_counts_are_read_as_stored() {
        let published = Published::new(2);
        let of_class = ClassStats { fired: 5, ..ClassStats::default() };
        let counts = ShardCounts { fired: 7, pending: 3, ..ShardCounts::default() };
        let (mut lateness, mut ring_delay) = (Recorder::new(), Recorder::new());
        for nanos in [0, 5, 1_000, 1_000_000, u64::MAX] {
            lateness.record(nanos);
        }
        let measured = Measured {
            lateness: &mut lateness,
            ring_delay: &mut ring_delay,
            turn_time: &mut Recorder::new(),
            late: &mut LateLog::new(),
        };
        published.store(&counts, measured, |published| {
            published.store_class(1, &of_class, Some(0));
        });
        let (reading, ()) = published.load_with(|| ());
        let Reading { counts: read, classes, lateness: late, ring_delay: delay, .. } = reading;
        assert_eq!(read, counts);
        assert_eq!(classes, [(ClassStats::default(), None), (of_class, Some(0))]);
        assert_eq!(late.count, 5);
        assert!(late.buckets.iter().any(|(up_to, _)| (1_000..=1_250).contains(up_to)), "{late:?}");
        assert!(late.max_ns >= (1 << 40) - 1, "{late:?}");
        assert_eq!(delay, Times::default());
    }
}

//! What each shard has done, is doing and how late it was, readable from any thread.
//!
//! A shard keeps its counts in plain numbers and stores them once a turn, relaxed, into a line of
//! atomics of its own ([`Published`]); what its own core's tasks do while it sleeps between turns
//! is stored as they do it. Whoever reads takes no lock that the shard's turn takes and sends it
//! nothing. The counts of one reading belong together: whoever reads while they are stored reads
//! again.
//!
//! Cost: publishing is some fifty stores a turn, and a few hundred where something fired since.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use corewheel_shard::Counters;
use crossbeam_utils::{Backoff, CachePadded};
use histogram::Histogram;
use serde::Serialize;

use crate::class_stats::{ClassCounts, ClassStats, PublishedClass};
use crate::handle::ShardId;
use crate::scale::Scale;

/// Defines counts of a shard once: the plain numbers that its turn writes, the atomics that it
/// publishes them in, and the way between the two.
macro_rules! counts {
    (
        $(#[doc = $about:literal])*
        struct $counts:ident, published in $published:ident:
        $($(#[doc = $doc:literal])* $name:ident,)*
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
        #[non_exhaustive]
        pub struct $counts {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        struct $published {
            $($name: AtomicU64,)*
        }

        impl $published {
            #[inline]
            fn store(&self, counts: &$counts) {
                // Relaxed: each count stands for itself.
                $(self.$name.store(counts.$name, Ordering::Relaxed);)*
            }

            fn load(&self) -> $counts {
                $counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl $counts {
            /// Every count with its name, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// What each of them means: the lines of its documentation, in the same order.
            #[cfg(feature = "endpoint")]
            pub(crate) fn descriptions() -> impl Iterator<Item = &'static str> {
                [$(concat!($($doc),*),)*].into_iter()
            }
        }
    };
}

pub(crate) use counts;

counts! {
    /// What one shard has counted. All but the gauges (`pending`, `granted`, `capacity`, `lanes`,
    /// `lane_depth`, `scaled_pending`, `connections`) only grow.
    struct ShardCounts, published in PublishedCounts:

    /// Timers pending now. Those on the way from another thread are not counted, and a shard that
    /// sleeps leaves them on the way until the first of them, or of its own, is due.
    pending,
    /// The most timers that were pending at once.
    pending_max,
    /// Slots reserved for timers that clients may still send.
    granted,
    /// Timers that fit.
    capacity,
    /// Timers scheduled on the shard's own core.
    scheduled_local,
    /// Timers that came from other threads.
    scheduled_remote,
    /// Timers delivered.
    fired,
    /// Timers cancelled.
    cancelled,
    /// Timers whose cancel came before they did; they count as cancelled too.
    overtaken,
    /// Timers that went to live on another shard; they count as cancelled too, and there as timers
    /// from other threads. One that found the other shard closed and came back counts as well, and
    /// as scheduled here.
    moved_out,
    /// Timers handed back or dropped unfired at shutdown.
    returned,
    /// Schedules refused for want of room, on this core and by clients.
    refused,
    /// Cancels and resets whose handle named no pending timer.
    stale,
    /// Deadlines moved later, by one store.
    reset_lazy,
    /// Deadlines moved earlier, by a new entry.
    reset_relinked,
    /// Entries filed anew as time came closer.
    cascaded,
    /// Stale entries dropped.
    swept,
    /// Callbacks and handlers that panicked.
    panicked,
    /// Callbacks and handlers that took longer than the service's `overrun` limit.
    overrun,
    /// Timers delivered later than the service's lateness bound.
    late,
    /// Values of timers handed to a sink or to another task queue.
    sink_sent,
    /// Values that these refused, for want of room or because they are gone.
    sink_refused,
    /// Values scheduled again after they were refused.
    sink_retried,
    /// Values dropped after they were refused.
    sink_dropped,
    /// Turns.
    turns,
    /// Turns that left work behind because their budget was used up.
    turns_exhausted,
    /// Requests taken off lanes.
    requests,
    /// Lanes open now.
    lanes,
    /// Requests that waited in lanes when the last turn was over.
    lane_depth,
    /// Times that a client woke the shard.
    bells_rung,
    /// Times that a client found the shard awake, or about to be in time.
    bells_saved,
    /// Scaled timeouts pending now. For each minimum and maximum they have one timer.
    scaled_pending,
    /// Scaled timeouts delivered. The timers that they have count under `fired`.
    scaled_fired,
    /// Connections now that have deadlines, or had some and are not dropped. Each of them has one
    /// timer.
    connections,
}

impl ShardCounts {
    /// Takes over what the shard's wheel has counted.
    #[inline]
    pub(crate) fn take_over(&mut self, counters: &Counters) {
        self.pending = counters.pending();
        self.pending_max = counters.pending_max;
        self.scheduled_local = counters.scheduled_local;
        self.scheduled_remote = counters.scheduled_remote;
        self.fired = counters.fired;
        self.cancelled = counters.cancelled;
        self.overtaken = counters.overtaken;
        self.returned = counters.returned;
        self.stale = counters.stale;
        self.reset_lazy = counters.reset_lazy;
        self.reset_relinked = counters.reset_relinked;
        self.cascaded = counters.cascaded;
        self.swept = counters.swept;
    }

    #[inline]
    pub(crate) fn note_sent(&mut self) {
        self.sink_sent += 1;
    }
}

/// Four buckets to each power of two of nanoseconds, up to 2⁴⁰ (18 minutes); longer ones count as
/// that long.
const GROUPING_POWER: u8 = 2;
const MAX_VALUE_POWER: u8 = 40;

/// Times measured by one shard.
#[derive(Debug)]
pub(crate) struct Recorder {
    histogram: Histogram,
    sum: u64,
    dirty: bool,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new(GROUPING_POWER, MAX_VALUE_POWER);
        Self { histogram: histogram.expect("the powers are in range"), sum: 0, dirty: false }
    }

    #[inline]
    pub(crate) fn record(&mut self, nanos: u64) {
        let nanos = nanos.min((1 << MAX_VALUE_POWER) - 1);
        // Every value up to the maximum has a bucket.
        let _ = self.histogram.increment(nanos);
        self.sum = self.sum.saturating_add(nanos);
        self.dirty = true;
    }
}

#[derive(Debug)]
struct PublishedTimes {
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl PublishedTimes {
    fn new() -> Self {
        let recorder = Recorder::new();
        let buckets = recorder.histogram.as_slice().iter().map(|_| AtomicU64::new(0)).collect();
        Self { buckets, sum: AtomicU64::new(0) }
    }

    fn store(&self, recorder: &mut Recorder) {
        if !std::mem::take(&mut recorder.dirty) {
            return;
        }
        for (published, count) in self.buckets.iter().zip(recorder.histogram.as_slice()) {
            published.store(*count, Ordering::Relaxed);
        }
        self.sum.store(recorder.sum, Ordering::Relaxed);
    }

    fn load(&self) -> Times {
        let buckets = self.buckets.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let histogram = Histogram::from_buckets(GROUPING_POWER, MAX_VALUE_POWER, buckets)
            .expect("the buckets are those of the same configuration");
        Times::new(&histogram, self.sum.load(Ordering::Relaxed))
    }
}

/// Where a shard publishes: written by its own thread alone.
#[derive(Debug)]
pub(crate) struct Published {
    /// Odd while the counts are being stored.
    version: AtomicU64,
    counts: CachePadded<PublishedCounts>,
    classes: Box<[CachePadded<PublishedClass>]>,
    lateness: PublishedTimes,
    ring_delay: PublishedTimes,
}

impl Published {
    pub(crate) fn new(classes: usize) -> Self {
        Self {
            version: AtomicU64::new(0),
            counts: CachePadded::new(PublishedCounts::default()),
            classes: PublishedClass::row(classes),
            lateness: PublishedTimes::new(),
            ring_delay: PublishedTimes::new(),
        }
    }

    /// Stores the counts, and what `classes` stores with [`store_class`](Self::store_class).
    #[inline]
    pub(crate) fn store(
        &self,
        counts: &ShardCounts,
        lateness: &mut Recorder,
        ring_delay: &mut Recorder,
        classes: impl FnOnce(&Self),
    ) {
        self.store_counts(|published| {
            published.store(counts);
            classes(self);
        });
        self.lateness.store(lateness);
        self.ring_delay.store(ring_delay);
    }

    /// Stores the counts that commands of the shard's own core change, between turns.
    #[inline]
    pub(crate) fn store_commands(&self, counters: &Counters, classes: impl FnOnce(&Self)) {
        self.store_counts(|published| {
            // Relaxed, as in a turn.
            let store = |count: &AtomicU64, value| count.store(value, Ordering::Relaxed);
            store(&published.pending, counters.pending());
            store(&published.pending_max, counters.pending_max);
            store(&published.scheduled_local, counters.scheduled_local);
            store(&published.cancelled, counters.cancelled);
            store(&published.stale, counters.stale);
            store(&published.reset_lazy, counters.reset_lazy);
            store(&published.reset_relinked, counters.reset_relinked);
            classes(self);
        });
    }

    /// Stores how many scaled timeouts are pending, between turns.
    #[inline]
    pub(crate) fn store_scaled(&self, pending: u64) {
        // Relaxed, as in a turn.
        self.store_counts(|published| published.scaled_pending.store(pending, Ordering::Relaxed));
    }

    /// Stores how many connections there are, between turns.
    #[inline]
    pub(crate) fn store_connections(&self, count: u64) {
        // Relaxed, as in a turn.
        self.store_counts(|published| published.connections.store(count, Ordering::Relaxed));
    }

    /// Stores what was counted for a class, while counts are stored.
    pub(crate) fn store_class(&self, index: usize, counts: &ClassCounts, since: Option<u64>) {
        if let Some(class) = self.classes.get(index) {
            class.store(counts, since);
        }
    }

    #[inline]
    fn store_counts(&self, store: impl FnOnce(&PublishedCounts)) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        // Pairs with the fence in `load_counts`: whoever reads one of these counts sees that
        // the version is odd or has moved on.
        fence(Ordering::Release);
        store(&self.counts);
        // Release: pairs with the first load in `load_counts`.
        self.version.store(version + 2, Ordering::Release);
    }

    pub(crate) fn load(&self) -> Reading {
        let (counts, classes) = self.load_counts();
        let (lateness, ring_delay) = (self.lateness.load(), self.ring_delay.load());
        Reading { counts, classes, lateness, ring_delay }
    }

    fn load_counts(&self) -> (ShardCounts, Vec<ClassReading>) {
        let backoff = Backoff::new();
        let mut classes = Vec::with_capacity(self.classes.len());
        loop {
            // Acquire: pairs with the last store of the version in `store_counts`.
            let version = self.version.load(Ordering::Acquire);
            let counts = self.counts.load();
            classes.clear();
            classes.extend(self.classes.iter().map(|class| class.load()));
            // Pairs with the fence in `store_counts`.
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && version == self.version.load(Ordering::Relaxed) {
                return (counts, classes);
            }
            backoff.snooze();
        }
    }
}

/// What was counted for a class, with the microsecond in which its oldest timer was scheduled.
pub(crate) type ClassReading = (ClassCounts, Option<u64>);

/// What a shard has published.
pub(crate) struct Reading {
    pub(crate) counts: ShardCounts,
    pub(crate) classes: Vec<ClassReading>,
    pub(crate) lateness: Times,
    pub(crate) ring_delay: Times,
}

/// How a measured time was distributed, in nanoseconds.
///
/// The quantiles are upper ends of buckets a quarter of a power of two wide: too long by a quarter
/// at most.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Times {
    /// How many were measured.
    pub count: u64,
    /// All of them together.
    pub sum_ns: u64,
    /// Half of them took no longer.
    pub p50_ns: u64,
    /// 90 % took no longer.
    pub p90_ns: u64,
    /// 99 % took no longer.
    pub p99_ns: u64,
    /// 99.9 % took no longer.
    pub p999_ns: u64,
    /// None took longer.
    pub max_ns: u64,
    /// The buckets that hold any, from short to long.
    pub buckets: Vec<Bucket>,
}

/// How many times fell into one bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Bucket {
    /// The longest time that the bucket counts, in nanoseconds.
    pub up_to_ns: u64,
    /// How many there were.
    pub count: u64,
}

impl Times {
    fn new(histogram: &Histogram, sum_ns: u64) -> Self {
        let buckets: Vec<Bucket> = histogram
            .iter()
            .filter(|bucket| bucket.count() > 0)
            .map(|bucket| Bucket { up_to_ns: bucket.end(), count: bucket.count() })
            .collect();
        let quantile = |q| match histogram.quantile_bucket(q) {
            Ok(Some(bucket)) => bucket.end(),
            _ => 0,
        };
        Self {
            count: buckets.iter().map(|bucket| bucket.count).sum(),
            sum_ns,
            p50_ns: quantile(0.5),
            p90_ns: quantile(0.9),
            p99_ns: quantile(0.99),
            p999_ns: quantile(0.999),
            max_ns: buckets.last().map_or(0, |bucket| bucket.up_to_ns),
            buckets,
        }
    }
}

/// Whether a shard takes timers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ShardState {
    /// Not attached to an executor yet.
    Waiting,
    /// At work.
    Running,
    /// Shut down.
    Closed,
    /// Its thread or executor ended without a shutdown.
    Dead,
}

/// One shard at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct ShardStats {
    /// Which shard.
    pub shard: ShardId,
    /// Whether it takes timers.
    pub state: ShardState,
    /// By what its scaled timeouts are scaled.
    pub scale: Scale,
    /// What it has counted.
    #[serde(flatten)]
    pub counts: ShardCounts,
    /// What it has counted for each class of timers, in the order in which the builder was told of
    /// them.
    pub classes: Vec<ClassStats>,
    /// How long after their deadline, rounded up to a tick, timers and scaled timeouts were
    /// delivered.
    pub lateness: Times,
    /// How long timers from other threads were under way to the shard.
    pub ring_delay: Times,
}

/// A service at one moment: a plain value.
///
/// ```
/// # use corewheel::{Fired, ManualClock, TimerService, Timers};
/// # let clock = ManualClock::new();
/// # let service: TimerService<u64> =
/// #     TimerService::builder().shards(1).clock(clock.clock()).start_attached()?;
/// # let shard = service.attach(service.shards().next().unwrap())?;
/// # let mut shard = shard.into_loop(|_: Fired<u64>, _: &Timers<u64>| {})?;
/// # let timers = shard.timers().clone();
/// # use std::time::Duration;
/// timers.schedule(Duration::from_millis(5), 1)?;
/// timers.schedule(Duration::from_secs(60), 2)?;
/// clock.advance(Duration::from_millis(7));
/// let _next = shard.turn();
///
/// let stats = service.stats();
/// let shard = &stats.shards[0];
/// assert_eq!((shard.counts.fired, shard.counts.pending, shard.counts.late), (1, 1, 0));
/// assert!(shard.lateness.p99_ns >= 2_000_000, "it came 2 ms after its time");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct ServiceStats {
    /// The service's name.
    pub name: String,
    /// What its shards run on.
    pub runtime: &'static str,
    /// The length of a tick in nanoseconds.
    pub tick_ns: u64,
    /// The bound beyond which a delivery counts as late, in nanoseconds.
    pub lateness_bound_ns: u64,
    /// How long the service has been up.
    pub uptime: Duration,
    /// Its shards, in order.
    pub shards: Vec<ShardStats>,
}

impl ServiceStats {
    /// The classes of timers, all shards together, in the order in which the builder was told of
    /// them.
    pub fn classes(&self) -> Vec<ClassStats> {
        ClassStats::sum(self.shards.iter().map(|shard| &*shard.classes))
    }
}

impl Serialize for ShardId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(self.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_is_what_is_read() {
        let published = Published::new(2);
        let of_class = ClassCounts { fired: 5, ..ClassCounts::default() };
        let counts = ShardCounts { fired: 7, pending: 3, ..ShardCounts::default() };
        let (mut lateness, mut ring_delay) = (Recorder::new(), Recorder::new());
        for nanos in [0, 5, 1_000, 1_000_000, u64::MAX] {
            lateness.record(nanos);
        }
        published.store(&counts, &mut lateness, &mut ring_delay, |published| {
            published.store_class(1, &of_class, Some(0));
        });
        let Reading { counts: read, classes, lateness: late, ring_delay: delay } = published.load();
        assert_eq!(read, counts);
        assert_eq!(classes, [(ClassCounts::default(), None), (of_class, Some(0))]);
        assert_eq!(late.count, 5);
        assert!(late.p50_ns >= 1_000 && late.p50_ns <= 1_250, "{late:?}");
        assert!(late.max_ns >= (1 << 40) - 1, "{late:?}");
        assert_eq!(delay, Times::default());
    }

    #[test]
    fn a_quantile_is_never_too_short() {
        let mut recorder = Recorder::new();
        for nanos in 0..10_000 {
            recorder.record(nanos);
        }
        let times = Times::new(&recorder.histogram, recorder.sum);
        assert!((5_000..=6_250).contains(&times.p50_ns), "{}", times.p50_ns);
        assert!((9_900..=12_500).contains(&times.p99_ns), "{}", times.p99_ns);
        assert_eq!(times.count, 10_000);
    }
}

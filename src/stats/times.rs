//! Times that a shard measures, in histograms.

use std::sync::atomic::{AtomicU64, Ordering};

use histogram::Histogram;

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
pub(super) struct PublishedTimes {
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl PublishedTimes {
    pub(super) fn new() -> Self {
        let recorder = Recorder::new();
        let buckets = recorder.histogram.as_slice().iter().map(|_| AtomicU64::new(0)).collect();
        Self { buckets, sum: AtomicU64::new(0) }
    }

    pub(super) fn store(&self, recorder: &mut Recorder) {
        if !std::mem::take(&mut recorder.dirty) {
            return;
        }
        for (published, count) in self.buckets.iter().zip(recorder.histogram.as_slice()) {
            published.store(*count, Ordering::Relaxed);
        }
        self.sum.store(recorder.sum, Ordering::Relaxed);
    }

    pub(super) fn load(&self) -> Times {
        let buckets = self.buckets.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let histogram = Histogram::from_buckets(GROUPING_POWER, MAX_VALUE_POWER, buckets)
            .expect("the buckets are those of the same configuration");
        Times::new(&histogram, self.sum.load(Ordering::Relaxed))
    }
}

/// How a measured time was distributed, in nanoseconds.
///
/// The quantiles are upper ends of buckets a quarter of a power of two wide: too long by a quarter
/// at most.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Times {
    /// The number of times that were measured.
    pub count: u64,
    /// The sum of all times.
    pub sum_ns: u64,
    /// The median.
    pub p50_ns: u64,
    /// The 90th percentile.
    pub p90_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile.
    pub p999_ns: u64,
    /// The longest time.
    pub max_ns: u64,
    /// The buckets that are not empty, from the shortest times to the longest.
    pub buckets: Vec<Bucket>,
}

/// The number of times in one bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Bucket {
    /// The longest time that the bucket counts, in nanoseconds.
    pub up_to_ns: u64,
    /// The number of times in the bucket.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_is_never_too_short() {
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

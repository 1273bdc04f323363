//! Times that a shard measures, in histograms.

use std::sync::atomic::{AtomicU64, Ordering};

/// Four buckets to each power of two of nanoseconds, up to 2⁴⁰ (18 minutes); longer ones count as
/// that long.
const GROUPING_POWER: u8 = 2;
const MAX_VALUE_POWER: u8 = 40;
const BUCKETS: usize = bucket_of((1 << MAX_VALUE_POWER) - 1) + 1;
const WORDS: usize = BUCKETS.div_ceil(u64::BITS as usize);

/// The bucket of a time that is not longer than the longest, as the crate `histogram` numbers them:
/// a test compares the two.
#[inline]
const fn bucket_of(nanos: u64) -> usize {
    // The highest bit, and the two bits that follow it.
    let power = (nanos | (1 << GROUPING_POWER)).ilog2();
    ((power as usize) << GROUPING_POWER) + (nanos >> (power - GROUPING_POWER as u32)) as usize
        - (GROUPING_POWER as usize * (1 << GROUPING_POWER))
}

/// The longest time of a bucket.
const fn end_of(bucket: usize) -> u64 {
    // Which power of two the bucket lies in, counted from the first that has buckets of its own.
    let power = (bucket >> GROUPING_POWER).saturating_sub(1);
    let next = bucket - (power << GROUPING_POWER) + 1;
    ((next as u64) << power) - 1
}

/// Times measured by one shard.
///
/// Why not a `Histogram` of the crate of this name: it does not tell which buckets have changed, so
/// a shard would store all of them in each turn. And the timers of a turn mostly have one lateness,
/// so a time that falls into the bucket of the time before costs a comparison and two additions.
/// What is left of the crate then is [`end_of`] and the quantiles, for seven packages and the time
/// that it takes to build them.
#[derive(Debug)]
pub(crate) struct Recorder {
    buckets: Box<[u64; BUCKETS]>,
    sum: u64,
    /// The shortest time of the last time's bucket, and how many times fall into the bucket; 0 of
    /// them if there was no time since the buckets were published.
    first: u64,
    width: u64,
    /// Times of that bucket that are not in `buckets` yet.
    run: u64,
    /// One bit for each bucket, set if it has changed since it was published.
    changed: [u64; WORDS],
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self {
            buckets: Box::new([0; BUCKETS]),
            sum: 0,
            first: 0,
            width: 0,
            run: 0,
            changed: [0; WORDS],
        }
    }

    #[inline]
    pub(crate) fn record(&mut self, nanos: u64) {
        if nanos.wrapping_sub(self.first) < self.width {
            self.run += 1;
            self.sum = self.sum.saturating_add(nanos);
        } else {
            self.record_other(nanos);
        }
    }

    /// Records a time of another bucket than the time before.
    #[inline(never)]
    fn record_other(&mut self, nanos: u64) {
        self.end_run();
        let nanos = nanos.min((1 << MAX_VALUE_POWER) - 1);
        let power = (nanos | (1 << GROUPING_POWER)).ilog2() - u32::from(GROUPING_POWER);
        (self.first, self.width) = (nanos >> power << power, 1 << power);
        self.run = 1;
        self.sum = self.sum.saturating_add(nanos);
        let bucket = bucket_of(nanos);
        self.changed[bucket / u64::BITS as usize] |= 1 << (bucket % u64::BITS as usize);
    }

    /// Adds the times of the last bucket to it.
    fn end_run(&mut self) {
        if self.run > 0 {
            self.buckets[bucket_of(self.first)] += std::mem::take(&mut self.run);
        }
        self.width = 0;
    }
}

#[derive(Debug)]
pub(super) struct PublishedTimes {
    buckets: Box<[AtomicU64; BUCKETS]>,
    sum: AtomicU64,
}

impl PublishedTimes {
    pub(super) fn new() -> Self {
        let buckets = Box::new(std::array::from_fn(|_| AtomicU64::new(0)));
        Self { buckets, sum: AtomicU64::new(0) }
    }

    /// Stores the buckets that have changed.
    #[inline]
    pub(super) fn store(&self, recorder: &mut Recorder) {
        if recorder.changed != [0; WORDS] {
            self.store_changed(recorder);
        }
    }

    #[inline(never)]
    fn store_changed(&self, recorder: &mut Recorder) {
        recorder.end_run();
        for (word, changed) in recorder.changed.iter_mut().enumerate() {
            while *changed != 0 {
                let bucket = word * u64::BITS as usize + changed.trailing_zeros() as usize;
                *changed &= *changed - 1;
                let published = &self.buckets[bucket];
                published.store(recorder.buckets[bucket], Ordering::Relaxed);
            }
        }
        self.sum.store(recorder.sum, Ordering::Relaxed);
    }

    pub(super) fn load(&self) -> Times {
        let counts = self.buckets.iter().map(|count| count.load(Ordering::Relaxed));
        Times::new(counts, self.sum.load(Ordering::Relaxed))
    }
}

/// How a measured time was distributed, in nanoseconds.
///
/// The percentile and the longest time are upper ends of buckets a quarter of a power of two wide:
/// too long by a quarter at most.
///
/// ```
/// # use corewheel::TimerService;
/// # let service = TimerService::builder().shards(1).start_attached_with::<u64>()?;
/// let lateness = service.stats().shards.remove(0).lateness;
/// println!("p99 {} ns, at most {} ns", lateness.p99_ns, lateness.max_ns);
/// let in_buckets: u64 = lateness.buckets.iter().map(|(_up_to_ns, count)| count).sum();
/// assert_eq!(in_buckets, lateness.count);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Times {
    /// The number of times that were measured.
    pub count: u64,
    /// The sum of all times.
    pub sum_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The longest time.
    pub max_ns: u64,
    /// The buckets that are not empty, from the shortest times to the longest: the longest time
    /// that the bucket counts, in nanoseconds, and the number of times in it.
    pub buckets: Vec<(u64, u64)>,
}

impl Times {
    /// The times by the counts of all buckets in their order.
    fn new(counts: impl Iterator<Item = u64>, sum_ns: u64) -> Self {
        let buckets: Vec<(u64, u64)> = counts
            .enumerate()
            .filter(|(_, count)| *count > 0)
            .map(|(bucket, count)| (end_of(bucket), count))
            .collect();
        let count: u64 = buckets.iter().map(|(_, count)| count).sum();
        // The bucket in which the time lies that 99 of a hundred do not exceed.
        let (rank, mut seen) = ((u128::from(count) * 99).div_ceil(100), 0);
        let p99 = buckets.iter().find(|(_, count)| {
            seen += u128::from(*count);
            seen >= rank
        });
        Self {
            count,
            sum_ns,
            p99_ns: p99.map_or(0, |(up_to, _)| *up_to),
            max_ns: buckets.last().map_or(0, |(up_to, _)| *up_to),
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use histogram::Histogram;

    use super::*;

    #[test]
    fn bucket_of_each_time_is_that_of_the_histogram() {
        let mut histogram = Histogram::new(GROUPING_POWER, MAX_VALUE_POWER).unwrap();
        let mut recorder = Recorder::new();
        assert_eq!(histogram.as_slice().len(), BUCKETS);
        for power in 0..MAX_VALUE_POWER {
            for step in 0..16 {
                let nanos = (1 << power) + (step << power) / 16;
                histogram.increment(nanos - 1).unwrap();
                recorder.record(nanos - 1);
            }
        }
        recorder.end_run();
        assert_eq!(histogram.as_slice(), &*recorder.buckets);
        let ends: Vec<_> = histogram.iter().map(|bucket| bucket.end()).collect();
        assert_eq!(ends, (0..BUCKETS).map(end_of).collect::<Vec<_>>());
    }

    #[test]
    fn percentile_is_that_of_the_sorted_times() {
        let mut rng = fastrand::Rng::with_seed(7);
        for round in 0..2_000 {
            let mut recorder = Recorder::new();
            let length = rng.usize(..=if round % 50 == 0 { 5_000 } else { 30 });
            let time = || rng.u64(..) >> rng.u32(24..64);
            let mut times: Vec<u64> = std::iter::repeat_with(time).take(length).collect();
            for nanos in &times {
                recorder.record(*nanos);
            }
            recorder.end_run();
            times.sort_unstable();
            let told = Times::new(recorder.buckets.iter().copied(), recorder.sum);
            let rank = (length * 99).div_ceil(100).max(1);
            let p99 = times.get(rank - 1).map_or(0, |nanos| end_of(bucket_of(*nanos)));
            assert_eq!(told.p99_ns, p99, "{times:?}");
            let longest = times.last().map_or(0, |nanos| end_of(bucket_of(*nanos)));
            assert_eq!((told.count, told.max_ns), (length as u64, longest));
        }
    }

    #[test]
    fn times_of_several_turns_are_all_published() {
        let (published, mut recorder) = (PublishedTimes::new(), Recorder::new());
        for nanos in [0, 7, 7, 1_000, 1 << 39, u64::MAX] {
            recorder.record(nanos);
            published.store(&mut recorder);
        }
        let times = published.load();
        assert_eq!(times, Times::new(recorder.buckets.iter().copied(), recorder.sum));
        assert_eq!(times.count, 6);
    }

    #[test]
    fn quantile_is_never_too_short() {
        let mut recorder = Recorder::new();
        for nanos in 0..10_000 {
            recorder.record(nanos);
        }
        recorder.end_run();
        let times = Times::new(recorder.buckets.iter().copied(), recorder.sum);
        assert!((9_900..=12_500).contains(&times.p99_ns), "{}", times.p99_ns);
        assert_eq!(times.count, 10_000);
    }
}

//! The statistics of all shards together, for metrics that do not tell shards apart.
//!
//! Counts add up by their kinds, and histograms by their buckets.

use super::{ClassStats, ShardStats, Times};

impl ShardStats {
    /// The statistics of several shards of a service as those of one; `None` if there are none.
    /// Counts add up as their rows say, and histograms by their buckets,
    /// without quantiles. What is no count is that of the first shard.
    ///
    /// ```
    /// use corewheel::TimerService;
    /// use corewheel::stats::ShardStats;
    ///
    /// let service = TimerService::builder().shards(2).start_attached()?;
    /// let sum = ShardStats::sum(&service.stats().shards).expect("it has shards");
    /// assert_eq!(sum.counts.pending, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sum(shards: &[Self]) -> Option<Self> {
        let (first, others) = shards.split_first()?;
        let mut sum = first.clone();
        for shard in others {
            sum.counts.merge(&shard.counts);
            add(&mut sum.lateness, &shard.lateness);
            add(&mut sum.ring_delay, &shard.ring_delay);
            add(&mut sum.turn_time, &shard.turn_time);
            add(&mut sum.late_parts.arrival, &shard.late_parts.arrival);
            add(&mut sum.late_parts.poll_delay, &shard.late_parts.poll_delay);
            add(&mut sum.late_parts.handlers, &shard.late_parts.handlers);
            add(&mut sum.late_parts.backlog, &shard.late_parts.backlog);
            sum.overdue_ns = sum.overdue_ns.max(shard.overdue_ns);
            sum.turn_ns = sum.turn_ns.max(shard.turn_ns);
            sum.memory_bytes += shard.memory_bytes;
            for (name, value) in &shard.gauges {
                let sum = sum.gauges.entry(name).or_insert(0);
                *sum = sum.saturating_add(*value);
            }
            sum.thread_id = None;
            add_known(&mut sum.thread_ran_ns, shard.thread_ran_ns);
            add_known(&mut sum.thread_waited_ns, shard.thread_waited_ns);
        }
        sum.classes = ClassStats::sum(shards.iter().map(|shard| &*shard.classes));
        Some(sum)
    }
}

/// Adds the count, the sum and the buckets, which are all that a histogram of the metrics has.
fn add(sum: &mut Times, other: &Times) {
    sum.count += other.count;
    sum.sum_ns = sum.sum_ns.saturating_add(other.sum_ns);
    let buckets = &mut sum.buckets;
    for (up_to, count) in &other.buckets {
        match buckets.binary_search_by_key(up_to, |(up_to, _)| *up_to) {
            Ok(at) => buckets[at].1 += count,
            Err(at) => buckets.insert(at, (*up_to, *count)),
        }
    }
}

/// Adds a time that the system may not say.
fn add_known(sum: &mut Option<u64>, more: Option<u64>) {
    if let Some(more) = more {
        *sum = Some(sum.unwrap_or(0) + more);
    }
}

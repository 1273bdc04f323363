//! The statistics of all shards together, for metrics without a label of the shard.
//!
//! Counts add up by their kinds, and histograms by their buckets.

use std::collections::BTreeMap;

use crate::stats::{Bucket, ClassStats, Forecast, ShardStats, ThreadTimes, Times};

/// The sum of the shards; `None` if there are none.
pub(super) fn sum_of(shards: &[ShardStats]) -> Option<ShardStats> {
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
        add_forecast(&mut sum.forecast, shard.forecast.as_ref());
        if let Some(ThreadTimes { ran_ns, waited_ns, .. }) = shard.thread {
            let thread = sum.thread.get_or_insert(ThreadTimes { ran_ns: 0, waited_ns: 0 });
            thread.ran_ns += ran_ns;
            thread.waited_ns += waited_ns;
        }
    }
    sum.classes = ClassStats::sum(shards.iter().map(|shard| &*shard.classes));
    Some(sum)
}

/// Adds the count, the sum and the buckets, which are all that a histogram of the metrics has.
fn add(sum: &mut Times, other: &Times) {
    sum.count += other.count;
    sum.sum_ns = sum.sum_ns.saturating_add(other.sum_ns);
    let mut buckets = BTreeMap::new();
    for bucket in sum.buckets.iter().chain(&other.buckets) {
        *buckets.entry(bucket.up_to_ns).or_insert(0) += bucket.count;
    }
    let bucket = |(up_to_ns, count)| Bucket { up_to_ns, count };
    sum.buckets = buckets.into_iter().map(bucket).collect();
}

/// Adds the counts of a shard's forecast. The sum is as old as the oldest of them, and its cost is
/// that of all shards.
fn add_forecast(sum: &mut Option<Forecast>, other: Option<&Forecast>) {
    let Some(other) = other else { return };
    let Some(sum) = sum else {
        *sum = Some(other.clone());
        return;
    };
    for (span, other) in sum.spans.iter_mut().zip(&other.spans) {
        span.timers += other.timers;
        span.uncertain += other.uncertain;
    }
    sum.at_ns = sum.at_ns.min(other.at_ns);
    sum.counted += other.counted;
    sum.not_counted += other.not_counted;
    sum.stale += other.stale;
    sum.took_ns += other.took_ns;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TimerService;

    #[test]
    fn sum_of_shards_has_the_greatest_of_each_maximum() {
        let service = TimerService::builder().shards(2).start_attached_with::<u8>().unwrap();
        let mut shards = service.stats().shards;
        for (shard, value) in shards.iter_mut().zip([5, 7]) {
            let counts = &mut shard.counts;
            (counts.fired, counts.pending, counts.nurseries) = (value, value, value);
            (counts.pending_max, counts.lane_depth_max, counts.exhausted_row) = (value, value, 1);
            (counts.stall_last_ns, counts.overrun_last_ns) = (12 - value, value);
        }
        let counts = sum_of(&shards).unwrap().counts;
        assert_eq!((counts.fired, counts.pending, counts.nurseries), (12, 12, 12));
        assert_eq!((counts.pending_max, counts.lane_depth_max, counts.exhausted_row), (7, 7, 1));
        assert_eq!((counts.stall_last_ns, counts.overrun_last_ns), (7, 7));
    }
}

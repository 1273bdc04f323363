//! The statistics as `OpenMetrics` text.
//!
//! A collector that reads the service at each scrape, not a registry of live metrics: the shards
//! publish their counts already, and a second set of counters would be a second truth. The families
//! come from [`ShardCounts::iter`], so that a new count appears here by itself.
//!
//! The histograms have fixed bounds, the powers of two of nanoseconds from a microsecond to a
//! minute, so that they add up over shards and over time. They are bounds of the shards' own
//! buckets too, so that nothing is guessed: a count is exact but for times that equal a bound to
//! the nanosecond, which count with the next one.

use std::fmt;
use std::ops::RangeInclusive;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::stats::{
    ClassLateness, ClassStats, ServiceStats, ShardCounts, ShardStats, StatsSource, Times,
};
use crate::values::state::ShardState;

/// The gauges: counts that may also decrease, and a maximum. Each other count only increases.
const GAUGES: [&str; 8] = [
    "pending",
    "pending_max",
    "granted",
    "capacity",
    "lanes",
    "lane_depth",
    "scaled_pending",
    "connections",
];

/// The powers of two that bound the histograms, in nanoseconds: 1 µs to 69 s.
const BOUNDS: RangeInclusive<u32> = 10..=36;

/// A registry that reads the service whenever it is encoded.
pub(super) fn registry(source: StatsSource) -> Registry {
    let mut registry = Registry::with_prefix("corewheel");
    registry.register_collector(Box::new(ServiceCollector(source)));
    registry
}

#[derive(Debug)]
struct ServiceCollector(StatsSource);

impl Collector for ServiceCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let stats = self.0.read();
        encode_service(&mut encoder, &stats)?;
        encode_states(&mut encoder, &stats.shards)?;
        encode_scales(&mut encoder, &stats.shards)?;
        encode_counts(&mut encoder, &stats.shards)?;
        encode_classes(&mut encoder, &stats.shards)?;
        let lateness = "How long after their deadline timers were delivered";
        encode_times(&mut encoder, "lateness", lateness, &stats.shards, |shard| &shard.lateness)?;
        let delay = "How long timers from other threads were under way to the shard";
        encode_times(&mut encoder, "ring_delay", delay, &stats.shards, |shard| &shard.ring_delay)
    }
}

fn encode_service(encoder: &mut DescriptorEncoder<'_>, stats: &ServiceStats) -> fmt::Result {
    let labels = [("name", stats.name.as_str()), ("runtime", stats.runtime)];
    encoder
        .encode_descriptor("service", "What the service is", None, MetricType::Info)?
        .encode_info(&labels)?;
    let gauges = [
        ("uptime", "How long the service has been up", stats.uptime.as_secs_f64()),
        ("tick", "The length of a tick", seconds(stats.tick_ns)),
        (
            "lateness_bound",
            "The bound beyond which a delivery counts as late",
            seconds(stats.lateness_bound_ns),
        ),
    ];
    for (name, help, value) in gauges {
        let unit = Some(&Unit::Seconds);
        let metric = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)?;
    }
    Ok(())
}

fn encode_states(encoder: &mut DescriptorEncoder<'_>, shards: &[ShardStats]) -> fmt::Result {
    let help = "Whether the shard runs";
    let mut family = encoder.encode_descriptor("running", help, None, MetricType::Gauge)?;
    for shard in shards {
        let running = u64::from(shard.state == ShardState::Running);
        ConstGauge::new(running).encode(family.encode_family(&label(shard))?)?;
    }
    Ok(())
}

fn encode_scales(encoder: &mut DescriptorEncoder<'_>, shards: &[ShardStats]) -> fmt::Result {
    let help = "By what scaled timeouts are scaled, 0 for their minimum to 1 for their maximum";
    let mut family = encoder.encode_descriptor("scale", help, None, MetricType::Gauge)?;
    for shard in shards {
        ConstGauge::new(shard.scale.get()).encode(family.encode_family(&label(shard))?)?;
    }
    Ok(())
}

fn encode_counts(encoder: &mut DescriptorEncoder<'_>, shards: &[ShardStats]) -> fmt::Result {
    // One family needs the same count of every shard, so the iterators advance together.
    let mut columns: Vec<_> = shards.iter().map(|shard| shard.counts.iter()).collect();
    let names = ShardCounts::default();
    for ((name, _), help) in names.iter().zip(ShardCounts::descriptions()) {
        let is_gauge = GAUGES.contains(&name);
        let kind = if is_gauge { MetricType::Gauge } else { MetricType::Counter };
        let help = help.trim().trim_end_matches('.');
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (shard, column) in shards.iter().zip(&mut columns) {
            let value = column.next().map_or(0, |(_, value)| value);
            let labels = label(shard);
            let metric = family.encode_family(&labels)?;
            if is_gauge {
                ConstGauge::new(value).encode(metric)?;
            } else {
                ConstCounter::new(value).encode(metric)?;
            }
        }
    }
    Ok(())
}

/// The counts of each class as families of their own, `class_fired` beside `fired`; none of them
/// where the service has no classes.
fn encode_classes(encoder: &mut DescriptorEncoder<'_>, shards: &[ShardStats]) -> fmt::Result {
    let of_shard = |shard| move |class| (class_label(shard, class), class);
    let rows: Vec<_> = shards.iter().flat_map(|s| s.classes.iter().map(of_shard(s))).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let mut columns: Vec<_> = rows.iter().map(|(_, class)| class.iter()).collect();
    let names = ClassStats::default();
    for ((name, _), help) in names.iter().zip(ClassStats::descriptions()) {
        let is_gauge = name == "pending";
        let kind = if is_gauge { MetricType::Gauge } else { MetricType::Counter };
        let help = help.trim().trim_end_matches('.');
        let name = format!("class_{name}");
        let mut family = encoder.encode_descriptor(&name, help, None, kind)?;
        for ((labels, _), column) in rows.iter().zip(&mut columns) {
            let value = column.next().map_or(0, |(_, value)| value);
            let metric = family.encode_family(labels)?;
            if is_gauge {
                ConstGauge::new(value).encode(metric)?;
            } else {
                ConstCounter::new(value).encode(metric)?;
            }
        }
    }
    let help = "The age of the oldest timer of the class that is pending; 0 if there is none";
    let unit = Some(&Unit::Seconds);
    let mut family = encoder.encode_descriptor("class_oldest", help, unit, MetricType::Gauge)?;
    for (labels, class) in &rows {
        let oldest = class.oldest.unwrap_or_default().as_secs_f64();
        ConstGauge::new(oldest).encode(family.encode_family(labels)?)?;
    }
    // A histogram of one bucket: its sum over its count is the mean.
    let help = "How long after their deadline timers of the class were delivered";
    let kind = MetricType::Histogram;
    let mut family = encoder.encode_descriptor("class_lateness", help, unit, kind)?;
    for (labels, class) in &rows {
        let ClassLateness { count, sum_ns, .. } = class.lateness;
        let buckets = [(f64::INFINITY, count)];
        let metric = &mut family.encode_family(labels)?;
        metric.encode_histogram::<NoLabelSet>(seconds(sum_ns), count, &buckets, None)?;
    }
    let help = "The greatest lateness of a timer of the class";
    let kind = MetricType::Gauge;
    let mut family = encoder.encode_descriptor("class_lateness_max", help, unit, kind)?;
    for (labels, class) in &rows {
        let greatest = seconds(class.lateness.max_ns);
        ConstGauge::new(greatest).encode(family.encode_family(labels)?)?;
    }
    Ok(())
}

fn encode_times(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    shards: &[ShardStats],
    times: impl Fn(&ShardStats) -> &Times,
) -> fmt::Result {
    let unit = Some(&Unit::Seconds);
    let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Histogram)?;
    for shard in shards {
        let times = times(shard);
        family.encode_family(&label(shard))?.encode_histogram::<NoLabelSet>(
            seconds(times.sum_ns),
            times.count,
            &buckets(times),
            None,
        )?;
    }
    Ok(())
}

/// How many times lie below each bound and not below the one before it.
fn buckets(times: &Times) -> Vec<(f64, u64)> {
    let mut measured = times.buckets.iter().peekable();
    let mut take_below = |bound: u64| {
        let mut count = 0;
        while let Some(bucket) = measured.next_if(|bucket| bucket.up_to_ns < bound) {
            count += bucket.count;
        }
        count
    };
    let mut buckets: Vec<_> =
        BOUNDS.map(|power| (seconds(1 << power), take_below(1 << power))).collect();
    buckets.push((f64::INFINITY, take_below(u64::MAX)));
    buckets
}

fn label(shard: &ShardStats) -> [(&'static str, u64); 1] {
    [("shard", u64::from(shard.shard.number()))]
}

fn class_label(shard: &ShardStats, class: &ClassStats) -> [(&'static str, String); 2] {
    [("shard", shard.shard.to_string()), ("class", class.class.to_owned())]
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Bucket;

    fn check(up_to_ns: u64, expected: f64) {
        let times =
            Times { count: 1, buckets: vec![Bucket { up_to_ns, count: 1 }], ..<_>::default() };
        let found = buckets(&times).into_iter().find(|(_, count)| *count > 0);
        assert_eq!(found, Some((expected, 1)), "{up_to_ns} ns");
    }

    #[test]
    fn time_counts_under_the_next_bound() {
        check(0, 1.024e-6);
        check(1_023, 1.024e-6);
        check(1_279, 2.048e-6);
        check((1 << 36) - 1, seconds(1 << 36));
        check((5 << 34) - 1, f64::INFINITY);
        check((1 << 40) - 1, f64::INFINITY);
    }

    #[test]
    fn each_gauge_is_a_count() {
        for gauge in GAUGES {
            assert!(ShardCounts::default().iter().any(|(name, _)| name == gauge), "{gauge}");
        }
    }
}

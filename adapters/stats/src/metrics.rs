//! The statistics as `OpenMetrics` text.
//!
//! The families come from the rows of the counts, so that a new count appears here by itself;
//! counts that differ in one respect are one family with a label.
//!
//! The histograms have fixed bounds, the powers of two of nanoseconds from a microsecond to a
//! minute, so that they add up over shards and over time. They are bounds of the shards' own
//! buckets too, so that nothing is guessed: a count is exact but for times that equal a bound to
//! the nanosecond, which count with the next one.

use std::fmt;
use std::ops::RangeInclusive;

use corewheel::stats::{
    ClassStats, CountRow, ServiceStats, ShardCounts, ShardState, ShardStats, Times, WarningKind,
};
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeMetric, MetricEncoder,
    NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// A family that several counts share, told apart by a label.
struct Shared {
    family: &'static str,
    help: &'static str,
    label: &'static str,
    /// The names of the counts, with the values of the label.
    counts: &'static [(&'static str, &'static str)],
}

const SHARED: [Shared; 3] = [
    Shared {
        family: "scheduled",
        help: "Timers scheduled, on the shard's own core or received from other threads",
        label: "origin",
        counts: &[("scheduled_local", "local"), ("scheduled_remote", "remote")],
    },
    Shared {
        family: "resets",
        help: "Resets to a later deadline, by one store, or to an earlier one, by a new entry",
        label: "kind",
        counts: &[("reset_lazy", "later"), ("reset_relinked", "earlier")],
    },
    Shared {
        family: "wakeups",
        help: "Sends of clients that woke the shard, or that needed no wake-up",
        label: "outcome",
        counts: &[("wakeups_made", "made"), ("wakeups_saved", "saved")],
    },
];

/// The powers of two that bound the histograms, in nanoseconds: 1 µs to 69 s.
const BOUNDS: RangeInclusive<u32> = 10..=36;

type Labels = Vec<(&'static str, String)>;

/// The statistics of a shard, or of all shards together, with their labels.
struct Row<'a> {
    labels: Labels,
    service: &'a ServiceStats,
    stats: &'a ShardStats,
    /// The number of the row's shards that run.
    running: u64,
    /// Whether the row is one shard, and not the sum of them.
    is_shard: bool,
}

impl Row<'_> {
    fn with(&self, label: &'static str, value: impl ToString) -> Labels {
        with(&self.labels, label, value)
    }
}

fn with(labels: &Labels, label: &'static str, value: impl ToString) -> Labels {
    [labels.as_slice(), &[(label, value.to_string())]].concat()
}

fn label_of(service: &ServiceStats) -> Labels {
    vec![("service", service.name.clone())]
}

/// Encodes the statistics of services whose names differ, with a label `shard` or with the sum of
/// the shards.
pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    services: &[ServiceStats],
    by_shard: bool,
) -> fmt::Result {
    let sum = |service: &ServiceStats| {
        if by_shard { None } else { ShardStats::sum(&service.shards) }
    };
    let sums: Vec<Option<ShardStats>> = services.iter().map(sum).collect();
    let runs = |shard: &&ShardStats| shard.state == ShardState::Running;
    let mut rows = Vec::new();
    for (service, sum) in services.iter().zip(&sums) {
        if let Some(stats) = sum {
            let labels = label_of(service);
            let running = service.shards.iter().filter(runs).count() as u64;
            rows.push(Row { labels, service, stats, running, is_shard: false });
            continue;
        }
        rows.extend(service.shards.iter().map(|stats| {
            let labels = with(&label_of(service), "shard", stats.shard);
            let running = u64::from(runs(&stats));
            Row { labels, service, stats, running, is_shard: true }
        }));
    }
    encode_services(encoder, services)?;
    encode_state(encoder, &rows)?;
    encode_warnings(encoder, &rows)?;
    encode_counts(encoder, &rows)?;
    encode_classes(encoder, &rows)?;
    encode_deadlines(encoder, services)?;
    encode_histograms(encoder, &rows)
}

/// A value of a sample.
enum Value {
    Count(u64),
    CountedSeconds(f64),
    Gauge(u64),
    Ratio(f64),
}

impl Value {
    fn encode(self, metric: MetricEncoder<'_>) -> fmt::Result {
        fn counter(value: impl EncodeCounterValue, metric: MetricEncoder<'_>) -> fmt::Result {
            ConstCounter::new(value).encode(metric)
        }
        fn gauge(value: impl EncodeGaugeValue, metric: MetricEncoder<'_>) -> fmt::Result {
            ConstGauge::new(value).encode(metric)
        }
        match self {
            Self::Count(value) => counter(value, metric),
            Self::CountedSeconds(value) => counter(value, metric),
            Self::Gauge(value) => gauge(value, metric),
            Self::Ratio(value) => gauge(value, metric),
        }
    }
}

/// The name and the meaning of a family. One whose unit is seconds has its name end with them.
struct Family<'a> {
    name: &'a str,
    help: &'a str,
    in_seconds: bool,
    kind: MetricType,
}

impl<'a> Family<'a> {
    fn gauge(name: &'a str, help: &'a str) -> Self {
        Self { name, help, in_seconds: false, kind: MetricType::Gauge }
    }

    fn counter(name: &'a str, help: &'a str) -> Self {
        Self { kind: MetricType::Counter, ..Self::gauge(name, help) }
    }

    fn in_seconds(self) -> Self {
        Self { in_seconds: true, ..self }
    }

    /// Writes the family, if it has any sample.
    fn encode(
        self,
        encoder: &mut DescriptorEncoder<'_>,
        samples: impl IntoIterator<Item = (Labels, Value)>,
    ) -> fmt::Result {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let unit = self.in_seconds.then_some(&Unit::Seconds);
        let mut family = encoder.encode_descriptor(self.name, self.help, unit, self.kind)?;
        for (labels, value) in samples {
            value.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn encode_services(encoder: &mut DescriptorEncoder<'_>, services: &[ServiceStats]) -> fmt::Result {
    let mut info =
        encoder.encode_descriptor("service", "What the service is", None, MetricType::Info)?;
    for service in services {
        let labels = [("runtime", service.runtime), ("version", service.version)];
        // The labels of the info come before those of its family.
        info.encode_family(&labels)?.encode_info(&label_of(service))?;
    }
    let mut gauge = |family: Family<'_>, value: &dyn Fn(&ServiceStats) -> Value| {
        family.encode(encoder, services.iter().map(|one| (label_of(one), value(one))))
    };
    gauge(Family::gauge("uptime", "How long the service has been up").in_seconds(), &|service| {
        Value::Ratio(service.uptime.as_secs_f64())
    })?;
    gauge(Family::gauge("tick", "The length of a tick").in_seconds(), &|service| {
        Value::Ratio(seconds(service.tick_ns))
    })?;
    let help = "The bound beyond which a delivery counts as late";
    gauge(Family::gauge("lateness_bound", help).in_seconds(), &|service| {
        Value::Ratio(seconds(service.lateness_bound_ns))
    })?;
    let help = "What an activity stamp adds at most to an idle limit of a connection on a shard";
    gauge(Family::gauge("activity_stamp", help).in_seconds(), &|service| {
        Value::Ratio(seconds(service.activity_stamp_ns))
    })?;
    gauge(Family::gauge("cores", "The processors that the process may use"), &|service| {
        Value::Gauge(service.cores as u64)
    })
}

/// What a shard is and does at the moment.
fn encode_state(encoder: &mut DescriptorEncoder<'_>, rows: &[Row<'_>]) -> fmt::Result {
    let running = rows.iter().map(|row| (row.labels.clone(), Value::Gauge(row.running)));
    Family::gauge("running", "Shards that run: 0 or 1 of a shard").encode(encoder, running)?;
    let mut gauge = |family: Family<'_>, value: &dyn Fn(&ShardStats) -> Value| {
        family.encode(encoder, rows.iter().map(|row| (row.labels.clone(), value(row.stats))))
    };
    let help = "By what scaled timeouts are scaled, 0 for their minimum to 1 for their maximum";
    gauge(Family::gauge("scale", help), &|shard| Value::Ratio(shard.scale.get()))?;
    let help = "How long a turn has been due and has not ended";
    gauge(Family::gauge("overdue", help).in_seconds(), &|shard| {
        Value::Ratio(seconds(shard.overdue_ns))
    })?;
    let help = "How long the turn that runs now has been running";
    gauge(Family::gauge("turn_running", help).in_seconds(), &|shard| {
        Value::Ratio(seconds(shard.turn_ns.unwrap_or(0)))
    })?;
    let help = "The memory that the shard's timers have touched, in bytes";
    gauge(Family::gauge("memory_bytes", help), &|shard| Value::Gauge(shard.memory_bytes))?;
    let parts = rows.iter().flat_map(|row| {
        let gauges = row.stats.gauges.iter();
        gauges.map(|(name, value)| (row.with("gauge", name), Value::Gauge(*value)))
    });
    Family::gauge("part", "The gauges of parts of the shard").encode(encoder, parts)?;
    let mut threads = |family: Family<'_>, ns: fn(&ShardStats) -> Option<u64>| {
        let known = rows.iter().filter_map(|row| Some((row.labels.clone(), ns(row.stats)?)));
        let times = known.map(|(labels, ns)| (labels, Value::CountedSeconds(seconds(ns))));
        family.in_seconds().encode(encoder, times)
    };
    let ran = Family::counter("thread_ran", "How long the shard's thread has run");
    threads(ran, |shard| shard.thread_ran_ns)?;
    let help = "How long the shard's thread was ready and waited";
    threads(Family::counter("thread_waited", help), |shard| shard.thread_waited_ns)
}

/// The count of each warning of the closed list, and whether it is active.
fn encode_warnings(encoder: &mut DescriptorEncoder<'_>, rows: &[Row<'_>]) -> fmt::Result {
    let of = |row: &Row<'_>, kind: WarningKind| {
        let is_of = |shard| !row.is_shard || shard == row.stats.shard;
        let found = row.service.warnings.iter().filter(|one| one.kind == kind && is_of(one.shard));
        found.fold((0, false), |(sum, any), one| (sum + one.count, any || one.is_active))
    };
    let all = || rows.iter().flat_map(|row| WarningKind::ALL.map(|kind| (row, kind)));
    Family::counter("warnings", "How often each warning has occurred").encode(
        encoder,
        all().map(|(row, kind)| (row.with("id", kind), Value::Count(of(row, kind).0))),
    )?;
    Family::gauge("warning_active", "Whether the warning is active").encode(
        encoder,
        all().map(|(row, kind)| (row.with("id", kind), Value::Gauge(u64::from(of(row, kind).1)))),
    )
}

/// The sample of a count that has a family of its own, or shares one.
fn value_of<C>(row: &CountRow<C>, counts: &C) -> Value {
    let value = (row.value)(counts);
    match (row.is_gauge(), row.name.ends_with("_ns")) {
        (true, true) => Value::Ratio(seconds(value)),
        (true, false) => Value::Gauge(value),
        (false, true) => Value::CountedSeconds(seconds(value)),
        (false, false) => Value::Count(value),
    }
}

fn encode_counts(encoder: &mut DescriptorEncoder<'_>, rows: &[Row<'_>]) -> fmt::Result {
    let mut done: Vec<&str> = Vec::new();
    for count in ShardCounts::rows() {
        let is_of = |one: &&Shared| one.counts.iter().any(|(name, _)| *name == count.name);
        if let Some(Shared { family, help, label, counts }) = SHARED.iter().find(is_of) {
            if !done.contains(family) {
                done.push(family);
                let samples = rows.iter().flat_map(|row| {
                    ShardCounts::rows().filter_map(move |count| {
                        let (_, value) = counts.iter().find(|(name, _)| *name == count.name)?;
                        Some((row.with(label, value), value_of(&count, &row.stats.counts)))
                    })
                });
                Family::counter(family, help).encode(encoder, samples)?;
            }
            continue;
        }
        let samples =
            rows.iter().map(|row| (row.labels.clone(), value_of(&count, &row.stats.counts)));
        encode_row(encoder, "", &count, samples)?;
    }
    Ok(())
}

/// A row as a family of its own, whose name begins with `prefix`.
fn encode_row<C>(
    encoder: &mut DescriptorEncoder<'_>,
    prefix: &str,
    row: &CountRow<C>,
    samples: impl IntoIterator<Item = (Labels, Value)>,
) -> fmt::Result {
    let help = row.about.trim().trim_end_matches('.').replace(", in nanoseconds", "");
    let (stem, in_seconds) = match row.name.strip_suffix("_ns") {
        Some(stem) => (stem, true),
        None => (row.name, false),
    };
    let kind = if row.is_gauge() { MetricType::Gauge } else { MetricType::Counter };
    let name = format!("{prefix}{stem}");
    Family { name: &name, help: &help, in_seconds, kind }.encode(encoder, samples)
}

/// The counts of each class as families of their own, `class_fired` beside `fired`; none of them
/// where the service has no classes.
fn encode_classes(encoder: &mut DescriptorEncoder<'_>, rows: &[Row<'_>]) -> fmt::Result {
    let classes = rows.iter().flat_map(|row| {
        row.stats.classes.iter().map(move |class| (row.with("class", class.class), class))
    });
    let rows: Vec<(Labels, &ClassStats)> = classes.collect();
    for count in ClassStats::rows() {
        let samples = rows.iter().map(|(labels, class)| (labels.clone(), value_of(&count, class)));
        encode_row(encoder, "class_", &count, samples)?;
    }
    let help = "The age of the oldest timer of the class that is pending; 0 if there is none";
    Family::gauge("class_oldest", help).in_seconds().encode(
        encoder,
        rows.iter().map(|(labels, class)| {
            (labels.clone(), Value::Ratio(class.oldest.unwrap_or_default().as_secs_f64()))
        }),
    )
}

/// The deadlines of connections. All kinds are there from the start, so that a rate has the first.
fn encode_deadlines(encoder: &mut DescriptorEncoder<'_>, services: &[ServiceStats]) -> fmt::Result {
    let sample = |service: &ServiceStats, label, value: &str, count| {
        (with(&label_of(service), label, value), Value::Count(count))
    };
    let help = "Deadlines of connections that have come, by their kind";
    let samples = services.iter().flat_map(|service| {
        service.deadlines.iter().map(|of| sample(service, "kind", of.kind, of.count))
    });
    Family::counter("connection_deadlines", help).encode(encoder, samples)?;
    let help = "Connections that have ended, by the deadline that has ended them";
    let samples = services.iter().flat_map(|service| {
        let closed = sample(service, "by", "close", service.connections_closed);
        let ended = service.deadlines.iter().map(|of| sample(service, "by", of.kind, of.ended));
        ended.chain([closed])
    });
    Family::counter("connections_ended", help).encode(encoder, samples)
}

fn encode_histograms(encoder: &mut DescriptorEncoder<'_>, rows: &[Row<'_>]) -> fmt::Result {
    let mut one = |name, help, times: &dyn Fn(&ShardStats) -> &Times| {
        let samples = rows.iter().map(|row| (row.labels.clone(), times(row.stats)));
        encode_times(encoder, name, help, samples)
    };
    let help = "How long after their deadline timers were delivered";
    one("lateness", help, &|shard| &shard.lateness)?;
    let help = "How long timers from other threads were under way to the shard";
    one("ring_delay", help, &|shard| &shard.ring_delay)?;
    one("turn", "How long turns took", &|shard| &shard.turn_time)?;
    let help = "The parts of the lateness of timers that were delivered beyond the bound";
    let samples = rows.iter().flat_map(|row| {
        row.stats.late_parts.iter().map(move |(part, times)| (row.with("part", part), times))
    });
    encode_times(encoder, "late", help, samples)
}

fn encode_times<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl Iterator<Item = (Labels, &'a Times)>,
) -> fmt::Result {
    let unit = Some(&Unit::Seconds);
    let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Histogram)?;
    for (labels, times) in samples {
        let (sum, count) = (seconds(times.sum_ns), times.count);
        let buckets = buckets(times.buckets.iter().copied());
        let mut metric = family.encode_family(&labels)?;
        metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
    }
    Ok(())
}

/// How many times lie below each bound and not below the one before it. The buckets are given by
/// their ends, with their counts.
fn buckets(measured: impl Iterator<Item = (u64, u64)>) -> Vec<(f64, u64)> {
    let mut measured = measured.peekable();
    let mut take_below = |bound: u64| {
        let mut count = 0;
        while let Some((_, more)) = measured.next_if(|(up_to_ns, _)| *up_to_ns < bound) {
            count += more;
        }
        count
    };
    let mut buckets: Vec<_> =
        BOUNDS.map(|power| (seconds(1 << power), take_below(1 << power))).collect();
    buckets.push((f64::INFINITY, take_below(u64::MAX)));
    buckets
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(up_to_ns: u64, expected: f64) {
        let found = buckets([(up_to_ns, 1)].into_iter()).into_iter().find(|(_, count)| *count > 0);
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
    fn each_count_of_a_shared_family_is_a_sum() {
        for known in SHARED.iter().flat_map(|one| one.counts.iter().map(|(name, _)| *name)) {
            let row = ShardCounts::rows().find(|row| row.name == known);
            assert!(row.is_some_and(|row| !row.is_gauge()), "{known}");
        }
    }
}

//! The statistics as `OpenMetrics` text.
//!
//! The families come from the rows of the counts, so that a new count appears here by itself. A
//! name that ends with `_ns` there ends with `_seconds` here.
//!
//! The histograms have fixed bounds, the powers of two of nanoseconds from a microsecond to a
//! minute, so that they add up over shards and over time. They are bounds of the shards' own
//! buckets too, so that nothing is guessed: a count is exact but for times that equal a bound to
//! the nanosecond, which count with the next one.

use std::fmt;
use std::ops::RangeInclusive;

use corewheel::DeadlineKind;
use corewheel::stats::{
    ClassStats, CountRow, ServiceStats, ShardCounts, ShardState, ShardStats, Times, Warning,
    WarningKind,
};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// The powers of two that bound the histograms, in nanoseconds: 1 µs to 69 s.
const BOUNDS: RangeInclusive<u32> = 10..=36;

type Labels = Vec<(&'static str, String)>;

/// A name, a meaning and the value of a `T`, if there is one.
type Row<T> = (&'static str, &'static str, fn(&T) -> Option<f64>);

/// A name, a meaning and the times of a shard.
type Histogram = (&'static str, &'static str, fn(&ShardStats) -> &Times);

const OF_SERVICE: [Row<ServiceStats>; 5] = [
    ("uptime_seconds", "How long the service has been up", |of| Some(of.uptime.as_secs_f64())),
    ("tick_seconds", "The length of a tick", |of| Some(seconds(of.tick_ns))),
    ("lateness_bound_seconds", "The bound beyond which a delivery counts as late", |of| {
        Some(seconds(of.lateness_bound_ns))
    }),
    (
        "activity_stamp_seconds",
        "What an activity stamp adds at most to an idle limit of a connection on a shard",
        |of| Some(seconds(of.activity_stamp_ns)),
    ),
    ("cores", "The processors that the process may use", |of| Some(of.cores as f64)),
];

const OF_SHARD: [Row<ShardStats>; 5] = [
    ("running", "Whether the shard runs", |of| Some(flag(of.state == ShardState::Running))),
    (
        "scale",
        "By what scaled timeouts are scaled, 0 for their minimum to 1 for their maximum",
        |of| Some(of.scale.get()),
    ),
    ("overdue_seconds", "How long a turn has been due and has not ended", |of| {
        Some(seconds(of.overdue_ns))
    }),
    ("turn_running_seconds", "How long the turn that runs now has been running", |of| {
        Some(seconds(of.turn_ns.unwrap_or(0)))
    }),
    ("memory_bytes", "The memory that the shard's timers have touched, in bytes", |of| {
        Some(of.memory_bytes as f64)
    }),
];

/// Counters, of which the system may not tell.
const OF_THREAD: [Row<ShardStats>; 2] = [
    ("thread_ran_seconds", "How long the shard's thread has run", |of| {
        of.thread_ran_ns.map(seconds)
    }),
    ("thread_waited_seconds", "How long the shard's thread was ready and waited", |of| {
        of.thread_waited_ns.map(seconds)
    }),
];

const HISTOGRAMS: [Histogram; 3] = [
    ("lateness", "How long after their deadline timers were delivered", |shard| &shard.lateness),
    ("ring_delay", "How long timers from other threads were under way to the shard", |shard| {
        &shard.ring_delay
    }),
    ("turn", "How long turns took", |shard| &shard.turn_time),
];

/// Encodes the statistics of services whose names differ.
pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    services: &[ServiceStats],
) -> fmt::Result {
    let mut info =
        encoder.encode_descriptor("service", "What the service is", None, MetricType::Info)?;
    for service in services {
        let labels = [("runtime", service.runtime), ("version", service.version)];
        // The labels of the info come before those of its family.
        info.encode_family(&labels)?.encode_info(&label_of(service))?;
    }
    let labelled: Vec<_> = services.iter().map(|service| (label_of(service), service)).collect();
    encode_rows(encoder, MetricType::Gauge, &OF_SERVICE, &labelled)?;
    let shards = services.iter().flat_map(|service| {
        let labels = move |shard: &ShardStats| with(&label_of(service), "shard", shard.shard);
        service.shards.iter().map(move |shard| (labels(shard), shard))
    });
    let shards: Vec<(Labels, &ShardStats)> = shards.collect();
    encode_rows(encoder, MetricType::Gauge, &OF_SHARD, &shards)?;
    let parts = shards.iter().flat_map(|(labels, shard)| {
        let gauges = shard.gauges.iter();
        gauges.map(move |(name, value)| (with(labels, "gauge", name), *value as f64))
    });
    family(encoder, MetricType::Gauge, "part", "The gauges of parts of the shard", parts)?;
    encode_rows(encoder, MetricType::Counter, &OF_THREAD, &shards)?;
    encode_warnings(encoder, services)?;
    let counts = shards.iter().map(|(labels, shard)| (labels.clone(), &shard.counts));
    encode_counts(encoder, "", ShardCounts::rows(), &counts.collect::<Vec<_>>())?;
    let classes = shards.iter().flat_map(|(labels, shard)| {
        shard.classes.iter().map(move |class| (with(labels, "class", class.class), class))
    });
    let classes: Vec<(Labels, &ClassStats)> = classes.collect();
    encode_counts(encoder, "class_", ClassStats::rows(), &classes)?;
    let help = "The age of the oldest timer of the class that is pending; 0 if there is none";
    let oldest: Row<ClassStats> = ("class_oldest_seconds", help, |class| {
        Some(class.oldest.unwrap_or_default().as_secs_f64())
    });
    encode_rows(encoder, MetricType::Gauge, &[oldest], &classes)?;
    encode_deadlines(encoder, services)?;
    for (name, help, times) in HISTOGRAMS {
        let samples = shards.iter().map(|(labels, shard)| (labels.clone(), times(shard)));
        encode_times(encoder, name, help, samples)?;
    }
    let help = "The parts of the lateness of timers that were delivered beyond the bound";
    let parts = shards.iter().flat_map(|(labels, shard)| {
        shard.late_parts.iter().map(move |(part, times)| (with(labels, "part", part), times))
    });
    encode_times(encoder, "late", help, parts)
}

fn with(labels: &Labels, label: &'static str, value: impl ToString) -> Labels {
    [labels.as_slice(), &[(label, value.to_string())]].concat()
}

fn label_of(service: &ServiceStats) -> Labels {
    vec![("service", service.name.clone())]
}

fn flag(is_so: bool) -> f64 {
    f64::from(u8::from(is_so))
}

/// Writes a family, if it has any sample. Its unit is seconds if its name says so.
fn family(
    encoder: &mut DescriptorEncoder<'_>,
    kind: MetricType,
    name: &str,
    help: &str,
    samples: impl Iterator<Item = (Labels, f64)>,
) -> fmt::Result {
    let mut samples = samples.peekable();
    if samples.peek().is_none() {
        return Ok(());
    }
    // The encoder appends the unit to the name.
    let stem = name.strip_suffix("_seconds");
    let unit = stem.map(|_| &Unit::Seconds);
    let mut family = encoder.encode_descriptor(stem.unwrap_or(name), help, unit, kind)?;
    for (labels, value) in samples {
        let metric = family.encode_family(&labels)?;
        match kind {
            MetricType::Counter => ConstCounter::new(value).encode(metric)?,
            _ => ConstGauge::new(value).encode(metric)?,
        }
    }
    Ok(())
}

/// A family for each row.
fn encode_rows<T>(
    encoder: &mut DescriptorEncoder<'_>,
    kind: MetricType,
    rows: &[Row<T>],
    of: &[(Labels, &T)],
) -> fmt::Result {
    rows.iter().try_for_each(|(name, help, value)| {
        let samples = of.iter().filter_map(|(labels, one)| Some((labels.clone(), value(one)?)));
        family(encoder, kind, name, help, samples)
    })
}

/// The count of each warning of the closed list, and whether it is active.
fn encode_warnings(encoder: &mut DescriptorEncoder<'_>, services: &[ServiceStats]) -> fmt::Result {
    let mut samples = Vec::new();
    for service in services {
        let kinds = |shard: &ShardStats| WarningKind::ALL.map(|kind| (shard.shard, kind));
        for (shard, kind) in service.shards.iter().flat_map(kinds) {
            let labels = with(&with(&label_of(service), "shard", shard), "id", kind);
            let found =
                service.warnings.iter().filter(|one| one.kind == kind && one.shard == shard);
            let sum = |(count, any), one: &Warning| (count + one.count, any || one.is_active);
            samples.push((labels, found.fold((0, false), sum)));
        }
    }
    let help = "How often each warning has occurred";
    let counts = samples.iter().map(|(labels, (count, _))| (labels.clone(), *count as f64));
    family(encoder, MetricType::Counter, "warnings", help, counts)?;
    let active = samples.iter().map(|(labels, (_, active))| (labels.clone(), flag(*active)));
    family(encoder, MetricType::Gauge, "warning_active", "Whether the warning is active", active)
}

/// Each count as a family of its own, whose name begins with `prefix`.
fn encode_counts<C>(
    encoder: &mut DescriptorEncoder<'_>,
    prefix: &str,
    rows: impl Iterator<Item = CountRow<C>>,
    counted: &[(Labels, &C)],
) -> fmt::Result {
    for row in rows {
        let help = row.about.trim().trim_end_matches('.').replace(", in nanoseconds", "");
        let (name, unit) = match row.name.strip_suffix("_ns") {
            Some(stem) => (format!("{prefix}{stem}_seconds"), 1e9),
            None => (format!("{prefix}{}", row.name), 1.0),
        };
        let kind = if row.is_gauge() { MetricType::Gauge } else { MetricType::Counter };
        let samples =
            counted.iter().map(|(labels, of)| (labels.clone(), (row.value)(of) as f64 / unit));
        family(encoder, kind, &name, &help, samples)?;
    }
    Ok(())
}

/// The deadlines of connections. All kinds are there from the start, so that a rate has the first.
/// Then what the peers had of their bytes that have reached a limit of writing.
fn encode_deadlines(encoder: &mut DescriptorEncoder<'_>, services: &[ServiceStats]) -> fmt::Result {
    let (mut events, mut ended) = (Vec::new(), Vec::new());
    let (mut acknowledged, mut left) = (Vec::new(), Vec::new());
    let limits = [DeadlineKind::WriteTimeout, DeadlineKind::WriteRate].map(|kind| kind.to_string());
    for service in services {
        let of_service = label_of(service);
        for of in &service.deadlines {
            let by = with(&of_service, "by", of.kind);
            events.push((with(&of_service, "kind", of.kind), of.count as f64));
            ended.push((by.clone(), of.ended as f64));
            if limits.iter().any(|kind| kind == of.kind) {
                acknowledged.push((by.clone(), of.acknowledged_bytes as f64));
                left.push((by, of.left_bytes as f64));
            }
        }
        ended.push((with(&of_service, "by", "close"), service.connections_closed as f64));
    }
    let families = [
        ("connection_deadlines", "Deadlines of connections that have come, by their kind", events),
        (
            "connections_ended",
            "Connections that have ended, by the deadline that has ended them",
            ended,
        ),
        (
            "connections_ended_acknowledged_bytes",
            "Bytes that those had acknowledged who reached a limit of writing",
            acknowledged,
        ),
        (
            "connections_ended_left_bytes",
            "Bytes that those had not acknowledged who reached a limit of writing",
            left,
        ),
    ];
    families.into_iter().try_for_each(|(name, help, samples)| {
        family(encoder, MetricType::Counter, name, help, samples.into_iter())
    })
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
}

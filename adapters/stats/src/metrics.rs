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
    ClassStats, CountRow, DeadlineStats, ServiceStats, ShardCounts, ShardState, ShardStats, Times,
    Warning, WarningKind,
};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// The powers of two that bound the histograms, in nanoseconds: 1 µs to 69 s.
const BOUNDS: RangeInclusive<u32> = 10..=36;

type Labels = Vec<(&'static str, String)>;

/// A name, a meaning and the value of a `T`.
type Row<T, V = f64> = (&'static str, &'static str, fn(&T) -> V);

/// A name, a meaning and the times of a shard.
type Histogram = (&'static str, &'static str, fn(&ShardStats) -> &Times);

const OF_SERVICE: [Row<ServiceStats>; 5] = [
    ("uptime_seconds", "How long the service has been up", |service| service.uptime.as_secs_f64()),
    ("tick_seconds", "The length of a tick", |service| seconds(service.tick_ns)),
    ("lateness_bound_seconds", "The bound beyond which a delivery counts as late", |service| {
        seconds(service.lateness_bound_ns)
    }),
    (
        "activity_stamp_seconds",
        "What an activity stamp adds at most to an idle limit of a connection on a shard",
        |service| seconds(service.activity_stamp_ns),
    ),
    ("cores", "The processors that the process may use", |service| service.cores as f64),
];

const OF_SHARD: [Row<ShardStats>; 5] = [
    ("running", "Whether the shard runs", |shard| flag(shard.state == ShardState::Running)),
    (
        "scale",
        "By what scaled timeouts are scaled, 0 for their minimum to 1 for their maximum",
        |shard| shard.scale.get(),
    ),
    ("overdue_seconds", "How long a turn has been due and has not ended", |shard| {
        seconds(shard.overdue_ns)
    }),
    ("turn_running_seconds", "How long the turn that runs now has been running", |shard| {
        seconds(shard.turn_ns.unwrap_or(0))
    }),
    ("memory_bytes", "The memory that the shard's timers have touched, in bytes", |shard| {
        shard.memory_bytes as f64
    }),
];

/// What the system may not tell of a shard's thread.
const OF_THREAD: [Row<ShardStats, Option<u64>>; 2] = [
    ("thread_ran_seconds", "How long the shard's thread has run", |shard| shard.thread_ran_ns),
    ("thread_waited_seconds", "How long the shard's thread was ready and waited", |shard| {
        shard.thread_waited_ns
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
    encode_services(encoder, services)?;
    let shards = services.iter().flat_map(|service| {
        let labels = move |shard: &ShardStats| with(&label_of(service), "shard", shard.shard);
        service.shards.iter().map(move |shard| (labels(shard), shard))
    });
    let shards: Vec<(Labels, &ShardStats)> = shards.collect();
    encode_state(encoder, &shards)?;
    encode_warnings(encoder, services)?;
    let counts = shards.iter().map(|(labels, shard)| (labels.clone(), &shard.counts));
    encode_counts(encoder, "", ShardCounts::rows(), &counts.collect::<Vec<_>>())?;
    let classes = shards.iter().flat_map(|(labels, shard)| {
        shard.classes.iter().map(move |class| (with(labels, "class", class.class), class))
    });
    let classes: Vec<(Labels, &ClassStats)> = classes.collect();
    encode_counts(encoder, "class_", ClassStats::rows(), &classes)?;
    let help = "The age of the oldest timer of the class that is pending; 0 if there is none";
    let oldest = |class: &ClassStats| class.oldest.unwrap_or_default().as_secs_f64();
    gauge(
        encoder,
        "class_oldest_seconds",
        help,
        classes.iter().map(|(l, c)| (l.clone(), oldest(c))),
    )?;
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

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl Iterator<Item = (Labels, f64)>,
) -> fmt::Result {
    family(encoder, MetricType::Gauge, name, help, samples)
}

fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl Iterator<Item = (Labels, f64)>,
) -> fmt::Result {
    family(encoder, MetricType::Counter, name, help, samples)
}

fn encode_services(encoder: &mut DescriptorEncoder<'_>, services: &[ServiceStats]) -> fmt::Result {
    let mut info =
        encoder.encode_descriptor("service", "What the service is", None, MetricType::Info)?;
    for service in services {
        let labels = [("runtime", service.runtime), ("version", service.version)];
        // The labels of the info come before those of its family.
        info.encode_family(&labels)?.encode_info(&label_of(service))?;
    }
    for (name, help, value) in OF_SERVICE {
        gauge(encoder, name, help, services.iter().map(|one| (label_of(one), value(one))))?;
    }
    Ok(())
}

/// What a shard is and does at the moment.
fn encode_state(
    encoder: &mut DescriptorEncoder<'_>,
    shards: &[(Labels, &ShardStats)],
) -> fmt::Result {
    for (name, help, value) in OF_SHARD {
        gauge(
            encoder,
            name,
            help,
            shards.iter().map(|(labels, shard)| (labels.clone(), value(shard))),
        )?;
    }
    let parts = shards.iter().flat_map(|(labels, shard)| {
        let gauges = shard.gauges.iter();
        gauges.map(move |(name, value)| (with(labels, "gauge", name), *value as f64))
    });
    gauge(encoder, "part", "The gauges of parts of the shard", parts)?;
    for (name, help, ns) in OF_THREAD {
        let known =
            shards.iter().filter_map(|(labels, shard)| Some((labels.clone(), seconds(ns(shard)?))));
        counter(encoder, name, help, known)?;
    }
    Ok(())
}

/// The count of each warning of the closed list, and whether it is active.
fn encode_warnings(encoder: &mut DescriptorEncoder<'_>, services: &[ServiceStats]) -> fmt::Result {
    let mut samples = Vec::new();
    for service in services {
        for (shard, kind) in
            service.shards.iter().flat_map(|shard| WarningKind::ALL.map(|kind| (shard.shard, kind)))
        {
            let labels = with(&with(&label_of(service), "shard", shard), "id", kind);
            let found =
                service.warnings.iter().filter(|one| one.kind == kind && one.shard == shard);
            let sum = |(count, any), one: &Warning| (count + one.count, any || one.is_active);
            samples.push((labels, found.fold((0, false), sum)));
        }
    }
    let of = |value: fn(u64, bool) -> f64| {
        samples
            .iter()
            .map(move |(labels, (count, is_active))| (labels.clone(), value(*count, *is_active)))
    };
    let help = "How often each warning has occurred";
    counter(encoder, "warnings", help, of(|count, _| count as f64))?;
    let help = "Whether the warning is active";
    gauge(encoder, "warning_active", help, of(|_, is_active| flag(is_active)))
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
fn encode_deadlines(encoder: &mut DescriptorEncoder<'_>, services: &[ServiceStats]) -> fmt::Result {
    let sample = |service: &ServiceStats, label, value: &str, count: u64| {
        (with(&label_of(service), label, value), count as f64)
    };
    let help = "Deadlines of connections that have come, by their kind";
    let samples = services.iter().flat_map(|service| {
        service.deadlines.iter().map(|of| sample(service, "kind", of.kind, of.count))
    });
    counter(encoder, "connection_deadlines", help, samples)?;
    let help = "Connections that have ended, by the deadline that has ended them";
    let samples = services.iter().flat_map(|service| {
        let closed = sample(service, "by", "close", service.connections_closed);
        let ended = service.deadlines.iter().map(|of| sample(service, "by", of.kind, of.ended));
        ended.chain([closed])
    });
    counter(encoder, "connections_ended", help, samples)?;
    let help = "Bytes that those had acknowledged who reached a limit of writing";
    encode_bytes(encoder, services, ("acknowledged", help), |of| of.acknowledged_bytes)?;
    let help = "Bytes that those had not acknowledged who reached a limit of writing";
    encode_bytes(encoder, services, ("left", help), |of| of.left_bytes)
}

/// What the peers of connections had of their bytes that have reached a limit of writing.
fn encode_bytes(
    encoder: &mut DescriptorEncoder<'_>,
    services: &[ServiceStats],
    (name, help): (&str, &str),
    bytes: fn(&DeadlineStats) -> u64,
) -> fmt::Result {
    let limits = [DeadlineKind::WriteTimeout, DeadlineKind::WriteRate].map(|kind| kind.to_string());
    let samples = services.iter().flat_map(|service| {
        let of_limits =
            service.deadlines.iter().filter(|of| limits.iter().any(|kind| kind == of.kind));
        of_limits.map(|of| (with(&label_of(service), "by", of.kind), bytes(of) as f64))
    });
    counter(encoder, &format!("connections_ended_{name}_bytes"), help, samples)
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

//! The statistics as `OpenMetrics` text.
//!
//! The families come from the rows of the counts, so that a new count appears here by itself. A
//! name that ends with `_ns` there ends with `_seconds` here.
//!
//! The histograms have fixed bounds, the powers of two of nanoseconds from a microsecond to a
//! minute, so that they add up over shards and over time. They are bounds of the shards' own
//! buckets too, so that nothing is guessed: a count is exact but for times that equal a bound to
//! the nanosecond, which count with the next one.

use std::borrow::Borrow;
use std::fmt;
use std::ops::RangeInclusive;

use corewheel::DeadlineKind;
use corewheel::stats::{
    ClassStats, DeadlineStats, ServiceStats, ShardCounts, ShardState, ShardStats, Times,
    WarningKind,
};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType::{self, Counter, Gauge};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// The powers of two that bound the histograms, in nanoseconds: 1 µs to 69 s.
const BOUNDS: RangeInclusive<u32> = 10..=36;

type Labels = Vec<(&'static str, String)>;

/// A kind, a name, a meaning and the value of a `T`, if there is one.
type Row<T> = (MetricType, &'static str, &'static str, fn(&T) -> Option<f64>);

/// A name, a meaning and the times of a shard.
type Histogram = (&'static str, &'static str, fn(&ShardStats) -> &Times);

/// How often a warning has occurred, and whether it is active.
type Occurred = (u64, bool);

macro_rules! rows {
    ($($table:ident: $type:ty, |$of:ident| {
        $($kind:ident $name:literal $help:literal, $value:expr;)*
    })*) => {
        $(const $table: &[Row<$type>] = &[$(($kind, $name, $help, |$of| ($value).into())),*];)*
    };
}
rows! {
    OF_SERVICE: ServiceStats, |of| {
        Gauge "uptime_seconds" "How long the service has been up", of.uptime.as_secs_f64();
        Gauge "tick_seconds" "The length of a tick", seconds(of.tick_ns);
        Gauge "lateness_bound_seconds" "The bound beyond which a delivery counts as late",
            seconds(of.lateness_bound_ns);
        Gauge "activity_stamp_seconds"
            "What an activity stamp adds at most to an idle limit of a connection on a shard",
            seconds(of.activity_stamp_ns);
        Gauge "cores" "The processors that the process may use", of.cores as f64;
    }
    // The system may not tell the times of threads.
    OF_SHARD: ShardStats, |of| {
        Gauge "running" "Whether the shard runs", flag(of.state == ShardState::Running);
        Gauge "scale"
            "By what scaled timeouts are scaled, 0 for their minimum to 1 for their maximum",
            of.scale.get();
        Gauge "overdue_seconds" "How long a turn has been due and has not ended",
            seconds(of.overdue_ns);
        Gauge "turn_running_seconds" "How long the turn that runs now has been running",
            seconds(of.turn_ns.unwrap_or(0));
        Gauge "memory_bytes" "The memory that the shard's timers have touched, in bytes",
            of.memory_bytes as f64;
        Counter "thread_ran_seconds" "How long the shard's thread has run",
            of.thread_ran_ns.map(seconds);
        Counter "thread_waited_seconds" "How long the shard's thread was ready and waited",
            of.thread_waited_ns.map(seconds);
    }
    OF_WARNING: Occurred, |of| {
        Counter "warnings" "How often each warning has occurred", of.0 as f64;
        Gauge "warning_active" "Whether the warning is active", flag(of.1);
    }
    OF_CLASS: ClassStats, |of| {
        Gauge "class_oldest_seconds"
            "The age of the oldest timer of the class that is pending; 0 if there is none",
            of.oldest.unwrap_or_default().as_secs_f64();
    }
    OF_DEADLINES: DeadlineStats, |of| {
        Counter "connection_deadlines" "Deadlines of connections that have come, by their kind",
            of.count as f64;
    }
    OF_WRITES: DeadlineStats, |of| {
        Counter "connections_ended_acknowledged_bytes"
            "Bytes that those had acknowledged who reached a limit of writing",
            is_of_writing(of).then_some(of.acknowledged_bytes as f64);
        Counter "connections_ended_left_bytes"
            "Bytes that those had not acknowledged who reached a limit of writing",
            is_of_writing(of).then_some(of.left_bytes as f64);
    }
}

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
    let of_services: Vec<_> = services.iter().map(|service| (label_of(service), service)).collect();
    encode_rows(encoder, OF_SERVICE, &of_services)?;
    let shards: Vec<_> = of_services.iter().flat_map(|(labels, of)| by_shard(labels, of)).collect();
    encode_rows(encoder, OF_SHARD, &shards)?;
    let parts = shards.iter().flat_map(|(labels, shard)| {
        let gauges = shard.gauges.iter();
        gauges.map(move |(name, value)| (with(labels, "gauge", name), *value as f64))
    });
    family(encoder, Gauge, "part", "The gauges of parts of the shard", parts)?;
    // Each of the closed list is there, whether it has occurred or not.
    let warnings = of_services.iter().flat_map(|(labels, service)| {
        by_shard(labels, service).flat_map(move |(labels, shard)| {
            let occurred = move |kind| (with(&labels, "id", kind), occurred(service, shard, kind));
            WarningKind::ALL.map(occurred)
        })
    });
    encode_rows(encoder, OF_WARNING, &warnings.collect::<Vec<_>>())?;
    let counts = shards.iter().map(|(labels, shard)| (labels, shard.counts.iter().collect()));
    encode_counts(encoder, "", ShardCounts::rows(), &counts.collect::<Vec<_>>())?;
    let classes = shards.iter().flat_map(|(labels, shard)| {
        shard.classes.iter().map(move |class| (with(labels, "class", class.class), class))
    });
    let classes: Vec<(Labels, &ClassStats)> = classes.collect();
    let counts = classes.iter().map(|(labels, class)| (labels, class.iter().collect()));
    encode_counts(encoder, "class_", ClassStats::rows(), &counts.collect::<Vec<_>>())?;
    encode_rows(encoder, OF_CLASS, &classes)?;
    // All kinds of deadlines are there from the start, so that a rate has the first.
    let deadlines = |label| {
        let of_each = of_services.iter().map(|(labels, service)| {
            service.deadlines.iter().map(move |of| (with(labels, label, of.kind), of))
        });
        of_each.flatten().collect::<Vec<_>>()
    };
    encode_rows(encoder, OF_DEADLINES, &deadlines("kind"))?;
    let by = deadlines("by");
    let closed = of_services
        .iter()
        .map(|(labels, of)| (with(labels, "by", "close"), of.connections_closed as f64));
    let ended = by.iter().map(|(labels, of)| (labels.clone(), of.ended as f64)).chain(closed);
    let help = "Connections that have ended, by the deadline that has ended them";
    family(encoder, Counter, "connections_ended", help, ended)?;
    encode_rows(encoder, OF_WRITES, &by)?;
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

fn by_shard<'a>(
    labels: &Labels,
    service: &'a ServiceStats,
) -> impl Iterator<Item = (Labels, &'a ShardStats)> {
    service.shards.iter().map(move |shard| (with(labels, "shard", shard.shard), shard))
}

/// How often a warning has occurred on a shard, for any class, and whether it is active.
fn occurred(service: &ServiceStats, shard: &ShardStats, kind: WarningKind) -> Occurred {
    let found = service.warnings.iter();
    let found = found.filter(|one| one.kind == kind && one.shard == shard.shard);
    found.fold((0, false), |(count, any), one| (count + one.count, any || one.is_active))
}

fn is_of_writing(of: &DeadlineStats) -> bool {
    [DeadlineKind::WriteTimeout, DeadlineKind::WriteRate]
        .iter()
        .any(|of_writing| of_writing.to_string() == of.kind)
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
            Counter => ConstCounter::new(value).encode(metric)?,
            _ => ConstGauge::new(value).encode(metric)?,
        }
    }
    Ok(())
}

/// A family for each row.
fn encode_rows<T>(
    encoder: &mut DescriptorEncoder<'_>,
    rows: &[Row<T>],
    of: &[(Labels, impl Borrow<T>)],
) -> fmt::Result {
    rows.iter().try_for_each(|(kind, name, help, value)| {
        let sample =
            |(labels, one): &(Labels, _)| Some((labels.clone(), value(Borrow::borrow(one))?));
        family(encoder, *kind, name, help, of.iter().filter_map(sample))
    })
}

/// Each count as a family of its own, whose name begins with `prefix`.
fn encode_counts(
    encoder: &mut DescriptorEncoder<'_>,
    prefix: &str,
    rows: impl Iterator<Item = (&'static str, bool)>,
    counted: &[(&Labels, Vec<(&'static str, u64)>)],
) -> fmt::Result {
    let names = counted.first().into_iter().flat_map(|(_, counts)| counts);
    for (index, ((about, is_gauge), (name, _))) in rows.zip(names).enumerate() {
        let help = about.trim().trim_end_matches('.').replace(", in nanoseconds", "");
        let (name, unit) = match name.strip_suffix("_ns") {
            Some(stem) => (format!("{prefix}{stem}_seconds"), 1e9),
            None => (format!("{prefix}{name}"), 1.0),
        };
        let kind = if is_gauge { Gauge } else { Counter };
        let samples = counted
            .iter()
            .map(|(labels, counts)| ((*labels).clone(), counts[index].1 as f64 / unit));
        family(encoder, kind, &name, &help, samples)?;
    }
    Ok(())
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

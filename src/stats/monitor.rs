//! Finds the warnings in the readings of a service.
//!
//! A warning is either an occurrence, which a shard counts, or a state, which a reading shows. What
//! needs a rate is computed between two readings. So a warning is as fresh as the readings are
//! frequent: each reading of the statistics is one, and the watchdog takes one at its interval.
//!
//! Cost: a few comparisons for each shard and class of a reading.

use std::time::Duration;

use super::warnings::{Warning, WarningKind, brief};
use super::{ServiceStats, ShardCounts, ShardStats};
use crate::clock::saturating_nanos;
use crate::values::state::ShardState;
use crate::values::warning_limits::{
    CAPACITY_PERCENT, EXHAUSTED_TURNS, HOST_WAIT_PERCENT, LANE_PERCENT, WarningLimits,
};

/// For how long after an occurrence its warning is active, and the shortest time between two events
/// of one warning, in nanoseconds.
const ACTIVE: u64 = 10_000_000_000;
/// The shortest time over which the wait for a processor is measured, in nanoseconds.
const HOST_WINDOW: u64 = 1_000_000_000;

/// The limits of the warnings, with those that are other settings.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) warnings: WarningLimits,
    pub(crate) overrun: Duration,
    pub(crate) lane_capacity: usize,
}

/// Something that a reading shows.
struct Found {
    kind: WarningKind,
    /// The class that it is about; empty if it is about none.
    class: &'static str,
    /// How often it has occurred since the reading before; `None` for a state.
    occurred: Option<u64>,
    text: String,
}

/// The last values that were read of a shard.
#[derive(Clone, Debug, Default)]
struct Base {
    counts: ShardCounts,
    waited_ns: u64,
    /// When the measurement of the wait for a processor began, and the wait until then.
    window: Option<(u64, u64)>,
    /// The wait for a processor in the last window, if it was beyond the limit.
    waits: Option<String>,
    /// How many deliveries of each class had overrun.
    overrun_of: Vec<u64>,
}

impl Base {
    fn find(&mut self, shard: &ShardStats, now: u64, limits: &Limits) -> Vec<Found> {
        let mut found = Vec::new();
        self.find_occurrences(shard, limits, &mut found);
        self.find_host(shard, now, &mut found);
        Self::find_states(shard, limits, &mut found);
        self.overrun_of = shard.classes.iter().map(|class| class.overrun).collect();
        let age_max = limits.warnings.class_age;
        for class in &shard.classes {
            let Some(oldest) = class.oldest.filter(|oldest| *oldest > age_max) else { continue };
            let (number, name, pending) = (shard.shard.number(), class.class, class.pending);
            let oldest = brief(saturating_nanos(oldest));
            let text = format!(
                "shard {number}: class {name}: the oldest of {pending} timers is {oldest} old, \
                 beyond its limit of {age_max:?}"
            );
            found.push(Found { kind: WarningKind::ClassLeaks, class: name, occurred: None, text });
        }
        found
    }

    /// What the shard has counted.
    fn find_occurrences(&mut self, shard: &ShardStats, limits: &Limits, found: &mut Vec<Found>) {
        let counts = &shard.counts;
        let before = std::mem::replace(&mut self.counts, *counts);
        let increase = |of: fn(&ShardCounts) -> u64| of(counts).saturating_sub(of(&before));
        let mut add = |kind, occurred: u64, text: &dyn Fn() -> String| {
            if occurred > 0 {
                let text = format!("shard {}: {}", shard.shard.number(), text());
                found.push(Found { kind, class: "", occurred: Some(occurred), text });
            }
        };
        let late = counts.late;
        let stalls = increase(|counts| counts.stalls);
        let stalled = increase(|counts| counts.stalled_ns);
        let waited = shard
            .thread_waited_ns
            .map(|waited| waited.saturating_sub(std::mem::replace(&mut self.waited_ns, waited)));
        // A turn that began late while its thread waited for a processor is the host's.
        let by_host = waited.is_some_and(|waited| waited >= stalled / 5 * 4);
        let last = brief(counts.stall_last_ns);
        if by_host {
            add(WarningKind::HostOvercommitted, stalls, &|| {
                format!(
                    "its thread waited for a processor and a turn began {last} late; {late} \
                         timers were late so far"
                )
            });
        } else {
            add(WarningKind::ExecutorStalled, stalls, &|| {
                let stalls = counts.stalls;
                format!(
                    "the executor was stalled for {last}; so far stalls: {stalls}, late timers: \
                         {late}"
                )
            });
        }
        let overruns = increase(|counts| counts.overrun);
        let slowest = shard.classes.iter().enumerate().map(|(index, class)| {
            let before = self.overrun_of.get(index).copied().unwrap_or(0);
            (class.overrun.saturating_sub(before), class.class)
        });
        let slowest = slowest.max_by_key(|(overruns, _)| *overruns);
        add(WarningKind::HandlerSlow, overruns, &|| {
            let (total, limit) = (counts.overrun, limits.overrun);
            let last = brief(counts.overrun_last_ns);
            let class = slowest.filter(|(overruns, _)| *overruns > 0);
            let class = class.map_or(String::new(), |(_, name)| format!("; class {name}"));
            format!("{total} deliveries took longer than {limit:?}, the latest {last}{class}")
        });
        let rows = increase(|counts| counts.exhausted_rows);
        add(WarningKind::BudgetExhausted, rows, &|| {
            let row = counts.exhausted_row.max(EXHAUSTED_TURNS);
            format!("{row} turns in a row used up their budget; {late} timers were late so far")
        });
        let floods = increase(|counts| counts.lanes_flooded);
        add(WarningKind::LaneFlooded, floods, &|| {
            let total = counts.lanes_flooded;
            let capacity = limits.lane_capacity;
            format!(
                "{total} turns left a lane filled by more than {LANE_PERCENT} % of its {capacity} \
                     requests"
            )
        });
    }

    /// What the system says about the shard's thread.
    fn find_host(&mut self, shard: &ShardStats, now: u64, found: &mut Vec<Found>) {
        if let Some(waited_ns) = shard.thread_waited_ns {
            let (begin, before) = *self.window.get_or_insert((now, waited_ns));
            let span = now.saturating_sub(begin);
            if span >= HOST_WINDOW {
                // The system counts a wait when it is over, so it may have begun before.
                let waited = waited_ns.saturating_sub(before).min(span);
                let percent = waited.saturating_mul(100) / span;
                let is_beyond = percent > HOST_WAIT_PERCENT;
                self.waits = is_beyond.then(|| {
                    let (waited, span) = (brief(waited), brief(span));
                    format!(
                        "shard {}: its thread waited for a processor for {waited} of {span}, \
                         {percent} %",
                        shard.shard.number()
                    )
                });
                self.window = Some((now, waited_ns));
            }
        }
        let kind = WarningKind::HostOvercommitted;
        let waits = self.waits.clone();
        found.extend(waits.map(|text| Found { kind, class: "", occurred: None, text }));
    }

    /// What state the shard is in.
    fn find_states(shard: &ShardStats, limits: &Limits, found: &mut Vec<Found>) {
        let number = shard.shard.number();
        let mut add = |kind, text: String| {
            let text = format!("shard {number}: {text}");
            found.push(Found { kind, class: "", occurred: None, text });
        };
        if shard.stuck_for() > limits.warnings.stuck {
            add(WarningKind::ShardStuck, shard.stuck_text());
        }
        let counts = &shard.counts;
        let percent = u128::from(counts.pending) * 100 / u128::from(counts.capacity.max(1));
        let is_open = shard.state == ShardState::Running;
        if is_open && percent > CAPACITY_PERCENT {
            let (pending, capacity) = (counts.pending, counts.capacity);
            let text = format!("{pending} timers are pending, {percent} % of {capacity}");
            add(WarningKind::ShardNearCapacity, text);
        }
        if shard.state == ShardState::Dead {
            let dropped = counts.dropped;
            let text =
                format!("its driver ended without a shutdown; {dropped} timers were dropped");
            add(WarningKind::ShardDead, text);
        }
    }
}

/// A warning that has occurred. Times are in nanoseconds since the service's epoch.
#[derive(Clone, Debug, Default)]
struct Seen {
    count: u64,
    /// Whether the state that it is about is there.
    holds: bool,
    /// When it last occurred; `None` if only its state was seen.
    occurred: Option<u64>,
    since: u64,
    last: u64,
    text: String,
    /// When it was last an event, and its count then.
    told: Option<(u64, u64)>,
}

impl Seen {
    fn is_active(&self, now: u64) -> bool {
        self.holds || self.occurred.is_some_and(|at| now.saturating_sub(at) < ACTIVE)
    }

    fn note(&mut self, found: Found, now: u64) {
        if !self.is_active(now) {
            self.since = now;
        }
        match found.occurred {
            Some(times) => {
                self.count += times;
                self.occurred = Some(now);
            }
            None if !self.holds => {
                self.count += 1;
                self.holds = true;
            }
            None => {}
        }
        self.last = now;
        self.text = found.text;
    }
}

/// The warnings of a service that have occurred.
#[derive(Debug)]
pub(crate) struct Monitor {
    limits: Limits,
    shards: Vec<Base>,
    /// In the order of shard, warning and, if it is one about a class, the name of the class. Why
    /// not an ordered map: it takes longer to compile, and there are few warnings.
    seen: Vec<((usize, WarningKind, &'static str), Seen)>,
}

impl Monitor {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, shards: Vec::new(), seen: Vec::new() }
    }

    /// Finds the warnings of a reading that was taken at `now`, and puts all that have occurred
    /// into it. Returns those that are to be events; the caller logs them when it has released the
    /// monitor.
    pub(crate) fn observe(&mut self, stats: &mut ServiceStats, now: u64) -> Vec<Warning> {
        self.shards.resize(stats.shards.len(), Base::default());
        for (index, (base, shard)) in self.shards.iter_mut().zip(&stats.shards).enumerate() {
            let found = base.find(shard, now, &self.limits);
            for ((shard, kind, class), seen) in &mut self.seen {
                if *shard != index {
                    continue;
                }
                let is_state = |found: &Found| {
                    found.occurred.is_none() && (found.kind, found.class) == (*kind, *class)
                };
                seen.holds &= found.iter().any(is_state);
            }
            for found in found {
                let key = (index, found.kind, found.class);
                let at = match self.seen.binary_search_by_key(&key, |(key, _)| *key) {
                    Ok(at) => at,
                    Err(at) => {
                        self.seen.insert(at, (key, Seen::default()));
                        at
                    }
                };
                self.seen[at].1.note(found, now);
            }
        }
        let mut events = Vec::new();
        stats.warnings.clear();
        for ((index, kind, class), seen) in &mut self.seen {
            let warning = Warning {
                kind: *kind,
                shard: stats.shards[*index].shard,
                class: Some(*class).filter(|class| !class.is_empty()),
                count: seen.count,
                is_active: seen.is_active(now),
                since_ns: seen.since,
                last_ns: seen.last,
                text: seen.text.clone(),
            };
            let is_new = |(at, count)| count < seen.count && now.saturating_sub(at) >= ACTIVE;
            let is_due = seen.told.is_none_or(is_new);
            if is_due {
                seen.told = Some((now, seen.count));
                events.push(warning.clone());
            }
            stats.warnings.push(warning);
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::stats::{ClassStats, ShardCounts, Times};
    use crate::values::ids::ShardId;
    use crate::values::scale::Scale;
    use crate::values::settings::TurnBudget;

    const SECOND: u64 = 1_000_000_000;

    fn reading() -> ServiceStats {
        let shard = ShardStats {
            shard: ShardId::new(0),
            state: ShardState::Running,
            is_draining: false,
            scale: Scale::ONE,
            counts: ShardCounts { capacity: 100, ..ShardCounts::default() },
            classes: vec![ClassStats { class: "request", ..ClassStats::default() }],
            lateness: Times::default(),
            ring_delay: Times::default(),
            turn_time: Times::default(),
            late_parts: BTreeMap::new(),
            late_deliveries: Vec::new(),
            overdue_ns: 0,
            turn_ns: None,
            delivering: None,
            thread_id: Some(1),
            thread_ran_ns: Some(0),
            thread_waited_ns: Some(0),
            memory_bytes: 0,
            gauges: BTreeMap::new(),
        };
        ServiceStats {
            schema: ServiceStats::SCHEMA,
            version: "",
            name: String::new(),
            runtime: "",
            cores: 1,
            tick_ns: 1,
            lateness_bound_ns: 1,
            overrun_ns: 1,
            lane_capacity: 8,
            budget: TurnBudget::default(),
            warning_limits: WarningLimits::default(),
            uptime: Duration::ZERO,
            warnings: Vec::new(),
            deadlines: Vec::new(),
            connections_closed: 0,
            activity_stamp_ns: 0,
            shards: vec![shard],
        }
    }

    struct Bench {
        monitor: Monitor,
        stats: ServiceStats,
        now: u64,
    }

    impl Bench {
        fn new() -> Self {
            let monitor = Monitor::new(Limits {
                warnings: WarningLimits {
                    class_age: Duration::from_secs(60),
                    ..WarningLimits::default()
                },
                overrun: Duration::from_millis(1),
                lane_capacity: 8,
            });
            Self { monitor, stats: reading(), now: 0 }
        }

        fn shard(&mut self) -> &mut ShardStats {
            &mut self.stats.shards[0]
        }

        /// Takes a reading a second after the one before. Returns how many events it has.
        fn read(&mut self) -> usize {
            self.now += SECOND;
            self.monitor.observe(&mut self.stats, self.now).len()
        }

        /// The ids of the warnings that have occurred, with their counts.
        fn seen(&self) -> Vec<(&'static str, u64, bool)> {
            let seen = |one: &Warning| (one.kind.id(), one.count, one.is_active);
            self.stats.warnings.iter().map(seen).collect()
        }
    }

    #[test]
    fn quiet_shard_has_no_warning() {
        let mut bench = Bench::new();
        bench.shard().counts.pending = 90;
        bench.shard().classes[0].oldest = Some(Duration::from_secs(60));
        for _ in 0..20 {
            assert_eq!(bench.read(), 0);
        }
        assert_eq!(bench.seen(), []);
    }

    #[test]
    fn stall_is_of_the_executor_unless_the_thread_waited_for_a_processor() {
        let mut bench = Bench::new();
        bench.read();
        let stall = |shard: &mut ShardStats, waited: u64| {
            shard.counts.stalls += 1;
            shard.counts.stalled_ns += 200_000_000;
            shard.counts.stall_last_ns = 200_000_000;
            *shard.thread_waited_ns.as_mut().unwrap() += waited;
        };
        stall(bench.shard(), 10_000_000);
        assert_eq!(bench.read(), 1);
        assert_eq!(bench.seen(), [("executor-stalled", 1, true)]);
        let text = &bench.stats.warnings[0].text;
        assert!(text.starts_with("shard 0: the executor was stalled for 200ms"), "{text}");
        let mut bench = Bench::new();
        bench.read();
        stall(bench.shard(), 190_000_000);
        bench.read();
        assert_eq!(bench.seen(), [("host-overcommitted", 1, true)]);
        let mut bench = Bench::new();
        bench.shard().thread_waited_ns = None;
        bench.shard().counts.stalls = 1;
        bench.read();
        assert_eq!(bench.seen(), [("executor-stalled", 1, true)], "the system says nothing");
    }

    #[test]
    fn thread_that_waits_for_a_processor_for_long_is_warned_of() {
        let mut bench = Bench::new();
        for (waited, expected) in
            [(200_000_000, vec![]), (210_000_000, vec![true]), (0, vec![false])]
        {
            bench.read();
            *bench.shard().thread_waited_ns.as_mut().unwrap() += waited;
            bench.read();
            let active: Vec<_> = bench.seen().iter().map(|(_, _, is_active)| *is_active).collect();
            assert_eq!(active, expected, "{:?}", bench.stats.warnings);
        }
        assert_eq!(bench.seen(), [("host-overcommitted", 1, false)]);
    }

    #[test]
    fn wait_for_a_processor_is_at_most_the_time_in_which_it_was_counted() {
        let mut bench = Bench::new();
        bench.read();
        *bench.shard().thread_waited_ns.as_mut().unwrap() += 5 * SECOND;
        bench.read();
        let text = &bench.stats.warnings[0].text;
        assert!(text.ends_with("waited for a processor for 1s of 1s, 100 %"), "{text}");
    }

    #[test]
    fn state_counts_once_until_it_ends() {
        let mut bench = Bench::new();
        let mut check = |change: &dyn Fn(&mut ShardStats), expected: (&'static str, u64, bool)| {
            change(bench.shard());
            bench.read();
            bench.read();
            let seen = bench.seen();
            assert!(seen.contains(&expected), "{expected:?} {seen:?}");
        };
        check(&|shard| shard.counts.pending = 91, ("shard-near-capacity", 1, true));
        check(&|shard| shard.counts.pending = 50, ("shard-near-capacity", 1, false));
        check(&|shard| shard.counts.pending = 100, ("shard-near-capacity", 2, true));
        check(&|shard| shard.overdue_ns = SECOND, ("shard-near-capacity", 2, true));
        check(&|shard| shard.overdue_ns = 2 * SECOND, ("shard-stuck", 1, true));
        check(&|shard| shard.overdue_ns = 0, ("shard-stuck", 1, false));
        check(&|shard| shard.turn_ns = Some(3 * SECOND), ("shard-stuck", 2, true));
        let minute = |more: u64| Some(Duration::from_secs(60 + more));
        check(&|shard| shard.classes[0].oldest = minute(1), ("class-leaks", 1, true));
        check(&|shard| shard.classes[0].oldest = None, ("class-leaks", 1, false));
        check(&|shard| shard.state = ShardState::Dead, ("shard-dead", 1, true));
    }

    #[test]
    fn occurrence_is_active_for_ten_seconds_and_its_events_are_as_far_apart() {
        let mut bench = Bench::new();
        let mut events = Vec::new();
        for overrun in 1..=25 {
            bench.shard().counts.overrun = overrun;
            if bench.read() > 0 {
                events.push(overrun);
            }
        }
        assert_eq!(events, [1, 11, 21]);
        assert_eq!(bench.seen(), [("handler-slow", 25, true)]);
        assert_eq!(bench.stats.warnings[0].since_ns, SECOND);
        for _ in 0..9 {
            bench.read();
        }
        assert_eq!(bench.seen(), [("handler-slow", 25, true)]);
        bench.read();
        assert_eq!(bench.seen(), [("handler-slow", 25, false)]);
        assert_eq!(bench.stats.warnings[0].last_ns, 25 * SECOND);
    }
}

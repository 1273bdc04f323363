//! Which figures of the page are alarms, and which of them belong to a warning.
//!
//! The script of the page draws a figure as an alarm if a list here has its name. It knows no
//! threshold and no id of a warning.
//!
//! A warning that watches a figure decides whether the figure is an alarm, so that both are judged
//! by one setting. The figures that no warning watches have their limits here.
//!
//! Cost: for each answer, a pass over the shards, classes, warnings and late deliveries.

use std::cmp::Reverse;

use corewheel::ShardId;
use corewheel::stats::{
    ClassStats, LateDelivery, LatenessParts, ServiceStats, ShardState, ShardStats, Warning,
    WarningKind,
};
use serde::Serialize;

use super::history::Done;

/// Of the deliveries of the last minute, more than so many in a hundred are late for an alarm.
const LATE_PERCENT: u64 = 1;
/// A turn is overdue for at least so long for an alarm, in nanoseconds.
const OVERDUE_NS: u64 = 100_000_000;
/// How many late deliveries of all shards together are served: as many as one shard keeps.
const LATE_DELIVERIES: usize = 64;

/// A figure of a shard on the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Figure {
    /// The state of the shard.
    State,
    /// For how long the shard is stuck, in place of its state.
    Stuck,
    /// Its pending timers, and when it will be full.
    Pending,
    /// The late deliveries of the last minute, and the part of the lateness that was the greatest.
    Late,
    /// The wait of its thread for a processor.
    Waited,
    /// For how long a turn has been due or has been running.
    Overdue,
    /// The deepest lane.
    Lane,
    /// What the shard received in the last minute.
    Requests,
    /// Schedules without room, and panics.
    Refused,
}

/// The figures of a shard that are alarms.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct ShardAlarms {
    shard: ShardId,
    figures: Vec<Figure>,
}

/// A class of timers, all shards together, with the names of its counts that are alarms.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct ClassRow {
    #[serde(flatten)]
    stats: ClassStats,
    alarms: Vec<&'static str>,
}

/// A late delivery with its shard, and the part that is more than half of its lateness.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct LateRow<'a> {
    shard: ShardId,
    #[serde(flatten)]
    delivery: &'a LateDelivery,
    main: Option<&'static str>,
}

/// The alarms of each shard, in the order of the shards. `lately` has what each shard did in the
/// last minute.
pub(super) fn alarms(stats: &ServiceStats, lately: &[Done]) -> Vec<ShardAlarms> {
    let of_shard = |(shard, lately): (&ShardStats, &Done)| ShardAlarms {
        shard: shard.shard,
        figures: of_shard(stats, shard, lately),
    };
    stats.shards.iter().zip(lately).map(of_shard).collect()
}

fn of_shard(stats: &ServiceStats, shard: &ShardStats, lately: &Done) -> Vec<Figure> {
    let active = WarningKind::ALL.into_iter().filter(|kind| is_active(stats, shard, *kind));
    let mut figures: Vec<_> = active.filter_map(watched).collect();
    let (late, fired) = (lately.counts.late, lately.counts.fired);
    let others = [
        (Figure::State, !matches!(shard.state, ShardState::Running | ShardState::Waiting)),
        (Figure::Late, late.saturating_mul(100) > fired.saturating_mul(LATE_PERCENT)),
        (Figure::Overdue, shard.stuck_for().as_nanos() >= OVERDUE_NS.into()),
        (Figure::Refused, shard.counts.refused > 0 || shard.counts.panicked > 0),
    ];
    figures.extend(others.into_iter().filter(|(_, is_alarm)| *is_alarm).map(|(figure, _)| figure));
    figures
}

/// Whether a shard has a warning now.
pub(super) fn is_active(stats: &ServiceStats, shard: &ShardStats, kind: WarningKind) -> bool {
    let is_it = |one: &Warning| one.is_active && one.shard == shard.shard && one.kind == kind;
    stats.warnings.iter().any(is_it)
}

/// The figure that a warning watches: it is an alarm while the warning is active.
fn watched(kind: WarningKind) -> Option<Figure> {
    match kind {
        WarningKind::ShardStuck => Some(Figure::Stuck),
        WarningKind::ShardNearCapacity => Some(Figure::Pending),
        WarningKind::HostOvercommitted => Some(Figure::Waited),
        WarningKind::LaneFlooded => Some(Figure::Lane),
        WarningKind::ShardDead
        | WarningKind::ExecutorStalled
        | WarningKind::HandlerSlow
        | WarningKind::BudgetExhausted
        | WarningKind::ClassLeaks => None,
    }
}

/// The figures that the page says in sentences after a warning and its advice.
pub(super) fn said_with(kind: WarningKind) -> &'static [Figure] {
    match kind {
        WarningKind::ShardDead => &[],
        WarningKind::ShardNearCapacity | WarningKind::ClassLeaks => &[Figure::Pending],
        WarningKind::LaneFlooded => &[Figure::Requests, Figure::Late],
        WarningKind::ShardStuck
        | WarningKind::HostOvercommitted
        | WarningKind::ExecutorStalled
        | WarningKind::HandlerSlow
        | WarningKind::BudgetExhausted => &[Figure::Late],
    }
}

/// The classes of all shards together. A count is an alarm as soon as it is not zero.
pub(super) fn class_rows(stats: &ServiceStats) -> Vec<ClassRow> {
    let row = |stats: ClassStats| {
        let counts = [("late", stats.late), ("overrun", stats.overrun), ("refused", stats.refused)];
        let alarms = counts.into_iter().filter(|(_, count)| *count > 0).map(|(name, _)| name);
        ClassRow { alarms: alarms.collect(), stats }
    };
    stats.classes().into_iter().map(row).collect()
}

/// The last late deliveries of all shards together, the latest first.
pub(super) fn late_rows(stats: &ServiceStats) -> Vec<LateRow<'_>> {
    let mut rows: Vec<_> = stats
        .shards
        .iter()
        .flat_map(|shard| {
            shard.late_deliveries.iter().map(|delivery| LateRow {
                shard: shard.shard,
                delivery,
                main: main_part(&delivery.parts_ns),
            })
        })
        .collect();
    rows.sort_by_key(|row| Reverse(row.delivery.at_ns));
    rows.truncate(LATE_DELIVERIES);
    rows
}

/// The part that is more than half of a lateness; `None` if none is.
fn main_part(parts: &LatenessParts<u64>) -> Option<&'static str> {
    let sum = parts.sum();
    parts.iter().find(|(_, part)| **part > sum - **part).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use WarningKind::{
        ClassLeaks, ExecutorStalled, HostOvercommitted, LaneFlooded, ShardDead, ShardNearCapacity,
        ShardStuck,
    };

    use corewheel::TimerService;
    use corewheel::attach::Turn;
    use corewheel::class::TimerClass;
    use corewheel::clock::ManualClock;
    use std::time::Duration;

    use super::*;

    /// The statistics of two shards that run. Shard 1 has a class.
    fn stats() -> ServiceStats {
        let service: TimerService<u64> = TimerService::builder()
            .shards(2)
            .class(TimerClass::new("request"))
            .start_attached_with()
            .unwrap();
        let mut stats = service.stats();
        stats.shards.iter_mut().for_each(|shard| shard.state = ShardState::Running);
        stats
    }

    /// The alarms of shard 1, where that of shard 0 has none.
    #[track_caller]
    fn check(stats: &ServiceStats, lately: Done, expected: &[Figure]) {
        let all = alarms(stats, &[Done::default(), lately]);
        let [first, second] = &all[..] else { panic!("{all:?}") };
        assert_eq!((first.shard.number(), &first.figures[..]), (0, &[][..]));
        assert_eq!((second.shard.number(), &second.figures[..]), (1, expected));
    }

    #[test]
    fn figure_is_an_alarm_while_the_warning_that_watches_it_is_active() {
        let expected = [
            (ShardStuck, Some(Figure::Stuck)),
            (ShardNearCapacity, Some(Figure::Pending)),
            (HostOvercommitted, Some(Figure::Waited)),
            (LaneFlooded, Some(Figure::Lane)),
        ];
        for kind in WarningKind::ALL {
            let figure = expected.iter().find(|(of, _)| *of == kind).and_then(|(_, of)| *of);
            let mut stats = stats();
            stats.warnings = vec![Warning::new(kind, ShardId::new(1))];
            check(&stats, Done::default(), figure.as_slice());
            stats.warnings[0].is_active = false;
            check(&stats, Done::default(), &[]);
        }
    }

    #[test]
    fn late_deliveries_are_an_alarm_beyond_one_in_a_hundred() {
        let of = |late, fired| {
            let mut done = Done::default();
            (done.counts.late, done.counts.fired) = (late, fired);
            done
        };
        check(&stats(), of(0, 0), &[]);
        check(&stats(), of(0, 1), &[]);
        check(&stats(), of(1, 99), &[Figure::Late]);
        check(&stats(), of(1, 100), &[]);
        check(&stats(), of(5, 500), &[]);
        check(&stats(), of(5, 499), &[Figure::Late]);
    }

    #[test]
    fn overdue_turn_is_an_alarm_from_a_tenth_of_a_second_on() {
        let mut stats = stats();
        stats.shards[1].overdue_ns = OVERDUE_NS - 1;
        check(&stats, Done::default(), &[]);
        stats.shards[1].overdue_ns = OVERDUE_NS;
        check(&stats, Done::default(), &[Figure::Overdue]);
        stats.shards[1].overdue_ns = 0;
        stats.shards[1].turn_ns = Some(OVERDUE_NS - 1);
        check(&stats, Done::default(), &[]);
        stats.shards[1].turn_ns = Some(OVERDUE_NS);
        check(&stats, Done::default(), &[Figure::Overdue]);
    }

    #[test]
    fn first_refusal_first_panic_and_end_of_a_shard_are_alarms() {
        let set = |set: fn(&mut ShardStats)| {
            let mut stats = stats();
            set(&mut stats.shards[1]);
            stats
        };
        let refused = set(|shard| shard.counts.refused = 1);
        check(&refused, Done::default(), &[Figure::Refused]);
        let panicked = set(|shard| shard.counts.panicked = 1);
        check(&panicked, Done::default(), &[Figure::Refused]);
        for state in [ShardState::Closed, ShardState::Dead] {
            let mut stats = stats();
            stats.shards[1].state = state;
            check(&stats, Done::default(), &[Figure::State]);
        }
        let waiting = set(|shard| shard.state = ShardState::Waiting);
        check(&waiting, Done::default(), &[]);
    }

    #[test]
    fn warning_is_said_with_the_figures_that_show_its_cause() {
        assert_eq!(said_with(ShardDead), []);
        for kind in [ShardNearCapacity, ClassLeaks] {
            assert_eq!(said_with(kind), [Figure::Pending]);
        }
        assert_eq!(said_with(LaneFlooded), [Figure::Requests, Figure::Late]);
        assert_eq!(said_with(ExecutorStalled), [Figure::Late]);
        assert_eq!(serde_json::to_value(said_with(LaneFlooded)).unwrap()[0], "requests");
    }

    #[test]
    fn count_of_a_class_is_an_alarm_as_soon_as_a_shard_has_one() {
        let of = |set: fn(&mut ClassStats)| {
            let mut stats = stats();
            set(&mut stats.shards[1].classes[0]);
            let [row] = &class_rows(&stats)[..] else { panic!("there is one class") };
            assert_eq!(row.stats, stats.classes()[0]);
            row.alarms.clone()
        };
        assert_eq!(of(|_| {}), [""; 0]);
        assert_eq!(of(|class| class.cancelled = 9), [""; 0]);
        assert_eq!(of(|class| class.late = 1), ["late"]);
        assert_eq!(of(|class| class.overrun = 1), ["overrun"]);
        assert_eq!(of(|class| class.refused = 1), ["refused"]);
    }

    #[test]
    fn part_is_the_main_one_beyond_half_of_the_lateness() {
        let of = |arrival, poll_delay, handlers, backlog| {
            main_part(&LatenessParts { arrival, poll_delay, handlers, backlog })
        };
        assert_eq!(of(0, 50, 0, 50), None);
        assert_eq!(of(20, 0, 50, 30), None);
        assert_eq!(of(20, 0, 51, 30), Some("handlers"));
        assert_eq!(of(0, 49, 0, 50), Some("backlog"));
        assert_eq!(of(7, 0, 0, 0), Some("arrival"));
        assert_eq!(of(u64::MAX, 0, 0, 0), Some("arrival"));
        assert_eq!(of(0, 0, 0, 0), None);
    }

    #[test]
    fn late_deliveries_of_all_shards_are_the_last_ones_with_the_latest_first() {
        let clock = ManualClock::new();
        let service: TimerService<u64> =
            TimerService::builder().shards(2).clock(&clock).start_attached_with().unwrap();
        let attach = |number| service.attach(ShardId::new(number)).unwrap();
        let mut shards = [0, 1].map(|number| attach(number).into_loop(|_, _| {}).unwrap());
        let delay = Duration::from_millis(5);
        for round in 0..80 {
            let shard = &mut shards[round % 2];
            shard.timers().schedule(delay, 0).unwrap();
            let _ = shard.turn();
            clock.advance(Duration::from_millis(100));
            while shard.turn() == Turn::More {}
        }
        let stats = service.stats();
        let rows = late_rows(&stats);
        assert_eq!(rows.len(), LATE_DELIVERIES);
        assert!(rows.windows(2).all(|pair| pair[0].delivery.at_ns > pair[1].delivery.at_ns));
        let numbers: Vec<_> = rows.iter().map(|row| row.shard.number()).take(4).collect();
        assert_eq!(numbers, [1, 0, 1, 0]);
        assert!(rows.iter().all(|row| row.main == Some("poll_delay")), "the turns began late");
        assert_eq!(rows[0].delivery, &stats.shards[1].late_deliveries[0]);
    }
}

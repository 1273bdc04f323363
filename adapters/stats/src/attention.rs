//! What needs attention: the active warnings, and among them the one that explains most lateness
//! first.
//!
//! One entry of each kind and class stands for all shards that have the warning. Urgent warnings
//! come first, then those that explain more of the lateness of the last minute, then those that
//! come first in the table of the warnings. Possible consequences of the first warning come last.
//!
//! A late begin of a turn is explained by the host or by the executor, as the times of the thread
//! say. The time from there to a delivery is explained by the host, the handlers or the budget.
//!
//! Cost: a pass over the warnings; while a shard is stuck, also one over the steps of a moment.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use corewheel::ShardId;
use corewheel::stats::{ServiceStats, ShardStats, Warning, WarningKind};
use serde::Serialize;

use super::alarms::{Figure, is_active, said_with};
use super::history::Done;

/// A consequence may be seen before its cause, which is measured over some time.
const CAUSE_SEEN_NS: u64 = 3_000_000_000;

/// An active warning of a kind and class, as the first shard or the worst one has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Attention {
    id: WarningKind,
    shard: ShardId,
    class: Option<&'static str>,
    text: String,
    /// What to do; of a shard that is stuck, also what keeps it.
    advice: String,
    /// The figures of the shard that the page says with it.
    figures: &'static [Figure],
    /// How many other shards have it.
    other_shards: usize,
    /// Since when one of the shards has it, in nanoseconds from the start of the service.
    since_ns: u64,
    /// How much lateness of the shard it explains, of the last minute.
    explained_ns: u64,
    /// Whether it may be a consequence of the first one.
    is_consequence: bool,
}

/// What needs attention. `lately` has what each shard did in the last minute. `just_now` returns
/// the length of a shorter span before the present, in nanoseconds, and what each shard did in it.
pub(super) fn attention(
    stats: &ServiceStats,
    lately: &[Done],
    just_now: impl Fn() -> (u64, Vec<Done>),
) -> Vec<Attention> {
    let mut kinds = BTreeMap::<_, Vec<&Warning>>::new();
    for warning in stats.warnings.iter().filter(|warning| warning.is_active) {
        kinds.entry((warning.kind, warning.class)).or_default().push(warning);
    }
    if kinds.is_empty() {
        return Vec::new();
    }
    let explained = |warning: &Warning| {
        let index = stats.shards.iter().position(|shard| shard.shard == warning.shard);
        index
            .map_or(0, |index| explained(stats, &stats.shards[index], &lately[index], warning.kind))
    };
    let mut all: Vec<_> = kinds
        .into_values()
        .map(|of_kind| {
            let least = |warning: &&&Warning| Reverse(explained(warning));
            let worst = *of_kind.iter().min_by_key(least).expect("a kind has a warning");
            Attention {
                id: worst.kind,
                shard: worst.shard,
                class: worst.class,
                text: worst.text.clone(),
                advice: advice(stats, worst, &just_now),
                figures: said_with(worst.kind),
                other_shards: of_kind.len() - 1,
                since_ns: of_kind.iter().map(|one| one.since_ns).min().unwrap_or(worst.since_ns),
                explained_ns: explained(worst),
                is_consequence: false,
            }
        })
        .collect();
    // The order of equals is that of the table.
    all.sort_by_key(|one| {
        let is_urgent = one.id.is_urgent();
        (!is_urgent, Reverse(if is_urgent { 0 } else { one.explained_ns }))
    });
    let (first, others) = all.split_first_mut().expect("there is a warning");
    for one in &mut *others {
        // A host that is overcommitted is so for all shards, and the other causes are of one.
        let is_of_it = one.shard == first.shard || first.id == WarningKind::HostOvercommitted;
        let is_later = one.since_ns.saturating_add(CAUSE_SEEN_NS) > first.since_ns;
        one.is_consequence = is_of_it && is_later && first.id.consequences().contains(&one.id);
    }
    others.sort_by_key(|one| one.is_consequence);
    all
}

/// What to do about a warning.
fn advice(
    stats: &ServiceStats,
    warning: &Warning,
    just_now: impl Fn() -> (u64, Vec<Done>),
) -> String {
    let index = stats.shards.iter().position(|shard| shard.shard == warning.shard);
    match index.filter(|_| warning.kind == WarningKind::ShardStuck) {
        Some(index) => {
            let (span, done) = just_now();
            stuck_by(stats, &stats.shards[index], (span, &done[index]))
        }
        None => warning.kind.remedy().to_owned(),
    }
}

/// What keeps a shard that is stuck, by what the system says of its thread: what it has done for so
/// many nanoseconds.
fn stuck_by(stats: &ServiceStats, shard: &ShardStats, (span, done): (u64, &Done)) -> String {
    if shard.turn_ns.is_some() {
        let Some(class) = shard.delivering else { return "A turn runs.".to_owned() };
        let overrun = shard.classes.iter().find(|one| one.class == class).map(|one| one.overrun);
        return match overrun.unwrap_or(0) {
            0 => format!(
                "A handler of class {class} has not returned: look for a call that blocks, or a \
                 loop without an end."
            ),
            times => format!(
                "Handlers of class {class} were slow {times} times before and returned: look for a \
                 call that blocks, and move it elsewhere."
            ),
        };
    }
    let (ran, waited) = (done.counts.ran, done.counts.waited);
    let is_host = is_active(stats, shard, WarningKind::HostOvercommitted);
    let text = if shard.thread_ran_ns.is_none() || span == 0 {
        "Its thread does not begin the turn."
    } else if is_host || waited > span / 2 {
        "Its thread waits for a processor: the host is overcommitted."
    } else if ran > span / 4 {
        "Its thread runs another task, which does not yield."
    } else {
        "Its thread does not run: it is blocked or stopped, or waits for a processor."
    };
    text.to_owned()
}

/// How much of a shard's lateness a warning explains, in nanoseconds.
fn explained(stats: &ServiceStats, shard: &ShardStats, done: &Done, kind: WarningKind) -> u64 {
    use WarningKind::{
        BudgetExhausted, ExecutorStalled, HandlerSlow, HostOvercommitted, LaneFlooded,
    };
    let is_active = |kind| is_active(stats, shard, kind);
    let [arrival, poll, handlers, backlog] = done.parts;
    let waited = done.counts.waited.saturating_mul(2);
    let host = is_active(HostOvercommitted);
    let is_host_before = host && waited >= done.counts.stalled;
    let is_host_within = host && waited >= done.counts.busy;
    let after_budget = shard.late_deliveries.iter().filter(|one| one.after_budget).count();
    let is_budget = is_active(BudgetExhausted) && after_budget * 2 > shard.late_deliveries.len();
    let of_poll = if is_host_before { HostOvercommitted } else { ExecutorStalled };
    let of_handlers = if is_host_within { HostOvercommitted } else { HandlerSlow };
    let of_backlog = if !is_host_within && is_budget { BudgetExhausted } else { of_handlers };
    // Requests also wait in their lane while the shard does not run.
    let others = [HostOvercommitted, ExecutorStalled, HandlerSlow, BudgetExhausted];
    let of_arrival = (!others.into_iter().any(is_active)).then_some(LaneFlooded);
    let parts = [
        (of_arrival, arrival),
        (Some(of_poll), poll),
        (Some(of_handlers), handlers),
        (Some(of_backlog), backlog),
    ];
    parts.into_iter().filter(|(of, _)| *of == Some(kind)).map(|(_, nanos)| nanos).sum()
}

#[cfg(test)]
mod tests {
    use WarningKind::{
        BudgetExhausted, ClassLeaks, ExecutorStalled, HandlerSlow, HostOvercommitted, LaneFlooded,
        ShardStuck,
    };

    use corewheel::TimerService;

    use super::super::history::Counts;
    use super::*;

    /// The statistics of two shards with these warnings: kind, shard, and since which second.
    fn stats(warnings: &[(WarningKind, u16, u64)]) -> ServiceStats {
        let service: TimerService<u64> =
            TimerService::builder().shards(2).start_attached_with().unwrap();
        let mut stats = service.stats();
        let warning = |&(kind, shard, since): &(WarningKind, u16, u64)| {
            let mut warning = Warning::new(kind, ShardId::new(shard));
            (warning.since_ns, warning.last_ns) = (since * 1_000_000_000, 60_000_000_000);
            warning
        };
        stats.warnings = warnings.iter().map(warning).collect();
        stats
    }

    fn found(
        warnings: &[(WarningKind, u16, u64)],
        done: [Done; 2],
    ) -> Vec<(WarningKind, u16, bool)> {
        let all = attention(&stats(warnings), &done, || (1, done.to_vec()));
        all.into_iter().map(|one| (one.id, one.shard.number(), one.is_consequence)).collect()
    }

    fn late(parts: [u64; 4]) -> Done {
        let mut done = Done::default();
        done.parts = parts;
        done
    }

    #[test]
    fn consequence_of_the_first_warning_comes_last() {
        let warnings = [
            (ExecutorStalled, 1, 0),
            (HandlerSlow, 1, 0),
            (LaneFlooded, 1, 0),
            (ClassLeaks, 0, 0),
            (BudgetExhausted, 0, 0),
        ];
        // A slow handler is no consequence of a stall, and another shard has a cause of its own.
        let expected = [
            (ExecutorStalled, 1, false),
            (HandlerSlow, 1, false),
            (BudgetExhausted, 0, false),
            (ClassLeaks, 0, false),
            (LaneFlooded, 1, true),
        ];
        assert_eq!(found(&warnings, Default::default()), expected);
        let of_host = [(HostOvercommitted, 1, 0), (BudgetExhausted, 0, 0)];
        let expected = [(HostOvercommitted, 1, false), (BudgetExhausted, 0, true)];
        assert_eq!(found(&of_host, Default::default()), expected);
    }

    #[test]
    fn warning_that_is_older_than_the_first_is_no_consequence_of_it() {
        let warnings = [(HostOvercommitted, 1, 59), (HandlerSlow, 1, 37), (LaneFlooded, 1, 57)];
        let expected =
            [(HostOvercommitted, 1, false), (HandlerSlow, 1, false), (LaneFlooded, 1, true)];
        assert_eq!(found(&warnings, Default::default()), expected);
    }

    #[test]
    fn cause_of_most_lateness_comes_first_unless_another_is_urgent() {
        let warnings = [(ExecutorStalled, 0, 9), (HandlerSlow, 0, 9), (HandlerSlow, 1, 5)];
        let done = || [late([900, 30, 20, 5]), late([0, 0, 60, 1])];
        let all = attention(&stats(&warnings), &done(), || (1, done().into()));
        let [slow, stalled] = &all[..] else { panic!("{all:?}") };
        assert_eq!((slow.id, slow.shard.number(), slow.explained_ns), (HandlerSlow, 1, 61));
        assert_eq!((slow.other_shards, slow.since_ns), (1, 5_000_000_000));
        assert_eq!((stalled.id, stalled.explained_ns), (ExecutorStalled, 30));
        let urgent = [(HandlerSlow, 1, 5), (ShardStuck, 0, 9)];
        let expected = [(ShardStuck, 0, false), (HandlerSlow, 1, false)];
        assert_eq!(found(&urgent, done()), expected);
        let flooded = [(ClassLeaks, 0, 9), (LaneFlooded, 0, 9)];
        let expected = [(LaneFlooded, 0, false), (ClassLeaks, 0, false)];
        assert_eq!(found(&flooded, done()), expected, "requests were late");
    }

    #[test]
    fn lateness_is_the_hosts_where_the_thread_waited_for_half_of_it() {
        let of = |kind, waited| {
            let mut done = late([0, 10, 20, 30]);
            done.counts = Counts { waited, stalled: 100, busy: 300, ..Counts::default() };
            let warnings =
                [(HostOvercommitted, 0, 9), (ExecutorStalled, 0, 9), (HandlerSlow, 0, 9)];
            let stats = stats(&warnings);
            explained(&stats, &stats.shards[0], &done, kind)
        };
        let all = |waited| [HostOvercommitted, ExecutorStalled, HandlerSlow].map(|k| of(k, waited));
        assert_eq!(all(49), [0, 10, 50]);
        assert_eq!(all(50), [10, 0, 50]);
        assert_eq!(all(150), [60, 0, 0]);
    }

    #[test]
    fn stuck_shard_is_kept_by_what_its_thread_has_done_for_a_moment() {
        let by = |ran, waited, warnings: &[(WarningKind, u16, u64)]| {
            let mut stats = stats(warnings);
            stats.shards[0].thread_ran_ns = Some(0);
            let mut done = Done::default();
            done.counts = Counts { waited, ran, ..Counts::default() };
            stuck_by(&stats, &stats.shards[0], (1_000, &done))
        };
        let waits = "Its thread waits for a processor: the host is overcommitted.";
        assert_eq!(by(0, 501, &[]), waits);
        assert_eq!(by(900, 0, &[(HostOvercommitted, 0, 9)]), waits);
        assert_eq!(by(251, 500, &[]), "Its thread runs another task, which does not yield.");
        assert!(by(250, 500, &[]).starts_with("Its thread does not run: "));
        assert!(by(250, 500, &[(HostOvercommitted, 1, 9)]).starts_with("Its thread does not run"));
    }
}

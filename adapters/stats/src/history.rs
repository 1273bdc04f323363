//! What a service did in the last ten minutes, for a page that is opened only now.
//!
//! A step is what the counts have grown by between two readings, at least five seconds apart. Each
//! request for statistics is a reading, and the endpoint takes one where no request has come. A
//! user's own server takes none: what happened between two readings that are more than a minute
//! apart is in no step, as the readings do not say when. The steps have what the page draws, under
//! the names that the page has for them.
//!
//! Why not on the shards: a reading costs a shard nothing, and a service needs no steps if no
//! server serves its statistics.
//!
//! Invariants: at most [`STEPS_MAX`] steps are kept, and none that ended more than ten minutes ago.
//! Steps that ended more than a minute ago are sums of all shards.
//!
//! Cost: some 400 bytes a step, 60 kB in all, and as much for each shard beyond the first twelve.

use std::collections::VecDeque;
use std::time::Duration;

use corewheel::stats::{ServiceStats, ShardStats, Times, WarningKind};
use serde::Serialize;

use super::alarms::{ClassRow, LateRow, ShardAlarms, alarms, class_rows, late_rows};
use super::attention::{Attention, attention};
use super::warnings::WarningRow;

const STEPS_MAX: usize = 120;
/// The least length of a step, in nanoseconds.
const STEP: u64 = 5_000_000_000;
pub(super) const STEP_LENGTH: Duration = Duration::from_nanos(STEP);
const KEPT: u64 = STEP * STEPS_MAX as u64;
/// How long ago lateness is explained, in nanoseconds.
const LATELY: u64 = 60_000_000_000;
/// What a thread has done for at least so many nanoseconds says why its shard is stuck.
const MOMENT: u64 = 500_000_000;
/// The greatest length of a step, in nanoseconds.
const STEP_LONGEST: u64 = 65_000_000_000;
/// For so long a step has each shard, in nanoseconds: the page looks at the last minute of a shard.
const BY_SHARD: u64 = 65_000_000_000;

/// Defines what a step counts, and where the counts of a shard have it.
macro_rules! step_counts {
    ($($name:ident: |$shard:ident| $count:expr,)*) => {
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
        pub(super) struct Counts {
            $(pub(super) $name: u64,)*
        }

        impl Counts {
            fn of(shard: &ShardStats) -> Self {
                Self { $($name: { let $shard = shard; $count },)* }
            }

            fn since(&self, before: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(before.$name),)* }
            }

            fn add(&mut self, other: &Self) {
                $(self.$name = self.$name.saturating_add(other.$name);)*
            }
        }
    };
}

step_counts! {
    fired: |shard| shard.counts.fired,
    late: |shard| shard.counts.late,
    cancelled: |shard| shard.counts.cancelled,
    turns: |shard| shard.counts.turns,
    busy: |shard| shard.counts.busy_ns,
    scheduled: |shard| shard.counts.scheduled_local + shard.counts.scheduled_remote,
    requests: |shard| shard.counts.requests,
    young: |shard| shard.counts.ended_young,
    resets: |shard| shard.counts.reset_lazy + shard.counts.reset_relinked,
    made: |shard| shard.counts.wakeups_made,
    saved: |shard| shard.counts.wakeups_saved,
    exhausted: |shard| shard.counts.turns_exhausted,
    stalled: |shard| shard.counts.stalled_ns,
    waited: |shard| shard.thread_waited_ns.unwrap_or(0),
    ran: |shard| shard.thread_ran_ns.unwrap_or(0),
}

/// What a shard, or all of them, did in a step; also all that a shard has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Done {
    #[serde(flatten)]
    pub(super) counts: Counts,
    /// Lateness by powers of two: the greatest nanoseconds of a bucket, and how many deliveries.
    lateness: Vec<(u64, u64)>,
    /// Nanoseconds of lateness by their part, in the order of the parts.
    pub(super) parts: [u64; 4],
    /// Late deliveries by class.
    classes: Vec<u64>,
}

impl Done {
    fn of(shard: &ShardStats) -> Self {
        let mut parts = [0; 4];
        for (sum, (_, times)) in parts.iter_mut().zip(shard.late_parts.iter()) {
            *sum = times.sum_ns;
        }
        Self {
            counts: Counts::of(shard),
            lateness: coarse(&shard.lateness),
            parts,
            classes: shard.classes.iter().map(|class| class.late).collect(),
        }
    }

    fn since(&self, before: &Self) -> Self {
        let lateness = self.lateness.iter().filter_map(|&(up_to, count)| {
            let then = before.lateness.iter().find(|(bound, _)| *bound == up_to);
            let more = count.saturating_sub(then.map_or(0, |(_, count)| *count));
            (more > 0).then_some((up_to, more))
        });
        let classes = self.classes.iter().zip(&before.classes);
        Self {
            counts: self.counts.since(&before.counts),
            lateness: lateness.collect(),
            parts: std::array::from_fn(|i| self.parts[i].saturating_sub(before.parts[i])),
            classes: classes.map(|(now, then)| now.saturating_sub(*then)).collect(),
        }
    }

    fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        for &(up_to, count) in &other.lateness {
            add_to(&mut self.lateness, up_to, count);
        }
        for (sum, more) in self.parts.iter_mut().zip(other.parts) {
            *sum += more;
        }
        self.classes.resize(other.classes.len().max(self.classes.len()), 0);
        for (sum, more) in self.classes.iter_mut().zip(&other.classes) {
            *sum += more;
        }
    }
}

/// The histogram by powers of two.
fn coarse(times: &Times) -> Vec<(u64, u64)> {
    let mut buckets = Vec::new();
    for (up_to, count) in &times.buckets {
        add_to(&mut buckets, u64::MAX >> up_to.leading_zeros().min(63), *count);
    }
    buckets
}

fn add_to(buckets: &mut Vec<(u64, u64)>, up_to: u64, count: u64) {
    match buckets.iter_mut().find(|(bound, _)| *bound == up_to) {
        Some((_, sum)) => *sum += count,
        None => buckets.push((up_to, count)),
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Step {
    /// When it ended, in nanoseconds from the start of the service.
    at_ns: u64,
    /// How long it took, in nanoseconds.
    span_ns: u64,
    /// Each shard in its order, or one sum of all.
    shards: Vec<Done>,
}

impl Step {
    fn add_up(&mut self) {
        if let Some((first, others)) = self.shards.split_first_mut() {
            for other in others {
                first.add(other);
            }
            self.shards.truncate(1);
        }
    }
}

/// The steps of the last ten minutes.
#[derive(Debug)]
pub(super) struct History {
    /// The reading at the end of the last step, in nanoseconds from the start of the service, with
    /// all that each shard had done.
    last: (u64, Vec<Done>),
    steps: VecDeque<Step>,
}

/// What `/history.json` serves: the steps, and the reading with which the last of them ends.
#[derive(Serialize)]
pub(super) struct Report<'a> {
    schema: u32,
    steps: &'a VecDeque<Step>,
    stats: Served<'a>,
}

/// What `/stats.json` serves: a reading, with the table of the warnings, what needs attention, and
/// which figures of the page are alarms.
#[derive(Serialize)]
pub(super) struct Served<'a> {
    #[serde(flatten)]
    stats: &'a ServiceStats,
    warning_kinds: [WarningRow; WarningKind::ALL.len()],
    /// The active warnings, the one that explains most lateness first.
    attention: Vec<Attention>,
    alarms: Vec<ShardAlarms>,
    /// The classes, all shards together.
    classes: Vec<ClassRow>,
    /// The last of all shards together, the latest first.
    late_deliveries: Vec<LateRow<'a>>,
}

impl History {
    /// A history that begins with a reading.
    pub(super) fn new(stats: &ServiceStats) -> Self {
        Self { last: mark(stats), steps: VecDeque::new() }
    }

    /// Takes note of a reading, if the last step is long enough.
    pub(super) fn note(&mut self, stats: &ServiceStats) {
        if nanos(stats.uptime).saturating_sub(self.last.0) >= STEP {
            self.end_step(stats);
        }
    }

    /// All steps up to a reading, with which a step ends. It is shorter than others, so a reader
    /// that asks often does not push older steps out: the next step takes it in.
    pub(super) fn report<'a>(&'a mut self, stats: &'a ServiceStats) -> Report<'a> {
        self.end_step(stats);
        let stats = self.served(stats);
        Report { schema: ServiceStats::SCHEMA, steps: &self.steps, stats }
    }

    /// What `/stats.json` serves of a reading that was noted.
    pub(super) fn served<'a>(&self, stats: &'a ServiceStats) -> Served<'a> {
        let (_, lately) = self.lately(stats, LATELY);
        Served {
            stats,
            warning_kinds: WarningRow::all(stats),
            attention: attention(stats, &lately, || self.lately(stats, MOMENT)),
            alarms: alarms(stats, &lately),
            classes: class_rows(stats),
            late_deliveries: late_rows(stats),
        }
    }

    /// What each shard did in at least so many nanoseconds before a reading, as far as there are
    /// steps, and how long that was.
    fn lately(&self, stats: &ServiceStats, within: u64) -> (u64, Vec<Done>) {
        let (now, done) = mark(stats);
        let last = done.iter().zip(&self.last.1).map(|(now, then)| now.since(then));
        let (mut span, mut sums) = (now.saturating_sub(self.last.0), last.collect::<Vec<_>>());
        let is_recent = |step: &&Step| {
            step.at_ns.saturating_add(within) > now && step.shards.len() == stats.shards.len()
        };
        for step in self.steps.iter().filter(is_recent) {
            span = span.saturating_add(step.span_ns);
            sums.iter_mut().zip(&step.shards).for_each(|(sum, more)| sum.add(more));
        }
        (span, sums)
    }

    fn end_step(&mut self, stats: &ServiceStats) {
        let (at_ns, done) = mark(stats);
        // Another reading was noted since, or at the same moment.
        if at_ns <= self.last.0 {
            return;
        }
        let (before, done_before) = std::mem::replace(&mut self.last, (at_ns, done));
        let span_ns = at_ns.saturating_sub(before);
        if span_ns > STEP_LONGEST {
            return;
        }
        let shards = self.last.1.iter().zip(&done_before).map(|(now, then)| now.since(then));
        let step = Step { at_ns, span_ns, shards: shards.collect() };
        match self.steps.back_mut() {
            // The last one is a part of a step.
            Some(last) if last.span_ns < STEP && last.shards.len() == step.shards.len() => {
                (last.at_ns, last.span_ns) = (at_ns, last.span_ns + span_ns);
                last.shards.iter_mut().zip(&step.shards).for_each(|(sum, more)| sum.add(more));
            }
            _ => self.steps.push_back(step),
        }
        self.forget(at_ns);
    }

    fn forget(&mut self, now: u64) {
        let is_over = |step: &Step| step.at_ns.saturating_add(KEPT) < now;
        while self.steps.front().is_some_and(is_over) || self.steps.len() > STEPS_MAX {
            self.steps.pop_front();
        }
        let is_old = |step: &&mut Step| step.at_ns.saturating_add(BY_SHARD) < now;
        self.steps.iter_mut().take_while(is_old).for_each(Step::add_up);
    }
}

/// A time in nanoseconds; the most that fits if it is longer.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn mark(stats: &ServiceStats) -> (u64, Vec<Done>) {
    (nanos(stats.uptime), stats.shards.iter().map(Done::of).collect())
}

#[cfg(test)]
mod tests {
    use corewheel::attach::ShardLoop;
    use corewheel::clock::ManualClock;
    use corewheel::{Fired, TimerService, Timers};

    use super::*;

    /// A service that has run for a while, with a timer that is late in each second.
    struct Lab {
        service: TimerService<u64>,
        shard: ShardLoop<u64>,
        clock: ManualClock,
    }

    impl Lab {
        fn new() -> Self {
            let clock = ManualClock::new();
            clock.advance(Duration::from_secs(12_345));
            let builder = TimerService::builder().shards(1).clock(&clock);
            let service = builder.start_attached_with::<u64>().unwrap();
            let attachment = service.attach(service.shard_for(0)).unwrap();
            let handler: fn(Fired<u64>, &Timers<u64>) = |_, _| {};
            let shard = attachment.into_loop(handler).unwrap();
            let mut lab = Self { service, shard, clock };
            lab.run(777);
            lab
        }

        fn run(&mut self, seconds: u64) {
            for _ in 0..seconds {
                self.shard.timers().schedule(Duration::from_millis(900), 0).unwrap();
                let _ = self.shard.turn();
                self.clock.advance(Duration::from_secs(1));
                let _ = self.shard.turn();
            }
        }

        fn stats(&self) -> ServiceStats {
            self.service.stats()
        }
    }

    #[track_caller]
    fn check(history: &History, late: u64, seconds: u64) {
        let steps = &history.steps;
        let done = steps.iter().flat_map(|step| &step.shards);
        let (sum, parts) = done.fold((0, 0), |(sum, parts), one| {
            (sum + one.counts.late, parts + one.parts.iter().sum::<u64>())
        });
        let spans: u64 = steps.iter().map(|step| step.span_ns).sum();
        assert_eq!((sum, spans / 1_000_000_000), (late, seconds), "{steps:?}");
        assert_eq!(parts, late * 100_000_000);
        assert!(steps.len() <= STEPS_MAX);
    }

    #[test]
    fn steps_have_what_happened_since_the_history_began() {
        let mut lab = Lab::new();
        let mut history = History::new(&lab.stats());
        check(&history, 0, 0);
        lab.run(4);
        history.note(&lab.stats());
        check(&history, 0, 0);
        lab.run(1);
        history.note(&lab.stats());
        check(&history, 5, 5);
        let step = &history.steps[0].shards[0];
        assert_eq!(step.lateness, [((1 << 27) - 1, 5)], "100 ms are less than 2^27 ns");
        // Each report ends a step, and short ones are put together.
        for more in 1..=7 {
            lab.run(1);
            let stats = lab.stats();
            let report = serde_json::to_value(history.report(&stats)).unwrap();
            assert_eq!(report["stats"]["shards"][0]["late"], 777 + 5 + more);
            check(&history, 5 + more, 5 + more);
        }
        assert_eq!(history.steps.len(), 3);
    }

    #[test]
    fn steps_of_more_than_ten_minutes_ago_are_forgotten() {
        let mut lab = Lab::new();
        let mut history = History::new(&lab.stats());
        for _ in 0..300 {
            lab.run(5);
            history.note(&lab.stats());
        }
        check(&history, 600, 600);
        assert_eq!(history.steps.len(), STEPS_MAX);
    }

    #[test]
    fn time_without_a_reading_is_in_no_step() {
        let mut lab = Lab::new();
        let mut history = History::new(&lab.stats());
        lab.run(66);
        history.note(&lab.stats());
        lab.run(60);
        history.note(&lab.stats());
        check(&history, 60, 60);
    }

    #[test]
    fn shards_are_added_up_a_minute_later() {
        let step = |at| {
            let done = |late| Done {
                counts: Counts { late, ..Counts::default() },
                lateness: vec![(15, late), (1 << late, 1)],
                parts: [late; 4],
                classes: vec![late, 1],
            };
            Step { at_ns: at, span_ns: STEP, shards: vec![done(2), done(3)] }
        };
        let mut history = History { last: (0, Vec::new()), steps: [step(1), step(9)].into() };
        history.forget(2 + BY_SHARD);
        let sum = Done {
            counts: Counts { late: 5, ..Counts::default() },
            lateness: vec![(15, 5), (4, 1), (8, 1)],
            parts: [5; 4],
            classes: vec![5, 2],
        };
        assert_eq!(history.steps[0].shards, [sum]);
        assert_eq!(history.steps[1], step(9));
    }
}

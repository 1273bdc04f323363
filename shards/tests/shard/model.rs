//! Random histories of a shard, against an ordered map.
//!
//! The map is that of [`CheckedShard`], which says what it shares with the code. A history begins
//! at a random tick, up to the last one.
//!
//! Each history draws its own wheel and its own mix of operations, so that some hardly advance and
//! others hardly cancel: a uniform mix never reaches the states in between. A history that fails is
//! cut down to the operations that it needs, and printed with the seed that generates it again:
//!
//! * `COREWHEEL_SEED` runs the one history of that seed of each test;
//! * `COREWHEEL_HISTORIES` sets the number of histories, from that seed on.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

use corewheel_shard::{Budget, ShardConfig, Tick, TimerKey, WheelKind};
use fastrand::Rng;

use crate::checked_shard::CheckedShard;
use crate::setting;

const HISTORIES: u64 = 2_000;
const OVERLOADS: u64 = 400;
const BURST_HISTORIES: u64 = 4;
const STEPS_MAX: usize = 150;

/// So many timers that a sweep begins long before the stale entries are as many as the timers.
const BURST_TIMERS: usize = 8_000;
const BURST_STEPS: usize = 60_000;

/// How many operations may run in the search for a shorter history that fails.
const SHRINK_STEPS_MAX: usize = 1_000_000;
/// How many of the last operations of a history that fails are printed.
const SHOWN_MAX: usize = 200;

#[test]
fn random_history_matches_ordered_map() {
    each(HISTORIES, 1, |rng| (random_config(rng), random_history(rng)));
}

/// The shard is behind throughout: more timers are scheduled than a turn may deliver, many of them
/// late, and cancels and resets leave stale entries among the late ones.
#[test]
fn overloaded_shard_delivers_in_order_of_ordered_map() {
    each(OVERLOADS, 1, |rng| {
        let config = random_config(rng);
        let config = ShardConfig { capacity: config.capacity.max(12), ..config };
        (config, random_overload(rng))
    });
}

#[test]
fn burst_that_triggers_sweep_matches_ordered_map() {
    each(BURST_HISTORIES, 97, |rng| {
        let config = ShardConfig {
            capacity: BURST_TIMERS as u32,
            slots: 1 << rng.u32(1..7),
            level_slots: 1 << rng.u32(1..5),
            wheel: random_wheel(rng),
            start: Tick::new(rng.u64(..) >> rng.u32(0..64)),
        };
        (config, random_bursts(rng))
    });
}

/// Checks a history for each of so many seeds, or for what the environment says.
fn each(count: u64, check_every: usize, random: impl Fn(&mut Rng) -> (ShardConfig, Vec<Op>)) {
    let seed = setting("COREWHEEL_SEED");
    let count = setting("COREWHEEL_HISTORIES").unwrap_or(if seed.is_some() { 1 } else { count });
    let first = seed.unwrap_or_else(|| fastrand::u64(..));
    for seed in (0..count).map(|number| first.wrapping_add(number)) {
        let (config, history) = random(&mut Rng::with_seed(seed));
        check_or_shrink(seed, config, history, check_every);
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Schedule(When),
    Cancel(Which),
    Reset(Which, When),
    Grant,
    Arm(Which, When),
    Revoke(Which),
    Advance(When, Budget),
    Pop(u32),
    Drain(usize),
    /// An advance, and pops until none is due.
    Turn(When, Budget),
    Postpone(Which, When),
    PanicAfter(u32),
}

/// A tick, given relative to the state of the history, so that it stays meaningful when earlier
/// operations are removed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    /// This many ticks from now.
    In(u64),
    /// This many ticks before now.
    Ago(u64),
    /// At the deadline of the pending timer with this number, plus an offset.
    With(usize, i64),
    At(Tick),
}

/// A key, given in the same way.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which {
    Pending(usize),
    /// The key with this number of those that were handed out, counted from the latest.
    Known(usize),
    /// A key with this index and generation that was not handed out.
    Forged(u32, u32),
}

/// Runs one history; panics if shard and model differ. Compares the whole state after every
/// `check_every` operations. `reached` counts the operations that have begun.
fn check(config: ShardConfig, history: &[Op], check_every: usize, reached: &Cell<usize>) {
    let mut shard = CheckedShard::new(config);
    let mut known = Vec::new();
    for (number, op) in history.iter().enumerate() {
        reached.set(number + 1);
        shard.thorough = number.is_multiple_of(check_every);
        step(&mut shard, &mut known, *op);
    }
    let budgets = [Budget::UNLIMITED, Budget { expired_max: 3, work_max: 20 }];
    shard.run_out(budgets[history.len() % 2]);
}

pub(crate) fn step(shard: &mut CheckedShard, known: &mut Vec<TimerKey>, op: Op) {
    match op {
        Op::Schedule(when) => known.extend(shard.schedule(tick(shard, when))),
        Op::Cancel(which) => shard.cancel(key(shard, known, which)),
        Op::Reset(which, when) => shard.reset(key(shard, known, which), tick(shard, when)),
        Op::Grant => known.extend(shard.grant()),
        Op::Arm(which, when) => shard.arm(key(shard, known, which), tick(shard, when)),
        Op::Revoke(which) => shard.revoke(key(shard, known, which)),
        Op::Advance(when, budget) => shard.advance(tick(shard, when), budget),
        Op::Pop(count) => {
            let _ = (0..count).all(|_| shard.pop());
        }
        Op::Drain(count) => shard.drain(count),
        Op::Turn(when, budget) => {
            shard.advance(tick(shard, when), budget);
            while shard.pop() {}
        }
        Op::Postpone(which, when) => shard.postpone(key(shard, known, which), tick(shard, when)),
        Op::PanicAfter(calls) => shard.calls_to_panic = Some(calls),
    }
}

fn tick(shard: &CheckedShard, when: When) -> Tick {
    Tick::new(match when {
        When::In(ticks) => shard.now().saturating_add(ticks),
        When::Ago(ticks) => shard.now().saturating_sub(ticks),
        When::With(number, offset) => {
            let with = shard.nth_pending(number).map_or(shard.now(), |(_, deadline)| deadline);
            with.saturating_add_signed(offset)
        }
        When::At(tick) => tick.index(),
    })
}

fn key(shard: &CheckedShard, known: &[TimerKey], which: Which) -> TimerKey {
    let forged = |index, generation: u32| {
        TimerKey::from_parts(index, NonZeroU32::new(generation).unwrap_or(NonZeroU32::MAX))
    };
    match which {
        Which::Pending(number) => shard.nth_pending(number).map_or(forged(0, 2), |(key, _)| key),
        Which::Known(number) => {
            known.iter().nth_back(number % known.len().max(1)).copied().unwrap_or(forged(9, 9))
        }
        // Vacant slots have even generations, and no slot reaches half of the generations.
        Which::Forged(index, generation) if generation.is_multiple_of(2) => {
            forged(index, generation)
        }
        Which::Forged(index, generation) => forged(index, generation | (1 << 31)),
    }
}

fn random_config(rng: &mut Rng) -> ShardConfig {
    let start = match rng.u32(0..6) {
        0 => rng.u64(..) >> rng.u32(0..64),
        1 => (1 << 63) - rng.u64(0..40),
        2 => u64::MAX - rng.u64(0..600),
        3 => (1 << rng.u32(1..63)) - rng.u64(0..2),
        _ => 0,
    };
    ShardConfig {
        capacity: [1, 3, 12, 40, 200][rng.usize(0..5)],
        wheel: random_wheel(rng),
        // Small wheels find more faults and take less time to check.
        slots: [2, 4, 4, 8, 16, 256][rng.usize(0..6)],
        level_slots: [2, 4, 4, 8, 16][rng.usize(0..5)],
        start: Tick::new(start),
    }
}

fn random_wheel(rng: &mut Rng) -> WheelKind {
    if rng.bool() { WheelKind::Hierarchical } else { WheelKind::Hashed }
}

fn random_history(rng: &mut Rng) -> Vec<Op> {
    let mut weights = [0; 11].map(|_| [0, 1, 5, 20][rng.usize(0..4)]);
    // Each history has some schedules and some turns, and few drains.
    weights[0] = weights[0].max(5);
    weights[6] = weights[6].max(2);
    weights[8] = weights[8].min(1);
    weights[10] = weights[10].min(1);
    let tame = rng.bool();
    let steps = rng.usize(1..STEPS_MAX);
    (0..steps).map(|_| random_op(rng, &weights, tame)).collect()
}

fn random_op(rng: &mut Rng, weights: &[u32; 11], tame: bool) -> Op {
    let mut drawn = rng.u32(0..weights.iter().sum());
    let number = weights.iter().position(|weight| {
        let here = drawn < *weight;
        drawn = drawn.wrapping_sub(*weight);
        here
    });
    match number.expect("the weights have not changed since they were summed") {
        0 => Op::Schedule(random_when(rng, tame)),
        1 => Op::Cancel(random_which(rng)),
        2 => Op::Reset(random_which(rng), random_when(rng, tame)),
        3 => Op::Grant,
        4 => Op::Arm(random_which(rng), random_when(rng, tame)),
        5 => Op::Revoke(random_which(rng)),
        6 => Op::Advance(random_when(rng, tame), random_budget(rng)),
        7 => Op::Pop(1 << rng.u32(0..8)),
        8 => Op::Drain(rng.usize(0..6)),
        9 => Op::Postpone(random_which(rng), random_when(rng, tame)),
        _ => Op::PanicAfter(rng.u32(0..9)),
    }
}

fn random_when(rng: &mut Rng, tame: bool) -> When {
    match rng.u32(0..if tame { 8 } else { 12 }) {
        0..3 => When::In(rng.u64(0..9)),
        3..5 => When::In(rng.u64(0..70)),
        5 => When::Ago(rng.u64(0..9)),
        6..8 => When::With(rng.usize(0..64), rng.i64(-1..2)),
        8 => When::In((1 << rng.u32(0..64)) - rng.u64(0..2)),
        9 => When::In(rng.u64(..) >> rng.u32(0..64)),
        10 => When::Ago(rng.u64(..)),
        _ => When::At(Tick::new(u64::MAX - rng.u64(0..5))),
    }
}

fn random_which(rng: &mut Rng) -> Which {
    match rng.u32(0..9) {
        0..5 => Which::Pending(rng.usize(0..256)),
        5..7 => Which::Known(rng.usize(0..4)),
        7 => Which::Known(rng.usize(0..256)),
        _ => Which::Forged(rng.u32(0..4), rng.u32(..) >> rng.u32(0..32)),
    }
}

fn random_budget(rng: &mut Rng) -> Budget {
    let max = |rng: &mut Rng| match rng.u32(0..4) {
        0 => 1,
        1 => rng.u32(0..40),
        _ => u32::MAX,
    };
    Budget { expired_max: max(rng), work_max: max(rng) }
}

/// Timers of a few ticks, followed by turns that deliver a few of them, with late timers, cancels
/// and resets before and after each turn.
fn random_overload(rng: &mut Rng) -> Vec<Op> {
    let backlog = rng.usize(2..60);
    let mut history: Vec<_> = (0..backlog).map(|_| Op::Schedule(When::In(rng.u64(0..4)))).collect();
    for _ in 0..rng.usize(2..60) {
        let budget = match rng.u32(0..8) {
            0 => Budget { expired_max: 1, work_max: 1 },
            1 => Budget { expired_max: u32::MAX, work_max: rng.u32(1..20) },
            2 => random_budget(rng),
            _ => Budget { expired_max: rng.u32(1..3), work_max: u32::MAX },
        };
        history.push(Op::Advance(When::In(rng.u64(0..2)), budget));
        let between = |rng: &mut Rng| match rng.u32(0..8) {
            0..3 => Op::Schedule(When::Ago(rng.u64(0..3))),
            3 => Op::Schedule(When::In(rng.u64(1..4))),
            4 | 5 => Op::Cancel(random_which(rng)),
            6 => Op::Postpone(random_which(rng), When::In(rng.u64(0..4))),
            _ => Op::Reset(random_which(rng), When::In(rng.u64(0..4))),
        };
        history.extend((0..rng.u32(0..3)).map(|_| between(rng)));
        history.push(Op::Pop(4));
        history.extend((0..rng.u32(0..3)).map(|_| between(rng)));
    }
    history
}

/// Bursts that repeat one kind of operation, so many times that entries are swept.
fn random_bursts(rng: &mut Rng) -> Vec<Op> {
    let mut history = Vec::new();
    while history.len() < BURST_STEPS {
        let when = random_when(rng, true);
        let many = rng.usize(0..BURST_TIMERS);
        let few = many / 200;
        let burst: &mut dyn FnMut(&mut Rng) -> Op = match rng.u32(0..11) {
            0 => &mut |_| Op::Schedule(when),
            1 => &mut |rng| Op::Schedule(random_when(rng, false)),
            2 => &mut |rng| Op::Cancel(Which::Pending(rng.usize(0..BURST_TIMERS))),
            3 => &mut |rng| Op::Cancel(Which::Known(rng.usize(0..50))),
            4 => &mut |rng| {
                Op::Reset(Which::Pending(rng.usize(0..BURST_TIMERS)), random_when(rng, true))
            },
            5 => &mut |_| Op::Pop(40),
            // Turns take entries off a slot that the sweep is in.
            6..9 => &mut |rng| match rng.u32(0..60) {
                0 => Op::Advance(When::In(rng.u64(0..3)), random_budget(rng)),
                1 => Op::Pop(2),
                _ => Op::Cancel(Which::Pending(rng.usize(0..BURST_TIMERS))),
            },
            9 => &mut |rng| Op::Advance(random_when(rng, true), random_budget(rng)),
            _ => &mut |rng| Op::Drain(rng.usize(0..BURST_TIMERS)),
        };
        let first = burst(rng);
        let turns = matches!(first, Op::Pop(40) | Op::Advance(..) | Op::Drain(_));
        history.extend((0..if turns { few } else { many }).map(|_| burst(rng)));
    }
    history
}

/// Runs one history with [`check`]. If it fails, searches for a shorter part of it that fails too,
/// and panics with that part.
fn check_or_shrink(seed: u64, config: ShardConfig, mut history: Vec<Op>, check_every: usize) {
    let reached = Cell::new(0);
    let fails = |history: &[Op]| {
        catch_unwind(AssertUnwindSafe(|| check(config, history, check_every, &reached))).is_err()
    };
    if !fails(&history) {
        return;
    }
    history.truncate(reached.get());
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let mut steps = 0;
    let mut len = history.len() / 2;
    while len > 0 {
        let mut from = 0;
        while from < history.len() && steps < SHRINK_STEPS_MAX {
            let to = history.len().min(from + len);
            let shorter = [&history[..from], &history[to..]].concat();
            let shorter_fails = fails(&shorter);
            steps += reached.get();
            if shorter_fails {
                history = shorter;
            } else {
                from = to;
            }
        }
        len /= 2;
    }
    set_hook(hook);
    let shown = history.len().saturating_sub(SHOWN_MAX);
    let steps: Vec<_> = history[shown..].iter().map(|op| format!("    {op:?}\n")).collect();
    panic!(
        "a history fails; set COREWHEEL_SEED={seed} to run it again\n{config:?}\n{}",
        steps.concat()
    );
}

//! Every history of a few operations over a wheel of a few slots, against an ordered map.
//!
//! Why in addition to random histories: a fault at the edges of slots and levels shows within a few
//! operations, and a test of all such histories misses none. The wheels have as few slots as
//! possible, so that a handful of ticks crosses several levels and rounds.
//!
//! Histories are enumerated like the digits of a number, the last operation fastest. The operations
//! that a history shares with the previous one were checked there and are only repeated.
//!
//! The map is the one of the random histories, which shares nothing with the code but the contract.
//! The first tick is 13 and a random multiple of 16, up to the last one. `COREWHEEL_SEED` repeats
//! that choice.

use corewheel_shard::{Budget, ShardConfig, Tick, TimerKey, WheelKind};
use fastrand::Rng;

use crate::checked_shard::CheckedShard;
use crate::setting;

const SMALLEST: Budget = Budget { expired_max: 1, work_max: 1 };

#[derive(Clone, Copy, Debug)]
enum Op {
    Schedule(u64),
    Grant,
    Drain,
    Turn(u64, Budget),
    Cancel(TimerKey),
    Reset(TimerKey, u64),
    Arm(TimerKey, u64),
    Revoke(TimerKey),
}

/// The operations of which histories consist. Ticks count from now.
struct Alphabet {
    schedule: &'static [u64],
    turn: &'static [(u64, Budget)],
    reset: &'static [u64],
    /// How many of the latest keys the cancels and resets name, whether live or stale.
    keys_max: usize,
    remote: bool,
    steps: usize,
}

/// Deadlines and turns at the edges of the first slots and levels.
const EDGES: Alphabet = Alphabet {
    schedule: &[0, 1, 4],
    turn: &[(1, Budget::UNLIMITED), (3, SMALLEST), (9, Budget::UNLIMITED)],
    reset: &[],
    keys_max: 1,
    remote: false,
    steps: 6,
};

/// Timers that are reset to earlier and later deadlines.
const RESETS: Alphabet = Alphabet {
    schedule: &[2, 5],
    turn: &[(2, Budget::UNLIMITED), (4, SMALLEST)],
    reset: &[1, 6],
    keys_max: 2,
    remote: false,
    steps: 5,
};

/// One or two timers, in longer histories.
const FEW: Alphabet = Alphabet {
    schedule: &[3],
    turn: &[(0, Budget::UNLIMITED), (3, SMALLEST)],
    reset: &[5],
    keys_max: 2,
    remote: false,
    steps: 6,
};

/// Timers that arrive for granted keys.
const REMOTE: Alphabet = Alphabet {
    schedule: &[],
    turn: &[(4, SMALLEST)],
    reset: &[2],
    keys_max: 2,
    remote: true,
    steps: 6,
};

#[test]
fn every_history_at_edges_matches_ordered_map() {
    check_all(WheelKind::Hierarchical, 2, &EDGES);
    check_all(WheelKind::Hashed, 4, &EDGES);
}

#[test]
fn every_history_of_resets_matches_ordered_map() {
    check_all(WheelKind::Hierarchical, 2, &RESETS);
    check_all(WheelKind::Hashed, 2, &RESETS);
}

#[test]
fn every_history_of_few_timers_matches_ordered_map() {
    check_all(WheelKind::Hierarchical, 4, &FEW);
    check_all(WheelKind::Hashed, 4, &FEW);
}

#[test]
fn every_history_of_granted_keys_matches_ordered_map() {
    check_all(WheelKind::Hierarchical, 4, &REMOTE);
    check_all(WheelKind::Hashed, 4, &REMOTE);
}

fn check_all(wheel: WheelKind, slots: u32, alphabet: &Alphabet) {
    let seed = setting("COREWHEEL_SEED").unwrap_or_else(|| fastrand::u64(..));
    let mut rng = Rng::with_seed(seed);
    // Three ticks before the first tick of a slot, so that the first histories cross it.
    let start = Tick::new(13 + (rng.u64(..) >> rng.u32(4..64)) * 16);
    let config = ShardConfig { capacity: 4, wheel, slots, level_slots: slots, start };
    let mut choices = Choices::default();
    loop {
        let mut history = History::new(config, alphabet, seed);
        for number in 0..alphabet.steps {
            history.collect_ops();
            let op = history.ops[choices.pick(number, history.ops.len())];
            history.shard.thorough = choices.is_new(number);
            history.step(op);
        }
        history.finish();
        if !choices.advance() {
            return;
        }
    }
}

struct History<'a> {
    shard: CheckedShard,
    alphabet: &'a Alphabet,
    keys: Vec<TimerKey>,
    /// The operations that may come next.
    ops: Vec<Op>,
    past: Past,
}

/// The operations so far, and the seed; prints them when it is dropped by a panic.
struct Past(Vec<Op>, u64);

impl Drop for Past {
    fn drop(&mut self) {
        if std::thread::panicking() {
            #[expect(clippy::print_stderr, reason = "a failing test prints its history")]
            {
                eprintln!("in the history {:?} with COREWHEEL_SEED={}", self.0, self.1);
            }
        }
    }
}

impl<'a> History<'a> {
    fn new(config: ShardConfig, alphabet: &'a Alphabet, seed: u64) -> Self {
        let (shard, past) = (CheckedShard::new(config), Past(Vec::new(), seed));
        Self { shard, alphabet, keys: Vec::new(), ops: Vec::new(), past }
    }

    /// Collects the operations that may come next.
    fn collect_ops(&mut self) {
        let Self { alphabet, ops, keys, .. } = self;
        ops.clear();
        ops.extend(alphabet.schedule.iter().map(|delay| Op::Schedule(*delay)));
        ops.extend(alphabet.turn.iter().map(|(ticks, budget)| Op::Turn(*ticks, *budget)));
        if alphabet.remote {
            ops.extend([Op::Grant, Op::Drain]);
        }
        for key in keys.iter().rev().take(alphabet.keys_max) {
            ops.push(Op::Cancel(*key));
            ops.extend(alphabet.reset.iter().map(|delay| Op::Reset(*key, *delay)));
            if alphabet.remote {
                ops.extend([Op::Arm(*key, 3), Op::Revoke(*key)]);
            }
        }
    }

    fn step(&mut self, op: Op) {
        self.past.0.push(op);
        let shard = &mut self.shard;
        let now = Tick::new(shard.now());
        match op {
            Op::Schedule(delay) => self.keys.extend(shard.schedule(now.saturating_add(delay))),
            Op::Grant => self.keys.extend(shard.grant()),
            Op::Drain => shard.drain(1),
            Op::Turn(ticks, budget) => {
                shard.advance(now.saturating_add(ticks), budget);
                while shard.pop() {}
            }
            Op::Cancel(key) => shard.cancel(key),
            Op::Reset(key, delay) => shard.reset(key, now.saturating_add(delay)),
            Op::Arm(key, delay) => shard.arm(key, now.saturating_add(delay)),
            Op::Revoke(key) => shard.revoke(key),
        }
    }

    /// Takes turns until no timer is pending.
    fn finish(&mut self) {
        self.shard.thorough = false;
        self.shard.run_out(Budget::UNLIMITED);
        self.shard.compare();
        assert_eq!(self.shard.nth_pending(0), None, "timers are pending after the last turn");
    }
}

/// The choices of one history: for each operation its number and how many there were.
#[derive(Default)]
struct Choices {
    picked: Vec<(usize, usize)>,
    /// The first choice that differs from that of the previous history.
    new_from: usize,
}

impl Choices {
    fn pick(&mut self, number: usize, count: usize) -> usize {
        if number == self.picked.len() {
            self.picked.push((0, count));
        }
        assert_eq!(self.picked[number].1, count, "the same choices lead to other operations");
        self.picked[number].0
    }

    fn is_new(&self, number: usize) -> bool {
        number >= self.new_from
    }

    /// Goes on to the next history; false after the last one.
    fn advance(&mut self) -> bool {
        while let Some((choice, count)) = self.picked.pop() {
            if choice + 1 < count {
                self.new_from = self.picked.len();
                self.picked.push((choice + 1, count));
                return true;
            }
        }
        false
    }
}

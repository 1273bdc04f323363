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

use std::panic::{AssertUnwindSafe, catch_unwind};

use corewheel_shard::{Budget, ShardConfig, Tick, WheelKind};
use fastrand::Rng;

use crate::checked_shard::CheckedShard;
use crate::model::{Op, When, Which, step};
use crate::setting;

const SMALLEST: Budget = Budget { expired_max: 1, work_max: 1 };

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
    let ops_of_keys = [0, 1, 2].map(|keys| alphabet.ops(keys));
    // For each operation its number and how many there were.
    let mut choices: Vec<(usize, usize)> = Vec::new();
    let mut new_from = 0;
    loop {
        let mut past = Vec::new();
        let checked = catch_unwind(AssertUnwindSafe(|| {
            let (mut shard, mut keys) = (CheckedShard::new(config), Vec::new());
            for number in 0..alphabet.steps {
                let ops = &ops_of_keys[keys.len().min(alphabet.keys_max)];
                if number == choices.len() {
                    choices.push((0, ops.len()));
                }
                let (choice, count) = choices[number];
                assert_eq!(count, ops.len(), "the same choices lead to other operations");
                past.push(ops[choice]);
                shard.thorough = number >= new_from;
                step(&mut shard, &mut keys, ops[choice]);
            }
            shard.thorough = false;
            shard.run_out(Budget::UNLIMITED);
            shard.compare();
        }));
        assert!(checked.is_ok(), "in the history {past:?} with COREWHEEL_SEED={seed}");
        // The next history: the last choice that has another operation left takes it.
        while choices.pop_if(|(choice, count)| *choice + 1 == *count).is_some() {}
        let Some((choice, _)) = choices.last_mut() else { return };
        *choice += 1;
        new_from = choices.len() - 1;
    }
}

impl Alphabet {
    /// The operations that may come next, when so many keys were handed out.
    fn ops(&self, keys: usize) -> Vec<Op> {
        let mut ops: Vec<_> =
            self.schedule.iter().map(|delay| Op::Schedule(When::In(*delay))).collect();
        ops.extend(self.turn.iter().map(|(ticks, budget)| Op::Turn(When::In(*ticks), *budget)));
        if self.remote {
            ops.extend([Op::Grant, Op::Drain(1)]);
        }
        for key in (0..keys).map(Which::Known) {
            ops.push(Op::Cancel(key));
            ops.extend(self.reset.iter().map(|delay| Op::Reset(key, When::In(*delay))));
            if self.remote {
                ops.extend([Op::Arm(key, When::In(3)), Op::Revoke(key)]);
            }
        }
        ops
    }
}

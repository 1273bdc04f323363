//! Every history of a few operations over a wheel of a few slots, against the twin.
//!
//! Why beside random histories: what goes wrong at the edges of slots and levels goes wrong within
//! a few steps, and where all of those are tried, none is missed. The wheels are as small as they
//! can be made, so that a handful of ticks crosses several levels and rounds.
//!
//! Histories are counted up like the digits of a number, the last operation fastest. What a history
//! shares with the one before was checked there and is only repeated.

use corewheel_shard::{Budget, ShardConfig, Tick, TimerKey, WheelKind};

mod twin;

use twin::Twin;

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

/// What a history is made of. Ticks count from now.
struct Alphabet {
    schedule: &'static [u64],
    turn: &'static [(u64, Budget)],
    reset: &'static [u64],
    /// Keys that are named by cancels and resets: the latest ones, live or dead.
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

/// Timers that are moved about.
const MOVES: Alphabet = Alphabet {
    schedule: &[2, 5],
    turn: &[(2, Budget::UNLIMITED), (4, SMALLEST)],
    reset: &[1, 6],
    keys_max: 2,
    remote: false,
    steps: 5,
};

/// One timer or two, and every longer history of them.
const FEW: Alphabet = Alphabet {
    schedule: &[3],
    turn: &[(0, Budget::UNLIMITED), (3, SMALLEST)],
    reset: &[5],
    keys_max: 2,
    remote: false,
    steps: 6,
};

/// Timers that come after their granted keys.
const REMOTE: Alphabet = Alphabet {
    schedule: &[],
    turn: &[(4, SMALLEST)],
    reset: &[2],
    keys_max: 2,
    remote: true,
    steps: 6,
};

#[test]
fn every_history_at_the_edges_is_right_on_the_hierarchical_wheel() {
    check_all(WheelKind::Hierarchical, 2, &EDGES);
}

#[test]
fn every_history_at_the_edges_is_right_on_the_hashed_wheel() {
    check_all(WheelKind::Hashed, 4, &EDGES);
}

#[test]
fn every_history_of_moves_is_right_on_the_hierarchical_wheel() {
    check_all(WheelKind::Hierarchical, 2, &MOVES);
}

#[test]
fn every_history_of_moves_is_right_on_the_hashed_wheel() {
    check_all(WheelKind::Hashed, 2, &MOVES);
}

#[test]
fn every_history_of_few_timers_is_right_on_the_hierarchical_wheel() {
    check_all(WheelKind::Hierarchical, 4, &FEW);
}

#[test]
fn every_history_of_few_timers_is_right_on_the_hashed_wheel() {
    check_all(WheelKind::Hashed, 4, &FEW);
}

#[test]
fn every_history_of_granted_keys_is_right_on_the_hierarchical_wheel() {
    check_all(WheelKind::Hierarchical, 4, &REMOTE);
}

#[test]
fn every_history_of_granted_keys_is_right_on_the_hashed_wheel() {
    check_all(WheelKind::Hashed, 4, &REMOTE);
}

fn check_all(wheel: WheelKind, slots: u32, alphabet: &Alphabet) {
    // Three ticks before an edge, so that the first histories cross it.
    let start = Tick::new(13);
    let config = ShardConfig { capacity: 4, wheel, slots, level_slots: slots, start };
    let mut choices = Choices::default();
    loop {
        let mut history = History::new(config, alphabet);
        for number in 0..alphabet.steps {
            history.offer();
            let op = history.ops[choices.pick(number, history.ops.len())];
            history.twin.thorough = choices.is_new(number);
            history.step(op);
        }
        history.finish();
        if !choices.advance() {
            return;
        }
    }
}

struct History<'a> {
    twin: Twin,
    alphabet: &'a Alphabet,
    keys: Vec<TimerKey>,
    /// What can be done next.
    ops: Vec<Op>,
    past: Past,
}

/// Shows the history of which it is a part if that fails.
#[derive(Default)]
struct Past(Vec<Op>);

impl Drop for Past {
    fn drop(&mut self) {
        if std::thread::panicking() {
            #[expect(clippy::print_stderr, reason = "a failing test tells what fails")]
            {
                eprintln!("in the history {:?}", self.0);
            }
        }
    }
}

impl<'a> History<'a> {
    fn new(config: ShardConfig, alphabet: &'a Alphabet) -> Self {
        let twin = Twin::new(config);
        Self { twin, alphabet, keys: Vec::new(), ops: Vec::new(), past: Past::default() }
    }

    fn offer(&mut self) {
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
        let twin = &mut self.twin;
        let now = Tick::new(twin.now());
        match op {
            Op::Schedule(delay) => self.keys.extend(twin.schedule(now.saturating_add(delay))),
            Op::Grant => self.keys.extend(twin.grant()),
            Op::Drain => twin.drain(1),
            Op::Turn(ticks, budget) => {
                twin.advance(now.saturating_add(ticks), budget);
                while twin.pop() {}
            }
            Op::Cancel(key) => twin.cancel(key),
            Op::Reset(key, delay) => twin.reset(key, now.saturating_add(delay)),
            Op::Arm(key, delay) => twin.arm(key, now.saturating_add(delay)),
            Op::Revoke(key) => twin.revoke(key),
        }
    }

    /// Lets time pass until every timer has had its outcome.
    fn finish(&mut self) {
        self.twin.thorough = false;
        self.twin.run_out(Budget::UNLIMITED);
        self.twin.compare();
        assert_eq!(self.twin.nth_pending(0), None, "every timer has had its outcome");
    }
}

/// The choices of one history, and how many there were each time.
#[derive(Default)]
struct Choices {
    picked: Vec<(usize, usize)>,
    /// From here on they differ from those of the history before.
    new_from: usize,
}

impl Choices {
    fn pick(&mut self, number: usize, count: usize) -> usize {
        if number == self.picked.len() {
            self.picked.push((0, count));
        }
        assert_eq!(self.picked[number].1, count, "the same choices come to the same offer");
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

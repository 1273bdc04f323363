//! `Shard::pop_expired_unless`: timers that their owner postpones, against a list of deadlines.
//!
//! The owner stores a later deadline without a call of the shard. Each timer must expire in the
//! first turn at or after the deadline that its owner has stored. This holds whatever the shard has
//! filed, and whether or not the predicate has panicked for it before.
//! `COREWHEEL_SEED` runs the history of that seed again.
//!
//! With the code it shares nothing but the contract: deadlines and turns are whole ticks, so that
//! nothing is rounded, and the list has no order. A history begins at a random tick.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use corewheel_shard::{Budget, Shard, ShardConfig, Tick, TimerKey, WheelKind};
use fastrand::Rng;

use crate::setting;

const HISTORIES: u64 = 200;
const TIMERS: usize = 60;
const STEPS: usize = 400;
/// A history has fewer ticks, its deadlines included.
const TICKS_MAX: u64 = 20_000;

struct Owner {
    shard: Shard<usize>,
    /// The owner's deadline and the key of each timer; `None` for a timer that is not pending.
    timers: Vec<Option<(u64, TimerKey)>>,
    now: u64,
    /// The predicate panics when it has been called so many times more; `None` if it does not.
    calls_to_panic: Option<u32>,
}

impl Owner {
    fn new(wheel: WheelKind, start: u64) -> Self {
        let config = ShardConfig {
            capacity: TIMERS as u32,
            wheel,
            slots: 8,
            level_slots: 4,
            start: Tick::new(start),
        };
        Self {
            shard: Shard::new(config).unwrap(),
            timers: vec![None; TIMERS],
            now: start,
            calls_to_panic: None,
        }
    }

    fn schedule(&mut self, number: usize, deadline: u64) {
        if self.timers[number].is_none() {
            let key = self.shard.schedule(Tick::new(deadline), number).unwrap();
            self.timers[number] = Some((deadline, key));
        }
    }

    /// Changes a deadline: to a later one by a store, to an earlier one by a reset in the shard.
    fn reset(&mut self, number: usize, deadline: u64) {
        let Some((current, key)) = &mut self.timers[number] else { return };
        if deadline < *current {
            let _outcome = self.shard.reset(*key, Tick::new(deadline));
        }
        *current = deadline;
    }

    fn cancel(&mut self, number: usize) {
        if let Some((_, key)) = self.timers[number].take() {
            assert_eq!(self.shard.cancel(key).payload(), Some(number));
        }
    }

    /// Takes a turn `ticks` later. Returns the numbers of the timers that expired.
    fn turn(&mut self, ticks: u64, budget: Budget) -> Vec<usize> {
        self.now += ticks;
        let now = self.now;
        self.shard.advance(Tick::new(now), budget);
        let mut fired = Vec::new();
        let mut left = None;
        loop {
            let Self { shard, timers, calls_to_panic, .. } = self;
            let (was_left, mut first) = (left.take(), None);
            let postpone = |number: &usize| {
                first.get_or_insert(*number);
                let panics_after = calls_to_panic.take();
                if panics_after == Some(0) {
                    left = Some(*number);
                    // Unlike `panic!`, this prints nothing.
                    resume_unwind(Box::new("on purpose"));
                }
                *calls_to_panic = panics_after.map(|calls| calls - 1);
                let due = timers[*number].expect("only a pending timer comes up").0;
                (due > now).then_some(Tick::new(due))
            };
            let popped = catch_unwind(AssertUnwindSafe(|| shard.pop_expired_unless(postpone)));
            assert!(was_left.is_none() || was_left == first, "a timer that is left comes next");
            let Ok(expired) = popped else {
                self.shard.check_invariants();
                continue;
            };
            let Some(expired) = expired else { break };
            let (deadline, key) =
                self.timers[expired.payload].take().expect("a timer expires once");
            assert_eq!(key, expired.key, "a postponed timer keeps its key");
            assert!(deadline <= now, "{deadline} is early at {now}");
            fired.push(expired.payload);
        }
        self.shard.check_invariants();
        fired
    }
}

#[test]
fn postponed_timer_expires_at_deadline_of_its_owner() {
    let first = setting("COREWHEEL_SEED").unwrap_or_else(|| fastrand::u64(..));
    for seed in (0..HISTORIES).map(|number| first.wrapping_add(number)) {
        let history = catch_unwind(|| run_history(seed));
        assert!(history.is_ok(), "the history of seed {seed} fails as printed above");
    }
}

fn run_history(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let wheel = if rng.bool() { WheelKind::Hierarchical } else { WheelKind::Hashed };
    let start = (rng.u64(..) >> rng.u32(0..64)).min(u64::MAX - TICKS_MAX);
    let mut owner = Owner::new(wheel, start);
    for _ in 0..STEPS {
        let number = rng.usize(..TIMERS);
        let range = 1 << rng.u32(0..9);
        let deadline = owner.now + rng.u64(..range);
        match rng.u32(..11) {
            0..4 => owner.schedule(number, deadline),
            4..7 => owner.reset(number, deadline),
            7 => owner.cancel(number),
            8 => {
                let few = Budget { expired_max: rng.u32(..4), work_max: rng.u32(1..20) };
                let _ = owner.turn(rng.u64(..9), few);
            }
            9 => owner.calls_to_panic = Some(rng.u32(..9)),
            _ => {
                let _ = owner.turn(rng.u64(..40), Budget::UNLIMITED);
                // A timer that is due and still pending was postponed to this tick or scheduled
                // late; the next turn hands it out.
                let _ = owner.turn(0, Budget::UNLIMITED);
                let late = owner.timers.iter().flatten().find(|(due, _)| *due <= owner.now);
                assert_eq!(late, None, "pending at {}", owner.now);
            }
        }
    }
}

#[test]
fn postponed_timer_uses_up_no_expired_max() {
    let start = 1_000_003;
    let mut owner = Owner::new(WheelKind::Hierarchical, start);
    for number in 0..20 {
        owner.schedule(number, start + 5);
        owner.reset(number, start + 50);
    }
    owner.schedule(20, start + 5);
    let budget = Budget { expired_max: 1, work_max: 100 };
    assert_eq!(owner.turn(5, budget), [20]);
    assert_eq!(owner.shard.counters().fired, 1);
    assert_eq!(owner.turn(44, Budget::UNLIMITED), [0; 0]);
    assert_eq!(owner.turn(1, Budget::UNLIMITED), (0..20).collect::<Vec<_>>());
}

#[test]
fn timer_postponed_to_past_tick_expires_in_next_turn() {
    let mut shard = Shard::new(ShardConfig::default()).unwrap();
    let _key = shard.schedule(Tick::new(3), ()).unwrap();
    shard.advance(Tick::new(10), Budget::UNLIMITED);
    assert_eq!(shard.pop_expired_unless(|()| Some(Tick::new(7))), None);
    assert!(shard.is_behind());
    shard.advance(Tick::new(10), Budget::UNLIMITED);
    assert_eq!(shard.pop_expired().unwrap().deadline, Tick::new(7));
}

#[test]
fn timer_whose_predicate_panics_stays_pending_and_is_delivered_later() {
    for wheel in [WheelKind::Hierarchical, WheelKind::Hashed] {
        let config = ShardConfig { wheel, ..ShardConfig::default() };
        let mut shard = Shard::new(config).unwrap();
        let keys = [5, 5, 900, 5].map(|due| shard.schedule(Tick::new(due), due).unwrap());
        // The next timer is late when it is scheduled.
        shard.advance(Tick::new(5), Budget::UNLIMITED);
        let late = shard.schedule(Tick::new(4), 4).unwrap();
        let expected = [keys[0], keys[1], keys[3], late, keys[2]];
        for (number, key) in expected.into_iter().enumerate() {
            let now = if number < 4 { 5 } else { 900 };
            shard.advance(Tick::new(now), Budget::UNLIMITED);
            let panics = AssertUnwindSafe(|| {
                shard.pop_expired_unless(|_| panic!("the predicate panics on purpose"))
            });
            assert!(catch_unwind(panics).is_err());
            shard.check_invariants();
            assert_eq!(shard.len(), expected.len() - number);
            assert_eq!(shard.next_deadline(), Some(Tick::new(now)));
            assert!(shard.is_behind());
            // Every other timer is popped in another turn.
            if number % 2 == 0 {
                shard.advance(Tick::new(now), Budget::UNLIMITED);
            }
            assert_eq!(shard.pop_expired().unwrap().key, key);
            shard.check_invariants();
        }
        assert!(shard.is_empty());
    }
}

//! The conformance tests of a shard, on both wheels.
//!
//! The names of the tests are the specification. Each test runs on both wheels, with so few slots
//! that it passes all levels and many rounds, and with the default number of slots. The invariants
//! of the shard are checked after each operation.

use std::panic::{AssertUnwindSafe, catch_unwind};

use corewheel_shard::{
    Budget, CancelOutcome, ResetOutcome, Shard, ShardConfig, Tick, TimerKey, WheelKind,
};

mod cancel_and_reset;
mod deadlines;
mod limits;
mod order;
mod soonest;
mod stale_entries;

/// The wheels under test.
fn configs() -> impl Iterator<Item = ShardConfig> {
    let kinds = [WheelKind::Hierarchical, WheelKind::Hashed];
    let sizes = [(2, 2), (4, 4), (8, 2), (2, 4), (16, 8), (256, 256)];
    kinds.into_iter().flat_map(move |wheel| {
        sizes.into_iter().map(move |(slots, level_slots)| ShardConfig {
            capacity: 4_096,
            wheel,
            slots,
            level_slots,
            start: Tick::ZERO,
        })
    })
}

/// Runs a test on each wheel; if it fails, panics with the configuration of the wheel.
fn on_each_wheel(test: impl Fn(ShardConfig)) {
    on_each_wheel_from(0, test);
}

fn on_each_wheel_from(start: u64, test: impl Fn(ShardConfig)) {
    for config in configs() {
        let config = ShardConfig { start: Tick::new(start), ..config };
        let outcome = catch_unwind(AssertUnwindSafe(|| test(config)));
        assert!(outcome.is_ok(), "the test fails with {config:?}");
    }
}

/// How many levels the wheel has, which is the most turns that one timer takes. 3 for the hashed
/// wheel, which may need two turns before it knows the first deadline.
fn levels(config: ShardConfig) -> u64 {
    match config.wheel {
        WheelKind::Hierarchical => {
            let above = u64::BITS - config.slots.ilog2();
            1 + u64::from(above.div_ceil(config.level_slots.ilog2()))
        }
        WheelKind::Hashed => 3,
    }
}

/// How many slots the wheel has.
fn slots(config: ShardConfig) -> u64 {
    let above = match config.wheel {
        WheelKind::Hierarchical => (levels(config) - 1) * u64::from(config.level_slots),
        WheelKind::Hashed => 0,
    };
    u64::from(config.slots) + above
}

/// A shard whose invariants are checked after each operation. Payloads are numbers.
struct Rig {
    shard: Shard<u32>,
    /// How many entries the shard may hold in addition to two for each timer.
    entries_slack: u64,
    /// All invariants are checked after every so many operations, since a check takes time with
    /// many timers or slots.
    check_every: u32,
    operations: u32,
}

impl Rig {
    fn new(config: ShardConfig) -> Self {
        Self {
            shard: Shard::new(config).expect("the configuration is good"),
            entries_slack: 4_096 + 2 * slots(config),
            check_every: if slots(config) < 500 { 1 } else { 9 },
            operations: 0,
        }
    }

    #[track_caller]
    fn check(&mut self) {
        let (entries, live) = (self.shard.entries() as u64, self.shard.len() as u64);
        assert!(entries <= 2 * live + self.entries_slack, "{entries} entries for {live} timers");
        self.operations += 1;
        if self.operations.is_multiple_of(self.check_every) {
            self.shard.check_invariants();
        }
    }

    #[track_caller]
    fn schedule(&mut self, deadline: u64, payload: u32) -> TimerKey {
        let key = self.shard.schedule(Tick::new(deadline), payload).expect("there is room");
        self.check();
        key
    }

    fn schedule_all(&mut self, deadlines: impl IntoIterator<Item = u64>) -> Vec<TimerKey> {
        let numbered = deadlines.into_iter().zip(0..);
        numbered.map(|(deadline, payload)| self.schedule(deadline, payload)).collect()
    }

    fn cancel(&mut self, key: TimerKey) -> CancelOutcome<u32> {
        let outcome = self.shard.cancel(key);
        self.check();
        outcome
    }

    fn reset(&mut self, key: TimerKey, deadline: u64) -> ResetOutcome {
        let outcome = self.shard.reset(key, Tick::new(deadline));
        self.check();
        outcome
    }

    fn advance(&mut self, now: u64, budget: Budget) {
        self.shard.advance(Tick::new(now), budget);
        self.check();
    }

    /// Pops the next timer that expires and returns its payload.
    fn pop(&mut self) -> Option<u32> {
        let expired = self.shard.pop_expired();
        self.check();
        if let Some(expired) = &expired {
            assert!(expired.deadline <= self.shard.now(), "{expired:?} fires early");
        }
        expired.map(|expired| expired.payload)
    }

    /// The payloads that fire in the rest of the turn.
    fn rest(&mut self) -> Vec<u32> {
        std::iter::from_fn(|| self.pop()).collect()
    }

    /// The payloads that fire in a turn without limits.
    fn turn(&mut self, now: u64) -> Vec<u32> {
        self.advance(now, Budget::UNLIMITED);
        self.rest()
    }

    /// Takes turns at the ticks that `next_deadline` returns. Returns the payloads that fire and
    /// their ticks.
    fn run_out(&mut self) -> Vec<(u64, u32)> {
        let mut fired = Vec::new();
        while let Some(next) = self.shard.next_deadline() {
            let now = next.index();
            fired.extend(self.turn(now).into_iter().map(|payload| (now, payload)));
        }
        assert_eq!(self.shard.len(), 0, "timers are pending without a next deadline");
        fired
    }

    /// Takes turns with a small budget until no timer is due at `now`. Returns the payloads that
    /// fire.
    fn turns(&mut self, now: u64, budget: Budget) -> Vec<u32> {
        let mut fired = Vec::new();
        // Each turn looks at an entry, and the wheel looks at each entry a few times at each level.
        let turns_max = 300 * (self.shard.entries() + 10);
        for _ in 0..turns_max {
            self.advance(now, budget);
            fired.extend(self.rest());
            if !self.shard.is_behind() {
                return fired;
            }
        }
        panic!("the shard is behind after {turns_max} turns");
    }
}

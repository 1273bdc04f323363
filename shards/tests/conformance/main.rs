//! What a timing wheel must do, line by line, on every wheel that there is.
//!
//! The names of the tests are the specification. Each runs on both wheels, with slots so few that
//! every level and round is passed, and with as many as are used in earnest. The invariants of the
//! shard are checked after each operation.

use std::panic::{AssertUnwindSafe, catch_unwind};

use corewheel_shard::{
    Budget, CancelOutcome, ResetOutcome, Shard, ShardConfig, Tick, TimerKey, WheelKind,
};

mod bounds;
mod callbacks;
mod deadlines;
mod order;
mod remote;
mod reset;
mod storms;

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

/// Runs a test on each wheel, and says on which it fails.
fn on_each_wheel(test: impl Fn(ShardConfig)) {
    on_each_wheel_from(0, test);
}

fn on_each_wheel_from(start: u64, test: impl Fn(ShardConfig)) {
    for config in configs() {
        let config = ShardConfig { start: Tick::new(start), ..config };
        let outcome = catch_unwind(AssertUnwindSafe(|| test(config)));
        assert!(outcome.is_ok(), "it fails with {config:?}");
    }
}

/// The most levels that a wheel can have; the hashed one has a single level and two rounds in which
/// it learns what the first deadline is.
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

/// A shard whose invariants are checked after each operation. Tasks are numbers.
struct Rig {
    shard: Shard<u32>,
    /// Entries that there may be beside two for each timer.
    entries_slack: u64,
    /// All invariants are checked after so many operations, for it takes time with many timers or
    /// slots.
    check_every: u32,
    operations: u32,
}

impl Rig {
    fn new(config: ShardConfig) -> Self {
        Self {
            shard: Shard::new(config).expect("the configuration is good"),
            entries_slack: 1_024 + 2 * slots(config),
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
    fn schedule(&mut self, deadline: u64, task: u32) -> TimerKey {
        let key = self.shard.schedule(Tick::new(deadline), task).expect("there is room");
        self.check();
        key
    }

    fn schedule_all(&mut self, deadlines: impl IntoIterator<Item = u64>) -> Vec<TimerKey> {
        let numbered = deadlines.into_iter().zip(0..);
        numbered.map(|(deadline, task)| self.schedule(deadline, task)).collect()
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

    /// The next task that fires.
    fn pop(&mut self) -> Option<u32> {
        let expired = self.shard.pop_expired();
        self.check();
        if let Some(expired) = &expired {
            assert!(expired.deadline <= self.shard.now(), "{expired:?} fires early");
        }
        expired.map(|expired| expired.task)
    }

    /// What fires in the rest of the turn.
    fn rest(&mut self) -> Vec<u32> {
        std::iter::from_fn(|| self.pop()).collect()
    }

    /// What fires in a turn without limits.
    fn turn(&mut self, now: u64) -> Vec<u32> {
        self.advance(now, Budget::UNLIMITED);
        self.rest()
    }

    /// What fires, and at which tick, when turns are taken as the shard asks for them.
    fn run_out(&mut self) -> Vec<(u64, u32)> {
        let mut fired = Vec::new();
        while let Some(next) = self.shard.next_deadline() {
            let now = next.index();
            fired.extend(self.turn(now).into_iter().map(|task| (now, task)));
        }
        assert_eq!(self.shard.len(), 0, "what is pending has a next deadline");
        fired
    }

    /// Turns with a small budget until nothing more fires at `now`.
    fn turns(&mut self, now: u64, budget: Budget) -> Vec<u32> {
        let mut fired = Vec::new();
        // Each turn looks at an entry, and each entry is looked at a few times at each level.
        let turns_max = 300 * (self.shard.entries() + 10);
        for _ in 0..turns_max {
            self.advance(now, budget);
            fired.extend(self.rest());
            if !self.shard.is_behind() {
                return fired;
            }
        }
        panic!("{turns_max} turns do not suffice");
    }
}

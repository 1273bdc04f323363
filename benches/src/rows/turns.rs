//! The time of single turns of a shard.
//!
//! The benchmark turns the shard itself and advances a manual clock tick by tick, so every turn is
//! timed and contains only the shard's own work: lanes, wheel, delivery, publishing.

use std::time::{Duration, Instant};

use corewheel::attach::Turn;
use corewheel::clock::ManualClock;
use corewheel::settings::TurnBudget;
use corewheel::{TimerId, TimerService, Timers};

use crate::report::Report;
use crate::{Home, Payload};

/// The title of the table.
pub const TABLE: &str = "single turns, µs";
/// The scenario whose longest turn has a target.
pub const MASS: &str = "a million due in one tick, default budget";
const SEED: u64 = 0x0C0D_E5EE_D000_0008;
const TICK: Duration = Duration::from_millis(1);
/// How often a scenario is run. The work of each turn is the same in every run, and the shortest
/// time of each turn counts, so that it contains no other load of the machine.
const RUNS: usize = 3;

struct Bench {
    clock: ManualClock,
    home: Home,
    micros: Vec<f64>,
}

impl Bench {
    fn new(capacity: usize, budget: TurnBudget) -> Self {
        let clock = ManualClock::new();
        let builder = TimerService::builder().capacity(capacity as u32).budget(budget);
        let home = Home::with(builder.clock(&clock), |_, _| {});
        Self { clock, home, micros: Vec::new() }
    }

    /// Advances the clock by a tick, and takes turns until no work is left.
    fn tick(&mut self) {
        self.clock.advance(TICK);
        loop {
            let start = Instant::now();
            let left = self.home.shard.turn();
            self.micros.push(start.elapsed().as_nanos() as f64 / 1_000.0);
            if left != Turn::More {
                return;
            }
        }
    }

    fn fired(&self) -> u64 {
        self.home.service.stats().shards[0].counts.fired
    }
}

/// Turns of a shard with so many timers, of which some are begun in each tick until there are
/// enough, and random ones are changed. `change` returns the timer that takes the place of one.
fn ticks(
    (pending, ticks): (usize, usize),
    (begun, changed): (usize, usize),
    change: fn(&Timers<Payload>, Option<TimerId>, &mut fastrand::Rng) -> TimerId,
) -> Bench {
    let mut rng = fastrand::Rng::with_seed(SEED);
    let mut bench = Bench::new(2 * pending, TurnBudget::default());
    let timers = bench.home.shard.timers().clone();
    let mut handles = Vec::with_capacity(pending);
    for _ in 0..ticks {
        let more = begun.min(pending - handles.len());
        handles.extend((0..more).map(|_| change(&timers, None, &mut rng)));
        for _ in 0..changed.min(handles.len() / 10) {
            let picked = rng.usize(..handles.len());
            handles[picked] = change(&timers, Some(handles[picked]), &mut rng);
        }
        bench.tick();
    }
    bench
}

/// 100,000 timers of up to a minute. In each tick, 100 random ones are cancelled, where they have
/// not fired, and others scheduled.
fn steady() -> Vec<f64> {
    let bench = ticks((100_000, 20_000), (100_000, 100), |timers, known, rng| {
        let _ = known.map(|timer| timers.cancel(timer));
        timers.schedule(TICK * rng.u32(1..60_000), Payload::MIN).expect("there is room")
    });
    assert!(bench.fired() > 0, "some have fired");
    bench.micros
}

/// A million idle timers of 30 seconds. Each tick resets 1,000 of them, so most are reset before
/// they are due, and the wheel files their entries again when the old deadlines come up. The few
/// timers that fire are not replaced.
fn reset() -> Vec<f64> {
    const IDLE: Duration = Duration::from_secs(30);
    let bench = ticks((1_000_000, 70_000), (100, 1_000), |timers, known, _| {
        let Some(timer) = known else {
            return timers.schedule(IDLE, Payload::MIN).expect("there is room");
        };
        let _ = timers.reset(timer, IDLE);
        timer
    });
    bench.micros
}

/// A million timers that are due in one tick.
fn all_due(budget: TurnBudget) -> Vec<f64> {
    const PENDING: usize = 1_000_000;
    let mut bench = Bench::new(PENDING, budget);
    let timers = bench.home.shard.timers().clone();
    let schedule = |_| timers.schedule(TICK * 20_000, Payload::MIN).expect("there is room");
    // They were scheduled in another order than that of their slots' memory, as timers of a server
    // that has run for a while are.
    let mut handles: Vec<_> = (0..PENDING).map(schedule).collect();
    fastrand::Rng::with_seed(SEED).shuffle(&mut handles);
    for handle in handles {
        let _ = timers.cancel(handle);
    }
    (0..PENDING).map(schedule).for_each(drop);
    // The earlier turns, which are not timed, bring the timers to the first level.
    for _ in 0..19_999 {
        bench.tick();
    }
    assert_eq!(bench.fired(), 0, "none is early");
    bench.micros.clear();
    bench.tick();
    assert_eq!(bench.fired(), PENDING as u64, "all have fired");
    bench.micros
}

/// All scenarios. The mass expiry runs without a budget and with the default budget.
pub fn all() -> Report {
    let no_budget = TurnBudget {
        requests_max: u32::MAX,
        expired_max: u32::MAX,
        work_max: u32::MAX,
        ..TurnBudget::default()
    };
    let scenarios: [(&str, &dyn Fn() -> Vec<f64>); 4] = [
        ("steady load, 100,000 pending", &steady),
        ("a million due in one tick, no budget", &|| all_due(no_budget)),
        (MASS, &|| all_due(TurnBudget::default())),
        ("idle timers of 30 s, reset 1,000 a tick", &reset),
    ];
    let mut report = Report::default();
    for (row, run) in scenarios {
        let mut shortest = run();
        for _ in 1..RUNS {
            let again = run();
            assert_eq!(again.len(), shortest.len(), "the same turns again");
            for (least, other) in shortest.iter_mut().zip(again) {
                *least = least.min(other);
            }
        }
        shortest.sort_by(f64::total_cmp);
        for (name, of_10_000) in
            [("p50", 5_000), ("p99", 9_900), ("p99.9", 9_990), ("p99.99", 9_999), ("all", 10_000)]
        {
            let rank = (shortest.len() * of_10_000).div_ceil(10_000).max(1);
            let row = format!("{row}, {name}");
            report.push(TABLE, &row, shortest.len(), "corewheel", shortest[rank - 1]);
        }
    }
    report
}

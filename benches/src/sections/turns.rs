//! The time of single turns of a shard.
//!
//! The benchmark turns the shard itself and advances a manual clock tick by tick, so every turn is
//! timed and contains only the shard's own work: lanes, wheel, delivery to a handler that counts,
//! publishing.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use corewheel::attach::{ShardLoop, Turn};
use corewheel::clock::ManualClock;
use corewheel::settings::TurnBudget;
use corewheel::{Fired, TimerService, Timers};

use crate::Payload;

const SEED: u64 = 0x0C0D_E5EE_D000_0008;
const TICK: Duration = Duration::from_millis(1);

/// The times of single turns, in microseconds, in their order or sorted.
#[derive(Clone, Debug)]
pub struct Turns {
    /// The work of the shard.
    pub scenario: &'static str,
    /// A time for each turn.
    pub micros: Vec<f64>,
}

impl Turns {
    /// The percentile of the times.
    pub fn percentile(&self, of_100: f64) -> f64 {
        let rank = (self.micros.len() as f64 * of_100 / 100.0).ceil();
        #[expect(clippy::cast_sign_loss, reason = "a rank has no sign")]
        let rank = (rank as usize).clamp(1, self.micros.len());
        self.micros[rank - 1]
    }
}

struct Bench<H: corewheel::Handler<Payload>> {
    clock: ManualClock,
    home: ShardLoop<Payload, H>,
    _service: TimerService<Payload>,
    fired: Rc<Cell<u64>>,
    micros: Vec<f64>,
}

fn bench(capacity: usize, budget: TurnBudget) -> Bench<impl corewheel::Handler<Payload>> {
    let clock = ManualClock::new();
    let builder = TimerService::builder().shards(1).capacity(capacity as u32);
    let service: TimerService<Payload> =
        builder.budget(budget).clock(&clock).start_attached_with().expect("it starts");
    let fired = Rc::new(Cell::new(0));
    let count = Rc::clone(&fired);
    let handler =
        move |one: Fired<Payload>, _: &Timers<Payload>| count.set(count.get() + one.payload.get());
    let shard = service.shards().next().expect("it has one");
    let home = service.attach(shard).expect("it is free").into_loop(handler).expect("memory");
    Bench { clock, home, _service: service, fired, micros: Vec::new() }
}

impl<H: corewheel::Handler<Payload>> Bench<H> {
    /// Advances the clock by a tick, and takes turns until no work is left.
    fn tick(&mut self) {
        self.clock.advance(TICK);
        loop {
            let start = Instant::now();
            let left = self.home.turn();
            self.micros.push(start.elapsed().as_nanos() as f64 / 1_000.0);
            if left != Turn::More {
                return;
            }
        }
    }

    fn finish(self, scenario: &'static str) -> Turns {
        Turns { scenario, micros: self.micros }
    }
}

/// 100,000 timers of up to a minute; in each tick 100 are cancelled and replaced, and those that
/// fire are replaced too.
fn steady() -> Turns {
    const PENDING: usize = 100_000;
    let mut rng = fastrand::Rng::with_seed(SEED);
    let mut bench = bench(2 * PENDING, TurnBudget::default());
    let timers = bench.home.timers().clone();
    let delay = |rng: &mut fastrand::Rng| TICK * rng.u32(1..60_000);
    let begin =
        |rng: &mut fastrand::Rng| timers.schedule(delay(rng), Payload::MIN).expect("there is room");
    let mut handles: Vec<_> = (0..PENDING).map(|_| begin(&mut rng)).collect();
    for _ in 0..20_000 {
        bench.tick();
        for _ in 0..100 {
            let picked = rng.usize(..PENDING);
            let _ = timers.cancel(handles[picked]);
            handles[picked] = begin(&mut rng);
        }
    }
    assert!(bench.fired.get() > 0, "some have fired");
    bench.finish("steady load, 100,000 pending")
}

/// A million timers that are due in one tick.
fn all_due(scenario: &'static str, budget: TurnBudget) -> Turns {
    const PENDING: usize = 1_000_000;
    let mut bench = bench(PENDING, budget);
    let timers = bench.home.timers().clone();
    // They were scheduled in another order than that of their slots' memory, as timers of a server
    // that has run for a while are.
    let handles: Vec<_> = (0..PENDING)
        .map(|_| timers.schedule(TICK * 20_000, Payload::MIN).expect("there is room"))
        .collect();
    let mut order: Vec<_> = (0..PENDING).collect();
    fastrand::Rng::with_seed(SEED).shuffle(&mut order);
    for picked in &order {
        let _ = timers.cancel(handles[*picked]);
    }
    for _ in 0..PENDING {
        timers.schedule(TICK * 20_000, Payload::MIN).expect("there is room");
    }
    // The earlier turns, which are not timed, bring the timers to the first level.
    for _ in 0..19_999 {
        bench.tick();
    }
    assert_eq!(bench.fired.get(), 0, "none is early");
    let before = bench.micros.len();
    bench.tick();
    assert_eq!(bench.fired.get(), PENDING as u64, "all have fired");
    bench.micros.drain(..before);
    bench.finish(scenario)
}

/// A million idle timers of 30 seconds. Each tick resets 1,000 of them, so most are reset before
/// they are due, and the wheel files their entries again when the old deadlines come up.
fn reset() -> Turns {
    const PENDING: usize = 1_000_000;
    const IDLE: Duration = Duration::from_secs(30);
    let mut rng = fastrand::Rng::with_seed(SEED);
    let mut bench = bench(PENDING, TurnBudget::default());
    let timers = bench.home.timers().clone();
    // The few timers that fire are not replaced.
    let mut handles = Vec::with_capacity(PENDING);
    for tick in 0..70_000_usize {
        if handles.len() < PENDING {
            let begin = |_| timers.schedule(IDLE, Payload::MIN).expect("there is room");
            handles.extend((0..100).map(begin));
        }
        for _ in 0..1_000.min(10 * tick) {
            let picked = rng.usize(..handles.len());
            let _ = timers.reset(handles[picked], IDLE);
        }
        bench.tick();
    }
    bench.finish("idle timers of 30 s, reset 1,000 a tick")
}

/// How often a scenario is run. The work of each turn is the same in every run, and the shortest
/// time of each turn counts, so that it contains no other load of the machine.
const RUNS: usize = 3;

fn shortest(run: impl Fn() -> Turns) -> Turns {
    let mut shortest = run();
    for _ in 1..RUNS {
        let again = run();
        assert_eq!(again.micros.len(), shortest.micros.len(), "the same turns again");
        for (least, other) in shortest.micros.iter_mut().zip(again.micros) {
            *least = least.min(other);
        }
    }
    shortest.micros.sort_by(f64::total_cmp);
    shortest
}

/// All scenarios. The mass expiry runs without a budget and with the default budget.
pub fn all() -> Vec<Turns> {
    let no_budget = TurnBudget {
        requests_max: u32::MAX,
        expired_max: u32::MAX,
        work_max: u32::MAX,
        ..TurnBudget::default()
    };
    vec![
        shortest(steady),
        shortest(|| all_due("a million due in one tick, no budget", no_budget)),
        shortest(|| all_due("a million due in one tick, default budget", TurnBudget::default())),
        shortest(reset),
    ]
}

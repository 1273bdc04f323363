//! What does one period of a periodic callback cost, beside a callback that schedules itself again
//! and a typed timer that its handler schedules again?
//!
//! A thousand of each are due in every tick of a shard in this loop, with a manual clock: they
//! share the cost of the turn, and no sleep is measured.
#![allow(missing_docs, reason = "the macros of Criterion make a public function without one")]

use std::cell::Cell;
use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

use corewheel::attach::{ShardLoop, Turn};
use corewheel::clock::ManualClock;
use corewheel::settings::TurnBudget;
use corewheel::{Fired, TimerService, Timers};
use corewheel_bench::{Payload, pin_to_one_core};
use corewheel_kit::TimersExt;
use corewheel_kit::repeat::{PeriodicRun, Repeat};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const MANY: u64 = 1_000;
const PERIOD: Duration = Duration::from_millis(1);

type Again = fn(Fired<Payload>, &Timers<Payload>);

/// A shard whose typed timers are scheduled again, and its clock.
struct Home {
    clock: ManualClock,
    // The drop of the service closes the shard.
    _service: TimerService<Payload>,
    shard: ShardLoop<Payload, Again>,
}

impl Home {
    fn new() -> Self {
        let clock = ManualClock::new();
        let everything =
            TurnBudget { expired_max: 1 << 16, work_max: 1 << 16, ..TurnBudget::default() };
        let builder = TimerService::builder().shards(1).capacity(1 << 14).budget(everything);
        let service: TimerService<Payload> =
            builder.clock(&clock).start_attached_with().expect("it starts");
        let shard = service.shards().next().expect("it has one");
        let again: Again = |fired, timers| {
            timers.schedule(fired.deadline + PERIOD, fired.payload).expect("there is room");
        };
        let attachment = service.attach(shard).expect("it is free");
        let shard = attachment.into_loop(again).expect("there is memory");
        Self { clock, _service: service, shard }
    }

    fn period(&mut self) {
        self.clock.advance(PERIOD);
        while self.shard.turn() == Turn::More {}
    }
}

fn again(timers: &Timers<Payload>, runs: Rc<Cell<u64>>) {
    let call = move |timers: &Timers<Payload>| {
        runs.set(runs.get() + 1);
        again(timers, runs);
    };
    timers.schedule_fn(PERIOD, call).expect("there is room");
}

fn periodic(criterion: &mut Criterion) {
    pin_to_one_core();
    let mut group = criterion.benchmark_group("one period, of a thousand at once");
    group.throughput(Throughput::Elements(MANY)).sample_size(20);
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
    let runs = Rc::new(Cell::new(0));

    let mut bench = |name: &str, begin: &dyn Fn(&Timers<Payload>)| {
        let mut home = Home::new();
        for _ in 0..MANY {
            begin(home.shard.timers());
        }
        // The first pass checks that the contender works.
        runs.set(0);
        home.period();
        assert_eq!(home.shard.timers().len() as u64, MANY, "{name}");
        assert!(runs.get() == MANY || name.starts_with("a typed"), "{name}");
        group.bench_function(name, |bencher| bencher.iter(|| home.period()));
    };
    let counting = || {
        let runs = Rc::clone(&runs);
        move |run: &mut PeriodicRun<'_, Payload>| runs.set(black_box(runs.get() + 1 + run.missed()))
    };
    bench("a typed timer, scheduled again", &|timers| {
        timers.schedule(PERIOD, Payload::MIN).expect("there is room");
    });
    bench("a callback that schedules itself anew", &|timers| again(timers, Rc::clone(&runs)));
    bench("repeat at a fixed rate", &|timers| {
        let repeat = Repeat::at_fixed_rate(PERIOD).expect("it is not zero");
        drop(timers.repeat(repeat, counting()).expect("there is room"));
    });
    bench("repeat with a fixed delay", &|timers| {
        let repeat = Repeat::with_fixed_delay(PERIOD).expect("it is not zero");
        drop(timers.repeat(repeat, counting()).expect("there is room"));
    });
    bench("repeat by a plan", &|timers| {
        let plan = |before| Some(before + PERIOD);
        let first = timers.now() + PERIOD;
        drop(timers.repeat_by_plan(first, plan, counting()).expect("there is room"));
    });
    group.finish();
}

criterion_group!(benches, periodic);
criterion_main!(benches);

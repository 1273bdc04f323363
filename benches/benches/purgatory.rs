//! The cost of operations in a purgatory and of scaled timeouts.
//!
//! Each is compared with a timer alone. The shard takes no turn meanwhile, and no timer is due. An
//! operation watches two keys, and a check of one of them completes it. A change of the scale
//! should cost the same whether one timeout waits or a hundred thousand.
#![allow(missing_docs, reason = "the macros of Criterion make a public function without one")]

use std::cell::Cell;
use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

use corewheel::attach::ShardLoop;
use corewheel::settings::Scale;
use corewheel::{Fired, TimerService, Timers};
use corewheel_bench::{Payload, pin_to_one_core};
use corewheel_kit::TimersExt;
use corewheel_kit::purgatory::Operation;
use corewheel_kit::scaled::ScaledTimeouts;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};

const HOUR: Duration = Duration::from_hours(1);
const MIN: Duration = Duration::from_mins(10);
const PENDING: [u32; 2] = [1_000, 100_000];

/// The timers of a shard, and the shard.
struct Home {
    timers: Timers<Payload>,
    _shard: Box<dyn std::any::Any>,
}

fn home() -> Home {
    let builder = TimerService::builder().shards(1).capacity(1 << 18);
    let service: TimerService<Payload> = builder.start_attached_with().expect("it starts");
    let shard = service.shards().next().expect("it has one");
    let deliver = |_: Fired<Payload>, _: &Timers<Payload>| unreachable!("nothing is due");
    let attachment = service.attach(shard).expect("it is free");
    let shard: ShardLoop<_, _> = attachment.into_loop(deliver).expect("there is memory");
    Home { timers: shard.timers().clone(), _shard: Box::new((service, shard)) }
}

fn group<'a>(criterion: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.sample_size(20).warm_up_time(Duration::from_millis(200));
    group.measurement_time(Duration::from_secs(1));
    group
}

/// A timer alone, while this many other timers are pending.
fn timer_alone(group: &mut BenchmarkGroup<'_, WallTime>, pending: u32) {
    let home = home();
    for n in 0..pending {
        let delay = HOUR + Duration::from_millis(u64::from(n));
        home.timers.schedule(delay, Payload::MIN).expect("there is room");
    }
    group.bench_function(BenchmarkId::new("a timer alone", pending), |bencher| {
        bencher.iter(|| {
            let timer = home.timers.schedule(HOUR, Payload::MIN).expect("there is room");
            black_box(home.timers.cancel(timer).payload().expect("it is pending"))
        });
    });
}

struct Fetch(Rc<Cell<bool>>);

impl Operation for Fetch {
    fn try_complete(&mut self) -> bool {
        self.0.get()
    }

    fn completed(self) {}

    fn expired(self) {
        unreachable!("it is an hour away");
    }
}

fn purgatory(criterion: &mut Criterion) {
    pin_to_one_core();
    let mut group = group(criterion, "watch two keys + complete by an event");
    for pending in PENDING {
        let home = home();
        let purgatory = home.timers.purgatory_with_capacity::<u64, Fetch>(1 << 18, 1 << 20);
        let purgatory = purgatory.expect("there is memory");
        let watch = |ready: &Rc<Cell<bool>>, number: u64| {
            // A key that many operations watch, and one that only this operation watches.
            let keys = [number % 64, number + 64];
            let fetch = Fetch(Rc::clone(ready));
            let watch = purgatory.try_complete_else_watch(fetch, HOUR, keys);
            assert!(matches!(watch, Ok(Some(_))), "it is not ready");
        };
        let never = Rc::new(Cell::new(false));
        (0..u64::from(pending)).for_each(|number| watch(&never, number));
        let ready = Rc::new(Cell::new(false));
        let mut number = u64::from(pending);
        group.bench_function(BenchmarkId::new("purgatory", pending), |bencher| {
            bencher.iter(|| {
                ready.set(false);
                watch(&ready, number);
                ready.set(true);
                assert_eq!(purgatory.check_and_complete(&(number + 64)), 1);
                number += 1;
            });
        });
        timer_alone(&mut group, pending);
    }
    group.finish();
}

/// This many timeouts from ten minutes to an hour.
fn timeouts(timers: &Timers<Payload>, pending: u32) -> ScaledTimeouts<Payload> {
    let timeouts = timers.scaled(MIN, HOUR, |_, _| unreachable!("nothing is due"));
    let timeouts = timeouts.expect("the range is good");
    for _ in 0..pending {
        timeouts.start(Payload::MIN).expect("there is room");
    }
    timeouts
}

fn scaled(criterion: &mut Criterion) {
    pin_to_one_core();
    let mut start = group(criterion, "start + cancel");
    for pending in PENDING {
        let home = home();
        let timeouts = timeouts(&home.timers, pending);
        start.bench_function(BenchmarkId::new("a scaled timeout", pending), |bencher| {
            bencher.iter(|| {
                let timeout = timeouts.start(Payload::MIN).expect("there is room");
                black_box(timeouts.cancel(timeout).expect("it is pending"))
            });
        });
        timer_alone(&mut start, pending);
    }
    start.finish();

    let mut change = group(criterion, "change the scale");
    for pending in [1, 1_000, 100_000] {
        let home = home();
        let _timeouts = timeouts(&home.timers, pending);
        let [half, one] = [0.5, 1.0].map(|factor| Scale::new(factor).expect("it is a scale"));
        change.bench_function(BenchmarkId::new("of scaled timeouts", pending), |bencher| {
            let mut scale = one;
            bencher.iter(|| {
                scale = if scale == one { half } else { one };
                home.timers.set_scale(scale);
            });
        });
    }
    change.finish();
}

criterion_group!(benches, purgatory, scaled);
criterion_main!(benches);

//! What do queues of values and timers by keys cost above the bare wheel, and beside tokio-util's?
//!
//! The rows are those of the wheel: each contender executes the same operations with simulated
//! time, so that no clock is read. Keys are numbers. The bare wheel is measured with handles, and
//! again with a map from keys to handles beside it, as tokio-util's queue is: the alternative to
//! timers by keys. All maps use the same hasher.
#![allow(missing_docs, reason = "the macros of Criterion make a public function without one")]

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::{Duration, Instant};

use corewheel::attach::{ShardLoop, Turn};
use corewheel::clock::ManualClock;
use corewheel::{Fired, TimerService};
use corewheel_bench::peers::delay_queue::TokioQueue;
use corewheel_bench::peers::hierarchical::Hierarchical;
use corewheel_bench::{Case, Payload, Row, Timers, case, pin_to_one_core, verify};
use corewheel_kit::TimersExt;
use corewheel_kit::keyed::KeyedTimers;
use corewheel_kit::queue::{DelayKey, DelayQueue, Expired};
use criterion::{BenchmarkId, Criterion, SamplingMode, criterion_group, criterion_main};
use hashbrown::HashMap;

const PENDING: [usize; 2] = [1_000, 100_000];
const TICK: Duration = Duration::from_millis(1);

/// A shard in a loop, and its time.
struct Home {
    shard: ShardLoop<Infallible, fn(Fired<Infallible>, &corewheel::Timers)>,
    clock: ManualClock,
    epoch: Instant,
    now: u64,
    _service: TimerService<Infallible>,
}

impl Home {
    fn new(capacity: usize) -> Self {
        let clock = ManualClock::new();
        let builder = TimerService::builder().shards(1).capacity(capacity as u32 + 64).tick(TICK);
        let service: TimerService<Infallible> =
            builder.clock(&clock).start_attached().expect("it starts");
        let shard = service.shards().next().expect("it has one");
        let attachment = service.attach(shard).expect("it is free");
        let deliver: fn(Fired<Infallible>, &corewheel::Timers) = |_, _| {};
        let shard = attachment.into_loop(deliver).expect("there is memory");
        let epoch = clock.now();
        Self { shard, clock, epoch, now: 0, _service: service }
    }

    #[inline]
    fn moment(&self, tick: u64) -> Instant {
        self.epoch + TICK * tick as u32
    }

    fn go_on(&mut self, now: u64) {
        self.clock.advance(TICK * (now - self.now) as u32);
        self.now = now;
    }

    fn ticks(&self, moment: Instant) -> u64 {
        (moment - self.epoch).as_millis() as u64
    }
}

/// A delay queue, whose values are removed many at a time.
struct Queue {
    values: DelayQueue<Payload>,
    due: Vec<Expired<Payload>>,
    home: Home,
}

impl Timers for Queue {
    const NAME: &'static str = "DelayQueue";
    const FIFO: bool = true;
    type Handle = DelayKey;

    fn with_capacity(capacity: usize) -> Self {
        let home = Home::new(1);
        let values = home.shard.timers().delay_queue_with_capacity(capacity as u32);
        Self { values: values.expect("the capacity is within its limits"), due: Vec::new(), home }
    }

    fn schedule(&mut self, deadline: u64, payload: Payload) -> DelayKey {
        self.values.insert(payload, self.home.moment(deadline)).expect("there is room")
    }

    fn cancel(&mut self, key: DelayKey) -> Payload {
        self.values.remove(key).expect("it is pending").value
    }

    fn reset(&mut self, key: DelayKey, deadline: u64) -> DelayKey {
        assert!(self.values.reset(key, self.home.moment(deadline)), "it is pending");
        key
    }

    fn advance(&mut self, now: u64, mut fired: impl FnMut(Payload)) {
        self.home.go_on(now);
        self.values.drain_expired_into(&mut self.due, usize::MAX);
        self.due.drain(..).for_each(|expired| fired(expired.value));
    }

    fn next_deadline(&mut self) -> Option<u64> {
        let next = self.values.due(self.values.peek()?)?;
        Some(self.home.ticks(next))
    }

    fn pending(&self) -> usize {
        self.values.len()
    }
}

/// Keyed timers, whose keys are numbers in the order of their schedules.
struct Keyed {
    timers: KeyedTimers<u64, Payload>,
    next: u64,
    fired: Rc<RefCell<Vec<Payload>>>,
    home: Home,
}

impl Timers for Keyed {
    const NAME: &'static str = "KeyedTimers";
    const FIFO: bool = true;
    type Handle = u64;

    fn with_capacity(capacity: usize) -> Self {
        let home = Home::new(capacity);
        let fired = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&fired);
        let timers = home.shard.timers().keyed_with_capacity(capacity as u32, move |expired, _| {
            noted.borrow_mut().push(expired.value);
        });
        Self { timers: timers.expect("the capacity is within its limits"), next: 0, fired, home }
    }

    fn schedule(&mut self, deadline: u64, payload: Payload) -> u64 {
        self.next += 1;
        let moment = self.home.moment(deadline);
        let _new = self.timers.insert(self.next, payload, moment).expect("there is room");
        self.next
    }

    fn cancel(&mut self, key: u64) -> Payload {
        self.timers.remove(&key).expect("it is pending").value
    }

    fn reset(&mut self, key: u64, deadline: u64) -> u64 {
        assert!(self.timers.reset(&key, self.home.moment(deadline)), "it is pending");
        key
    }

    fn advance(&mut self, now: u64, fired: impl FnMut(Payload)) {
        self.home.go_on(now);
        while self.home.shard.turn() == Turn::More {}
        self.fired.borrow_mut().drain(..).for_each(fired);
    }

    /// Only the loop knows the next deadline.
    fn next_deadline(&mut self) -> Option<u64> {
        None
    }

    fn pending(&self) -> usize {
        self.timers.len()
    }
}

/// A map from keys to handles beside timers which hold the keys.
struct Mapped<Q: Timers> {
    timers: Q,
    handles: HashMap<u64, (Q::Handle, Payload)>,
    next: u64,
}

impl<Q: Timers<Handle: Copy>> Timers for Mapped<Q> {
    const NAME: &'static str = "a map beside timers";
    const FIFO: bool = Q::FIFO;
    type Handle = u64;

    fn with_capacity(capacity: usize) -> Self {
        let handles = HashMap::with_capacity(capacity);
        Self { timers: Q::with_capacity(capacity), handles, next: 0 }
    }

    fn schedule(&mut self, deadline: u64, payload: Payload) -> u64 {
        self.next += 1;
        let key = Payload::new(self.next).expect("it is counted from one");
        let handle = self.timers.schedule(deadline, key);
        self.handles.insert(self.next, (handle, payload));
        self.next
    }

    fn cancel(&mut self, key: u64) -> Payload {
        let (handle, payload) = self.handles.remove(&key).expect("it is pending");
        self.timers.cancel(handle);
        payload
    }

    fn reset(&mut self, key: u64, deadline: u64) -> u64 {
        let (handle, _) = self.handles.get_mut(&key).expect("it is pending");
        *handle = self.timers.reset(*handle, deadline);
        key
    }

    fn advance(&mut self, now: u64, mut fired: impl FnMut(Payload)) {
        let Self { timers, handles, .. } = self;
        timers.advance(now, |key| {
            let (_, payload) = handles.remove(&key.get()).expect("it is pending");
            fired(payload);
        });
    }

    fn next_deadline(&mut self) -> Option<u64> {
        self.timers.next_deadline()
    }

    fn pending(&self) -> usize {
        self.timers.pending()
    }
}

/// A contender: its name, a function that prepares it for a row, and the check that it works.
type Candidate = (&'static str, fn(Row, usize) -> Box<dyn Case>, fn());

fn candidate<Q: Timers>(name: &'static str) -> Candidate {
    (name, case::<Q>, verify::<Q>)
}

fn bench(criterion: &mut Criterion, title: &str, rows: &[Row], candidates: &[Candidate]) {
    pin_to_one_core();
    for (_, _, verify) in candidates {
        verify();
    }
    for row in rows {
        let mut group = criterion.benchmark_group(format!("{title}: {}", row.name()));
        group.sampling_mode(SamplingMode::Flat).sample_size(10);
        group.warm_up_time(Duration::from_millis(100));
        group.measurement_time(Duration::from_millis(500));
        for count in PENDING {
            for (name, case, _) in candidates {
                let mut ready = None;
                group.bench_function(BenchmarkId::new(*name, count), |bencher| {
                    let case = ready.get_or_insert_with(|| case(*row, count));
                    bencher.iter_custom(|operations| run(case.as_mut(), operations));
                });
            }
        }
        group.finish();
    }
}

/// How long this many operations take. They are run in whole passes.
fn run(case: &mut dyn Case, operations: u64) -> Duration {
    let (mut elapsed, mut done) = (Duration::ZERO, 0);
    while done < operations {
        let sample = case.round();
        elapsed += sample.elapsed;
        done += sample.operations;
    }
    elapsed.mul_f64(operations as f64 / done as f64)
}

fn queues(criterion: &mut Criterion) {
    let rows = [Row::Churn, Row::ResetOnTime, Row::Schedule, Row::Expire];
    let contenders = [
        candidate::<Queue>("DelayQueue"),
        candidate::<Hierarchical>("the bare wheel"),
        candidate::<TokioQueue>("tokio-util's DelayQueue"),
    ];
    bench(criterion, "values", &rows, &contenders);
}

fn keyed(criterion: &mut Criterion) {
    let rows = [Row::Churn, Row::Reset, Row::Expire];
    let contenders = [
        candidate::<Keyed>("KeyedTimers"),
        candidate::<Hierarchical>("the bare wheel, by handles"),
        candidate::<Mapped<Hierarchical>>("a map beside the bare wheel"),
        candidate::<Mapped<TokioQueue>>("a map beside tokio-util's DelayQueue"),
    ];
    bench(criterion, "keys", &rows, &contenders);
}

criterion_group!(benches, queues, keyed);
criterion_main!(benches);

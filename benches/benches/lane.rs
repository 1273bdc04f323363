//! The cost of schedules and cancels of timers on another core.
//!
//! One client and one shard, each on its own core where there are two. The shard polls its lanes
//! instead of sleeping, so that the figures contain the lane and the wheel and not the operating
//! system. The other rows are the bare ring of a lane and the alternatives of a server: a
//! `BTreeMap` and the same wheel, each behind a mutex that the threads share.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use corewheel::{ShardId, ShutdownPolicy, TimerId, TimerService};
use corewheel_shard::{Shard, ShardConfig, Tick};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const SHARD: ShardId = ShardId::new(0);
const HOUR: Duration = Duration::from_hours(1);
const CHUNK: usize = 64;
const PENDING: [u32; 3] = [1_000, 100_000, 1_000_000];

/// The cores of this thread and of the other thread; the same core twice if there is only one.
/// Read once, before this thread is pinned: the system tells a pinned thread only its own core.
fn cores() -> (CoreId, CoreId) {
    static CORES: OnceLock<(CoreId, CoreId)> = OnceLock::new();
    *CORES.get_or_init(|| {
        let cores = core_affinity::get_core_ids().expect("the system tells its cores");
        (cores[0], cores[1 % cores.len()])
    })
}

fn task(n: u64) -> NonZeroU64 {
    NonZeroU64::new(n + 1).expect("it is not zero")
}

/// A service with one shard that holds this many timers, due in an hour.
fn service(pending: u32) -> TimerService<NonZeroU64> {
    let (_, home) = cores();
    let service = corewheel_bench::polled_service(home, 1 << 21);
    let handle = service.handle();
    for n in 0..u64::from(pending) {
        while handle.on(SHARD).schedule(HOUR * 2, task(n)).is_err() {
            thread::yield_now();
        }
    }
    service
}

fn cancelled(service: &TimerService<NonZeroU64>) -> u64 {
    service.stats().shards[0].counts.cancelled
}

/// Waits until the shard has applied all requests.
fn settle(service: &TimerService<NonZeroU64>, until: u64) {
    while cancelled(service) < until {
        std::hint::spin_loop();
    }
}

fn pairs(criterion: &mut Criterion) {
    let (here, _) = cores();
    core_affinity::set_for_current(here);
    let mut group = criterion.benchmark_group("lane/schedule+cancel");
    group.throughput(Throughput::Elements(1)).sample_size(10);
    for pending in PENDING {
        let service = service(pending);
        let handle = service.handle();
        group.bench_function(BenchmarkId::new("corewheel one at a time", pending), |bencher| {
            bencher.iter_custom(|pairs| {
                let done = cancelled(&service);
                let start = Instant::now();
                for n in 0..pairs {
                    let timer = loop {
                        match handle.on(SHARD).schedule(HOUR, task(n)) {
                            Ok(timer) => break timer,
                            Err(_) => std::hint::spin_loop(),
                        }
                    };
                    handle.cancel_detached(timer);
                }
                settle(&service, done + pairs);
                start.elapsed()
            });
        });
        group.bench_function(BenchmarkId::new("corewheel boxed closures", pending), |bencher| {
            bencher.iter_custom(|pairs| {
                let done = cancelled(&service);
                let start = Instant::now();
                for n in 0..pairs {
                    let timer = loop {
                        let call = move |_: &_| {
                            black_box(n);
                        };
                        match handle.on(SHARD).schedule_fn(HOUR, call) {
                            Ok(timer) => break timer,
                            Err(_) => std::hint::spin_loop(),
                        }
                    };
                    handle.cancel_detached(timer);
                }
                settle(&service, done + pairs);
                start.elapsed()
            });
        });
        let report = service.shutdown(ShutdownPolicy::Drop).expect("it is shut down once");
        let counts = report.shards[0].counts;
        assert_eq!(counts.dropped, u64::from(pending), "the others are dropped");
    }
    group.finish();
}

/// Cancels a chunk of timers and waits for the outcomes: one request and one reply for all, beside
/// a request and a reply for each timer.
fn cancels(criterion: &mut Criterion) {
    let (here, _) = cores();
    core_affinity::set_for_current(here);
    let mut group = criterion.benchmark_group("lane/cancel 64 and hear of it");
    group.throughput(Throughput::Elements(CHUNK as u64)).sample_size(10);
    let service = service(100_000);
    let handle = service.handle();
    let schedule = || loop {
        match handle.on(SHARD).schedule(HOUR, task(1)) {
            Ok(timer) => break timer,
            Err(_) => std::hint::spin_loop(),
        }
    };
    let refill = |timers: &mut Vec<TimerId>| {
        timers.clear();
        timers.extend(std::iter::repeat_with(schedule).take(CHUNK));
        // When this request has arrived, the earlier requests have arrived too.
        let last = handle.cancel(schedule()).wait().expect("this is no shard's thread");
        assert!(last.won(), "it is an hour away");
    };
    let mut timers = Vec::with_capacity(CHUNK);
    let mut measure = |name: &str, cancel: &dyn Fn(&[TimerId])| {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|rounds| {
                let mut took = Duration::ZERO;
                for _ in 0..rounds {
                    refill(&mut timers);
                    let start = Instant::now();
                    cancel(&timers);
                    took += start.elapsed();
                }
                took
            });
        });
    };
    measure("cancel_many of 64", &|timers| {
        let outcomes = handle.cancel_many(timers).wait().expect("this is no shard's thread");
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(done) if done.won())));
    });
    measure("64 cancels", &|timers| {
        let answers: Vec<_> = timers.iter().map(|timer| handle.cancel(*timer)).collect();
        for answer in answers {
            assert!(answer.wait().expect("the shard is open").won());
        }
    });
    measure("64 cancels, each awaited", &|timers| {
        for timer in timers {
            assert!(handle.cancel(*timer).wait().expect("the shard is open").won());
        }
    });
    group.finish();
    let _ = service.shutdown(ShutdownPolicy::Drop).expect("it is shut down once");
}

fn shared(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("lane/schedule+cancel");
    group.throughput(Throughput::Elements(1)).sample_size(10);
    for pending in PENDING {
        let mut map: BTreeMap<(u64, u64), NonZeroU64> = BTreeMap::new();
        for n in 0..u64::from(pending) {
            map.insert((7_200_000, n), task(n));
        }
        let map = Arc::new(Mutex::new(map));
        group.bench_function(BenchmarkId::new("BTreeMap behind a mutex", pending), |bencher| {
            let mut next = u64::from(pending);
            bencher.iter(|| {
                next += 1;
                let key = (3_600_000, next);
                map.lock().expect("no thread panics").insert(key, task(next));
                map.lock().expect("no thread panics").remove(&key).expect("it was just put there")
            });
        });
        let config = ShardConfig { capacity: 1 << 21, ..ShardConfig::default() };
        let mut shard = Shard::new(config).expect("there is memory");
        for n in 0..u64::from(pending) {
            shard.schedule(Tick::new(7_200_000), task(n)).expect("there is room");
        }
        let shard = Arc::new(Mutex::new(shard));
        group.bench_function(BenchmarkId::new("the wheel behind a mutex", pending), |bencher| {
            bencher.iter(|| {
                let deadline = Tick::new(3_600_000);
                let key = shard.lock().expect("no thread panics").schedule(deadline, task(1));
                let key = key.expect("there is room");
                shard
                    .lock()
                    .expect("no thread panics")
                    .cancel(key)
                    .payload()
                    .expect("it is pending")
            });
        });
    }
    group.finish();
}

/// Messages of 32 bytes, the size of a request.
fn ring(criterion: &mut Criterion) {
    type Message = [u64; 4];
    let (here, there) = cores();
    core_affinity::set_for_current(here);
    let mut group = criterion.benchmark_group("lane/ring");
    group.throughput(Throughput::Elements(1)).sample_size(10);
    for chunk in [1, CHUNK] {
        group.bench_function(BenchmarkId::new("rtrb", chunk), |bencher| {
            bencher.iter_custom(|messages| {
                let (mut producer, mut consumer) = rtrb::RingBuffer::<Message>::new(1_024);
                let reader = thread::spawn(move || {
                    core_affinity::set_for_current(there);
                    let (mut seen, mut sum) = (0, 0);
                    while seen < messages {
                        let ready = consumer.slots().min(chunk);
                        let Ok(batch) = consumer.read_chunk(ready) else { continue };
                        for message in batch {
                            sum += message[0];
                            seen += 1;
                        }
                    }
                    sum
                });
                let start = Instant::now();
                let mut sent = 0;
                while sent < messages {
                    let room = producer.slots().min(chunk).min((messages - sent) as usize);
                    let Ok(batch) = producer.write_chunk_uninit(room) else { continue };
                    sent += batch.fill_from_iter((sent..).map(|n| [n; 4])) as u64;
                }
                let sum = reader.join().expect("the reader does not panic");
                let took = start.elapsed();
                assert_eq!(sum, messages * messages.saturating_sub(1) / 2, "all of them arrived");
                took
            });
        });
    }
    group.finish();
}

criterion_group!(benches, pairs, cancels, shared, ring);
criterion_main!(benches);

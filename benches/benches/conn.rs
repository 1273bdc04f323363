//! What does it cost to touch a connection, to open and close it, and to visit it when the pressure
//! rises?
//!
//! The other rows are a bare store into a record of the same size, and resets of a timer by a delay
//! and to a known deadline. A server without connection timers would use these resets. Connections
//! are touched in random order, with the real clock. The shard takes a turn for every thousand
//! touches, so that it reads the clock as a server's shard does; a row without turns shows what
//! they add. The connections are of a shard, and in the rows that say so, of any thread.
#![allow(missing_docs, reason = "the macros of Criterion make a public function without one")]

use std::cell::Cell;
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use corewheel::attach::ShardLoop;
use corewheel::attach::Turn;
use corewheel::settings::Scale;
use corewheel::{ConnLimits, ConnTimers, Fired, Handle, ResetOutcome};
use corewheel::{TimerId, TimerService, Timers};
use corewheel_bench::{Payload, pin_to_one_core, random_order};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput};
use criterion::{criterion_group, criterion_main};

const CONNECTIONS: [usize; 2] = [1_000, 100_000];
const TOUCHES: u64 = 1_000;

type Deliver = fn(Fired<Payload>, &Timers<Payload>);

/// A shard in this loop.
struct Home {
    shard: ShardLoop<Payload, Deliver>,
    // The drop of the service closes the shard.
    service: TimerService<Payload>,
}

fn home() -> Home {
    let builder = TimerService::builder().shards(1).capacity(1 << 18);
    let service: TimerService<Payload> = builder.start_attached_with().expect("it starts");
    let shard = service.shards().next().expect("it has one");
    let deliver: Deliver = |_, _| unreachable!("nothing is due");
    let attachment = service.attach(shard).expect("it is free");
    Home { shard: attachment.into_loop(deliver).expect("there is memory"), service }
}

fn limits() -> ConnLimits {
    ConnLimits {
        read_idle: Duration::from_mins(30),
        write_idle: Duration::from_mins(20),
        all_idle: Duration::from_mins(40),
        heartbeat: Duration::from_mins(15),
        max_age: Duration::from_hours(12),
        read_idle_least: Duration::from_mins(10),
        ..ConnLimits::default()
    }
}

fn connections(home: &Home, count: usize) -> Vec<ConnTimers> {
    let timers = home.shard.timers();
    (0..count).map(|_| timers.connection(limits()).expect("there is room")).collect()
}

/// Connections whose tasks wait.
fn connections_of_any_thread(home: &Home, count: usize) -> Vec<ConnTimers<Handle>> {
    let handle = home.service.handle();
    let open = |_| {
        let conn = handle.connection(limits());
        let poll = conn.poll_next(&mut Context::from_waker(Waker::noop()));
        assert!(poll.is_pending(), "no deadline has come");
        conn
    };
    (0..count).map(open).collect()
}

/// A record of a connection that contains only a time.
#[derive(Default, Clone)]
#[repr(C)]
struct Bare {
    read: Cell<u64>,
    _others: [u64; 5],
}

/// Ready at the second poll.
struct Packet {
    was_polled: bool,
}

impl Future for Packet {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.was_polled, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

fn touch_any_thread(group: &mut BenchmarkGroup<'_, WallTime>, home: &mut Home, count: usize) {
    let others = connections_of_any_thread(home, count);
    let mut next = random_order(count);
    group.bench_function(BenchmarkId::new("touch_read on any thread", count), |bencher| {
        bencher.iter(|| {
            for _ in 0..TOUCHES {
                black_box(&others[next()]).touch_read();
            }
            let _ = black_box(home.shard.turn());
        });
    });
}

fn resets(group: &mut BenchmarkGroup<'_, WallTime>, home: &mut Home, count: usize) {
    let timers = home.shard.timers().clone();
    let idle = Duration::from_mins(30);
    let schedule = |_| timers.schedule(idle, Payload::MIN).expect("there is room");
    let handles: Vec<TimerId> = (0..count).map(schedule).collect();
    let mut next = random_order(count);
    group.bench_function(BenchmarkId::new("reset of a timer", count), |bencher| {
        bencher.iter(|| {
            for _ in 0..TOUCHES {
                let outcome = timers.reset(black_box(handles[next()]), idle);
                assert_eq!(outcome, ResetOutcome::Reset);
            }
            let _ = black_box(home.shard.turn());
        });
    });
    let mut next = random_order(count);
    group.bench_function(
        BenchmarkId::new("reset of a timer to a known deadline", count),
        |bencher| {
            bencher.iter(|| {
                let deadline = timers.deadline(idle);
                for _ in 0..TOUCHES {
                    let outcome = timers.reset(black_box(handles[next()]), deadline);
                    assert_eq!(outcome, ResetOutcome::Reset);
                }
                let _ = black_box(home.shard.turn());
            });
        },
    );
}

fn touch(criterion: &mut Criterion) {
    pin_to_one_core();
    let mut group = criterion.benchmark_group("a thousand packets");
    group.throughput(Throughput::Elements(TOUCHES)).sample_size(30);
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    for count in CONNECTIONS {
        // A server that reads a packet touches the memory of its connection anyway. Here, that is a
        // reference to a record.
        let bare = vec![Bare::default(); count];
        let handles: Vec<&Bare> = bare.iter().collect();
        let mut next = random_order(count);
        let mut now = 1;
        group.bench_function(BenchmarkId::new("a bare store", count), |bencher| {
            bencher.iter(|| {
                now += 1;
                for _ in 0..TOUCHES {
                    black_box(handles[next()]).read.set(black_box(now));
                }
            });
        });

        let mut home = home();
        let connections = connections(&home, count);
        for (name, turns) in [("touch_read", true), ("touch_read, no turns", false)] {
            let mut next = random_order(count);
            group.bench_function(BenchmarkId::new(name, count), |bencher| {
                bencher.iter(|| {
                    for _ in 0..TOUCHES {
                        black_box(&connections[next()]).touch_read();
                    }
                    if turns {
                        let _ = black_box(home.shard.turn());
                    }
                });
            });
        }
        let mut next = random_order(count);
        group.bench_function(BenchmarkId::new("touch", count), |bencher| {
            bencher.iter(|| {
                for _ in 0..TOUCHES {
                    black_box(&connections[next()]).touch();
                }
                let _ = black_box(home.shard.turn());
            });
        });
        touch_any_thread(&mut group, &mut home, count);
        let mut next = random_order(count);
        let cx = &mut Context::from_waker(Waker::noop());
        group.bench_function(BenchmarkId::new("race that waits", count), |bencher| {
            bencher.iter(|| {
                for _ in 0..TOUCHES {
                    let mut packet = pin!(connections[next()].race(Packet { was_polled: false }));
                    assert!(packet.as_mut().poll(cx).is_pending());
                    assert!(packet.as_mut().poll(cx).is_ready());
                }
                let _ = black_box(home.shard.turn());
            });
        });
        let mut next = random_order(count);
        group.bench_function(BenchmarkId::new("touch_read_at", count), |bencher| {
            bencher.iter(|| {
                let now = home.shard.timers().now();
                for _ in 0..TOUCHES {
                    black_box(&connections[next()]).touch_read_at(now);
                }
                let _ = black_box(home.shard.turn());
            });
        });
        drop(connections);

        resets(&mut group, &mut home, count);
    }
    group.finish();
}

fn open(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("beside 1000 connections");
    group.sample_size(30);
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    let home = home();
    let _others = connections(&home, 1_000);
    let timers = home.shard.timers();
    group.bench_function("schedule and cancel a timer", |bencher| {
        bencher.iter(|| {
            let timer = timers.schedule(Duration::from_mins(30), Payload::MIN);
            timers.cancel(timer.expect("there is room"))
        });
    });
    group.bench_function("schedule and cancel five", |bencher| {
        bencher.iter(|| {
            for minutes in [30, 20, 40, 15, 720] {
                let timer = timers.schedule(Duration::from_mins(minutes), Payload::MIN);
                let _ = black_box(timers.cancel(timer.expect("there is room")));
            }
        });
    });
    group.bench_function("open and close a connection", |bencher| {
        bencher.iter(|| timers.connection(limits()).expect("there is room").close());
    });
    group.finish();
}

/// The pressure ends and rises again. The shard visits each connection, whose deadline is early
/// enough after the first time.
fn visit(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pressure that rises, for each connection");
    group.sample_size(10).warm_up_time(Duration::from_millis(300));
    for count in CONNECTIONS {
        group.throughput(Throughput::Elements(count as u64));
        for any_thread in [false, true] {
            let mut home = home();
            let on_shard = connections(&home, if any_thread { 0 } else { count });
            let others = connections_of_any_thread(&home, if any_thread { count } else { 0 });
            let name = if any_thread { "on any thread" } else { "on a shard" };
            group.bench_function(BenchmarkId::new(name, count), |bencher| {
                bencher.iter(|| {
                    for scale in [Scale::ONE, Scale::ZERO] {
                        home.service.set_scale(scale);
                        while home.shard.turn() == Turn::More {}
                    }
                });
            });
            drop((on_shard, others));
        }
    }
    group.finish();
}

criterion_group!(benches, touch, open, visit);
criterion_main!(benches);

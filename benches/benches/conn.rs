//! What does it cost to touch a connection?
//!
//! The other rows are a bare store into a record of the same size, and resets of a timer, which a
//! server without connection timers would use. What it costs to open and close a connection is a
//! row of `growth`. Connections
//! are touched in random order, with the real clock. The shard takes a turn for every thousand
//! touches, so that it reads the clock as a server's shard does; a row without turns shows what
//! they add. The connections are of a shard, and in the rows that say so, of any thread.
#![allow(missing_docs, reason = "the macros of Criterion make a public function without one")]

use std::cell::Cell;
use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use corewheel::{ConnLimits, ResetOutcome, TimerId};
use corewheel_bench::{Home, Payload, pin_to_one_core, random_order};
use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use futures_lite::future::yield_now;

const CONNECTIONS: [usize; 2] = [1_000, 100_000];
const TOUCHES: u64 = 1_000;
const IDLE: Duration = Duration::from_mins(30);

fn limits() -> ConnLimits {
    let minutes = Duration::from_mins;
    let limits = ConnLimits::default().read_idle(IDLE).read_idle_least(minutes(10));
    let limits = limits.write_idle(minutes(20)).all_idle(minutes(40));
    limits.heartbeat(minutes(15)).max_age(Duration::from_hours(12))
}

/// A row: a thousand packets of connections in random order, and a turn.
fn row(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    count: usize,
    mut each: impl FnMut(usize),
    mut turn: impl FnMut(),
) {
    let mut next = random_order(count);
    group.bench_function(BenchmarkId::new(name, count), |bencher| {
        bencher.iter(|| {
            for _ in 0..TOUCHES {
                each(black_box(next()));
            }
            turn();
        });
    });
}

fn touch(criterion: &mut Criterion) {
    pin_to_one_core();
    let mut group = criterion.benchmark_group("a thousand packets");
    group.sample_size(30).warm_up_time(Duration::from_millis(300));
    group.measurement_time(Duration::from_secs(1)).throughput(Throughput::Elements(TOUCHES));
    for count in CONNECTIONS {
        // A server that reads a packet touches the memory of its connection anyway. Here, that is a
        // reference to a record.
        let bare: Vec<[Cell<u64>; 6]> = vec![<[Cell<u64>; 6]>::default(); count];
        let handles: Vec<_> = bare.iter().collect();
        row(&mut group, "a bare store", count, |n| handles[n][0].set(black_box(n as u64)), || {});

        let mut home = Home::new(1 << 19);
        let (timers, handle) = (home.shard.timers().clone(), home.service.handle());
        let open = |_| timers.connection(limits()).expect("there is room");
        let conns: Vec<_> = (0..count).map(open).collect();
        let cx = &mut Context::from_waker(Waker::noop());
        // Connections of any thread, whose tasks wait.
        let others: Vec<_> = (0..count).map(|_| handle.connection(limits())).collect();
        assert!(others.iter().all(|conn| conn.poll_next(cx).is_pending()), "no deadline has come");
        let schedule = |_| timers.schedule(IDLE, Payload::MIN).expect("there is room");
        let handles: Vec<TimerId> = (0..count).map(schedule).collect();
        row(&mut group, "touch_read, no turns", count, |n| conns[n].touch_read(), || {});
        let mut turn = || {
            let _ = black_box(home.shard.turn());
        };
        row(&mut group, "touch_read", count, |n| conns[n].touch_read(), &mut turn);
        row(&mut group, "touch", count, |n| conns[n].touch(), &mut turn);
        let others = |n: usize| others[n].touch_read();
        row(&mut group, "touch_read on any thread", count, others, &mut turn);
        let race = |n: usize| {
            let mut packet = pin!(conns[n].race(yield_now()));
            assert!(packet.as_mut().poll(cx).is_pending());
            assert!(packet.as_mut().poll(cx).is_ready());
        };
        row(&mut group, "race that waits", count, race, &mut turn);
        let reset = |n: usize| assert_eq!(timers.reset(handles[n], IDLE), ResetOutcome::Reset);
        row(&mut group, "reset of a timer", count, reset, &mut turn);
    }
    group.finish();
}

criterion_group!(benches, touch);
criterion_main!(benches);

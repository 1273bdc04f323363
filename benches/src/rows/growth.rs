//! What grows with the threads of a server: the cost of an operation while this many threads do it
//! at once, each on its own. What no two threads share costs the same on any number of cores.
//!
//! A figure is the nanoseconds of an operation of the slowest thread. Threads beyond the cpus take
//! turns, so their figures grow by that.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Barrier;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::pass::Pass;
use corewheel::{ConnLimits, Fired, Handle, Runtime, ShardId, TimerService, Timers};

use super::HOUR;
use crate::report::Entrant;

/// The title of the table.
pub const TABLE: &str = "an operation on each of some threads, ns";
/// So many cpus have a shard, beside a runtime.
const CPUS_PER_SHARD: usize = 8;
/// A shard takes a turn after so many operations of its thread.
const TURN_EVERY: u64 = 64;

/// Runs so many operations on each of so many threads, and returns how long the slowest took.
pub type Row = fn(usize, u64) -> Duration;

/// The operations.
pub const ROWS: [(&str, Row); 5] = [
    ("timeout that ends young", young),
    ("remote schedule and cancel", remote),
    ("connection of any task", any_task),
    ("connection of a shard", of_shard),
    ("pass of a runtime", pass),
];

/// An entrant for each of these numbers of threads.
pub fn entrants(row: Row, threads: &[usize], operations: u64) -> Vec<Entrant> {
    let entrant = |count| {
        let nanos = move || row(count, operations).as_nanos() as f64 / operations as f64;
        Entrant::new(&format!("{count} threads"), nanos)
    };
    threads.iter().copied().map(entrant).collect()
}

/// Runs an operation, which each thread makes for itself, on so many threads at once.
pub(super) fn run<O: FnMut()>(
    threads: usize,
    operations: u64,
    make: impl Fn(usize) -> O + Sync,
) -> Duration {
    let barrier = Barrier::new(threads);
    let timed = |thread| {
        let mut operation = make(thread);
        // What a thread makes once, it makes here.
        operation();
        barrier.wait();
        let began = Instant::now();
        for _ in 0..operations {
            operation();
        }
        let elapsed = began.elapsed();
        barrier.wait();
        elapsed
    };
    thread::scope(|scope| {
        let timed = &timed;
        let running: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || timed(thread))).collect();
        running.into_iter().map(|thread| thread.join().expect("it ends")).max().unwrap_or_default()
    })
}

/// A service beside a runtime with so many workers.
fn beside(threads: usize) -> TimerService<u64> {
    let builder = TimerService::builder().shards(threads.div_ceil(CPUS_PER_SHARD)).unpinned();
    let handler = |_| |_: Fired<u64>, _: &Timers<u64>| {};
    builder.runtime(Runtime::Thread).start_with(handler).expect("it starts")
}

fn young(threads: usize, operations: u64) -> Duration {
    let service = beside(threads);
    let handle = service.handle();
    run(threads, operations, |_| {
        move || {
            let mut timeout = pin!(handle.timeout(HOUR, pending::<()>()));
            assert!(timeout.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
    })
}

fn remote(threads: usize, operations: u64) -> Duration {
    let service = beside(threads);
    run(threads, operations, |thread| {
        let handle: Handle<u64> = service.handle().on(service.shard_for(thread as u64));
        move || {
            let timer = loop {
                match handle.schedule(HOUR, 1) {
                    Ok(timer) => break timer,
                    Err(_) => thread::yield_now(),
                }
            };
            handle.cancel_detached(timer);
        }
    })
}

fn any_task(threads: usize, operations: u64) -> Duration {
    let service = beside(threads);
    let handle = service.handle();
    run(threads, operations, |_| {
        move || {
            let connection = handle.connection(ConnLimits::default());
            assert!(connection.poll_next(&mut Context::from_waker(Waker::noop())).is_pending());
            connection.touch_read();
        }
    })
}

fn of_shard(threads: usize, operations: u64) -> Duration {
    let builder = TimerService::builder().shards(threads);
    let service: TimerService<u64> = builder.start_attached_with().expect("it starts");
    run(threads, operations, |thread| {
        let attachment = service.attach(ShardId::new(thread as u16)).expect("it is free");
        let deliver = |_: Fired<u64>, _: &Timers<u64>| {};
        let mut shard = attachment.into_loop(deliver).expect("there is memory");
        let mut done = 0;
        move || {
            let connection = shard.timers().connection(ConnLimits::default());
            connection.expect("there is room").touch_read();
            done += 1;
            if done % TURN_EVERY == 0 {
                let _ = shard.turn();
            }
        }
    })
}

/// What a timeout does that expires, on threads with a runtime each.
fn pass(threads: usize, operations: u64) -> Duration {
    run(threads, operations, |_| {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().expect("it starts");
        move || {
            let mut pass = Pass::default();
            runtime.block_on(poll_fn(|cx| pass.poll_over(cx)));
        }
    })
}

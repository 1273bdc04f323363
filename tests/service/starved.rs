//! A shard whose thread gets little of the processor, beside clients that retry at once.

#![allow(clippy::print_stdout, reason = "the numbers of refusals and turns are for a reader")]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use corewheel::sim::Thread;
use corewheel::{Fired, Refused, Runtime, ShutdownPolicy};

use corewheel_test_support::{SHARD, builder, check_law, ms};

const CLIENTS: u64 = 4;
const TIMERS: u64 = 3_000;
/// Far more than the test takes, on any machine.
const WATCHDOG: Duration = Duration::from_mins(1);

/// Schedules timers one by one, each of which is retried at once while the shard is busy. Returns
/// the number of refusals.
fn schedule_all(client: &Thread<u64>) -> u64 {
    let mut refusals = 0;
    for mut value in 0..TIMERS {
        loop {
            match client.on(SHARD).schedule(ms(value % 20), value) {
                Ok(_) => break,
                Err(Refused::Busy(back)) => value = back,
                Err(refused) => panic!("the shard has slots for all: {refused}"),
            }
            refusals += 1;
        }
    }
    refusals
}

fn check_starved(is_pinned: bool) {
    let (sender, fired) = mpsc::channel();
    let builder = builder(1).runtime(Runtime::Thread);
    let service = if is_pinned { builder } else { builder.unpinned() }
        .lane_capacity(64)
        .start_with(move |_| {
            let sender = sender.clone();
            move |one: Fired<u64>, _: &_| sender.send(one.payload).unwrap()
        })
        .unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let computing = [(); 2].map(|()| {
        let is_over = Arc::clone(&is_over);
        thread::spawn(move || {
            let mut sum = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                sum = black_box(sum.wrapping_mul(31).wrapping_add(7));
            }
        })
    });
    let refusals = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (client, refusals) = (Thread::of(&service), Arc::clone(&refusals));
            thread::spawn(move || {
                refusals.fetch_add(schedule_all(&client), Ordering::Relaxed);
            })
        })
        .collect();
    let mut sum = 0;
    for count in 0..CLIENTS * TIMERS {
        let Ok(value) = fired.recv_timeout(WATCHDOG) else {
            panic!("only {count} timers have fired, and no other one does");
        };
        sum += value;
    }
    assert_eq!(sum, CLIENTS * (0..TIMERS).sum::<u64>(), "each timer fires once");
    for client in clients {
        client.join().unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
    for thread in computing {
        thread.join().unwrap();
    }
    let counts = service.shutdown(ShutdownPolicy::Return).unwrap().shards[0].counts;
    check_law(&counts);
    assert_eq!(counts.fired, CLIENTS * TIMERS);
    let refusals = refusals.load(Ordering::Relaxed);
    assert_eq!(counts.refused, refusals);
    // For a person that compares: `--nocapture`.
    println!("pinned: {is_pinned}; {refusals} refusals in {} turns", counts.turns);
}

#[test]
fn clients_that_retry_at_once_on_busy_cores_have_all_timers_accepted() {
    check_starved(false);
    if cfg!(feature = "pinning") {
        check_starved(true);
    }
}

//! A shard whose thread gets little of the processor, beside clients that retry at once.

#![allow(clippy::print_stdout, reason = "the numbers of refusals and turns are for a reader")]

use std::hint::black_box;

use corewheel::Runtime;

use super::*;

const CLIENTS: usize = 4;
const TIMERS: u64 = 3_000;
/// The timers of all clients.
const ALL: u64 = CLIENTS as u64 * TIMERS;
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
    let builder = builder(1).runtime(Runtime::Thread).lane_capacity(64);
    let service = if is_pinned { builder } else { builder.unpinned() }
        .start_with(move |_| {
            let sender = sender.clone();
            move |one: Fired<u64>, _: &_| sender.send(one.payload).unwrap()
        })
        .unwrap();
    let is_over = AtomicBool::new(false);
    let compute = || {
        let mut sum = 0_u64;
        while !is_over.load(Ordering::Relaxed) {
            sum = black_box(sum.wrapping_mul(31).wrapping_add(7));
        }
    };
    let refusals: u64 = thread::scope(|scope| {
        let _computing = [(); 2].map(|()| scope.spawn(compute));
        let clients = [(); CLIENTS].map(|()| scope.spawn(|| schedule_all(&Thread::of(&service))));
        // Ends the computing threads, also where an assertion fails.
        let _over = OnDrop(|| is_over.store(true, Ordering::Relaxed));
        let mut sum = 0;
        for count in 0..ALL {
            let Ok(value) = fired.recv_timeout(WATCHDOG) else {
                panic!("only {count} timers have fired, and no other one does");
            };
            sum += value;
        }
        assert_eq!(sum, CLIENTS as u64 * (0..TIMERS).sum::<u64>(), "each timer fires once");
        clients.map(|client| client.join().unwrap()).iter().sum()
    });
    let counts = service.shutdown(ShutdownPolicy::Return).unwrap().shards[0].counts;
    check_law(&counts);
    assert_eq!((counts.fired, counts.refused), (ALL, refusals));
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

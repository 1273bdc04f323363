//! Threads of the system fill a shard to its last slot and arm one more, on a manual clock, after
//! others have armed, reset, moved and dropped timers and have ended. The shards sleep by
//! `prepare_to_sleep` alone.
//!
//! A timer that waits for room is neither armed nor refused until its shard has taken a turn, which
//! takes as long as the system needs to run its thread: many polls, on a busy machine. What a shard
//! holds is known from the sleeps that the test holds.
//!
//! A timer that is polled again meanwhile has a number already. `Table::ask_for_room` replaces its
//! waker then, and does not ring the shard. That is no fault. A timer whose number is known is in
//! the list of those that wait. The call that has put it there has rung the shard before it
//! returned, or has found the flag set by a timer that rings. The shard clears the flag before it
//! counts the list under its lock, so it serves that timer, or finds the flag set again. If it
//! serves only the first timers of the list, it sets the flag itself and does not sleep. So the
//! turn of each timer in the list comes without another ring, and the shard wakes the waker that
//! the timer has then. The model
//! `timers_that_wait_for_room_are_served_by_an_owner_that_serves_one_in_each_turn` of
//! `src/link/loom_tests` checks it.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use corewheel::attach::Turn;
use corewheel::clock::ManualClock;
use corewheel::{AnyHandle, RefusedKind, ShutdownPolicy, Sleep, TimerService};
use fastrand::Rng;

/// A test that takes longer hangs.
const HANGS: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_hours(1);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn poll(sleep: &mut Sleep) -> Poll<Result<(), RefusedKind>> {
    Pin::new(sleep).poll(&mut Context::from_waker(Waker::noop()))
}

/// Arms, resets, drops and moves timers of any shard, and leaves some to other threads.
fn disturb(handles: &[AnyHandle], moved: &Mutex<Vec<Sleep>>, mut rng: Rng) {
    let mut own: Vec<Sleep> = Vec::new();
    for _ in 0..rng.usize(..600) {
        let number = rng.usize(..=own.len());
        match (rng.u8(..8), own.get_mut(number)) {
            (0, Some(sleep)) => sleep.reset(HOUR.mul_f64(0.5 + rng.f64())),
            (1, Some(_)) => drop(own.swap_remove(number)),
            (2, Some(_)) => moved.lock().unwrap().push(own.swap_remove(number)),
            (3, Some(sleep)) => drop(poll(sleep)),
            (4, _) => own.extend(moved.lock().unwrap().pop()),
            _ => {
                let mut sleep = handles[rng.usize(..handles.len())].sleep(HOUR);
                if poll(&mut sleep).is_pending() {
                    own.push(sleep);
                }
            }
        }
    }
}

/// Runs the history of a seed: of as many timers as a shard has slots, and one more, that one is
/// refused and all others are armed.
fn fill(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let (clock, capacity) = (ManualClock::new(), rng.u32(426..2_986));
    let builder = TimerService::builder().shards(rng.usize(1..=3)).clock(&clock);
    let service = builder.capacity(capacity).start_attached_with::<u8>().unwrap();
    let drivers: Vec<_> = service
        .shards()
        .map(|shard| {
            let attachment = service.attach(shard).unwrap();
            thread::spawn(move || {
                let mut shard = attachment.into_loop(|_, _| {}).unwrap();
                let waker = Waker::from(Arc::new(Unpark(thread::current())));
                loop {
                    let after = shard.turn();
                    match shard.prepare_to_sleep(after, &waker) {
                        Turn::More => {}
                        Turn::Next(_) | Turn::Idle => thread::park(),
                        Turn::Closed => break,
                    }
                }
            })
        })
        .collect();
    let advance = |by| {
        clock.advance(by);
        for driver in &drivers {
            driver.thread().unpark();
        }
    };
    let handles: Vec<_> = service.shards().map(|it| service.handle().on(it).untyped()).collect();
    let moved = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let threads: Vec<_> = (0..rng.usize(1..5))
            .map(|_| {
                let (handles, moved, rng) = (&handles, &moved, rng.fork());
                scope.spawn(move || disturb(handles, moved, rng))
            })
            .collect();
        while !threads.iter().all(thread::ScopedJoinHandle::is_finished) {
            advance(Duration::from_millis(3));
            thread::yield_now();
        }
    });
    drop(moved);
    let place = rng.usize(..handles.len());
    let handle = handles[place];
    let (refused, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let pending = || service.stats().shards[place].counts.pending;
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut sleeps: Vec<_> = (0..=capacity).map(|_| handle.sleep(HOUR)).collect();
            while !is_over.load(Ordering::Relaxed) {
                sleeps.retain_mut(|sleep| {
                    let is_refused = poll(sleep) == Poll::Ready(Err(RefusedKind::Full));
                    refused.fetch_add(usize::from(is_refused), Ordering::Relaxed);
                    !is_refused
                });
                thread::sleep(Duration::from_micros(500));
            }
        });
        let begun = Instant::now();
        let is_done = || refused.load(Ordering::Relaxed) > 0 && pending() == u64::from(capacity);
        while !is_done() && begun.elapsed() < HANGS {
            advance(Duration::from_millis(4));
            thread::yield_now();
        }
        let (refused, pending) = (refused.load(Ordering::Relaxed), pending());
        is_over.store(true, Ordering::Relaxed);
        assert_eq!((refused, pending), (1, u64::from(capacity)), "seed {seed}");
    });
    drop(service.shutdown(ShutdownPolicy::Drop));
    for driver in drivers {
        driver.join().unwrap();
    }
}

#[test]
fn timer_beyond_the_last_slot_is_refused_and_all_others_are_armed() {
    for seed in 0..200 {
        fill(seed);
    }
}

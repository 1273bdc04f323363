//! How long a worker takes to arm a timeout on a crowded machine.
//!
//! Sixteen workers arm and drop timeouts all the time, and a thread for each cpu does nothing but
//! compute. So threads lose their processors often, also in the middle of a lock that others need.
//! The timeouts live for some milliseconds, so the service looks at them meanwhile. Without a
//! timeout, the times tell how often the measuring thread itself loses its processor.

use std::collections::VecDeque;
use std::hint;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use crate::measure::{HELD_BY_TASK, Never, SEED, poll_once, run};
use crate::systems::Timeouts;

/// The delays, in milliseconds.
const DELAYS_MS: Range<u64> = 20..200;
/// How many timeouts a task holds. It drops the oldest.
const HELD_MAX: usize = 10_000;

/// The times that `tasks` tasks take to arm `each` timeouts, in microseconds, sorted.
pub(crate) fn times_to_arm<T: Timeouts>(
    system: T,
    runtime: &Runtime,
    tasks: usize,
    each: usize,
) -> Vec<f64> {
    let is_done = AtomicBool::new(false);
    let mut times_us = thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        let times_us = run(runtime, tasks, |task| arm_and_drop(system, task, each)).concat();
        is_done.store(true, Ordering::Relaxed);
        times_us
    });
    times_us.sort_by(f64::total_cmp);
    times_us
}

/// A task that arms timeouts and drops the oldest. Returns how long it took to arm each.
async fn arm_and_drop<T: Timeouts>(system: T, task: usize, each: usize) -> Vec<f64> {
    let mut rng = fastrand::Rng::with_seed(SEED + task as u64);
    let mut held = VecDeque::with_capacity(HELD_MAX + HELD_BY_TASK);
    let mut times_us = Vec::with_capacity(each + HELD_BY_TASK);
    while times_us.len() < each {
        for _ in 0..HELD_BY_TASK {
            let delay = Duration::from_millis(rng.u64(DELAYS_MS));
            let mut timeout = Box::pin(system.timeout(delay, Never([0; 8])));
            let start = Instant::now();
            let polled = poll_once(timeout.as_mut());
            times_us.push(start.elapsed().as_nanos() as f64 / 1e3);
            if let Poll::Ready(Err(error)) = polled {
                assert!(T::is_elapsed(&error), "{error:?}");
            }
            held.push_back(timeout);
        }
        held.drain(..held.len().saturating_sub(HELD_MAX));
        tokio::task::yield_now().await;
    }
    times_us
}

//! The memory that a contender takes from the system for each timer.
//!
//! Measured as the growth of the resident set and not by counting allocations: capacity that is
//! reserved and never touched costs nothing, and the rounding of the allocator costs something. A
//! process measures one contender once, since freed memory may stay resident.

use std::hint::black_box;
use std::mem::size_of;

use corewheel_timeouts::process::resident_bytes;

use crate::{Payload, Timers};

const DELAY_MAX: u64 = 60_000;

/// The operations before the measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Held {
    /// Schedules, one timer after the other.
    Filled,
    /// Schedules, and then four times as many cancels of random timers, each with a schedule, so
    /// that the figure contains the entries that cancels leave.
    Churned,
}

/// The growth of the resident set by `count` pending timers, divided by `count`. The caller's
/// handles are not included.
///
/// # Panics
///
/// If the system does not report the resident set of the process: this needs Linux.
pub fn resident_bytes_per_timer<T: Timers>(count: usize, held: Held) -> f64 {
    let mut rng = fastrand::Rng::with_seed(0x0C0D_E5EE_D000_0006);
    let before = resident_bytes();
    let mut timers = T::with_capacity(count);
    let mut handles = Vec::with_capacity(if held == Held::Churned { count } else { 0 });
    for _ in 0..count {
        let handle = timers.schedule(rng.u64(1..=DELAY_MAX), Payload::MIN);
        if held == Held::Churned {
            handles.push(handle);
        }
    }
    let rounds = if held == Held::Churned { 4 * count } else { 0 };
    for _ in 0..rounds {
        let picked = handles.swap_remove(rng.usize(..count));
        black_box(timers.cancel(picked));
        handles.push(timers.schedule(rng.u64(1..=DELAY_MAX), Payload::MIN));
    }
    let grown = resident_bytes() - before - handles.len() * size_of::<T::Handle>();
    assert_eq!(timers.pending(), count, "{}: pending", T::NAME);
    black_box(&timers);
    grown as f64 / count as f64
}

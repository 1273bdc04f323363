//! What allocates nothing, or leaves no memory.
//!
//! Every allocation of the process is counted, so there is one test, which runs each part after the
//! one before. Most of them turn their shard themselves.

#![cfg(not(corewheel_loom))]

#[cfg(target_os = "linux")]
mod glommio;
mod purgatory_and_scaled;
mod stream;
mod threads;
mod turns;

use std::alloc::System;
use std::time::Duration;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// How long the clock of a test has run. Far from the epoch, where a time that is wrongly 0 would
/// be right.
const AGE: Duration = Duration::from_secs(12_345);

/// Asserts that this allocates nothing.
#[track_caller]
fn check_allocates_nothing(load: impl FnOnce()) {
    let region = Region::new(ALLOCATOR);
    load();
    let change = region.change();
    assert_eq!((change.allocations, change.reallocations), (0, 0), "{change:?}");
}

#[test]
fn each_part_allocates_and_keeps_no_more_than_it_says() {
    turns::steady_load_of_timers_and_requests_allocates_nothing();
    purgatory_and_scaled::steady_load_of_operations_and_scaled_timeouts_allocates_nothing();
    stream::stream_allocates_nothing_for_a_read_or_a_write();
    threads::short_lived_threads_leave_no_memory_and_an_idle_one_takes_few_kibibytes();
    // Last, as its service has threads of its own.
    #[cfg(target_os = "linux")]
    glommio::wake_ups_under_a_far_alarm_keep_no_memory();
}

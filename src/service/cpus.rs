//! The cpus that this process may use, and the pinning of a thread to one of them.
//!
//! Without the feature `pinning` the scheduler places every thread, and this module knows only how
//! many cpus there are.

use std::thread;

#[cfg(feature = "pinning")]
use core_affinity::CoreId;

/// The numbers of the cpus that this process may use. Empty where the system does not tell them,
/// and in a build that cannot pin threads.
#[cfg(feature = "pinning")]
pub(super) fn allowed() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect()
}

#[cfg(not(feature = "pinning"))]
pub(super) fn allowed() -> Vec<usize> {
    Vec::new()
}

/// How many cpus this process may use, at least 1: those of its cpu set, or fewer by its quota of
/// cpu time.
pub(super) fn count() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Pins this thread to a cpu; false if the system refuses that.
#[cfg(feature = "pinning")]
pub(super) fn pin_to(cpu: usize) -> bool {
    core_affinity::set_for_current(CoreId { id: cpu })
}

#[cfg(not(feature = "pinning"))]
pub(super) fn pin_to(_cpu: usize) -> bool {
    false
}

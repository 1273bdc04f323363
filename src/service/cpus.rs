//! The cpus that this process may use, and the pinning of a thread to one of them.
//!
//! Without the feature `pinning` the scheduler places every thread, and this module knows only how
//! many cpus there are.

use std::thread;

/// Whether this build can pin threads.
pub(super) const CAN_PIN: bool = cfg!(feature = "pinning");

/// The numbers of the cpus that this process may use. Empty where the system does not tell them,
/// and in a build that cannot pin threads.
pub(super) fn allowed() -> Vec<usize> {
    affinity::allowed()
}

/// How many cpus this process may use, at least 1.
pub(super) fn count(allowed: &[usize]) -> usize {
    if allowed.is_empty() {
        // It looks at the process's cpu set, and at its quota of cpu time.
        return thread::available_parallelism().map_or(1, usize::from);
    }
    allowed.len()
}

/// Pins this thread to a cpu; false if the system refuses that.
pub(super) fn pin_to(cpu: usize) -> bool {
    affinity::pin_to(cpu)
}

#[cfg(all(feature = "pinning", target_os = "linux"))]
mod affinity {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    pub(super) fn allowed() -> Vec<usize> {
        let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
        (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
    }

    pub(super) fn pin_to(cpu: usize) -> bool {
        if cpu >= CpuSet::MAX_CPU {
            return false;
        }
        let mut set = CpuSet::new();
        set.set(cpu);
        sched_setaffinity(None, &set).is_ok()
    }
}

#[cfg(all(feature = "pinning", not(target_os = "linux")))]
mod affinity {
    use core_affinity::{CoreId, get_core_ids, set_for_current};

    pub(super) fn allowed() -> Vec<usize> {
        get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect()
    }

    pub(super) fn pin_to(cpu: usize) -> bool {
        set_for_current(CoreId { id: cpu })
    }
}

#[cfg(not(feature = "pinning"))]
mod affinity {
    pub(super) fn allowed() -> Vec<usize> {
        Vec::new()
    }

    pub(super) fn pin_to(_cpu: usize) -> bool {
        false
    }
}

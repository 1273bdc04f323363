//! The processor's time-stamp counter.
//!
//! Why not ARM's counter, `cntvct_el0`: it was measured on no machine how far ahead of earlier
//! instructions the processor reads it. There each reading asks the system, which reads that
//! counter without a system call. On x86-64 that takes twice as long as the counter, or more.
//!
//! Cost: an instruction for a reading.

use std::sync::OnceLock;

/// Whether the system's clock uses the counter. The system does so only if the counters of all
/// cores agree and never stop.
#[inline]
pub(super) fn is_used() -> bool {
    static IS_USED: OnceLock<bool> = OnceLock::new();
    *IS_USED.get_or_init(|| {
        let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let source = std::fs::read_to_string(path).unwrap_or_default();
        cfg!(target_arch = "x86_64") && source.trim() == "tsc"
    })
}

/// The counter's count.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn read() -> u64 {
    safe_arch::read_timestamp_counter()
}

/// There is no counter that [is used](is_used).
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn read() -> u64 {
    0
}

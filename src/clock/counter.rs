//! The processor's time-stamp counter.
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

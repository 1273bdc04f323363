//! What this process has taken from the system.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The processor time that all threads of this process have used, those that have ended included.
///
/// # Panics
///
/// Never: a clock of spent time is not negative.
pub fn processor_time() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(spent).expect("a time that was spent")
}

/// The size of the resident set of this process.
///
/// # Panics
///
/// If the system does not report it: this needs Linux.
pub fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells what is resident");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    kib.expect("VmRSS is a number of KiB") * 1024
}

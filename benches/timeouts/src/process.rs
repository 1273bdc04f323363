//! What this process has taken from the system.

use std::time::Duration;
use std::{fs, io};

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

/// How often threads of this process have waited, of those that have not ended.
///
/// # Panics
///
/// If the system does not report it: this needs Linux.
pub fn waits() -> u64 {
    let of_thread = |thread: io::Result<fs::DirEntry>| {
        // A thread that has ended meanwhile counts as one that ends now.
        let status = fs::read_to_string(thread.ok()?.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line?.trim().parse::<u64>().ok()
    };
    let threads = fs::read_dir("/proc/self/task").expect("Linux tells what threads there are");
    threads.filter_map(of_thread).sum()
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

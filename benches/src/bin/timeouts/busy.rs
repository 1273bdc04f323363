//! How busy other processes keep the machine's cpus.

use std::time::Duration;
use std::{fs, thread};

const PERIOD: Duration = Duration::from_millis(500);

/// Which part of the cpus, 0 to 1, was busy while this process slept for half a second. `None`
/// where the system does not report it: this needs Linux.
pub(crate) fn busy_while_asleep() -> Option<f64> {
    let (idle_before, all_before) = ticks()?;
    thread::sleep(PERIOD);
    let (idle, all) = ticks()?;
    Some(1.0 - (idle - idle_before) / (all - all_before).max(1.0))
}

/// The idle time of all cpus, and all of their time.
fn ticks() -> Option<(f64, f64)> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let of_all = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let times = of_all.split_whitespace().map(str::parse);
    let times: Vec<f64> = times.collect::<Result<_, _>>().ok()?;
    // User, nice, system, idle, waiting for a disk, two sorts of interrupts, stolen.
    let all = times.get(..8)?.iter().sum();
    Some((times[3] + times[4], all))
}

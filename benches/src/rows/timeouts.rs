//! What a timeout costs on multi-thread tokio: tokio's own, by both of its timers, pingora's and
//! corewheel's.
//!
//! Each cell is measured in a process of its own, by the package `corewheel-timeouts`, which is
//! built with and without `--cfg tokio_unstable`. A cell fails where corewheel refuses a timeout
//! that never fires, or has one wait for its shard.
//!
//! Timeouts that fire are measured in two rows. Threads are woken once for all timeouts that are
//! due in a millisecond, so the cost of each depends on how many these are: some 70 in 1,000 tasks,
//! and 700 in 10,000. Delays are any number of microseconds, as a server's are. Whole milliseconds
//! in tasks that start together make both cheaper, since the tasks stay in step.

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use corewheel_timeouts::{Cell, Row, System, quantity};

use super::Run;
use crate::cells::{self, Built};
use crate::report::Entrant;

/// The workers in the rows that are measured while many others are pending, too.
const WORKERS_BESIDE_OTHERS: usize = 2;

/// What is measured in each row.
const ROWS: &str = "
- at once: 30 s around a future that is ready at its second poll. short: the same with 5 ms.
- reset: a sleep of 30 s that its task resets at each poll.
- lives: 30 s around a future that another thread makes ready after 5 ms, so that half of the
  timeouts end on another worker. old: 100 ms around one that is ready after 40 ms.
- moved: 30 s, armed on one thread and dropped on another.
- fired: 5 to 24 ms around a future that is never ready; some 70 are due in each millisecond in
  1,000 tasks, and 700 in 10,000. slept: the same by a sleep without a future. A timeout that has
  fired has its runtime look at its sockets first, which then wakes its task.
- time to arm: 20 to 200 ms, in 16 workers that do nothing else, beside a busy thread for each cpu.
- pending: minutes, a million of them, when they were armed or after 13 s, whichever is more. By
  then corewheel's shard has filed each. What a system allocates when it starts counts as resident
  only: of corewheel's shard, a slot for each timer.

The count is the runtime's workers; with more workers than cpus, threads wait for cpus. A row is
net of the same without a timeout, unless its name says that it is gross.
";

/// Adds all rows. `timeouts` is how many a pass has, and fewer in passes that wait; `others` how
/// many are pending in the rows that have others.
///
/// # Errors
///
/// Cargo cannot build the package.
pub fn compare(run: &mut Run, timeouts: usize, others: usize) -> Result<(), Box<dyn Error>> {
    let plain = Built::new("corewheel-timeouts", false)?;
    let unstable = Built::new("corewheel-timeouts", true)?;
    let versions = ["tokio", "pingora-timeout"].map(|peer| plain.version(peer).unwrap_or_default());
    let busy = busy_while_asleep().map_or_else(String::new, |busy| {
        format!("; other processes kept {:.0} % of the cpus busy before the run", busy * 100.0)
    });
    let rounds = run.rounds;
    run.report.text =
        format!("{}, {}; {rounds} rounds{busy}\n{ROWS}", cells::compiler()?, versions.join(", "));
    for (row, facts) in Row::ALL {
        for workers in facts.workers.iter().copied() {
            let beside = matches!(row, Row::AtOnceFew | Row::AtOnceMany);
            let pending: &[usize] = match row {
                Row::Memory => &[others],
                _ if beside && workers == WORKERS_BESIDE_OTHERS => &[0, others],
                _ => &[0],
            };
            for pending in pending.iter().copied() {
                let cell = |system| Cell { row, pending, workers, system, timeouts };
                let known = System::ALL.into_iter().filter(|(system, _)| row.is_known_to(*system));
                let entrant = |(system, name): (System, &str)| -> Result<_, Box<dyn Error>> {
                    let is_alternative = system == System::TokioAlternative;
                    let built = if is_alternative { &unstable } else { &plain };
                    let counting = if row == Row::Memory { "-counting" } else { "" };
                    let program = built.program(&format!("corewheel-timeouts{counting}"))?;
                    let argument = [serde_json::to_string(&cell(system))?];
                    Ok((name.to_owned(), program, argument))
                };
                let entrants: Vec<_> = known.map(entrant).collect::<Result<_, _>>()?;
                let beside = match pending {
                    0 => String::new(),
                    1_000_000 => " beside a million".to_owned(),
                    few => format!(" beside {few}"),
                };
                let row = format!("{}{beside}", facts.name);
                run.measure((quantity::PROCESSOR, &row, workers), || {
                    let entrant = |(name, program, argument): (String, PathBuf, [String; 1])| {
                        Entrant::with_tables(&name, move || cells::measure(&program, &argument))
                    };
                    entrants.into_iter().map(entrant).collect()
                });
            }
        }
    }
    Ok(())
}

/// Which part of the cpus, 0 to 1, was busy while this process slept for half a second. `None`
/// where the system does not report it: this needs Linux.
fn busy_while_asleep() -> Option<f64> {
    let ticks = || {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let times = stat.strip_prefix("cpu ")?.lines().next()?.split_whitespace().map(str::parse);
        let times: Vec<f64> = times.collect::<Result<_, _>>().ok()?;
        // User, nice, system, idle, waiting for a disk, two sorts of interrupts, stolen.
        Some((times[3] + times[4], times.get(..8)?.iter().sum::<f64>()))
    };
    let (idle_before, all_before) = ticks()?;
    std::thread::sleep(Duration::from_millis(500));
    let (idle, all) = ticks()?;
    Some(1.0 - (idle - idle_before) / (all - all_before).max(1.0))
}

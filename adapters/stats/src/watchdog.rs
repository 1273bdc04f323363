//! A look at a service's shards from outside, which finds those that are stuck.
//!
//! For servers that would rather abort, or write a backtrace, than stand still.
//!
//! ```
//! use corewheel::TimerService;
//! use corewheel_stats::watchdog::watch;
//!
//! let service = TimerService::builder().shards(1).start()?;
//! let source = service.stats_source();
//! std::thread::spawn(move || {
//!     watch(source, |shard, is_hung| {
//!         eprintln!("{:?} is stuck for {:?}", shard.shard, shard.stuck_for());
//!         if is_hung {
//!             // A core dump shows what the shard's thread does.
//!             std::process::abort();
//!         }
//!     });
//! });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! It compares what each shard publishes, the next deadline and the turn that runs, with the clock.
//! So it costs a shard nothing, and it sees a shard whose thread does not run at all.
//!
//! Why a thread of its own: a stuck shard cannot tell that it is stuck, and a reader of the
//! statistics may not come. Why not a signal: the shard's thread may wait for the system, or may
//! belong to the user.
//!
//! Cost: a reading of the statistics at each look.

use std::ops::RangeInclusive;
use std::thread;
use std::time::{Duration, Instant};

use corewheel::settings::WarningLimits;
use corewheel::stats::{ServiceStats, ShardState, ShardStats};

use super::reasons::attempt;

/// How often it looks: ten times before a shard is stuck, within these bounds.
const LOOKS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(100);

/// Watches the shards of a service until all of them have ended. Calls `on_stuck` when a turn of a
/// shard has been due, or has been running, for longer than [`WarningLimits::stuck`], and once
/// more, with `true`, after [`WarningLimits::hung`].
///
/// It gets the [statistics](ShardStats) of that shard. In a turn, `turn_ns` says for how long the
/// turn has been running, and `delivering` the class of its timer: a handler or a callback keeps
/// the shard. Otherwise another task of the executor does, or the thread does not run.
///
/// Call it on a thread of its own. The function is called on that thread: it may write a backtrace,
/// or abort the process. While it runs no shard is watched. A panic of it is caught and logged.
///
/// Cost: a reading of the statistics ten times in `stuck`, and at most every millisecond. Each logs
/// the [warnings](corewheel::stats::WarningKind) that have occurred.
pub fn watch(source: impl Fn() -> ServiceStats, on_stuck: impl Fn(&ShardStats, bool)) {
    let (mut was_hung, mut last) = (Vec::new(), Instant::now());
    let mut interval = Duration::ZERO;
    loop {
        thread::sleep(interval);
        let stats = source();
        let stuck_after = stats.warning_limits.stuck;
        let now = Instant::now();
        let elapsed = now.saturating_duration_since(std::mem::replace(&mut last, now));
        let was_stopped = elapsed > interval.saturating_add(stuck_after);
        interval = (stuck_after / 10).clamp(*LOOKS.start(), *LOOKS.end());
        if was_stopped {
            // This thread did not run either: the process was stopped, or the whole host stood
            // still. The shards get the time until the next look.
            tracing::warn!(
                name: "process-stopped",
                target: "corewheel::watchdog",
                ?elapsed,
                "the process was stopped, or got no processor"
            );
            continue;
        }
        look(&stats, &mut was_hung, |shard, is_hung| tell(shard, is_hung, &on_stuck));
        let is_over =
            |shard: &ShardStats| matches!(shard.state, ShardState::Closed | ShardState::Dead);
        if stats.shards.iter().all(is_over) {
            return;
        }
    }
}

/// Finds the shards that have passed a threshold since the look before. `was_hung` says whether
/// each shard was hung at that look; `None` if it was not stuck.
fn look(
    stats: &ServiceStats,
    was_hung: &mut Vec<Option<bool>>,
    mut found: impl FnMut(&ShardStats, bool),
) {
    let WarningLimits { stuck, hung, .. } = stats.warning_limits;
    was_hung.resize(stats.shards.len(), None);
    for (was_hung, shard) in was_hung.iter_mut().zip(&stats.shards) {
        let since = shard.stuck_for();
        let is_hung = (since > stuck).then_some(since > hung);
        if let Some(is_hung) = is_hung.filter(|is_hung| Some(*is_hung) > *was_hung) {
            found(shard, is_hung);
        }
        *was_hung = is_hung;
    }
}

/// Logs a shard that is stuck, and calls the function of the user.
fn tell(stuck: &ShardStats, is_hung: bool, on_stuck: &impl Fn(&ShardStats, bool)) {
    tracing::error!(
        name: "shard-stuck",
        target: "corewheel::watchdog",
        shard = stuck.shard.number(),
        is_hung,
        since = ?stuck.stuck_for(),
        is_in_turn = stuck.turn_ns.is_some(),
        class = stuck.delivering,
        "a shard is stuck"
    );
    if let Err(reason) = attempt(|| on_stuck(stuck, is_hung)) {
        tracing::error!(
            name: "hook-panicked",
            target: "corewheel::watchdog",
            reason, "the hook panicked"
        );
    }
}

#[cfg(test)]
mod tests {
    use corewheel::TimerService;

    use super::*;

    /// Looks at a shard for which a turn has been due for so many milliseconds at each look.
    fn found(overdue: &[u64]) -> Vec<Option<bool>> {
        let builder = TimerService::builder().shards(1).capacity(64);
        let service = builder.start_attached().expect("an attached service starts");
        let mut stats = service.stats();
        let (stuck, hung) = (Duration::from_secs(1), Duration::from_secs(5));
        let limits = WarningLimits { stuck, hung, ..WarningLimits::default() };
        stats.warning_limits = limits;
        let mut was_hung = Vec::new();
        let found = |overdue: &u64| {
            stats.shards[0].overdue_ns = overdue * 1_000_000;
            let mut found = None;
            look(&stats, &mut was_hung, |_, is_hung| found = Some(is_hung));
            found
        };
        overdue.iter().map(found).collect()
    }

    #[test]
    fn stuck_shard_is_told_once_at_each_of_the_two_thresholds() {
        let (stuck, hung) = (Some(false), Some(true));
        let found = found(&[0, 900, 1_000, 1_100, 1_200, 4_900, 5_100, 5_200, 0, 2_000, 6_000]);
        let expected = [None, None, None, stuck, None, None, hung, None, None];
        assert_eq!(found[..9], expected);
        assert_eq!(found[9..], [stuck, hung], "it is told again after it has run");
    }
}

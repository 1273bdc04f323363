//! A thread that sees a stuck shard from outside it.
//!
//! For servers that would rather abort, or write a backtrace, than stand still. By hand it is a
//! thread that reads the statistics, at the same cost.
//!
//! ```
//! use corewheel::TimerService;
//! use corewheel_stats::watchdog::watch;
//!
//! let service = TimerService::builder().shards(1).start()?;
//! let _watchdog = watch(service.stats_source(), |stuck| {
//!     if stuck.is_hung {
//!         // A core dump shows what the shard's thread does.
//!         std::process::abort();
//!     }
//! })?;
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

use std::io;
use std::ops::RangeInclusive;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use corewheel::ShardId;
use corewheel::settings::WarningLimits;
use corewheel::stats::{ServiceStats, ShardState, ShardStats, StatsSource};

use super::reasons::attempt;

/// How often it looks: ten times before a shard is stuck, within these bounds.
const LOOKS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(100);

/// A shard that is stuck, for the function of [`watch`].
///
/// ```
/// use corewheel_stats::watchdog::Stuck;
///
/// fn tell(stuck: &Stuck) {
///     eprintln!("{:?} is stuck for {:?}", stuck.shard, stuck.since);
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Stuck {
    /// The shard.
    pub shard: ShardId,
    /// Whether it has been stuck for longer than
    /// [`WarningLimits::hung`].
    pub is_hung: bool,
    /// For how long a turn has been due or running.
    pub since: Duration,
    /// Whether a turn runs: then a handler or a callback keeps the shard. Else another task of the
    /// executor does, or the thread does not run.
    pub is_in_turn: bool,
    /// The class of the timer that is delivered, if a turn runs and the timer has one.
    pub class: Option<&'static str>,
}

/// The looks of the watchdog.
#[derive(Default)]
struct Looks {
    /// Whether each shard was hung at the look before; `None` if it was not stuck.
    shards: Vec<Option<bool>>,
}

impl Looks {
    /// Finds the shards that have passed a threshold since the look before.
    fn look(&mut self, stats: &ServiceStats) -> Vec<Stuck> {
        let WarningLimits { stuck, hung, .. } = stats.warning_limits;
        self.shards.resize(stats.shards.len(), None);
        let mut found = Vec::new();
        for (was_hung, shard) in self.shards.iter_mut().zip(&stats.shards) {
            let since = shard.stuck_for();
            let is_hung = (since > stuck).then_some(since > hung);
            if let Some(is_hung) = is_hung.filter(|is_hung| Some(*is_hung) > *was_hung) {
                found.push(Stuck {
                    shard: shard.shard,
                    is_hung,
                    since,
                    is_in_turn: shard.turn_ns.is_some(),
                    class: shard.delivering,
                });
            }
            *was_hung = is_hung;
        }
        found
    }
}

/// The thread of a watchdog, which ends when this is dropped; made by [`watch`].
#[derive(Debug)]
#[must_use = "the watchdog ends when this is dropped"]
pub struct Watchdog {
    /// `None` while this is dropped. The thread waits for its end.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // The function may drop the watchdog, on its own thread.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

/// Starts a thread that watches the shards of a service from outside. It calls `on_stuck` when a
/// turn of a shard has been due, or has been running, for longer than [`WarningLimits::stuck`], and
/// once more, with [`Stuck::is_hung`], after [`WarningLimits::hung`].
///
/// The function is called on that thread. It may write a backtrace, or abort the process. While it
/// runs no shard is watched. A panic of it is caught and logged. The thread ends when the
/// [`Watchdog`] is dropped, or when all shards have ended.
///
/// Cost: a reading of the statistics ten times in `stuck`, and at most every millisecond. Each logs
/// the [warnings](corewheel::stats::WarningKind) that have occurred.
///
/// # Errors
///
/// The system refuses the thread.
pub fn watch(
    source: StatsSource,
    on_stuck: impl Fn(&Stuck) + Send + 'static,
) -> io::Result<Watchdog> {
    let (stop, stopped) = mpsc::channel();
    let name = format!("{}-watchdog", source.read().name);
    let work = move || {
        let (mut looks, mut last) = (Looks::default(), Instant::now());
        let mut interval = Duration::ZERO;
        while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
            let stats = source.read();
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
            looks.look(&stats).iter().for_each(|stuck| tell(stuck, &on_stuck));
            let is_over =
                |shard: &ShardStats| matches!(shard.state, ShardState::Closed | ShardState::Dead);
            if stats.shards.iter().all(is_over) {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name(name).spawn(work)?;
    Ok(Watchdog { stop: Some(stop), thread: Some(thread) })
}

/// Logs a shard that is stuck, and calls the function of the user.
fn tell(stuck: &Stuck, on_stuck: &impl Fn(&Stuck)) {
    let Stuck { shard, is_hung, since, is_in_turn, class } = *stuck;
    let shard = shard.number();
    tracing::error!(
        name: "shard-stuck",
        target: "corewheel::watchdog",
        shard,
        is_hung,
        ?since,
        is_in_turn,
        class,
        "a shard is stuck"
    );
    if let Err(reason) = attempt(|| on_stuck(stuck)) {
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
        let mut looks = Looks::default();
        let look = |overdue: &u64| {
            stats.shards[0].overdue_ns = overdue * 1_000_000;
            let stuck = looks.look(&stats);
            stuck.first().map(|stuck| stuck.is_hung)
        };
        overdue.iter().map(look).collect()
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

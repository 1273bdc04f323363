//! A thread that sees a stuck shard from outside it.
//!
//! For servers that would rather abort, or write a backtrace, than stand still. By hand it is a
//! thread that reads the statistics, at the same cost, and the work of telling why.
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

use std::any::Any;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, fs, io};

use corewheel::ShardId;
use corewheel::settings::WarningLimits;
use corewheel::stats::{ServiceStats, ShardState, ShardStats, StatsSource};

/// How often it looks: ten times before a shard is stuck, within these bounds.
const LOOKS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(100);

/// What the thread of a stuck shard has done since the look before, as far as the system tells.
///
/// ```
/// use corewheel_stats::watchdog::ThreadState;
///
/// fn advice(state: ThreadState) -> &'static str {
///     match state {
///         ThreadState::Runs => "find the handler that does not return",
///         ThreadState::Starves => "give the process more processor time",
///         _ => "see a core dump",
///     }
/// }
/// assert_eq!(advice(ThreadState::Starves), "give the process more processor time");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ThreadState {
    /// It has run: a handler or a task does not return.
    Runs,
    /// It was ready, and waited for a processor: the host gives it too little time.
    Starves,
    /// It was stopped, by a signal or a debugger.
    Stopped,
    /// It has waited for something else: a lock, a file, a sleep.
    Blocked,
    /// The system does not say it.
    Unknown,
}

impl ThreadState {
    fn name(self) -> &'static str {
        match self {
            Self::Runs => "runs",
            Self::Starves => "starves",
            Self::Stopped => "stopped",
            Self::Blocked => "blocked",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for ThreadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A shard that is stuck, for the function of [`watch`].
///
/// ```
/// use corewheel_stats::watchdog::Stuck;
///
/// fn tell(stuck: &Stuck) {
///     eprintln!("{:?} is stuck for {:?}: {}", stuck.shard, stuck.since, stuck.thread);
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
    /// What the shard's thread does.
    pub thread: ThreadState,
}

/// What the watchdog knows of a shard from the look before.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    /// Whether it was hung; `None` if it was not stuck.
    is_hung: Option<bool>,
    /// For how long the thread had run and waited; `None` if the system did not say it.
    thread: Option<(u64, u64)>,
}

/// The looks of the watchdog.
#[derive(Default)]
struct Looks {
    shards: Vec<Last>,
}

impl Looks {
    /// Finds the shards that have passed a threshold since the look before, which was `elapsed`
    /// ago.
    fn look(&mut self, stats: &ServiceStats, elapsed: Duration) -> Vec<Stuck> {
        let WarningLimits { stuck, hung, .. } = stats.warning_limits;
        self.shards.resize(stats.shards.len(), Last::default());
        let mut found = Vec::new();
        for (last, shard) in self.shards.iter_mut().zip(&stats.shards) {
            let since = shard.stuck_for();
            let is_hung = match since {
                since if since > hung => Some(true),
                since if since > stuck => Some(false),
                _ => None,
            };
            let before = std::mem::replace(&mut last.thread, times_of(shard));
            if let Some(is_hung) = is_hung.filter(|is_hung| Some(*is_hung) > last.is_hung) {
                let thread = thread_state(before, shard, elapsed, state_of);
                found.push(Stuck {
                    shard: shard.shard,
                    is_hung,
                    since,
                    is_in_turn: shard.turn_ns.is_some(),
                    class: shard.delivering,
                    thread,
                });
            }
            last.is_hung = is_hung;
        }
        found
    }
}

/// For how long the thread of a shard has run and waited, in nanoseconds.
fn times_of(shard: &ShardStats) -> Option<(u64, u64)> {
    shard.thread_ran_ns.zip(shard.thread_waited_ns)
}

/// What the thread of a shard has done since the look before. `state_of` gives the letter of the
/// state of a thread.
fn thread_state(
    before: Option<(u64, u64)>,
    shard: &ShardStats,
    elapsed: Duration,
    state_of: impl Fn(u32) -> Option<char>,
) -> ThreadState {
    let (Some(before), Some(now)) = (before, times_of(shard)) else { return ThreadState::Unknown };
    let (ran, waited) = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
    let half = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX) / 2;
    if waited > half {
        return ThreadState::Starves;
    }
    if ran > half / 2 {
        // It runs, if a little less than it could.
        return ThreadState::Runs;
    }
    match shard.thread_id.and_then(state_of) {
        // The system counts a wait for a processor when it is over.
        Some('R') => ThreadState::Starves,
        Some('T' | 't') => ThreadState::Stopped,
        _ => ThreadState::Blocked,
    }
}

/// The letter that the system has for the state of a thread of this process; `None` if it does not
/// say it. A thread that waits for a processor has the letter of a thread that runs.
fn state_of(thread: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    // The name of the thread stands in parentheses and may contain any character.
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
}

/// The thread of a watchdog, which ends when this is dropped; made by [`watch`].
#[must_use = "the watchdog ends when this is dropped"]
pub struct Watchdog {
    /// `None` while this is dropped. The thread waits for its end.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watchdog(..)")
    }
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
            looks.look(&stats, elapsed).iter().for_each(|stuck| tell(stuck, &on_stuck));
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
    let Stuck { shard, is_hung, since, is_in_turn, class, thread } = *stuck;
    let (shard, thread) = (shard.number(), thread.name());
    tracing::error!(
        name: "shard-stuck",
        target: "corewheel::watchdog",
        shard,
        is_hung,
        ?since,
        is_in_turn,
        class,
        thread,
        "a shard is stuck"
    );
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| on_stuck(stuck))) {
        let reason = text_of(&*panic).to_owned();
        // It may panic when it is dropped.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
        tracing::error!(
            name: "hook-panicked",
            target: "corewheel::watchdog",
            reason, "the hook panicked"
        );
    }
}

/// The text of a panic.
fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text")
}

#[cfg(test)]
mod tests {
    use corewheel::TimerService;

    use super::*;

    const LOOK: Duration = Duration::from_millis(100);

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
            let stuck = looks.look(&stats, LOOK);
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

    #[test]
    fn thread_of_a_stuck_shard_is_told_by_the_times_of_the_system() {
        let builder = TimerService::builder().shards(1).capacity(64);
        let service = builder.start_attached().expect("an attached service starts");
        let mut shard = service.stats().shards.swap_remove(0);
        let times = |ran: u64, waited: u64| {
            let ms = 1_000_000;
            Some((ran * ms, waited * ms))
        };
        shard.thread_id = Some(1);
        let mut check = |ran: u64, waited: u64, state: char, expected| {
            (shard.thread_ran_ns, shard.thread_waited_ns) = times(500 + ran, 700 + waited).unzip();
            let state = thread_state(times(500, 700), &shard, LOOK, |_| Some(state));
            assert_eq!(state, expected, "{ran} {waited}");
        };
        check(99, 0, 'R', ThreadState::Runs);
        check(40, 50, 'R', ThreadState::Runs);
        check(10, 90, 'R', ThreadState::Starves);
        check(0, 0, 'R', ThreadState::Starves);
        check(0, 0, 'T', ThreadState::Stopped);
        check(1, 2, 'S', ThreadState::Blocked);
        let state = thread_state(None, &shard, LOOK, |_| Some('T'));
        assert_eq!(state, ThreadState::Unknown);
    }
    #[cfg(target_os = "linux")]
    #[test]
    fn thread_that_computes_has_the_letter_of_one_that_runs() {
        let thread = fs::read_link("/proc/thread-self").unwrap();
        let thread = thread.file_name().unwrap().to_str().unwrap().parse().unwrap();
        assert_eq!(state_of(thread), Some('R'));
    }
}

//! A thread that sees a stuck shard from outside it.
//!
//! It compares what each shard publishes, the next deadline and the turn that runs, with the clock.
//! So it costs a shard nothing, and it sees a shard whose thread does not run at all.
//!
//! Why a thread of its own: a stuck shard cannot tell that it is stuck, and a reader of the
//! statistics may not come. Why not a signal: the shard's thread may wait for the system, or may
//! belong to the user.
//!
//! Cost: a reading of the statistics at each look.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::clock::{now, saturating_nanos};
use crate::shard::Directory;
use crate::stats::host::{self, ThreadTimes};
use crate::stats::{ServiceStats, ShardStats};
use crate::values::contain::attempt;
use crate::values::ids::ShardId;
use crate::values::settings::WarningLimits;

/// What the watchdog calls with each shard that is stuck.
#[derive(Clone)]
pub(crate) struct Hook(Arc<dyn Fn(&Stuck) + Send + Sync>);

impl Hook {
    pub(crate) fn new(hook: impl Fn(&Stuck) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }
}

debug_fields!([] Hook, |_it|);

/// How often it looks: ten times before a shard is stuck, within these bounds.
const LOOKS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(100);

/// What the thread of a stuck shard has done since the look before, as far as the system tells.
///
/// ```
/// use corewheel::watchdog::ThreadState;
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

/// A shard that is stuck, for the function of
/// [`TimerServiceBuilder::watchdog`](crate::TimerServiceBuilder::watchdog).
///
/// ```
/// use corewheel::TimerService;
/// use corewheel::watchdog::Stuck;
///
/// fn tell(stuck: &Stuck) {
///     eprintln!("{:?} is stuck for {:?}: {}", stuck.shard, stuck.since, stuck.thread);
/// }
/// let service = TimerService::builder().shards(1).watchdog(tell).start()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Stuck {
    /// The shard.
    pub shard: ShardId,
    /// Whether it has been stuck for longer than
    /// [`WarningLimits::hung`](crate::settings::WarningLimits::hung).
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
    thread: Option<ThreadTimes>,
}

/// The looks of the watchdog.
struct Looks {
    limits: WarningLimits,
    shards: Vec<Last>,
}

impl Looks {
    /// Finds the shards that have passed a threshold since the look before, which was `elapsed`
    /// ago. `state_of` gives the letter of the state that the thread of a shard has.
    fn look(
        &mut self,
        stats: &ServiceStats,
        elapsed: Duration,
        state_of: impl Fn(ShardId) -> Option<char>,
    ) -> Vec<Stuck> {
        self.shards.resize(stats.shards.len(), Last::default());
        let mut stuck = Vec::new();
        for (last, shard) in self.shards.iter_mut().zip(&stats.shards) {
            let since = shard.stuck_for();
            let is_hung = match since {
                since if since > self.limits.hung => Some(true),
                since if since > self.limits.stuck => Some(false),
                _ => None,
            };
            let before = std::mem::replace(&mut last.thread, shard.thread);
            if let Some(is_hung) = is_hung.filter(|is_hung| Some(*is_hung) > last.is_hung) {
                let thread = thread_state(before, shard, elapsed, &state_of);
                stuck.push(Stuck {
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
        stuck
    }
}

fn thread_state(
    before: Option<ThreadTimes>,
    shard: &ShardStats,
    elapsed: Duration,
    state_of: impl Fn(ShardId) -> Option<char>,
) -> ThreadState {
    let (Some(before), Some(now)) = (before, shard.thread) else { return ThreadState::Unknown };
    let half = saturating_nanos(elapsed) / 2;
    if now.waited_ns.saturating_sub(before.waited_ns) > half {
        return ThreadState::Starves;
    }
    if now.ran_ns.saturating_sub(before.ran_ns) > half / 2 {
        // It runs, if a little less than it could.
        return ThreadState::Runs;
    }
    match state_of(shard.shard) {
        // The system counts a wait for a processor when it is over.
        Some('R') => ThreadState::Starves,
        Some('T' | 't') => ThreadState::Stopped,
        _ => ThreadState::Blocked,
    }
}

/// The thread of a watchdog, which ends when this is dropped.
pub(crate) struct Watching {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watching {
    pub(crate) fn start<T: Send + 'static>(
        hook: Hook,
        directory: &Arc<Directory<T>>,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let name = format!("{}-watchdog", directory.settings.name);
        let (stopped, directory) = (Arc::clone(&stop), Arc::downgrade(directory));
        let thread =
            thread::Builder::new().name(name).spawn(move || watch(&hook, &directory, &stopped))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        // Relaxed: the flag orders nothing. The unpark below makes the thread look at it.
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The hook may drop the service, on the watchdog's own thread.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

fn watch<T: Send + 'static>(hook: &Hook, directory: &Weak<Directory<T>>, stopped: &AtomicBool) {
    let Some(limits) = directory.upgrade().map(|known| known.settings.warnings) else { return };
    let interval = (limits.stuck / 10).clamp(*LOOKS.start(), *LOOKS.end());
    let mut looks = Looks { limits, shards: Vec::new() };
    let mut last = now();
    loop {
        thread::park_timeout(interval);
        let Some(directory) = directory.upgrade().filter(|_| !stopped.load(Ordering::Relaxed))
        else {
            return;
        };
        let elapsed = now().saturating_duration_since(std::mem::replace(&mut last, now()));
        if elapsed > interval.saturating_add(limits.stuck) {
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
        let stats = directory.stats();
        let thread = |shard| directory.post(shard)?.published.live.thread();
        let state_of = |shard| host::state_of(thread(shard)?);
        for stuck in looks.look(&stats, elapsed, state_of) {
            let Stuck { shard, is_hung, since, is_in_turn, class, thread } = stuck;
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
            if let Err(reason) = attempt(|| hook.0(&stuck)) {
                tracing::error!(
                    name: "hook-panicked",
                    target: "corewheel::watchdog",
                    reason, "the hook panicked"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::builder::TimerServiceBuilder;

    const LOOK: Duration = Duration::from_millis(100);

    /// Looks at a shard for which a turn has been due for so many milliseconds at each look.
    fn found(overdue: &[u64]) -> Vec<Option<bool>> {
        let builder = TimerServiceBuilder::new().shards(1).capacity(64);
        let service = builder.start_attached().expect("an attached service starts");
        let mut stats = service.stats();
        let (stuck, hung) = (Duration::from_secs(1), Duration::from_secs(5));
        let limits = WarningLimits { stuck, hung, ..WarningLimits::default() };
        let mut looks = Looks { limits, shards: vec![] };
        let look = |overdue: &u64| {
            stats.shards[0].overdue_ns = overdue * 1_000_000;
            let stuck = looks.look(&stats, LOOK, |_| None);
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
        let builder = TimerServiceBuilder::new().shards(1).capacity(64);
        let service = builder.start_attached().expect("an attached service starts");
        let mut shard = service.stats().shards.swap_remove(0);
        let times = |ran: u64, waited: u64| {
            let ms = 1_000_000;
            Some(ThreadTimes { ran_ns: ran * ms, waited_ns: waited * ms })
        };
        let mut check = |ran: u64, waited: u64, state: char, expected| {
            shard.thread = times(500 + ran, 700 + waited);
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
}

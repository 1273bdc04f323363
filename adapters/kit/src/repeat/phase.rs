//! Whether a periodic callback waits, runs or is over, for its shard and for the handles that stop
//! it.
//!
//! Why not a message that stops it: its reply would have to wait for the shard's next turn. Instead
//! the thread that changes the phase decides:
//!
//! ```text
//!   shard                                       any thread
//!   begin: waits ──► runs                       stop: waits ──► over, no run follows
//!   rest:  runs  ──► waits                            runs  ──► stopping, the run is the last
//!          stopping stays, and the shard ends the callback
//! ```

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crossbeam_utils::atomic::AtomicCell;

/// The outcome of stopping a periodic callback.
///
/// ```
/// use corewheel_kit::TimersExt;
/// use corewheel_kit::repeat::{Repeat, StopOutcome};
/// # use corewheel::TimerService;
/// # use std::time::Duration;
/// # let service = TimerService::builder().shards(1).start_attached_with::<u64>()?;
/// # let shard = service.attach(service.shard_for(0))?.into_loop(|_, _| {})?;
///
/// let every_second = Repeat::at_fixed_rate(Duration::from_secs(1))?;
/// let heartbeat = shard.timers().repeat(every_second, |_| println!("heartbeat"))?;
/// assert_eq!(heartbeat.stop(), StopOutcome::Stopped);
/// assert_eq!(heartbeat.stop(), StopOutcome::AlreadyOver);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "it says whether the callback is still running"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopOutcome {
    /// The callback was waiting for its next run, and will not run again.
    Stopped,
    /// The callback is running right now, further up the stack or on its shard, and this run is its
    /// last.
    LastRun,
    /// The callback had ended before.
    AlreadyOver,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Waits for its first run.
    First,
    /// Waits for a later run.
    Waits,
    Runs,
    /// Runs for the last time.
    Stopping,
    Over,
}

/// What a callback on its shard and its handles share.
pub(super) struct Shared {
    phase: AtomicCell<Phase>,
    /// Whether there are handles on other threads.
    is_remote: bool,
    /// Asks the shard to drop the callback and to free its timer; set before the first run if there
    /// are handles on other threads.
    pub(super) free: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Shared {
    pub(super) fn phase(&self) -> Phase {
        self.phase.load()
    }

    /// Begins a run. False if the callback must not run.
    pub(super) fn begin(&self) -> bool {
        self.replace(Phase::Waits, Phase::Runs) || self.replace(Phase::First, Phase::Runs)
    }

    /// Makes the present run the last.
    pub(super) fn make_last(&self) {
        self.replace(Phase::Runs, Phase::Stopping);
    }

    /// Ends a run. False if it was the last.
    pub(super) fn rest(&self) -> bool {
        self.replace(Phase::Runs, Phase::Waits)
    }

    /// The callback will not run any more.
    pub(super) fn end(&self) {
        self.phase.store(Phase::Over);
    }

    /// Stops the callback. Returns the phase in which it was, too.
    pub(super) fn stop(&self) -> (Phase, StopOutcome) {
        loop {
            let phase = self.phase();
            let (next, outcome) = match phase {
                Phase::Over => return (phase, StopOutcome::AlreadyOver),
                Phase::Stopping => return (phase, StopOutcome::LastRun),
                Phase::Runs => (Phase::Stopping, StopOutcome::LastRun),
                Phase::First | Phase::Waits => (Phase::Over, StopOutcome::Stopped),
            };
            if self.replace(phase, next) {
                return (phase, outcome);
            }
        }
    }

    /// Changes the phase if it is `from`. False if it is not.
    fn replace(&self, from: Phase, to: Phase) -> bool {
        if self.is_remote {
            return self.phase.compare_exchange(from, to).is_ok();
        }
        // Only the shard's thread changes it. An atomic exchange is not needed.
        let is_from = self.phase() == from;
        if is_from {
            self.phase.store(to);
        }
        is_from
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.phase().fmt(f)
    }
}

/// The shard's side of what is shared. The callback is over when this is dropped.
pub(super) struct Own(pub(super) Arc<Shared>);

impl Own {
    pub(super) fn new(is_remote: bool) -> Self {
        let phase = AtomicCell::new(Phase::First);
        Self(Arc::new(Shared { phase, is_remote, free: OnceLock::new() }))
    }
}

impl Deref for Own {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.end();
    }
}

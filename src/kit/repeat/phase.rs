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

use std::cell::Cell;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crossbeam_utils::atomic::AtomicCell;

/// The outcome of stopping a periodic callback.
///
/// ```
/// use corewheel::repeat::{Repeat, StopOutcome};
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

/// A phase that one thread or several can change.
pub(super) trait Phases {
    fn load(&self) -> Phase;
    fn store(&self, phase: Phase);
    /// Changes the phase if it is `from`. False if it is not.
    fn replace(&self, from: Phase, to: Phase) -> bool;

    /// Begins a run. False if the callback must not run.
    fn begin(&self) -> bool {
        self.replace(Phase::Waits, Phase::Runs) || self.replace(Phase::First, Phase::Runs)
    }

    /// Ends a run. False if it was the last.
    fn rest(&self) -> bool {
        self.replace(Phase::Runs, Phase::Waits)
    }

    /// Stops the callback. Returns the phase in which it was, too.
    fn stop(&self) -> (Phase, StopOutcome) {
        loop {
            let phase = self.load();
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
}

impl Phases for Cell<Phase> {
    fn load(&self) -> Phase {
        self.get()
    }

    fn store(&self, phase: Phase) {
        self.set(phase);
    }

    fn replace(&self, from: Phase, to: Phase) -> bool {
        let is_from = self.get() == from;
        if is_from {
            self.set(to);
        }
        is_from
    }
}

/// What a callback on a shard and its handles on other threads share.
pub(super) struct Shared {
    phase: AtomicCell<Phase>,
    /// Asks the shard to drop the callback and to free its timer; set before the first run.
    pub(super) end: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Shared {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { phase: AtomicCell::new(Phase::First), end: OnceLock::new() })
    }
}

impl Phases for Shared {
    fn load(&self) -> Phase {
        self.phase.load()
    }

    fn store(&self, phase: Phase) {
        self.phase.store(phase);
    }

    fn replace(&self, from: Phase, to: Phase) -> bool {
        self.phase.compare_exchange(from, to).is_ok()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load().fmt(f)
    }
}

/// The shard's side of a phase, which is over when the callback is dropped.
pub(super) enum Own {
    /// The handles are on the shard's thread.
    Here(Cell<Phase>),
    AnyThread(Arc<Shared>),
}

impl Own {
    pub(super) fn here() -> Self {
        Self::Here(Cell::new(Phase::First))
    }
}

impl Deref for Own {
    type Target = dyn Phases;

    fn deref(&self) -> &(dyn Phases + 'static) {
        match self {
            Self::Here(phase) => phase,
            Self::AnyThread(shared) => &**shared,
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.store(Phase::Over);
    }
}

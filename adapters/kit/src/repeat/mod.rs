//! Callbacks that run again and again: at a fixed rate, with a fixed delay, or when a plan says.
//!
//! For heartbeats, polls and sweeps without a task. By hand it is a callback that schedules itself
//! anew, with a box for each run; here a run costs no allocation, and a clock reading more.
//!
//! ```
//! use corewheel::interval::MissedTickBehavior;
//! use corewheel::clock::ManualClock;
//! use corewheel::{Fired, TimerService};
//! use corewheel_kit::TimersExt;
//! use corewheel_kit::repeat::Repeat;
//! use std::time::Duration;
//!
//! // One shard in a loop of our own, with a clock that the example moves.
//! let clock = ManualClock::new();
//! let builder = TimerService::builder().shards(1).clock(&clock);
//! let service = builder.start_attached_with::<()>()?;
//! let shard = service.attach(service.shards().next().unwrap())?;
//! let mut shard = shard.into_loop(|_: Fired<()>, _: &_| {})?;
//!
//! let every_second = Repeat::at_fixed_rate(Duration::from_secs(1))?
//!     .missed_tick_behavior(MissedTickBehavior::Skip);
//! let heartbeat = shard.timers().repeat(every_second, |run| {
//!     println!("heartbeat {}", run.number());
//!     if run.number() == 2 {
//!         run.stop();
//!     }
//! })?;
//! for seconds in [1.0, 4.5, 0.5, 1.0] {
//!     clock.advance(Duration::from_secs_f64(seconds));
//!     let _ = shard.turn();
//! }
//! // It has run at 1, 5.5 and 6 seconds. The run that was due at 2 seconds came 3.5 seconds late,
//! // and those of 3, 4 and 5 seconds were missed.
//! assert_eq!((heartbeat.runs(), heartbeat.missed()), (3, 3));
//! assert!(heartbeat.is_over() && shard.timers().is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Why not a callback that schedules itself anew: it drifts by its own lateness, its box is made
//! again for each period, a full shard ends it, and one panic ends it. A caller that wants to stop
//! it holds an id that is stale after the first run.
//!
//! Invariants: while a callback waits or runs it has one timer, which is scheduled before it runs,
//! so that there is room for it whatever the callback does. It never runs within itself. Once it is
//! stopped, or has ended for another reason, it has no timer and is dropped. The shard borrows
//! nothing of its own while it runs. Absent by design: a task or a thread for each.
//!
//! Cost: two allocations when it begins, four from another thread, and none after. It is a
//! [part](corewheel::part) of the shard with one timer. A run costs a clock reading more than that
//! of a callback that runs once.

mod options;
mod phase;
mod remote;
mod repeating;

use std::convert::Infallible;
use std::fmt;
use std::rc::Rc;
use std::time::Instant;

use corewheel::Timers;

pub(crate) use self::options::Body;
pub use self::options::{First, Repeat};
use self::phase::Phase;
pub use self::phase::StopOutcome;
pub use self::remote::RemotePeriodic;
pub(crate) use self::remote::{Begin, begin};
pub(crate) use self::repeating::Repeating;
use self::repeating::{OnShard, State};

/// A callback that runs periodically, on its own core; made by
/// [`TimersExt::repeat`](crate::TimersExt::repeat) and
/// [`TimersExt::repeat_by_plan`](crate::TimersExt::repeat_by_plan).
///
/// It does not own the callback: when it and all its clones are dropped, the callback goes on. The
/// callback itself may hold one.
#[derive(Clone)]
pub struct Periodic {
    repeating: Rc<dyn OnShard>,
}

/// One run of a periodic callback: its argument.
pub struct PeriodicRun<'a, T: Send + 'static = Infallible> {
    timers: &'a Timers<T>,
    state: &'a State,
    due: Instant,
    now: Instant,
    next_due: Option<Instant>,
    missed: u64,
}

impl Periodic {
    /// Stops the callback. If it was waiting for its next run it is dropped here, and its timer is
    /// free.
    pub fn stop(&self) -> StopOutcome {
        let (_, outcome) = self.state().shared.stop();
        if outcome == StopOutcome::Stopped {
            self.repeating.end();
        }
        outcome
    }

    /// Whether the callback will not run again: it was stopped, its plan or its shard has ended, or
    /// it has panicked and [ends on a panic](Repeat::end_on_panic).
    pub fn is_over(&self) -> bool {
        self.state().shared.phase() == Phase::Over
    }

    /// When the next run is due; `None` when the callback is over. While a callback with a fixed
    /// delay runs, its next run is not known yet, and this is when the present run was due.
    pub fn next_due(&self) -> Option<Instant> {
        (!self.is_over()).then(|| self.state().due.get())
    }

    /// How many runs have begun.
    pub fn runs(&self) -> u64 {
        self.state().runs.get()
    }

    /// How many runs were left out, because their time passed before the callback could run.
    /// Those that come late in a burst are not left out.
    pub fn missed(&self) -> u64 {
        self.state().missed.get()
    }

    /// How many times the callback or its plan has panicked.
    pub fn panicked(&self) -> u64 {
        self.state().panicked.get()
    }

    fn state(&self) -> &State {
        self.repeating.state()
    }
}

impl fmt::Debug for Periodic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Periodic")
            .field("over", &self.is_over())
            .field("runs", &self.runs())
            .field("missed", &self.missed())
            .field("panicked", &self.panicked())
            .finish_non_exhaustive()
    }
}

impl<T: Send + 'static> PeriodicRun<'_, T> {
    /// The shard's timers.
    pub fn timers(&self) -> &Timers<T> {
        self.timers
    }

    /// When this run was due: exact, without jitter and slack, and not rounded up to a tick.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// When this run began.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// When the next run is due. `None` if this run is the last, and with a fixed delay, which is
    /// counted from the end of this run.
    pub fn next_due(&self) -> Option<Instant> {
        self.next_due
    }

    /// The number of this run, from 0.
    pub fn number(&self) -> u64 {
        self.state.runs.get() - 1
    }

    /// How many periods after this run have passed already and are left out. It is 0 with
    /// [`MissedTickBehavior::Burst`](corewheel::interval::MissedTickBehavior::Burst), with a fixed
    /// delay, and with a plan.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Makes this run the last.
    pub fn stop(&mut self) {
        self.state.shared.make_last();
    }

    /// Ends the callback if it panics, in this run or a later one. See [`Repeat::end_on_panic`].
    pub fn end_on_panic(&mut self) {
        self.state.ends_on_panic.set(true);
    }
}

impl<T: Send + 'static> fmt::Debug for PeriodicRun<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeriodicRun")
            .field("number", &self.number())
            .field("due", &self.due)
            .field("missed", &self.missed)
            .finish_non_exhaustive()
    }
}

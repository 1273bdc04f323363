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
//! Cost: two allocations when it begins, one more with a plan, and none after; four more from
//! another thread. It is a [part](corewheel::part) of the shard with one timer. A run costs a clock
//! reading more than that of a callback that runs once.

mod options;
mod repeating;

use std::convert::Infallible;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use corewheel::{Handle, RefusedCall, Timers, When};

pub use self::options::Repeat;
use self::options::later;
pub(crate) use self::options::{Body, Pattern};
pub(crate) use self::repeating::Repeating;
use self::repeating::{OnShard, State};
use crate::herd::Jitter;

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
    missed: u64,
}

impl Periodic {
    /// Stops the callback. If it was waiting for its next run it is dropped here, and its timer is
    /// free; a run further up the stack is its last. False if the callback was over before.
    pub fn stop(&self) -> bool {
        let was_over = self.is_over();
        if !was_over {
            self.repeating.end();
        }
        !was_over
    }

    /// Whether the callback will not run again: it was stopped, or its plan or its shard has ended.
    pub fn is_over(&self) -> bool {
        self.state().is_over.get()
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
            .finish_non_exhaustive()
    }
}

impl<T: Send + 'static> PeriodicRun<'_, T> {
    /// The shard's timers.
    pub fn timers(&self) -> &Timers<T> {
        self.timers
    }

    /// When this run was due: exact, without jitter, and not rounded up to a tick.
    pub fn due(&self) -> Instant {
        self.due
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
        self.state.is_over.set(true);
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

/// A callback that begins the runs.
pub(crate) type Begin<T> = Box<dyn FnOnce(&Timers<T>) + Send>;

/// A callback that runs periodically on a shard, for other threads; made by
/// [`HandleExt::repeat`](crate::HandleExt::repeat) and
/// [`HandleExt::repeat_by_plan`](crate::HandleExt::repeat_by_plan).
///
/// `Send` and `Sync`. It does not own the callback: when it and all its clones are dropped, the
/// callback goes on.
#[derive(Clone)]
pub struct RemotePeriodic {
    progress: Arc<Mutex<Progress>>,
    /// Cancels the timer of the first run.
    cancel: Arc<dyn Fn() + Send + Sync>,
}

/// A callback, or its plan, until the shard takes it. Both are dropped together if the callback
/// never runs: where the drop of one has panicked, a panic of the other would end the process.
pub(crate) struct UntilTaken<V>(Option<V>);

impl<V> UntilTaken<V> {
    pub(crate) fn new(value: V) -> Self {
        Self(Some(value))
    }

    /// Gives the value away.
    pub(crate) fn take(mut self) -> V {
        self.0.take().expect("it is taken once")
    }
}

impl<V> Drop for UntilTaken<V> {
    fn drop(&mut self) {
        let value = self.0.take();
        if std::thread::panicking() {
            // The first panic is the one that is told.
            drop(catch_unwind(AssertUnwindSafe(|| drop(value))));
        }
    }
}

/// How far a callback of another thread has come, as far as a stop has to know.
enum Progress {
    /// It waits for its first run.
    Sent,
    /// It has run. The function sends the message that stops it.
    Begun(Box<dyn Fn() + Send>),
    Stopped,
}

impl RemotePeriodic {
    /// Asks the shard to stop the callback, without waiting for it. Before the first run, the
    /// callback will not run after this; the shard drops it within a second, as
    /// [`Handle::cancel_detached`] says. Later it is a message, which the shard takes in its next
    /// turn, or at once on its own thread: runs that begin before then are not kept back.
    pub fn stop(&self) {
        match replace(&self.progress, Progress::Stopped) {
            Progress::Sent => (self.cancel)(),
            Progress::Begun(stop) => stop(),
            Progress::Stopped => {}
        }
    }
}

impl fmt::Debug for RemotePeriodic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemotePeriodic").finish_non_exhaustive()
    }
}

/// Sets how far a callback has come, and returns how far it had come. A stop is final.
fn replace(progress: &Mutex<Progress>, next: Progress) -> Progress {
    let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
    let next = if matches!(*progress, Progress::Stopped) { Progress::Stopped } else { next };
    std::mem::replace(&mut progress, next)
}

/// Begins a periodic callback from any thread. The body is made on the shard, of the jitter.
pub(crate) fn begin<T, F>(
    handle: Handle<T>,
    first: impl When,
    mut jitter: Option<Jitter>,
    body: impl FnOnce(Option<Jitter>) -> Body<F> + Send + 'static,
) -> Result<RemotePeriodic, RefusedCall<Begin<T>>>
where
    T: Send + 'static,
    F: FnMut(&mut PeriodicRun<'_, T>) + 'static,
{
    let due = handle.instant_of(first);
    let aim = handle.clock().after(due, later(&mut jitter));
    let progress = Arc::new(Mutex::new(Progress::Sent));
    let shared = Arc::clone(&progress);
    let begin = move |timers: &Timers<T>| {
        let repeating = Repeating::add(&timers.with_class_of(handle), (due, aim), body(jitter));
        let sender = repeating.sender();
        // If the shard has ended, so has the callback.
        let stop = Box::new(move || {
            let _ = sender.send((), |stopped: Rc<Repeating<T, F>>, ()| stopped.end());
        });
        match replace(&shared, Progress::Begun(stop)) {
            Progress::Stopped => repeating.end(),
            Progress::Sent | Progress::Begun(_) => repeating.run(),
        }
    };
    let timer = handle.schedule_fn(aim, begin)?;
    Ok(RemotePeriodic { progress, cancel: Arc::new(move || handle.cancel_detached(timer)) })
}

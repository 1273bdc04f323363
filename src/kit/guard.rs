//! A timer that is cancelled when its guard is dropped.
//!
//! For a value that ends with its timer, as a request does. By hand it is a `Drop` of your own that
//! cancels, at the same cost.
//!
//! Why not a handle of each timer that cancels when it is dropped: a [`TimerId`] is `Copy`, goes to
//! other threads and into tables, and outlives its timer without harm. A [`TimerGuard`] is for the
//! one owner that wants the timer to end with it.
//!
//! Timers that end together, as those of a connection, are a list of their ids for
//! [`Handle::cancel_many`].
//!
//! Cost: a guard allocates nothing.

use std::fmt;
use std::rc::Rc;

use corewheel_shard::Tick;

use crate::clock::when::{Deadline, Due, When};
use crate::face::handle::Handle;
use crate::face::reply::Reply;
use crate::face::timers::Timers;
use crate::shard::Core;
use crate::values::ids::TimerId;
use crate::values::outcome::ResetOutcome;

/// A timer that is cancelled when this guard is dropped; made by [`Timers::guard`] on a shard's own
/// core, and by [`Handle::guard`] on any other thread.
///
/// A drop cancels the timer and drops its payload, with nothing borrowed; a panic of the payload's
/// drop is caught, logged and counted. It does nothing if the timer has fired, was cancelled, or
/// belongs to another service, and nothing if the shard has ended.
///
/// A guard of a shard names no type of values and has no lifetime: store it as
/// `TimerGuard<'static>`. It cancels at once, and the payload is dropped on the spot. A guard of a
/// handle borrows the handle; its drop cancels as [`Handle::cancel_detached`] does, so the shard
/// drops the payload within a second.
///
/// Cost: the id and a reference; no allocation.
///
/// ```
/// use corewheel::guard::TimerGuard;
/// use corewheel::clock::ManualClock;
/// use corewheel::{Fired, TimerService};
/// use std::time::Duration;
///
/// /// A request whose timeout ends with it.
/// struct Request {
///     _timeout: TimerGuard<'static>,
/// }
///
/// let clock = ManualClock::new();
/// let builder = TimerService::builder().shards(1).clock(&clock);
/// let service = builder.start_attached_with::<&str>()?;
/// let shard = service.attach(service.shards().next().unwrap())?;
/// let mut shard = shard.into_loop(|_: Fired<&str>, _: &_| panic!("it is cancelled"))?;
/// let timers = shard.timers().clone();
///
/// let timeout = timers.schedule(Duration::from_secs(5), "timed out")?;
/// let request = Request { _timeout: timers.guard(timeout) };
/// drop(request);
/// assert!(timers.is_empty());
/// clock.advance(Duration::from_secs(5));
/// let _ = shard.turn();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a guard that is not kept cancels its timer at once"]
pub struct TimerGuard<'a> {
    timer: TimerId,
    by: By<'a>,
}

/// By what the timer is cancelled.
enum By<'a> {
    Core(Rc<dyn Commands>),
    Handle(&'a dyn Commands),
    /// By nothing: the handle was taken out.
    None,
}

/// The commands of a guard. As a trait, so that a guard does not name the type of the values.
trait Commands {
    /// Cancels the timer and drops its payload.
    fn cancel(&self, timer: TimerId);
    fn reset(&self, timer: TimerId, due: Due) -> Reply<ResetOutcome>;
}

impl<T: Send + 'static> Commands for Core<T> {
    fn cancel(&self, timer: TimerId) {
        if timer.home() == self.home() {
            // How much time was left is not asked for, so no clock is read.
            return self.drop_each(self.cancel(timer.key(), 0).payload());
        }
        Handle::<T>::new(self.directory().service).cancel_detached(timer);
    }

    fn reset(&self, timer: TimerId, due: Due) -> Reply<ResetOutcome> {
        let deadline = self.time().tick_of_due(due, || self.nanos_near());
        if timer.home() == self.home() {
            return Reply::ready(self.reset(timer.key(), deadline));
        }
        Handle::<T>::new(self.directory().service).reset(timer, Deadline(deadline))
    }
}

impl<T: Send + 'static> Commands for Handle<T> {
    fn cancel(&self, timer: TimerId) {
        self.cancel_detached(timer);
    }

    fn reset(&self, timer: TimerId, due: Due) -> Reply<ResetOutcome> {
        let deadline =
            self.time().map_or(Tick::NEVER, |time| time.tick_of_due(due, || self.nanos()));
        self.reset(timer, Deadline(deadline))
    }
}

impl TimerGuard<'_> {
    /// Changes the deadline of the timer, as [`Timers::reset`] and [`Handle::reset`] do. On the
    /// timer's own core the reply is there at once.
    pub fn reset<W: When>(&self, when: W) -> Reply<ResetOutcome> {
        match &self.by {
            By::Core(core) => core.reset(self.timer, when.due()),
            By::Handle(handle) => handle.reset(self.timer, when.due()),
            By::None => unreachable!("a guard without its handle is dropped"),
        }
    }

    /// The timer's id.
    pub fn timer(&self) -> TimerId {
        self.timer
    }

    /// Leaves the timer running, and returns its id.
    pub fn into_timer(mut self) -> TimerId {
        self.by = By::None;
        self.timer
    }
}

impl Drop for TimerGuard<'_> {
    fn drop(&mut self) {
        match &self.by {
            By::Core(core) => core.cancel(self.timer),
            By::Handle(handle) => handle.cancel(self.timer),
            By::None => {}
        }
    }
}

impl fmt::Debug for TimerGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TimerGuard").field(&self.timer).finish()
    }
}

/// Timers that end with a value.
impl<T: Send + 'static> Timers<T> {
    /// Makes a guard that cancels a timer when it is dropped. A timer of another shard of the
    /// service is cancelled by a message. See [`TimerGuard`].
    pub fn guard(&self, timer: TimerId) -> TimerGuard<'static> {
        let core = Rc::clone(self.core());
        TimerGuard { timer, by: By::Core(core) }
    }
}

/// Timers that end with a value.
impl<T: Send + 'static> Handle<T> {
    /// Makes a guard that cancels a timer when it is dropped. The guard borrows this handle. See
    /// [`TimerGuard`].
    pub fn guard(&self, timer: TimerId) -> TimerGuard<'_> {
        TimerGuard { timer, by: By::Handle(self) }
    }
}

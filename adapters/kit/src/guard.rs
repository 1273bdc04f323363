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
//! Cost: a guard allocates nothing, except for the first of a shard.

use std::fmt;
use std::rc::Rc;

use corewheel::part::{Part, PartHandle};
use corewheel::{AnyHandle, CancelOutcome, Deadline, Handle, Reply, ResetOutcome};
use corewheel::{TimerId, Timers, When};

/// A timer that is cancelled when this guard is dropped; made by
/// [`TimersExt::guard`](crate::TimersExt::guard) on a shard's own core, and by
/// [`HandleExt::guard`](crate::HandleExt::guard) on any other thread.
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
/// Cost: the id, a handle and a reference. The first guard of a shard allocates what all of them
/// share, and the others allocate nothing.
///
/// ```
/// use corewheel::clock::ManualClock;
/// use corewheel::{Fired, TimerService};
/// use corewheel_kit::TimersExt;
/// use corewheel_kit::guard::TimerGuard;
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
    times: AnyHandle,
    /// `None` after the timer was taken out.
    by: Option<By<'a>>,
}

/// By what the timer is cancelled.
enum By<'a> {
    Shard(Rc<dyn Commands>),
    Handle(&'a dyn Commands),
}

/// The commands of a guard. As a trait, so that a guard does not name the type of the values.
trait Commands {
    /// Cancels the timer and drops its payload.
    fn cancel(&self, timer: TimerId);
    fn reset(&self, timer: TimerId, deadline: Deadline) -> Reply<ResetOutcome>;
}

impl<'a> TimerGuard<'a> {
    pub(crate) fn of_shard<T: Send + 'static>(timer: TimerId, timers: &Timers<T>) -> Self {
        let make = |shard| OnShard { shard, timers: timers.clone() };
        let by = By::Shard(timers.shared_part(make));
        Self { timer, times: timers.handle().untyped(), by: Some(by) }
    }

    pub(crate) fn of_handle<T: Send + 'static>(timer: TimerId, handle: &'a Handle<T>) -> Self {
        Self { timer, times: handle.untyped(), by: Some(By::Handle(handle)) }
    }

    /// Changes the deadline of the timer, as [`Timers::reset`] and [`Handle::reset`] do. On the
    /// timer's own core the reply is there at once.
    pub fn reset<W: When>(&self, when: W) -> Reply<ResetOutcome> {
        let by = self.by.as_ref().expect("a guard without its timer is dropped");
        by.commands().reset(self.timer, self.times.deadline(when))
    }

    /// The timer's id.
    pub fn timer(&self) -> TimerId {
        self.timer
    }

    /// Leaves the timer running, and returns its id.
    pub fn into_timer(mut self) -> TimerId {
        self.by = None;
        self.timer
    }
}

impl By<'_> {
    fn commands(&self) -> &dyn Commands {
        match self {
            Self::Shard(shard) => &**shard,
            Self::Handle(handle) => *handle,
        }
    }
}

/// What all guards of a shard share, so that none of them allocates.
struct OnShard<T: 'static> {
    shard: PartHandle,
    timers: Timers<T>,
}

impl<T: Send + 'static> Part for OnShard<T> {}

impl<T: Send + 'static> Commands for OnShard<T> {
    fn cancel(&self, timer: TimerId) {
        match self.timers.cancel(timer) {
            CancelOutcome::Elsewhere(_) => self.timers.handle().cancel_detached(timer),
            outcome => self.shard.drop_each(outcome.payload()),
        }
    }

    fn reset(&self, timer: TimerId, deadline: Deadline) -> Reply<ResetOutcome> {
        match self.timers.reset(timer, deadline) {
            ResetOutcome::Elsewhere(_) => self.timers.handle().reset(timer, deadline),
            outcome => Reply::ready(outcome),
        }
    }
}

impl<T: Send + 'static> Commands for Handle<T> {
    fn cancel(&self, timer: TimerId) {
        self.cancel_detached(timer);
    }

    fn reset(&self, timer: TimerId, deadline: Deadline) -> Reply<ResetOutcome> {
        self.reset(timer, deadline)
    }
}

impl Drop for TimerGuard<'_> {
    fn drop(&mut self) {
        if let Some(by) = &self.by {
            by.commands().cancel(self.timer);
        }
    }
}

impl fmt::Debug for TimerGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TimerGuard").field(&self.timer).finish()
    }
}

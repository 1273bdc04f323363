//! The timers of one shard, for code on the shard's own thread. The rooms above add the methods.

use std::fmt;
use std::rc::{Rc, Weak};

use super::Core;
use crate::values::class::ClassId;

/// One shard, on its own core: `!Send`, so a task of `tokio::spawn` uses a [`Handle`] instead.
///
/// It is as cheap to clone as an [`Rc`], and no future that holds it can go to another thread. A
/// [`Handle`] is `Send` and `Copy`, makes sleeps, timeouts and connections for such tasks, and
/// schedules timers with values and callbacks from any thread. A task of `spawn_local`
/// on the shard's own thread may hold `Timers`.
///
/// [`Handle`]: crate::Handle
///
/// A shard gives its `Timers` to handlers and callbacks;
/// [`spawn_on`](crate::TimerService::spawn_on) gives them to the future that it starts, and
/// attaching a shard to an executor returns them.
///
/// A timer fires on the core that it was scheduled on, and never early. Its lateness is at most a
/// tick, plus the time for which the executor runs other tasks, plus the budget of the turns
/// before; the statistics show it. Every method that takes a time takes each of the three types of
/// [`When`](crate::When).
///
/// # Cost
///
/// Each command costs a few cache lines; only callbacks allocate. A command that takes a delay, or
/// returns what remains of one, reads the near clock, which is never behind the system's and at
/// most some microseconds ahead, for about ten nanoseconds.
///
/// ```
/// use corewheel::clock::ManualClock;
/// use corewheel::{ResetOutcome, TimerService};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let builder = TimerService::builder().shards(1).clock(&clock);
/// let service = builder.start_attached_with::<&str>()?;
/// let shard = service.attach(service.shards().next().unwrap())?;
/// // The handler is given the timers too: here, a timer that fires schedules the next one.
/// let mut shard = shard.into_loop(|fired, timers| {
///     if fired.payload == "handshake" {
///         timers.schedule(Duration::from_secs(60), "idle").expect("there is room");
///     }
/// })?;
/// let timers = shard.timers().clone();
///
/// let handshake = timers.schedule(Duration::from_secs(5), "handshake")?;
/// // The peer has sent something. A reset to later is one store.
/// assert_eq!(timers.reset(handshake, Duration::from_secs(8)), ResetOutcome::Reset);
/// assert_eq!(timers.remaining(handshake), Some(Duration::from_secs(8)));
/// timers.schedule_fn(Duration::from_secs(8), |timers| assert_eq!(timers.len(), 1))?;
///
/// clock.advance(Duration::from_secs(8));
/// let _next = shard.turn();
/// assert_eq!(timers.len(), 1, "the idle timer");
/// assert_eq!(timers.reset(handshake, Duration::ZERO), ResetOutcome::Stale, "it has fired");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Timers<T: 'static = std::convert::Infallible> {
    pub(crate) core: Rc<Core<T>>,
    /// The class of the timers that this view schedules.
    pub(crate) class: ClassId,
}

impl<T> Clone for Timers<T> {
    fn clone(&self) -> Self {
        Self { core: Rc::clone(&self.core), class: self.class }
    }
}

impl<T> fmt::Debug for Timers<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Timers(..)")
    }
}

impl<T: 'static> Timers<T> {
    pub(crate) fn new(core: Rc<Core<T>>) -> Self {
        Self { core, class: ClassId::NONE }
    }

    #[inline]
    pub(crate) fn core(&self) -> &Rc<Core<T>> {
        &self.core
    }

    pub(crate) fn downgrade(&self) -> Weak<Core<T>> {
        Rc::downgrade(&self.core)
    }

    /// The class of the timers that this view schedules.
    #[inline]
    pub(crate) fn class(&self) -> ClassId {
        self.class
    }
}

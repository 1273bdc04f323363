//! The timers of one shard, for code on the shard's own thread, and what is called with them: the
//! callbacks of timers and the jobs of a driver. The rooms above add the methods.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};

use slab::Slab;

use super::core::Core;
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

debug_fields!([T] Timers<T>, |_it|);

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

/// A callback that stays on its core.
pub(crate) type LocalCall<T> = Box<dyn FnOnce(&Timers<T>)>;
/// A callback that may be sent from one core to another.
pub(crate) type SendCall<T> = Box<dyn FnOnce(&Timers<T>) + Send>;

pub(crate) enum Call<T: 'static> {
    Local(LocalCall<T>),
    Send(SendCall<T>),
}

impl<T> Call<T> {
    pub(crate) fn run(self, timers: &Timers<T>) {
        match self {
            Self::Local(call) => call(timers),
            Self::Send(call) => call(timers),
        }
    }
}

impl<T> Call<T> {
    /// The callback, for its own core.
    pub(crate) fn into_local(self) -> LocalCall<T> {
        match self {
            Self::Local(call) => call,
            Self::Send(call) => call,
        }
    }
}

/// The payload of a timer, given back by a cancel or a shutdown. `C` is the type of callbacks: one
/// that comes back to another thread is [`Send`].
pub enum Payload<T: 'static, C = LocalCall<T>> {
    /// A value of the service's type.
    Value(T),
    /// A callback, which has not run.
    Callback(C),
    /// The payload cannot be returned. A connection, a container or a periodic callback waited for
    /// the timer, and has received the outcome itself; or, on another thread, a callback that must
    /// not leave its core was dropped there.
    Local,
}

impl<T, C> Payload<T, C> {
    /// The value, if the timer carried one.
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Callback(_) | Self::Local => None,
        }
    }
}

impl<T> Payload<T, Call<T>> {
    /// The payload as a caller on its own core is given it.
    #[inline]
    pub(crate) fn into_local(self) -> Payload<T> {
        match self {
            Self::Value(value) => Payload::Value(value),
            Self::Callback(call) => Payload::Callback(call.into_local()),
            Self::Local => Payload::Local,
        }
    }
}

impl<T: fmt::Debug, C> fmt::Debug for Payload<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => f.debug_tuple("Value").field(value).finish(),
            Self::Callback(_) => f.write_str("Callback(..)"),
            Self::Local => f.write_str("Local"),
        }
    }
}

/// The callbacks of a shard that wait for a timer of their own.
pub(super) type Calls<T> = Slab<Call<T>>;

/// The payload of a timer that has ended, before it is known where it goes.
pub(crate) type Taken<T> = Payload<T, Call<T>>;

/// The payload of a timer that does not fire, for another thread.
pub(crate) type Remote<T> = Payload<T, SendCall<T>>;

/// Starts a future on the shard's own core.
pub(crate) type Job<T> = Box<dyn FnOnce(Timers<T>) -> LocalFuture + Send>;
pub(crate) type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

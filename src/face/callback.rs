//! What a timer can carry: a value, a callback, or the waker of a future; and the handler that gets
//! the values.

use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::timers::Timers;
use crate::values::handle::TimerHandle;

/// A callback that stays on its core.
pub type LocalCall<T> = Box<dyn FnOnce(&Timers<T>)>;
/// A callback that may travel between cores.
pub type SendCall<T> = Box<dyn FnOnce(&Timers<T>) + Send>;

/// One callback for many timers, each with a number of its own. It is not allocated anew for each.
/// The last timer that has it may be the last that holds what is the user's.
pub(crate) type SharedCall<T> = Rc<dyn Fn(&Timers<T>, u32)>;

pub(crate) enum Call<T: 'static> {
    Local(LocalCall<T>),
    Send(SendCall<T>),
    Shared(SharedCall<T>, u32),
}

impl<T> Call<T> {
    pub(crate) fn run(self, timers: &Timers<T>) {
        match self {
            Self::Local(call) => call(timers),
            Self::Send(call) => call(timers),
            Self::Shared(call, number) => call(timers, number),
        }
    }
}

/// A timer's callback, taken back before it ran.
pub struct Callback<T: 'static>(pub(crate) Call<T>);

impl<T> Callback<T> {
    /// Runs it now after all.
    pub fn run(self, timers: &Timers<T>) {
        self.0.run(timers);
    }
}

impl<T> fmt::Debug for Callback<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Callback(..)")
    }
}

/// What a timer was scheduled with, taken back on its own core.
#[derive(Debug)]
pub enum Task<T: 'static> {
    /// A typed value.
    Value(T),
    /// A callback.
    Callback(Callback<T>),
    /// A future or a connection of this core waited for it, and has been told that it will not
    /// come.
    Sleep,
}

impl<T> Task<T> {
    /// The typed value, if it was one.
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Callback(_) | Self::Sleep => None,
        }
    }
}

/// What a timer was scheduled with, taken back by another thread.
pub enum RemoteTask<T: 'static> {
    /// A typed value.
    Value(T),
    /// A callback that was sent from another thread.
    Callback(SendCall<T>),
    /// A callback or a future of the timer's own core, which cannot travel. The callback has been
    /// dropped there; the future has been told that its time will not come.
    LeftAtHome,
}

impl<T> RemoteTask<T> {
    /// The typed value, if it was one.
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Callback(_) | Self::LeftAtHome => None,
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for RemoteTask<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => f.debug_tuple("Value").field(value).finish(),
            Self::Callback(_) => f.write_str("Callback(..)"),
            Self::LeftAtHome => f.write_str("LeftAtHome"),
        }
    }
}

/// A typed timer that is due, as its handler gets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fired<T> {
    /// What it was known by. Stale from now on.
    pub handle: TimerHandle,
    /// When it was due: the deadline as asked for, rounded up to a tick.
    pub deadline: Instant,
    /// How long after `deadline` it is delivered.
    pub lateness: Duration,
    /// What it was scheduled with.
    pub task: T,
}

/// Delivers the typed timers of one shard.
///
/// Implemented by every `FnMut(Fired<T>, &Timers<T>)`. It runs on the shard's core with nothing
/// borrowed, so it may schedule, cancel and reset as it likes. What it schedules for now fires in
/// the next turn.
///
/// ```
/// use corewheel::{Fired, Handler, ManualClock, TimerService, Timers};
/// use std::time::Duration;
///
/// /// Gives up after three attempts.
/// struct Retry {
///     given_up: u32,
/// }
///
/// impl Handler<(u64, u32)> for Retry {
///     fn expired(&mut self, fired: Fired<(u64, u32)>, timers: &Timers<(u64, u32)>) {
///         let (request, attempt) = fired.task;
///         let wait = Duration::from_millis(100 << attempt);
///         if attempt == 3 || timers.schedule(wait, (request, attempt + 1)).is_err() {
///             self.given_up += 1;
///         }
///     }
///
///     fn closing(&mut self, _: &Timers<(u64, u32)>) {
///         println!("{} requests were given up", self.given_up);
///     }
/// }
///
/// let clock = ManualClock::new();
/// let service = TimerService::builder().shards(1).clock(clock.clock()).start_attached()?;
/// let shard = service.attach(service.shards().next().unwrap())?;
/// let mut shard = shard.into_loop(Retry { given_up: 0 })?;
/// shard.timers().schedule(Duration::from_millis(100), (7, 1))?;
/// for wait in [100, 200, 400] {
///     clock.advance(Duration::from_millis(wait));
///     let _next = shard.turn();
/// }
/// assert!(shard.timers().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Handler<T: Send + 'static>: 'static {
    /// Called once for each typed timer that is due.
    fn expired(&mut self, fired: Fired<T>, timers: &Timers<T>);

    /// Called once when the shard is shut down, after the last timer: for handlers that have put
    /// something off. Nothing can be scheduled any more. Not called where the shard dies without a
    /// shutdown.
    fn closing(&mut self, timers: &Timers<T>) {
        let _ = timers;
    }
}

impl<T, F> Handler<T> for F
where
    T: Send + 'static,
    F: FnMut(Fired<T>, &Timers<T>) + 'static,
{
    #[inline]
    fn expired(&mut self, fired: Fired<T>, timers: &Timers<T>) {
        self(fired, timers);
    }
}

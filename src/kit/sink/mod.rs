//! Timers into a bounded channel: handlers whose values go to another thread or task, which takes
//! them at its own pace.
//!
//! For handlers whose work is long. By hand it is a handler that calls `try_send`, at the same
//! cost; this one also has a policy for values that the channel refuses, and counts them.
//!
//! ```
//! use std::sync::mpsc::sync_channel;
//! use std::time::Duration;
//! use corewheel::sink::{SinkPolicy, to_sink};
//! use corewheel::clock::ManualClock;
//! use corewheel::{ShardId, TimerService};
//!
//! let clock = ManualClock::new();
//! let service = TimerService::builder().shards(1).clock(&clock).start_attached_with()?;
//! // The channel has room for two values; the others are sent again after 10 ms.
//! let (sender, expired) = sync_channel::<u32>(2);
//! let policy = SinkPolicy::Retry(Duration::from_millis(10));
//! let handler = to_sink(move |request| Ok(sender.try_send(request)?), policy);
//! let mut shard = service.attach(ShardId::new(0))?.into_loop(handler)?;
//!
//! for request in 1..=3 {
//!     shard.timers().schedule(Duration::from_millis(5), request)?;
//! }
//! clock.advance(Duration::from_millis(5));
//! let _ = shard.turn();
//! assert_eq!(expired.try_iter().collect::<Vec<_>>(), [1, 2]);
//! clock.advance(Duration::from_millis(10));
//! let _ = shard.turn();
//! assert_eq!(expired.try_iter().collect::<Vec<_>>(), [3]);
//!
//! let counts = service.stats().shards[0].counts;
//! assert_eq!((counts.sink_sent, counts.sink_refused, counts.sink_retried), (3, 1, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A handler runs on the shard's thread, between timers, so it must be short. Where the work behind
//! a timer is long, the handler is [`to_sink`]: it sends the value on and returns. It never waits:
//! a sink is bounded, and a [`SinkPolicy`] says what becomes of a value that the sink refuses.
//!
//! A sink is a closure `FnMut(T) -> Result<(), Refused<T>>` that does not wait, around any bounded
//! sender. The errors of [`std::sync::mpsc::SyncSender`] convert themselves with `?`, as above; for
//! a channel of tokio it is
//!
//! ```
//! use corewheel::Refused;
//! use tokio::sync::mpsc::{Sender, error::TrySendError};
//!
//! fn of_tokio<V: 'static>(sender: Sender<V>) -> impl FnMut(V) -> Result<(), Refused<V>> {
//!     move |value| sender.try_send(value).map_err(|error| match error {
//!         TrySendError::Full(value) => Refused::Full(value),
//!         TrySendError::Closed(value) => Refused::Closed(value),
//!     })
//! }
//! ```
//!
//! On glommio, `on_task_queue` runs a handler in another task queue of the shard's executor.
//!
//! Absent by design: a queue between the shard and the sink. The sink has one.
//!
//! Cost: that of the sink, and no allocation.

#[cfg(all(feature = "glommio", target_os = "linux"))]
mod task_queue;

use std::fmt;
use std::sync::mpsc::TrySendError;
use std::time::Duration;

#[cfg(all(feature = "glommio", target_os = "linux"))]
pub use self::task_queue::on_task_queue;
use crate::face::timers::Timers;
use crate::shard::callback::{Fired, Handler};
use crate::stats::ShardCounts;
use crate::values::contain::drop_each;
use crate::values::refused::Refused;

/// A full channel refuses with `Full`, one whose receiver is gone with `Closed`.
impl<V> From<TrySendError<V>> for Refused<V> {
    fn from(error: TrySendError<V>) -> Self {
        match error {
            TrySendError::Full(value) => Self::Full(value),
            TrySendError::Disconnected(value) => Self::Closed(value),
        }
    }
}

/// What becomes of the values that a sink refuses. The shard counts each case.
#[non_exhaustive]
pub enum SinkPolicy<T: 'static> {
    /// The values are dropped.
    Drop,
    /// The values become timers again, of the same class, due after this delay, a tick at least.
    /// Then they are sent again, behind values that were sent meanwhile. A value for which the
    /// shard has no room, or whose sink is closed, is dropped.
    ///
    /// Each attempt costs the shard a timer, so the delay should give the sink time to make room:
    /// some milliseconds at least.
    Retry(Duration),
    /// The closure is given the values, on the shard's thread; also those for a sink that is
    /// closed.
    Call(CallRefused<T>),
}

/// A closure of [`SinkPolicy::Call`].
type CallRefused<T> = Box<dyn FnMut(T, &Timers<T>)>;

impl<T> SinkPolicy<T> {
    /// [`Call`](Self::Call) with a closure, which may schedule, cancel and reset.
    pub fn call(refused: impl FnMut(T, &Timers<T>) + 'static) -> Self {
        Self::Call(Box::new(refused))
    }
}

impl<T> fmt::Debug for SinkPolicy<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drop => f.write_str("Drop"),
            Self::Retry(delay) => f.debug_tuple("Retry").field(delay).finish(),
            Self::Call(_) => f.write_str("Call(..)"),
        }
    }
}

impl<T: Send + 'static> SinkPolicy<T> {
    /// Applies the policy to a value that was refused.
    pub(crate) fn apply(&mut self, refused: Refused<T>, timers: &Timers<T>) {
        let core = timers.core();
        core.count(|counts| counts.sink_refused += 1);
        let dropped = match (self, refused) {
            (Self::Call(call), refused) => return call(refused.into_value(), timers),
            (Self::Retry(delay), Refused::Full(value)) => {
                // With no delay it would be sent again in every turn, and the shard would never
                // sleep.
                let deadline = core.tick_of((*delay).max(Duration::from_nanos(1)));
                let class = core.class_delivered();
                match core.schedule_value(class, deadline, value) {
                    Ok(_) => return core.count(|counts| counts.sink_retried += 1),
                    Err(error) => error.into_value(),
                }
            }
            (_, refused) => refused.into_value(),
        };
        core.count(|counts| counts.sink_dropped += 1);
        drop(dropped);
    }
}

/// A [`Handler`] that sends the values of typed timers to a sink.
///
/// `policy` says what becomes of values that the sink refuses. The shard counts all cases, in
/// [`ShardCounts`]: `sink_sent`, `sink_refused`, `sink_retried` and `sink_dropped`. Under each
/// policy, every value that has fired is sent, dropped, given to the policy's closure, or pending
/// again. After the shard is shut down, a refused value is not sent again.
///
/// A handler that sends only some of its values calls the returned one for those. See the
/// [module](self) for an example.
pub fn to_sink<T: Send + 'static>(
    sink: impl FnMut(T) -> Result<(), Refused<T>> + 'static,
    policy: SinkPolicy<T>,
) -> impl Handler<T> {
    let mut to_sink = ToSink { sink, policy };
    move |fired: Fired<T>, timers: &Timers<T>| to_sink.deliver(fired, timers)
}

struct ToSink<T: 'static, S> {
    sink: S,
    policy: SinkPolicy<T>,
}

impl<T: Send + 'static, S: FnMut(T) -> Result<(), Refused<T>>> ToSink<T, S> {
    fn deliver(&mut self, fired: Fired<T>, timers: &Timers<T>) {
        match (self.sink)(fired.payload) {
            Ok(()) => timers.core().count(ShardCounts::note_sent),
            Err(refused) => self.policy.apply(refused, timers),
        }
    }
}

impl<T, S> Drop for ToSink<T, S> {
    fn drop(&mut self) {
        // The policy is dropped alone, since its closure and the sink may both panic in `Drop`.
        drop_each([std::mem::replace(&mut self.policy, SinkPolicy::Drop)]);
    }
}

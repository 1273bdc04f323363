//! Sinks: timers whose values go to another thread or task, which takes them at its own pace.
//!
//! A handler runs on the shard's core, between timers, so it must be short. Where the work behind a
//! timer is not, the handler is [`ToSink`]: it hands the value over and is done. It never waits: a
//! sink is bounded, and what becomes of a value that does not fit is a [`SinkPolicy`].
//!
//! Absent by design: a queue in between. There is one, the sink's.
//!
//! Cost: that of the sink's `try_send`, and no allocation.

use std::fmt;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;

use crate::face::callback::{Fired, Handler};
use crate::face::timers::Timers;
use crate::stats::ShardCounts;
use crate::values::contain::drop_each;
use crate::values::error::refusal;

/// Takes values without waiting.
///
/// Implemented for the standard library's [`SyncSender`], and for closures; so any bounded sender
/// is one:
///
/// ```
/// use corewheel::{Sink, SinkError};
/// use tokio::sync::mpsc::{Sender, error::TrySendError};
///
/// fn of_tokio<V: 'static>(sender: Sender<V>) -> impl Sink<V> {
///     move |value| sender.try_send(value).map_err(|error| match error {
///         TrySendError::Full(value) => SinkError::Full(value),
///         TrySendError::Closed(value) => SinkError::Closed(value),
///     })
/// }
/// ```
pub trait Sink<V>: 'static {
    /// Takes a value, or returns it at once.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the value.
    fn try_send(&mut self, value: V) -> Result<(), SinkError<V>>;
}

impl<V: 'static> Sink<V> for SyncSender<V> {
    #[inline]
    fn try_send(&mut self, value: V) -> Result<(), SinkError<V>> {
        SyncSender::try_send(self, value).map_err(SinkError::from)
    }
}

impl<V, F> Sink<V> for F
where
    F: FnMut(V) -> Result<(), SinkError<V>> + 'static,
{
    #[inline]
    fn try_send(&mut self, value: V) -> Result<(), SinkError<V>> {
        self(value)
    }
}

/// A sink has not taken a value, which comes back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SinkError<V> {
    /// There is no room now.
    Full(V),
    /// There will be no room any more: the receiver of the values is gone.
    Closed(V),
}

impl<V> SinkError<V> {
    /// What was to be sent.
    pub fn into_value(self) -> V {
        match self {
            Self::Full(value) | Self::Closed(value) => value,
        }
    }
}

impl<V> From<TrySendError<V>> for SinkError<V> {
    fn from(error: TrySendError<V>) -> Self {
        match error {
            TrySendError::Full(value) => Self::Full(value),
            TrySendError::Disconnected(value) => Self::Closed(value),
        }
    }
}

refusal!(
    SinkError: "the sink has no room; take values out of it faster, or make it larger",
    "nobody takes values out of the sink any more"
);

/// What becomes of the values that a sink refuses. All of it is counted by the shard.
#[non_exhaustive]
pub enum SinkPolicy<T: 'static> {
    /// They are dropped.
    Drop,
    /// They become timers again, due this much later, a tick at least, and of the same class. Then
    /// they are tried again, behind those that were sent meanwhile. What the shard has no room for,
    /// or what comes to a sink that is closed, is dropped.
    ///
    /// Each costs the shard a timer for each try, so give the sink time to make room: some
    /// milliseconds at least.
    Retry(Duration),
    /// They are given to this, on the shard's core; also those for a sink that is closed.
    Call(Refused<T>),
}

/// What [`SinkPolicy::Call`] calls.
type Refused<T> = Box<dyn FnMut(T, &Timers<T>)>;

impl<T> SinkPolicy<T> {
    /// Gives them to a closure, on the shard's core; it may schedule, cancel and reset as it likes.
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
    /// Deals with a value that was refused.
    pub(crate) fn settle(&mut self, refused: SinkError<T>, timers: &Timers<T>) {
        let core = timers.core();
        core.count(|counts| counts.sink_refused += 1);
        let dropped = match (self, refused) {
            (Self::Call(call), refused) => return call(refused.into_value(), timers),
            (Self::Retry(delay), SinkError::Full(value)) => {
                // No delay would have it tried in every turn, and the shard never asleep.
                let deadline = core.deadline_after((*delay).max(Duration::from_nanos(1)));
                let class = core.class_delivered();
                match core.schedule_value(class, deadline, value) {
                    Ok(_) => return core.count(|counts| counts.sink_retried += 1),
                    Err(error) => error.into_task(),
                }
            }
            (Self::Drop | Self::Retry(_), refused) => refused.into_value(),
        };
        core.count(|counts| counts.sink_dropped += 1);
        drop(dropped);
    }
}

/// A [`Handler`] that hands the values of typed timers to a [`Sink`].
///
/// The shard counts what it does, in [`ShardCounts`]: `sink_sent`, `sink_refused`, `sink_retried`
/// and `sink_dropped`. Under each policy, every value that has fired is sent, dropped, given to the
/// policy's closure, or pending again. Once the shard is shut down, nothing is tried again.
///
/// A handler that sends only some of its values can hold one and call its
/// [`expired`](Handler::expired) for those.
///
/// ```
/// use std::sync::mpsc::sync_channel;
/// use std::time::Duration;
/// use corewheel::{ManualClock, ShardId, SinkPolicy, TimerService, ToSink};
///
/// let clock = ManualClock::new();
/// let service: TimerService<u32> =
///     TimerService::builder().shards(1).clock(clock.clock()).start_attached()?;
/// // There is room for two values; the others are tried again after 10 ms.
/// let (sender, expired) = sync_channel(2);
/// let handler = ToSink::new(sender, SinkPolicy::Retry(Duration::from_millis(10)));
/// let mut shard = service.attach(ShardId::new(0))?.into_loop(handler)?;
///
/// for request in 1..=3 {
///     shard.timers().schedule(Duration::from_millis(5), request)?;
/// }
/// clock.advance(Duration::from_millis(5));
/// let _ = shard.turn();
/// assert_eq!(expired.try_iter().collect::<Vec<_>>(), [1, 2]);
/// clock.advance(Duration::from_millis(10));
/// let _ = shard.turn();
/// assert_eq!(expired.try_iter().collect::<Vec<_>>(), [3]);
///
/// let counts = service.stats().shards[0].counts;
/// assert_eq!((counts.sink_sent, counts.sink_refused, counts.sink_retried), (3, 1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ToSink<T: 'static, S> {
    sink: S,
    policy: SinkPolicy<T>,
}

impl<T: Send + 'static, S: Sink<T>> ToSink<T, S> {
    /// With what becomes of the values that the sink refuses.
    pub fn new(sink: S, policy: SinkPolicy<T>) -> Self {
        Self { sink, policy }
    }
}

impl<T: Send + 'static, S: Sink<T>> Handler<T> for ToSink<T, S> {
    fn expired(&mut self, fired: Fired<T>, timers: &Timers<T>) {
        match self.sink.try_send(fired.task) {
            Ok(()) => timers.core().count(ShardCounts::note_sent),
            Err(refused) => self.policy.settle(refused, timers),
        }
    }
}

impl<T, S> Drop for ToSink<T, S> {
    fn drop(&mut self) {
        // Apart from the sink, which may panic when it is dropped, as what a policy calls may.
        drop_each([std::mem::replace(&mut self.policy, SinkPolicy::Drop)]);
    }
}

impl<T, S> fmt::Debug for ToSink<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToSink").field("policy", &self.policy).finish_non_exhaustive()
    }
}

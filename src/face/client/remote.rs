//! The timers of one shard, for another thread.

use std::fmt;
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use corewheel_shard::Tick;

use super::Client;
use crate::clock::when::When;
use crate::directory::orders::Drain;
use crate::face::callback::SendCall;
use crate::face::sleep::{RemoteSleep, within};
use crate::face::timers::Timers;
use crate::values::class::{ClassId, TimerClass, UnknownClass};
use crate::values::error::TimeoutError;
use crate::values::handle::{ShardId, TimerId};
use crate::values::refused::{Refused, RefusedCall, RefusedKind};
use crate::values::scale::Scale;

/// One shard as a client reaches it; made by [`Client::shard`]. It is `Copy`: a reference and two
/// numbers.
///
/// Its methods are those of [`Timers`] on the shard itself. What differs: a callback must be
/// `Send`, and a request may be refused because the lane is full for a moment. To cancel or to
/// reset a timer, its handle names its shard: see [`Client::cancel`] and [`Client::reset`].
///
/// A deadline is computed on the calling thread, so the way to the shard is part of a delay and not
/// on top of it.
pub struct RemoteTimers<'a, T: 'static = std::convert::Infallible> {
    client: &'a Client<T>,
    shard: ShardId,
    class: ClassId,
}

impl<T> Clone for RemoteTimers<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for RemoteTimers<'_, T> {}

impl<T> fmt::Debug for RemoteTimers<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoteTimers").field(&self.shard).finish()
    }
}

impl<'a, T: Send + 'static> RemoteTimers<'a, T> {
    #[inline]
    pub(super) fn new(client: &'a Client<T>, shard: ShardId) -> Self {
        Self { client, shard, class: ClassId::NONE }
    }

    pub(crate) fn client(&self) -> &'a Client<T> {
        self.client
    }

    pub(crate) fn class(&self) -> ClassId {
        self.class
    }

    /// Which shard this is.
    #[inline]
    pub fn shard_id(&self) -> ShardId {
        self.shard
    }

    /// A view of this shard that schedules timers of `class`. The statistics count them for the
    /// class.
    ///
    /// # Errors
    ///
    /// The service has no such class.
    pub fn of_class(self, class: TimerClass) -> Result<Self, UnknownClass> {
        let class = self.client.directory.settings.classes.find(class)?;
        Ok(Self { class, ..self })
    }

    /// Schedules a timer that carries a value, which is given to the service's handler on that
    /// shard when it is due.
    ///
    /// # Errors
    ///
    /// `Full`, `Reserved`, `Busy`, `Closed` or `NoSuchShard`, with the value. The first schedule of
    /// a client is often `Busy`: see [`Client`].
    #[inline]
    pub fn schedule<W: When>(&self, when: W, payload: T) -> Result<TimerId, Refused<T>> {
        let (deadline, now) = self.deadline(when);
        self.client.schedule_value(self.class, self.shard, deadline, now, payload)
    }

    /// Schedules a timer that carries a value, as [`schedule`](Self::schedule) does, and waits
    /// while the lane is [`Busy`](Refused::Busy), or the shard
    /// [`NotAttached`](Refused::NotAttached), which is logged once for the shard.
    ///
    /// The first poll that finds room schedules the timer. The deadline counts from this call; a
    /// timer whose deadline passes meanwhile fires as soon as it is scheduled. If the future is
    /// dropped before it is done, no timer is scheduled and the value is dropped with it.
    ///
    /// A thread without an executor blocks on the future, as by `futures_lite::future::block_on` or
    /// the `block_on` of a tokio runtime. It must not be a thread that drives the shard, which
    /// takes no turn meanwhile.
    ///
    /// ```
    /// use corewheel::{Runtime, ShardId, ShutdownPolicy, TimerService};
    /// use std::time::Duration;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let builder = TimerService::builder().shards(1).runtime(Runtime::Thread);
    /// let service: TimerService<u64> = builder.start_with(|_| |_, _| {})?;
    /// // One shard grants no keys to so many clients at once.
    /// let clients: Vec<_> = (0..100).map(|_| service.client()).collect();
    /// for (client, value) in clients.iter().zip(0..) {
    ///     let shard = client.shard(ShardId::new(0));
    ///     shard.schedule_when_room(Duration::from_secs(60), value).await?;
    /// }
    /// service.begin_shutdown(ShutdownPolicy::Drop)?.await;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Cost: that of `schedule` where there is room. A wait costs a lock and a wake-up of the
    /// shard.
    ///
    /// # Errors
    ///
    /// The future returns `Full`, `Reserved`, `Closed` or `NoSuchShard`, with the value.
    ///
    /// # Panics
    ///
    /// The future panics if it is polled after it has returned.
    pub fn schedule_when_room<W: When>(
        &self,
        when: W,
        payload: T,
    ) -> impl Future<Output = Result<TimerId, Refused<T>>> + use<'a, W, T> {
        let Self { client, shard, class } = *self;
        let (deadline, _) = self.deadline(when);
        let mut unsent = Some(payload);
        poll_fn(move |cx| {
            let payload = unsent.take().expect("a future that is done is not polled");
            let sent = client.schedule_value(class, shard, deadline, client.nanos(), payload);
            let Err(Refused::Busy(payload) | Refused::NotAttached(payload)) = sent else {
                return Poll::Ready(sent);
            };
            match client.wait_for_room(shard, cx.waker().clone()) {
                Ok(()) => {
                    unsent = Some(payload);
                    Poll::Pending
                }
                Err(kind) => Poll::Ready(Err(kind.of(payload))),
            }
        })
    }

    /// Schedules a callback, which is run on that shard when it is due. It is boxed.
    ///
    /// A container that the callback makes is dropped when it returns. Keep one on the shard with
    /// [`keep`](Self::keep).
    ///
    /// # Errors
    ///
    /// `Full`, `Reserved`, `Busy`, `Closed` or `NoSuchShard`, with the callback.
    pub fn schedule_fn<W: When>(
        &self,
        when: W,
        call: impl FnOnce(&Timers<T>) + Send + 'static,
    ) -> Result<TimerId, RefusedCall<SendCall<T>>> {
        self.schedule_boxed(when, Box::new(call))
    }

    pub(crate) fn schedule_boxed<W: When>(
        &self,
        when: W,
        call: SendCall<T>,
    ) -> Result<TimerId, RefusedCall<SendCall<T>>> {
        let (deadline, now) = self.deadline(when);
        let sent = self.client.schedule_call(self.class, self.shard, deadline, now, call);
        sent.map_err(RefusedCall::from)
    }

    /// Schedules timers that carry values, all of them with one message, or none. The handles come
    /// in the order of the timers.
    ///
    /// At most [`schedule_many_max`](Self::schedule_many_max) at once.
    ///
    /// # Errors
    ///
    /// `Full`, `Reserved`, `Busy`, `Closed`, `NoSuchShard` or `TooMany`, with all timers.
    pub fn schedule_many<W: When>(
        &self,
        timers: impl IntoIterator<Item = (W, T)>,
    ) -> Result<Vec<TimerId>, Refused<Vec<(W, T)>>> {
        let now = self.client.nanos();
        let tick_of = |when| self.client.directory.time.tick_of(when, || now);
        self.client.schedule_all(self.class, self.shard, timers.into_iter().collect(), now, tick_of)
    }

    /// The most timers that one [`schedule_many`](Self::schedule_many) takes: one more than half of
    /// the keys that a shard grants a client in advance. These are a 32nd of its capacity, and at
    /// most as many as a lane has room for.
    pub fn schedule_many_max(&self) -> usize {
        self.client.schedule_many_max()
    }

    /// Waits until something is due, by a timer of that shard. The timer is taken at once, and
    /// cancelled when the future is dropped.
    ///
    /// Cost: a timer with a boxed callback, and a channel for one message.
    ///
    /// # Errors
    ///
    /// The future returns why there is no timer, or that the shard has ended before the time came.
    pub fn sleep<W: When>(
        &self,
        when: W,
    ) -> impl Future<Output = Result<(), RefusedKind>> + use<'a, W, T> {
        RemoteSleep::new(*self, when)
    }

    /// Gives a future time until something is due, by a timer of that shard. A value that is ready
    /// at the same time as the deadline wins.
    ///
    /// ```
    /// use corewheel::{Runtime, ShardId, ShutdownPolicy, TimerService};
    /// use std::time::Duration;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// // A task of another runtime, and a shard on a plain thread.
    /// let service = TimerService::builder().shards(1).runtime(Runtime::Thread).start()?;
    /// let client = service.client();
    /// let shard = client.shard(ShardId::new(0));
    /// shard.sleep(Duration::from_millis(2)).await?;
    /// let never = std::future::pending::<()>();
    /// let late = shard.timeout(Duration::from_millis(2), never).await;
    /// assert!(late.is_err_and(|error| error.is_elapsed()));
    /// service.begin_shutdown(ShutdownPolicy::Drop)?.await;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The time was up, or no timer could be had; the future is dropped.
    pub fn timeout<W: When, F: Future>(
        &self,
        when: W,
        future: F,
    ) -> impl Future<Output = Result<F::Output, TimeoutError>> + use<'a, W, F, T> {
        within(RemoteSleep::new(*self, when), future)
    }

    /// Sets the scale of the shard's [`ScaledTimeouts`](crate::scaled::ScaledTimeouts) and of the
    /// limits of its connections. It takes effect in the shard's next turn, for which the shard is
    /// woken; if several scales are set before, the last one applies. Costs a lock that turns do
    /// not take, and nothing more if the scale does not change.
    ///
    /// # Errors
    ///
    /// `Closed` or `NoSuchShard`.
    pub fn set_scale(&self, scale: Scale) -> Result<(), RefusedKind> {
        self.client.directory.order(self.shard, |orders| orders.set_scale(scale))
    }

    /// Drains the shard's connections, as [`TimerService::drain`](crate::TimerService::drain) does
    /// for all shards.
    ///
    /// # Errors
    ///
    /// `Closed` or `NoSuchShard`.
    pub fn drain(&self, window: Duration) -> Result<(), RefusedKind> {
        let drain = Drain::beginning(self.client.directory.time.nanos(), window);
        self.client.directory.order(self.shard, |orders| orders.set_drain(drain))
    }

    /// Tells the `n` connections of the shard to end that have been idle for longest, as
    /// [`TimerService::close_idlest`](crate::TimerService::close_idlest) does on each shard.
    ///
    /// # Errors
    ///
    /// `Closed` or `NoSuchShard`.
    pub fn close_idlest(&self, n: usize) -> Result<(), RefusedKind> {
        self.client.directory.order(self.shard, |orders| orders.add_idlest(n))
    }

    /// The tick at which something is due, and the present in nanoseconds.
    #[inline]
    fn deadline(&self, when: impl When) -> (Tick, u64) {
        let now = self.client.clock.nanos();
        (self.client.directory.time.tick_of(when, || now), now)
    }
}

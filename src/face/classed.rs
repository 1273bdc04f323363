//! The timers of a shard, and those of a client, for timers of one class.
//!
//! Why views, and not a class among the parameters of every method: most timers have none, and who
//! has one mostly schedules many of the same.
//!
//! Cost: two words for a view; for each timer that of its [class](crate::TimerClass).

use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

use crate::face::Core;
use crate::face::callback::{LocalCall, SendCall};
use crate::face::client::Client;
use crate::face::sleep::{RemoteSleep, Sleep, within, within_here};
use crate::face::timers::{Deadline, Timers};
use crate::values::class::{ClassId, TimerClass, UnknownClass};
use crate::values::error::{ScheduleError, ScheduleManyError, TimeoutError};
use crate::values::handle::{ShardId, TimerHandle};

impl<T: Send + 'static> Timers<T> {
    /// The same timers, for timers of one class. Found by its name among the service's; keep it
    /// where many are scheduled at once.
    ///
    /// # Errors
    ///
    /// The service has no such class.
    pub fn class(&self, class: TimerClass) -> Result<Classed<'_, T>, UnknownClass> {
        let class = self.core().directory().settings.classes.find(class)?;
        Ok(Classed { timers: self, class })
    }
}

impl<T: Send + 'static> Client<T> {
    /// The same client, for timers of one class.
    ///
    /// # Errors
    ///
    /// The service has no such class.
    pub fn class(&self, class: TimerClass) -> Result<ClassedClient<'_, T>, UnknownClass> {
        let class = self.directory().settings.classes.find(class)?;
        Ok(ClassedClient { client: self, class })
    }
}

/// The timers of this core, for timers of one class; made by [`Timers::class`].
///
/// Its methods are those of [`Timers`] that make timers: schedules of all kinds, tasks, sleeps,
/// timeouts, intervals, periodic callbacks and connections. To cancel or reset one, the class does
/// not matter. What holds many timers is told their class: see
/// [`KeyedTimers::set_class`](crate::KeyedTimers::set_class) and
/// [`Purgatory::set_class`](crate::Purgatory::set_class). Copied at the cost of two words.
pub struct Classed<'a, T: 'static = std::convert::Infallible> {
    timers: &'a Timers<T>,
    class: ClassId,
}

impl<T> Clone for Classed<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Classed<'_, T> {}

impl<T> fmt::Debug for Classed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Classed(..)")
    }
}

impl<'a, T: Send + 'static> Classed<'a, T> {
    fn core(&self) -> &'a Core<T> {
        self.timers.core()
    }

    pub(crate) fn timers(&self) -> &'a Timers<T> {
        self.timers
    }

    pub(crate) fn id(&self) -> ClassId {
        self.class
    }

    /// As [`Timers::schedule`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the task.
    #[inline]
    pub fn schedule(&self, delay: Duration, task: T) -> Result<TimerHandle, ScheduleError<T>> {
        let deadline = self.core().deadline_after(delay);
        self.core().schedule_value(self.class, deadline, task)
    }

    /// As [`Timers::schedule_at`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the task.
    #[inline]
    pub fn schedule_at(&self, at: Instant, task: T) -> Result<TimerHandle, ScheduleError<T>> {
        let deadline = self.core().deadline_at(at);
        self.core().schedule_value(self.class, deadline, task)
    }

    /// As [`Timers::schedule_fn`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the callback.
    pub fn schedule_fn(
        &self,
        delay: Duration,
        call: impl FnOnce(&Timers<T>) + 'static,
    ) -> Result<TimerHandle, ScheduleError<LocalCall<T>>> {
        let deadline = self.core().deadline_after(delay);
        self.core().schedule_call(self.class, deadline, Box::new(call))
    }

    /// As [`Timers::schedule_fn_at`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the callback.
    pub fn schedule_fn_at(
        &self,
        at: Instant,
        call: impl FnOnce(&Timers<T>) + 'static,
    ) -> Result<TimerHandle, ScheduleError<LocalCall<T>>> {
        let deadline = self.core().deadline_at(at);
        self.core().schedule_call(self.class, deadline, Box::new(call))
    }

    /// As [`Timers::schedule_to`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the task.
    #[inline]
    pub fn schedule_to(
        &self,
        deadline: Deadline,
        task: T,
    ) -> Result<TimerHandle, ScheduleError<T>> {
        self.core().schedule_value(self.class, deadline.0, task)
    }

    /// As [`Timers::schedule_many`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with all timers.
    pub fn schedule_many(
        &self,
        timers: impl IntoIterator<Item = (Duration, T)>,
    ) -> Result<Vec<TimerHandle>, ScheduleManyError<(Duration, T)>> {
        let (core, now) = (self.core(), self.core().nanos_near());
        let tick = |delay| core.time().deadline_after(now, delay);
        core.schedule_all(self.class, timers.into_iter().collect(), tick)
    }

    /// As [`Timers::schedule_many_at`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with all timers.
    pub fn schedule_many_at(
        &self,
        timers: impl IntoIterator<Item = (Instant, T)>,
    ) -> Result<Vec<TimerHandle>, ScheduleManyError<(Instant, T)>> {
        let tick = |at| self.core().deadline_at(at);
        self.core().schedule_all(self.class, timers.into_iter().collect(), tick)
    }

    /// As [`Timers::sleep`].
    pub fn sleep(&self, delay: Duration) -> Sleep<T> {
        Sleep::new(self.timers.clone(), self.core().deadline_after(delay), self.class)
    }

    /// As [`Timers::sleep_until`].
    pub fn sleep_until(&self, at: Instant) -> Sleep<T> {
        Sleep::new(self.timers.clone(), self.core().deadline_at(at), self.class)
    }

    /// As [`Timers::timeout`].
    ///
    /// # Errors
    ///
    /// The time was up, or there was no timer to be had; the future is dropped.
    pub fn timeout<F: Future>(
        &self,
        delay: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, TimeoutError>> + use<F, T> {
        within_here(self.sleep(delay), future)
    }

    /// As [`Timers::timeout_at`].
    ///
    /// # Errors
    ///
    /// As for [`timeout`](Self::timeout).
    pub fn timeout_at<F: Future>(
        &self,
        at: Instant,
        future: F,
    ) -> impl Future<Output = Result<F::Output, TimeoutError>> + use<F, T> {
        within_here(self.sleep_until(at), future)
    }
}

/// The timers of any shard, for timers of one class; made by [`Client::class`].
///
/// Its methods are those of [`Client`] that make timers; for batches there is
/// [`Batch::class`](crate::Batch::class). Copied at the cost of two words.
pub struct ClassedClient<'a, T: 'static = std::convert::Infallible> {
    client: &'a Client<T>,
    class: ClassId,
}

impl<T> Clone for ClassedClient<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ClassedClient<'_, T> {}

impl<T> fmt::Debug for ClassedClient<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClassedClient(..)")
    }
}

impl<'a, T: Send + 'static> ClassedClient<'a, T> {
    pub(crate) fn id(&self) -> ClassId {
        self.class
    }

    pub(crate) fn client(&self) -> &'a Client<T> {
        self.client
    }

    /// As [`Client::schedule_on`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the task.
    #[inline]
    pub fn schedule_on(
        &self,
        shard: ShardId,
        delay: Duration,
        task: T,
    ) -> Result<TimerHandle, ScheduleError<T>> {
        let now = self.client.nanos();
        let deadline = self.client.tick_after(now, delay);
        self.client.schedule_value(self.class, shard, deadline, now, task)
    }

    /// As [`Client::schedule_at_on`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the task.
    #[inline]
    pub fn schedule_at_on(
        &self,
        shard: ShardId,
        at: Instant,
        task: T,
    ) -> Result<TimerHandle, ScheduleError<T>> {
        let now = self.client.nanos();
        self.client.schedule_value(self.class, shard, self.client.tick_at(at), now, task)
    }

    /// As [`Client::schedule_fn_on`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the callback.
    pub fn schedule_fn_on(
        &self,
        shard: ShardId,
        delay: Duration,
        call: impl FnOnce(&Timers<T>) + Send + 'static,
    ) -> Result<TimerHandle, ScheduleError<SendCall<T>>> {
        self.schedule_call(shard, delay, Box::new(call))
    }

    /// As [`Client::schedule_fn_at_on`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the callback.
    pub fn schedule_fn_at_on(
        &self,
        shard: ShardId,
        at: Instant,
        call: impl FnOnce(&Timers<T>) + Send + 'static,
    ) -> Result<TimerHandle, ScheduleError<SendCall<T>>> {
        self.schedule_call_at(shard, at, Box::new(call))
    }

    /// As [`Client::schedule_many_on`].
    ///
    /// # Errors
    ///
    /// `Full`, `Closed` or `TooMany`, with all timers.
    pub fn schedule_many_on(
        &self,
        shard: ShardId,
        timers: impl IntoIterator<Item = (Duration, T)>,
    ) -> Result<Vec<TimerHandle>, ScheduleManyError<(Duration, T)>> {
        let (client, now) = (self.client, self.client.nanos());
        let tick = |delay| client.tick_after(now, delay);
        client.schedule_all(self.class, shard, timers.into_iter().collect(), now, tick)
    }

    /// As [`Client::schedule_many_at_on`].
    ///
    /// # Errors
    ///
    /// `Full`, `Closed` or `TooMany`, with all timers.
    pub fn schedule_many_at_on(
        &self,
        shard: ShardId,
        timers: impl IntoIterator<Item = (Instant, T)>,
    ) -> Result<Vec<TimerHandle>, ScheduleManyError<(Instant, T)>> {
        let (client, now) = (self.client, self.client.nanos());
        let timers = timers.into_iter().collect();
        client.schedule_all(self.class, shard, timers, now, |at| client.tick_at(at))
    }

    /// As [`Client::sleep_on`].
    pub fn sleep_on(&self, shard: ShardId, delay: Duration) -> RemoteSleep<'a, T> {
        RemoteSleep::new(self.client, |call| self.schedule_call(shard, delay, call))
    }

    /// As [`Client::sleep_until_on`].
    pub fn sleep_until_on(&self, shard: ShardId, at: Instant) -> RemoteSleep<'a, T> {
        RemoteSleep::new(self.client, |call| self.schedule_call_at(shard, at, call))
    }

    /// As [`Client::timeout_on`].
    ///
    /// # Errors
    ///
    /// The time was up, or there was no timer to be had; the future is dropped.
    pub fn timeout_on<F: Future>(
        &self,
        shard: ShardId,
        delay: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, TimeoutError>> + use<'a, F, T> {
        within(self.sleep_on(shard, delay), future)
    }

    /// As [`Client::timeout_at_on`].
    ///
    /// # Errors
    ///
    /// As for [`timeout_on`](Self::timeout_on).
    pub fn timeout_at_on<F: Future>(
        &self,
        shard: ShardId,
        at: Instant,
        future: F,
    ) -> impl Future<Output = Result<F::Output, TimeoutError>> + use<'a, F, T> {
        within(self.sleep_until_on(shard, at), future)
    }

    fn schedule_call(
        &self,
        shard: ShardId,
        delay: Duration,
        call: SendCall<T>,
    ) -> Result<TimerHandle, ScheduleError<SendCall<T>>> {
        let now = self.client.nanos();
        let deadline = self.client.tick_after(now, delay);
        self.client.schedule_call(self.class, shard, deadline, now, call)
    }

    fn schedule_call_at(
        &self,
        shard: ShardId,
        at: Instant,
        call: SendCall<T>,
    ) -> Result<TimerHandle, ScheduleError<SendCall<T>>> {
        let now = self.client.nanos();
        self.client.schedule_call(self.class, shard, self.client.tick_at(at), now, call)
    }
}

//! The timers of any shard, for any thread.

mod batch;
mod lanes;
pub(crate) mod many;
mod migrate;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use corewheel_shard::Tick;

use self::batch::Gathered;
pub use self::batch::{Batch, Refused};
use super::callback::{RemoteTask, SendCall};
use super::sleep::{RemoteSleep, within};
use super::timers::Timers;
use super::{Directory, Request};
use crate::clock::NearClock;
use crate::directory::here::is_shard_thread;
use crate::link::lane::LaneSender;
use crate::values::class::ClassId;
use crate::values::error::{Closed, ScheduleError, TimeoutError, WaitError};
use crate::values::handle::{ServiceId, ShardId, TimerHandle};
use crate::values::outcome::{CancelOutcome, ResetOutcome};
use crate::values::scale::Scale;

/// Schedules, cancels and resets onto shards from elsewhere: a plain thread, another runtime,
/// another shard.
///
/// `Send` but not `Sync`: one for each thread or task that needs one, made by
/// [`TimerService::client`](crate::TimerService::client) or by cloning, and dropped at any time;
/// its timers go on. It opens a lane to a shard when it first needs one.
///
/// A timer from elsewhere has its handle at once and costs its owner what a local one does. Its
/// deadline is worked out here, so the way to the shard is part of its delay and not on top of it.
/// `Full` means that the shard is full, or that this client has sent more than the shard has taken
/// in: try again after a moment.
///
/// ```
/// use corewheel::{CancelOutcome, Fired, Runtime, ShutdownPolicy, TimerService, Timers};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let (sender, fired) = mpsc::channel();
/// let service = TimerService::builder().shards(2).runtime(Runtime::Thread).start_with(move |_| {
///     let sender = sender.clone();
///     move |timer: Fired<u64>, _: &Timers<u64>| {
///         let _nobody_listens = sender.send(timer.task);
///     }
/// })?;
/// let [first, second] = [0, 1].map(corewheel::ShardId::new);
///
/// // A thread that is no shard's.
/// let client = service.client();
/// let worker = std::thread::spawn(move || {
///     let quick = client.schedule_on(first, Duration::from_millis(2), 1).unwrap();
///     let slow = client.schedule_on(second, Duration::from_secs(60), 2).unwrap();
///     // It blocks for the answer; a future would await it.
///     let cancelled = client.cancel(slow).wait().unwrap();
///     (quick, cancelled.task().and_then(|task| task.into_value()))
/// });
/// let (quick, task) = worker.join().unwrap();
/// assert_eq!(task, Some(2), "it was cancelled, and its task came home");
/// assert_eq!(fired.recv()?, 1);
/// let late = service.client().cancel(quick).wait()?;
/// assert!(matches!(late, CancelOutcome::AlreadyFired | CancelOutcome::Stale));
/// service.shutdown(ShutdownPolicy::Drop)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Client<T: 'static = std::convert::Infallible> {
    directory: Arc<Directory<T>>,
    clock: NearClock,
    service: ServiceId,
    lanes: RefCell<Vec<Option<LaneSender<Request<T>>>>>,
    /// How many lanes it has opened.
    opened: Cell<u64>,
    gathered: Gathered<T>,
}

impl<T: Send + 'static> Client<T> {
    /// Schedules a typed timer on a shard, to be given to the service's handler there after
    /// `delay`.
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
        let now = self.clock.nanos();
        self.schedule_value(ClassId::NONE, shard, self.tick_after(now, delay), now, task)
    }

    /// The same, for a moment. One that has passed fires in the shard's next turn.
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
        let now = self.clock.nanos();
        self.schedule_value(ClassId::NONE, shard, self.tick_at(at), now, task)
    }

    /// Schedules a callback on a shard, to be run there after `delay`. It is boxed.
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
        let now = self.clock.nanos();
        let deadline = self.tick_after(now, delay);
        self.schedule_call(ClassId::NONE, shard, deadline, now, Box::new(call))
    }

    /// The same, for a moment. One that has passed fires in the shard's next turn.
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
        let now = self.clock.nanos();
        self.schedule_call(ClassId::NONE, shard, self.tick_at(at), now, Box::new(call))
    }

    /// Ends a timer and tells what became of it, with its task. Await the answer, or
    /// [`wait`](Answer::wait) for it; the cancel is on its way either way.
    ///
    /// It cannot be refused. It may come before the timer does, from another client. A timer of
    /// another service is answered at once, with `Foreign`.
    pub fn cancel(&self, timer: TimerHandle) -> Answer<CancelOutcome<RemoteTask<T>>> {
        if !timer.is_of(self.service) {
            return Answer::ready(CancelOutcome::Foreign);
        }
        let (sender, answer) = oneshot::channel();
        self.send(timer.shard(), Request::Cancel { key: timer.key(), reply: Some(sender) });
        Answer(answer)
    }

    /// Ends a timer and asks for no answer. It does not wake the shard, which drops the task when
    /// it next comes by; the timer will not fire if it has not. Nothing is done about a timer of
    /// another service.
    #[inline]
    pub fn cancel_detached(&self, timer: TimerHandle) {
        if !timer.is_of(self.service) {
            return;
        }
        self.send(timer.shard(), Request::Cancel { key: timer.key(), reply: None });
    }

    /// Moves a timer to `delay` from now and tells whether it was still there.
    ///
    /// It cannot be refused. It may come before the timer does, from another client. A timer of
    /// another service is answered at once, with `Foreign`.
    pub fn reset(&self, timer: TimerHandle, delay: Duration) -> Answer<ResetOutcome> {
        self.reset_to(timer, self.tick_after(self.clock.nanos(), delay))
    }

    /// The same, to a moment.
    pub fn reset_at(&self, timer: TimerHandle, at: Instant) -> Answer<ResetOutcome> {
        self.reset_to(timer, self.tick_at(at))
    }

    /// Moves a timer to `delay` from now and asks for no answer. Nothing is done about a timer of
    /// another service.
    #[inline]
    pub fn reset_detached(&self, timer: TimerHandle, delay: Duration) {
        if !timer.is_of(self.service) {
            return;
        }
        let deadline = self.tick_after(self.clock.nanos(), delay);
        self.send(timer.shard(), Request::Reset { key: timer.key(), deadline, reply: None });
    }

    /// Waits for `delay`, beginning now, by a timer of a shard. The timer is taken at once, and
    /// given back when the future is dropped.
    pub fn sleep_on(&self, shard: ShardId, delay: Duration) -> RemoteSleep<'_, T> {
        RemoteSleep::new(self, |call| self.schedule_fn_on(shard, delay, call))
    }

    /// Waits until a moment by a timer of a shard.
    pub fn sleep_until_on(&self, shard: ShardId, at: Instant) -> RemoteSleep<'_, T> {
        RemoteSleep::new(self, |call| self.schedule_fn_at_on(shard, at, call))
    }

    /// Gives a future `delay` from now to be done, by a timer of a shard. A value that is ready at
    /// the same time as the deadline wins.
    ///
    /// # Errors
    ///
    /// The time was up, or there was no timer to be had; the future is dropped.
    pub fn timeout_on<F: Future>(
        &self,
        shard: ShardId,
        delay: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, TimeoutError>> {
        within(self.sleep_on(shard, delay), future)
    }

    /// Gives a future until a moment to be done, by a timer of a shard.
    ///
    /// # Errors
    ///
    /// As for [`timeout_on`](Self::timeout_on).
    pub fn timeout_at_on<F: Future>(
        &self,
        shard: ShardId,
        at: Instant,
        future: F,
    ) -> impl Future<Output = Result<F::Output, TimeoutError>> {
        within(self.sleep_until_on(shard, at), future)
    }

    /// Gathers commands onto one shard and sends them together: 64 of them share a fence and a look
    /// at whether the shard sleeps. It keeps the room for them for the next batch.
    pub fn batch(&mut self, shard: ShardId) -> Batch<'_, T> {
        Batch::new(self, shard)
    }

    /// Sets by what a shard scales its [`ScaledTimeouts`](crate::ScaledTimeouts): wakes it, and
    /// takes effect in its next turn. Of several that come before that the last one counts. Costs a
    /// lock that turns do not take, and nothing more if the scale is that already.
    ///
    /// # Errors
    ///
    /// The shard is shut down or dead, or was never there.
    pub fn set_scale_on(&self, shard: ShardId, scale: Scale) -> Result<(), Closed> {
        self.directory.set_scale(shard, scale)
    }

    /// The shards of the service.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> + use<T> {
        self.directory.shards()
    }

    /// The present moment, by the service's clock.
    pub fn now(&self) -> Instant {
        self.directory.time.now()
    }

    pub(crate) fn directory(&self) -> &Arc<Directory<T>> {
        &self.directory
    }

    /// What the clock shows or a little later.
    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        self.clock.nanos()
    }

    #[inline]
    pub(crate) fn tick_after(&self, now: u64, delay: Duration) -> Tick {
        self.directory.time.deadline_after(now, delay)
    }

    #[inline]
    pub(crate) fn tick_at(&self, at: Instant) -> Tick {
        self.directory.time.deadline_at(at)
    }

    #[inline]
    pub(crate) fn schedule_value(
        &self,
        class: ClassId,
        shard: ShardId,
        deadline: Tick,
        now: u64,
        task: T,
    ) -> Result<TimerHandle, ScheduleError<T>> {
        let sent_us = (now / 1_000) as u32;
        let request = Request::Schedule { deadline, sent_us, class, value: task };
        self.schedule_request(shard, request).map_err(|refused| {
            refused.map(|request| match request {
                Request::Schedule { value, .. } => value,
                _ => unreachable!("a refusal returns what was given"),
            })
        })
    }

    pub(crate) fn schedule_call(
        &self,
        class: ClassId,
        shard: ShardId,
        deadline: Tick,
        now: u64,
        call: SendCall<T>,
    ) -> Result<TimerHandle, ScheduleError<SendCall<T>>> {
        let sent_us = (now / 1_000) as u32;
        let request = Request::Call { deadline, sent_us, class, call };
        self.schedule_request(shard, request).map_err(|refused| {
            refused.map(|request| match request {
                Request::Call { call, .. } => call,
                _ => unreachable!("a refusal returns what was given"),
            })
        })
    }

    fn reset_to(&self, timer: TimerHandle, deadline: Tick) -> Answer<ResetOutcome> {
        if !timer.is_of(self.service) {
            return Answer::ready(ResetOutcome::Foreign);
        }
        let (sender, answer) = oneshot::channel();
        let request = Request::Reset { key: timer.key(), deadline, reply: Some(sender) };
        self.send(timer.shard(), request);
        Answer(answer)
    }
}

impl<T: Send + 'static> Clone for Client<T> {
    /// Another client, with lanes of its own.
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.directory))
    }
}

impl<T> fmt::Debug for Client<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client(..)")
    }
}

/// What a shard will say to a command, made by [`Client::cancel`] and [`Client::reset`].
///
/// Await it, or [`wait`](Self::wait) for it. `Closed` means that the service was shut down or the
/// shard died before it answered; a timer of such a shard does not fire any more, and is in the
/// report of the shutdown if it was returned.
#[must_use = "the command is sent, but nobody looks at what became of it; use the detached form"]
pub struct Answer<O>(oneshot::Receiver<O>);

impl<O> Answer<O> {
    /// One that is there already.
    fn ready(outcome: O) -> Self {
        let (sender, answer) = oneshot::channel();
        let sent = sender.send(outcome);
        debug_assert!(sent.is_ok(), "the receiver is there");
        Self(answer)
    }

    /// Blocks this thread until the answer is there.
    ///
    /// # Errors
    ///
    /// `Closed` if nobody is left to answer, `OnShard` on a thread that drives a shard of any
    /// service.
    pub fn wait(self) -> Result<O, WaitError> {
        if is_shard_thread() {
            return Err(WaitError::OnShard);
        }
        self.0.recv().map_err(|_| WaitError::Closed)
    }
}

impl<O> fmt::Debug for Answer<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer(..)")
    }
}

impl<O> IntoFuture for Answer<O> {
    type Output = Result<O, Closed>;
    type IntoFuture = AnswerFuture<O>;

    fn into_future(self) -> Self::IntoFuture {
        AnswerFuture::new(self.0)
    }
}

/// An [`Answer`] that is awaited.
#[must_use = "a future does nothing unless it is awaited"]
pub struct AnswerFuture<O>(oneshot::AsyncReceiver<O>);

impl<O> AnswerFuture<O> {
    pub(crate) fn new(answer: oneshot::Receiver<O>) -> Self {
        Self(answer.into_future())
    }
}

impl<O> Future for AnswerFuture<O> {
    type Output = Result<O, Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map_err(|_| Closed)
    }
}

impl<O> fmt::Debug for AnswerFuture<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnswerFuture(..)")
    }
}

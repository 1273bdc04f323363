//! A callback that runs once, later, and whose result can be awaited.
//!
//! Why not a future that sleeps first: it needs an executor on the shard. This runs on a plain
//! thread and in the user's own loop as well, and its result may be looked at without one.
//!
//! Invariants: a caller that waits is told once, whatever becomes of the task: its result, or that
//! it was cancelled, that it panicked, that its shard is gone.
//!
//! Cost: a timer with a boxed callback, and an allocation for the result; across threads a channel
//! for it.

use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::directory::here::is_shard_thread;
use crate::face::Core;
use crate::face::Directory;
use crate::face::callback::{LocalCall, SendCall};
use crate::face::classed::{Classed, ClassedClient};
use crate::face::client::Client;
use crate::face::timers::Timers;
use crate::values::class::ClassId;
use crate::values::contain::each;
use crate::values::error::ScheduleError;
use crate::values::handle::{ShardId, TimerHandle};
use crate::values::outcome::CancelOutcome;

/// Why a scheduled task has no result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TaskError {
    /// It was cancelled before it ran.
    Cancelled,
    /// It panicked.
    Panicked,
    /// Its shard was shut down, or died, before it ran. From elsewhere, one that was cancelled is
    /// answered so as well if it is asked for only after its shard has ended.
    Closed,
    /// This thread drives a shard itself and cannot block for the result. The task is still to run;
    /// await the result instead.
    OnShard,
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cancelled => "the task was cancelled before it ran",
            Self::Panicked => "the task panicked",
            Self::Closed => "the shard was shut down or died before the task ran",
            Self::OnShard => "a shard's own thread cannot block for a result; await it instead",
        })
    }
}

impl std::error::Error for TaskError {}

/// A task that runs later on this core, and its result to come; made by [`Timers::schedule_task`]
/// and [`Timers::schedule_task_at`].
///
/// Await it, or [look](Self::try_take) whether the result is there. As with tokio's `JoinHandle`,
/// dropping it detaches the task: it runs all the same, and its result is dropped.
///
/// Once it has given its result or its error, it has nothing more to give, and panics if it is
/// polled again.
#[must_use = "the result is lost; `detach` says that it may be"]
pub struct Scheduled<R, T: Send + 'static = Infallible> {
    timers: Timers<T>,
    timer: TimerHandle,
    slot: Rc<Slot<R>>,
}

/// Where the result goes.
struct Slot<R> {
    outcome: Cell<Outcome<R>>,
    waker: Cell<Option<Waker>>,
    /// It has begun to run.
    ran: Cell<bool>,
}

enum Outcome<R> {
    Awaited,
    Done(R),
    Failed(TaskError),
    Taken,
}

impl<R> Slot<R> {
    fn finish(&self, outcome: Outcome<R>) {
        self.outcome.set(outcome);
        // Contained, as a task may be dropped beside it that panics as well.
        each(self.waker.take(), Waker::wake);
    }
}

/// The task, until it has run or was dropped. Whichever it is, the one that waits is told.
struct Job<R, T: Send + 'static> {
    slot: Rc<Slot<R>>,
    /// Weakly: the shard holds this.
    core: Weak<Core<T>>,
}

impl<R, T: Send + 'static> Job<R, T> {
    fn run(self, timers: &Timers<T>, call: impl FnOnce() -> R) {
        self.slot.ran.set(true);
        let result = attempt(timers, call);
        self.slot.finish(result.map_or_else(Outcome::Failed, Outcome::Done));
    }
}

impl<R, T: Send + 'static> Drop for Job<R, T> {
    fn drop(&mut self) {
        if self.slot.ran.get() {
            return;
        }
        let outcome = match self.slot.outcome.replace(Outcome::Taken) {
            // The reason is stored now: a shard that is there may be gone when the caller looks.
            Outcome::Awaited if self.core.upgrade().is_some_and(|core| !core.is_closed()) => {
                Outcome::Failed(TaskError::Cancelled)
            }
            Outcome::Awaited => Outcome::Failed(TaskError::Closed),
            // The caller that waits has cancelled it.
            known => known,
        };
        self.slot.finish(outcome);
    }
}

/// Runs a task. What it throws is caught here and not in the turn, so that the caller that
/// waits is told when nothing is being unwound.
fn attempt<T: Send + 'static, R>(
    timers: &Timers<T>,
    call: impl FnOnce() -> R,
) -> Result<R, TaskError> {
    let mut result = Err(TaskError::Panicked);
    timers.core().contain(|| result = Ok(call()));
    result
}

impl<R, T: Send + 'static> Scheduled<R, T> {
    /// Ends the task if it has not begun to run, and says whether it had: `Cancelled` means that it
    /// has not and will not, and that its captures are dropped; `AlreadyFired` that it runs or has
    /// run; `Stale` that it was cancelled before or its shard is gone.
    ///
    /// The result of one that was cancelled is [`TaskError::Cancelled`]; that of one that has run
    /// can still be had.
    pub fn cancel(&mut self) -> CancelOutcome<()> {
        if self.slot.ran.get() {
            return CancelOutcome::AlreadyFired;
        }
        match self.timers.cancel(self.timer) {
            CancelOutcome::Cancelled { remaining, task } => {
                // Before the task is dropped, which wakes the caller that waits.
                self.slot.outcome.set(Outcome::Failed(TaskError::Cancelled));
                drop(task);
                CancelOutcome::Cancelled { remaining, task: () }
            }
            CancelOutcome::Elsewhere(shard) => CancelOutcome::Elsewhere(shard),
            _ => CancelOutcome::Stale,
        }
    }

    /// Lets the task run by itself. Its result is dropped.
    pub fn detach(self) -> TimerHandle {
        self.timer
    }

    /// The task's timer, by which it can be moved, and cancelled by others.
    pub fn timer(&self) -> TimerHandle {
        self.timer
    }

    /// Whether the result or an error is there, or was and has been taken.
    pub fn is_finished(&self) -> bool {
        let outcome = self.slot.outcome.replace(Outcome::Taken);
        let finished = !matches!(outcome, Outcome::Awaited);
        self.slot.outcome.set(outcome);
        finished
    }

    /// The result or the error, if it is there and has not been taken: for a loop without futures.
    pub fn try_take(&mut self) -> Option<Result<R, TaskError>> {
        match self.slot.outcome.replace(Outcome::Taken) {
            Outcome::Awaited => {
                self.slot.outcome.set(Outcome::Awaited);
                None
            }
            Outcome::Done(result) => Some(Ok(result)),
            Outcome::Failed(error) => Some(Err(error)),
            Outcome::Taken => None,
        }
    }
}

impl<R, T: Send + 'static> Future for Scheduled<R, T> {
    type Output = Result<R, TaskError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(result) = self.try_take() {
            return Poll::Ready(result);
        }
        assert!(!self.is_finished(), "a scheduled task is polled after it gave its result");
        let known = self.slot.waker.take();
        let same = known.as_ref().is_some_and(|known| known.will_wake(cx.waker()));
        let (kept, old) = if same { (known, None) } else { (Some(cx.waker().clone()), known) };
        self.slot.waker.set(kept);
        // To clone and to drop a waker is the user's code, which may have cancelled the task.
        drop(old);
        self.try_take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl<R, T: Send + 'static> fmt::Debug for Scheduled<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduled")
            .field("timer", &self.timer)
            .field("finished", &self.is_finished())
            .finish_non_exhaustive()
    }
}

/// Tasks with a result.
impl<T: Send + 'static> Timers<T> {
    /// Runs a task on this core after `delay`, and lets its result be awaited.
    ///
    /// ```
    /// use corewheel::{Fired, ManualClock, TimerService, Timers};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let builder = TimerService::builder().shards(1).clock(clock.clock());
    /// let service = builder.start_attached::<()>()?;
    /// let shard = service.attach(service.shards().next().unwrap())?;
    /// let mut shard = shard.into_loop(|_: Fired<()>, _: &_| {})?;
    ///
    /// let pending = |timers: &Timers<()>| timers.len();
    /// let mut answer = shard.timers().schedule_task(Duration::from_secs(2), pending)?;
    /// let _ = shard.turn();
    /// assert!(answer.try_take().is_none());
    /// clock.advance(Duration::from_secs(2));
    /// let _ = shard.turn();
    /// // On an executor this would be `answer.await`.
    /// assert_eq!(answer.try_take(), Some(Ok(0)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the task; if it is run after all, its result is dropped.
    pub fn schedule_task<R: 'static>(
        &self,
        delay: Duration,
        task: impl FnOnce(&Self) -> R + 'static,
    ) -> Result<Scheduled<R, T>, ScheduleError<LocalCall<T>>> {
        self.begin_task(task, |call| {
            self.core().schedule_call(ClassId::NONE, self.core().deadline_after(delay), call)
        })
    }

    /// The same, at a moment. One that has passed comes in the next turn.
    ///
    /// # Errors
    ///
    /// As for [`schedule_task`](Self::schedule_task).
    pub fn schedule_task_at<R: 'static>(
        &self,
        at: Instant,
        task: impl FnOnce(&Self) -> R + 'static,
    ) -> Result<Scheduled<R, T>, ScheduleError<LocalCall<T>>> {
        self.begin_task(task, |call| {
            self.core().schedule_call(ClassId::NONE, self.core().deadline_at(at), call)
        })
    }

    fn begin_task<R: 'static>(
        &self,
        task: impl FnOnce(&Self) -> R + 'static,
        schedule: impl FnOnce(LocalCall<T>) -> Result<TimerHandle, ScheduleError<LocalCall<T>>>,
    ) -> Result<Scheduled<R, T>, ScheduleError<LocalCall<T>>> {
        let outcome = Cell::new(Outcome::Awaited);
        let slot = Rc::new(Slot { outcome, waker: Cell::default(), ran: Cell::default() });
        let job = Job { slot: Rc::clone(&slot), core: self.downgrade() };
        let timer = schedule(Box::new(move |timers| job.run(timers, || task(timers))))?;
        Ok(Scheduled { timers: self.clone(), timer, slot })
    }
}

/// Tasks with a result, of a class.
impl<T: Send + 'static> Classed<'_, T> {
    /// As [`Timers::schedule_task`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the task.
    pub fn schedule_task<R: 'static>(
        &self,
        delay: Duration,
        task: impl FnOnce(&Timers<T>) -> R + 'static,
    ) -> Result<Scheduled<R, T>, ScheduleError<LocalCall<T>>> {
        let core = self.timers().core();
        self.timers().begin_task(task, |call| {
            core.schedule_call(self.id(), core.deadline_after(delay), call)
        })
    }

    /// As [`Timers::schedule_task_at`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the task.
    pub fn schedule_task_at<R: 'static>(
        &self,
        at: Instant,
        task: impl FnOnce(&Timers<T>) -> R + 'static,
    ) -> Result<Scheduled<R, T>, ScheduleError<LocalCall<T>>> {
        let core = self.timers().core();
        self.timers()
            .begin_task(task, |call| core.schedule_call(self.id(), core.deadline_at(at), call))
    }
}

/// A task that runs later on a shard, and its result to come from there; made by
/// [`Client::schedule_task_on`] and [`Client::schedule_task_at_on`].
///
/// `Send`. Await it, or [`wait`](Self::wait) for it. Dropping it detaches the task: it runs all the
/// same, and its result is dropped. To cancel it, give its [timer](Self::timer) to
/// [`Client::cancel`].
#[must_use = "the result is lost; `detach` says that it may be"]
pub struct RemoteScheduled<R, T: Send + 'static = Infallible> {
    directory: Arc<Directory<T>>,
    timer: TimerHandle,
    result: oneshot::Receiver<Result<R, TaskError>>,
}

/// A [`RemoteScheduled`] that is awaited.
#[must_use = "a future does nothing unless it is awaited"]
pub struct RemoteScheduledFuture<R, T: Send + 'static = Infallible> {
    directory: Arc<Directory<T>>,
    shard: ShardId,
    result: oneshot::AsyncReceiver<Result<R, TaskError>>,
}

/// Why a task was dropped on its shard before it ran.
fn reason<T: Send + 'static>(directory: &Directory<T>, shard: ShardId) -> TaskError {
    match directory.post(shard) {
        Some(post) if !post.mailbox.is_closed() => TaskError::Cancelled,
        _ => TaskError::Closed,
    }
}

impl<R, T: Send + 'static> RemoteScheduled<R, T> {
    fn new(
        client: &Client<T>,
        timer: TimerHandle,
        result: oneshot::Receiver<Result<R, TaskError>>,
    ) -> Self {
        Self { directory: Arc::clone(client.directory()), timer, result }
    }

    /// Blocks this thread until the result is there.
    ///
    /// # Errors
    ///
    /// There is none, or this is the thread of a shard.
    pub fn wait(self) -> Result<R, TaskError> {
        if is_shard_thread() {
            return Err(TaskError::OnShard);
        }
        let gone = |_| Err(reason(&self.directory, self.timer.shard()));
        self.result.recv().unwrap_or_else(gone)
    }

    /// Lets the task run by itself. Its result is dropped.
    pub fn detach(self) -> TimerHandle {
        self.timer
    }

    /// The task's timer, by which it can be moved and cancelled.
    pub fn timer(&self) -> TimerHandle {
        self.timer
    }
}

impl<R, T: Send + 'static> IntoFuture for RemoteScheduled<R, T> {
    type Output = Result<R, TaskError>;
    type IntoFuture = RemoteScheduledFuture<R, T>;

    fn into_future(self) -> Self::IntoFuture {
        let shard = self.timer.shard();
        let result = self.result.into_future();
        RemoteScheduledFuture { directory: self.directory, shard, result }
    }
}

impl<R, T: Send + 'static> Future for RemoteScheduledFuture<R, T> {
    type Output = Result<R, TaskError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = std::task::ready!(Pin::new(&mut self.result).poll(cx));
        Poll::Ready(result.unwrap_or_else(|_| Err(reason(&self.directory, self.shard))))
    }
}

impl<R, T: Send + 'static> fmt::Debug for RemoteScheduled<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteScheduled").field("timer", &self.timer).finish_non_exhaustive()
    }
}

impl<R, T: Send + 'static> fmt::Debug for RemoteScheduledFuture<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteScheduledFuture(..)")
    }
}

/// Tasks with a result.
impl<T: Send + 'static> Client<T> {
    /// Runs a task on a shard after `delay`, and lets its result be awaited here.
    ///
    /// ```
    /// use corewheel::{TaskError, TimerService, Timers};
    /// use std::time::Duration;
    ///
    /// let service = TimerService::builder().shards(1).start()?;
    /// let client = service.client();
    /// let shard = service.shards().next().unwrap();
    ///
    /// let soon = Duration::from_millis(2);
    /// let pending = client.schedule_task_on(shard, soon, |timers: &Timers| timers.len())?;
    /// // In a future this would be `pending.await`.
    /// assert_eq!(pending.wait(), Ok(0));
    ///
    /// let never = client.schedule_task_on(shard, Duration::MAX, |_| ())?;
    /// client.cancel_detached(never.timer());
    /// # client.schedule_fn_on(shard, Duration::ZERO, |_| {})?;
    /// assert_eq!(never.wait(), Err(TaskError::Cancelled));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the task; if it is run after all, its result is dropped.
    pub fn schedule_task_on<R: Send + 'static>(
        &self,
        shard: ShardId,
        delay: Duration,
        task: impl FnOnce(&Timers<T>) -> R + Send + 'static,
    ) -> Result<RemoteScheduled<R, T>, ScheduleError<SendCall<T>>> {
        let (sender, result) = oneshot::channel();
        let timer = self.schedule_fn_on(shard, delay, answering(task, sender))?;
        Ok(RemoteScheduled::new(self, timer, result))
    }

    /// The same, at a moment. One that has passed comes in the shard's next turn.
    ///
    /// # Errors
    ///
    /// As for [`schedule_task_on`](Self::schedule_task_on).
    pub fn schedule_task_at_on<R: Send + 'static>(
        &self,
        shard: ShardId,
        at: Instant,
        task: impl FnOnce(&Timers<T>) -> R + Send + 'static,
    ) -> Result<RemoteScheduled<R, T>, ScheduleError<SendCall<T>>> {
        let (sender, result) = oneshot::channel();
        let timer = self.schedule_fn_at_on(shard, at, answering(task, sender))?;
        Ok(RemoteScheduled::new(self, timer, result))
    }
}

/// Tasks with a result, of a class.
impl<T: Send + 'static> ClassedClient<'_, T> {
    /// As [`Client::schedule_task_on`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the task.
    pub fn schedule_task_on<R: Send + 'static>(
        &self,
        shard: ShardId,
        delay: Duration,
        task: impl FnOnce(&Timers<T>) -> R + Send + 'static,
    ) -> Result<RemoteScheduled<R, T>, ScheduleError<SendCall<T>>> {
        let (sender, result) = oneshot::channel();
        let timer = self.schedule_fn_on(shard, delay, answering(task, sender))?;
        Ok(RemoteScheduled::new(self.client(), timer, result))
    }

    /// As [`Client::schedule_task_at_on`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the task.
    pub fn schedule_task_at_on<R: Send + 'static>(
        &self,
        shard: ShardId,
        at: Instant,
        task: impl FnOnce(&Timers<T>) -> R + Send + 'static,
    ) -> Result<RemoteScheduled<R, T>, ScheduleError<SendCall<T>>> {
        let (sender, result) = oneshot::channel();
        let timer = self.schedule_fn_at_on(shard, at, answering(task, sender))?;
        Ok(RemoteScheduled::new(self.client(), timer, result))
    }
}

/// What a shard runs for a task whose result goes elsewhere.
fn answering<T: Send + 'static, R: Send + 'static>(
    task: impl FnOnce(&Timers<T>) -> R + Send + 'static,
    sender: oneshot::Sender<Result<R, TaskError>>,
) -> impl FnOnce(&Timers<T>) + Send + 'static {
    // Nobody waits any more where it cannot be sent.
    move |timers| drop(sender.send(attempt(timers, || task(timers))))
}

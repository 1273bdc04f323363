//! Futures that wait for their time: on a shard's own core, and by a shard's timer elsewhere.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use corewheel_shard::{Tick, TimerKey};

use super::sleepers::Slept;
use crate::face::callback::SendCall;
use crate::face::client::Client;
use crate::face::timers::Timers;
use crate::values::class::ClassId;
use crate::values::error::{Elapsed, ScheduleError, SleepError, TimeoutError};
use crate::values::handle::TimerHandle;
use crate::values::outcome::ResetOutcome;

/// Waits for a deadline; made by [`Timers::sleep`] and [`Timers::sleep_until`].
///
/// It takes a timer when it is first polled, wakes its task once, and gives the timer back when it
/// is dropped, at whatever point that is.
///
/// Cost: a timer, and 24 bytes in the shard's table of sleepers, which are used again.
///
/// ```
/// use corewheel::{Runtime, ShardId, TimerService};
/// use std::time::Duration;
///
/// let service = TimerService::builder().shards(1).runtime(Runtime::Tokio).start()?;
/// let slept = service.spawn_on(ShardId::new(0), |timers| async move {
///     let begin = timers.now();
///     let mut sleep = timers.sleep(Duration::from_secs(3600));
///     sleep.reset(Duration::from_millis(2));
///     sleep.await?;
///     Ok::<_, corewheel::SleepError>(timers.now() - begin)
/// })?;
/// assert!(slept.wait()?? >= Duration::from_millis(2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a future does nothing unless it is awaited"]
pub struct Sleep<T: Send + 'static> {
    timers: Timers<T>,
    deadline: Tick,
    phase: Phase,
    class: ClassId,
}

enum Phase {
    Unpolled,
    Waiting { key: TimerKey, sleeper: u32 },
    Done,
}

impl<T: Send + 'static> Sleep<T> {
    pub(crate) fn new(timers: Timers<T>, deadline: Tick, class: ClassId) -> Self {
        Self { timers, deadline, phase: Phase::Unpolled, class }
    }

    pub(crate) fn timers(&self) -> &Timers<T> {
        &self.timers
    }

    /// When the future will be done: the deadline, rounded up to a tick.
    pub fn deadline(&self) -> Instant {
        self.timers.core().time().instant(self.deadline)
    }

    /// Whether the future is done.
    pub fn is_elapsed(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }

    /// Waits for `delay` from now instead, also after it was done.
    pub fn reset(&mut self, delay: Duration) {
        self.move_to(self.timers.core().deadline_after(delay));
    }

    /// Waits for a moment instead, also after it was done.
    pub fn reset_at(&mut self, at: Instant) {
        self.move_to(self.timers.core().deadline_at(at));
    }

    fn move_to(&mut self, deadline: Tick) {
        self.deadline = deadline;
        if let Phase::Waiting { key, .. } = self.phase
            && self.timers.core().reset(key, deadline) == ResetOutcome::Moved
        {
            return;
        }
        self.release();
        self.phase = Phase::Unpolled;
    }

    fn release(&mut self) {
        if let Phase::Waiting { key, sleeper } = std::mem::replace(&mut self.phase, Phase::Done) {
            self.timers.core().abandon_sleep(key, sleeper);
        }
    }
}

impl<T: Send + 'static> Future for Sleep<T> {
    type Output = Result<(), SleepError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let core = self.timers.core();
        match self.phase {
            Phase::Unpolled if core.is_closed() => Poll::Ready(Err(SleepError::Closed)),
            Phase::Unpolled => {
                match core.schedule_sleep(self.class, self.deadline, cx.waker().clone()) {
                    Some((key, sleeper)) => {
                        self.phase = Phase::Waiting { key, sleeper };
                        Poll::Pending
                    }
                    None => Poll::Ready(Err(SleepError::Full)),
                }
            }
            Phase::Waiting { sleeper, .. } => {
                let output = match core.poll_sleeper(sleeper, cx.waker()) {
                    Slept::NotYet => return Poll::Pending,
                    Slept::Fired => Ok(()),
                    Slept::Closed => Err(SleepError::Closed),
                };
                core.release_sleeper(sleeper);
                self.phase = Phase::Done;
                Poll::Ready(output)
            }
            Phase::Done => Poll::Ready(Ok(())),
        }
    }
}

impl<T: Send + 'static> Drop for Sleep<T> {
    fn drop(&mut self) {
        self.release();
    }
}

impl<T: Send + 'static> fmt::Debug for Sleep<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elapsed = self.is_elapsed();
        f.debug_struct("Sleep")
            .field("deadline", &self.deadline)
            .field("elapsed", &elapsed)
            .finish_non_exhaustive()
    }
}

/// Waits by a timer of a shard, on another thread; made by [`Client::sleep_on`] and
/// [`Client::sleep_until_on`].
///
/// Dropped before its time, it cancels the timer.
///
/// Cost: a timer with a boxed callback, and a channel for the one message.
///
/// ```
/// use corewheel::{Runtime, ShardId, TimerService};
/// use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// // A task of another runtime, and a shard on a plain thread.
/// let service = TimerService::builder().shards(1).runtime(Runtime::Thread).start()?;
/// let client = service.client();
/// let shard = ShardId::new(0);
/// client.sleep_on(shard, Duration::from_millis(2)).await?;
/// let never = std::future::pending::<()>();
/// let late = client.timeout_on(shard, Duration::from_millis(2), never).await;
/// assert!(late.is_err_and(|error| error.is_elapsed()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a future does nothing unless it is awaited"]
pub struct RemoteSleep<'a, T: Send + 'static> {
    client: &'a Client<T>,
    phase: RemotePhase,
}

enum RemotePhase {
    Waiting { timer: TimerHandle, slept: oneshot::AsyncReceiver<()> },
    Done(Result<(), SleepError>),
}

impl<'a, T: Send + 'static> RemoteSleep<'a, T> {
    /// With the timer that `schedule` makes of a callback.
    pub(crate) fn new(
        client: &'a Client<T>,
        schedule: impl FnOnce(SendCall<T>) -> Result<TimerHandle, ScheduleError<SendCall<T>>>,
    ) -> Self {
        let (done, slept) = oneshot::async_channel();
        let call = move |timers: &Timers<T>| {
            // A shutdown may fire it before its time. Nobody waits any more where it cannot be
            // sent.
            if !timers.core().is_closed() {
                drop(done.send(()));
            }
        };
        let phase = match schedule(Box::new(call)) {
            Ok(timer) => RemotePhase::Waiting { timer, slept },
            Err(ScheduleError::Full(_)) => RemotePhase::Done(Err(SleepError::Full)),
            Err(ScheduleError::Closed(_)) => RemotePhase::Done(Err(SleepError::Closed)),
        };
        Self { client, phase }
    }
}

impl<T: Send + 'static> Future for RemoteSleep<'_, T> {
    type Output = Result<(), SleepError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let output = match &mut self.phase {
            RemotePhase::Done(output) => return Poll::Ready(*output),
            RemotePhase::Waiting { slept, .. } => ready!(Pin::new(slept).poll(cx)),
        };
        let output = output.map_err(|_| SleepError::Closed);
        self.phase = RemotePhase::Done(output);
        Poll::Ready(output)
    }
}

impl<T: Send + 'static> Drop for RemoteSleep<'_, T> {
    fn drop(&mut self) {
        if let RemotePhase::Waiting { timer, .. } = self.phase {
            self.client.cancel_detached(timer);
        }
    }
}

impl<T: Send + 'static> fmt::Debug for RemoteSleep<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elapsed = matches!(self.phase, RemotePhase::Done(Ok(())));
        f.debug_struct("RemoteSleep").field("elapsed", &elapsed).finish_non_exhaustive()
    }
}

/// Gives a future until the end of a sleep on this shard to be done. After 8 outputs in a row that
/// were ready at once, the task returns to its executor before it asks for another.
pub(crate) async fn within_here<T, F>(sleep: Sleep<T>, future: F) -> Result<F::Output, TimeoutError>
where
    T: Send + 'static,
    F: Future,
{
    let timers = sleep.timers().clone();
    let core = timers.core();
    let mut limited = pin!(within(sleep, future));
    let mut is_first = true;
    poll_fn(|cx| {
        let at_once = std::mem::replace(&mut is_first, false);
        ready!(core.begin_poll(at_once, cx));
        let output = limited.as_mut().poll(cx);
        core.note_ready(at_once, output.is_ready());
        output
    })
    .await
}

/// Gives a future until the end of a sleep to be done.
pub(crate) async fn within<S, F>(sleep: S, future: F) -> Result<F::Output, TimeoutError>
where
    S: Future<Output = Result<(), SleepError>>,
    F: Future,
{
    let mut sleep = pin!(sleep);
    let mut future = pin!(future);
    poll_fn(|cx| {
        // The future first: a value that is there at the deadline is there in time.
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        sleep.as_mut().poll(cx).map(|slept| {
            Err(match slept {
                Ok(()) => TimeoutError::Elapsed(Elapsed),
                Err(error) => TimeoutError::NoTimer(error),
            })
        })
    })
    .await
}

//! Futures that wait for a deadline on a shard's own core.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use corewheel_shard::{Tick, TimerKey};

use crate::clock::when::When;
use crate::shard::local::LocalShard;
use crate::shard::sleepers::Slept;
use crate::values::class::ClassId;
use crate::values::error::TimeoutError;
use crate::values::outcome::ResetOutcome;
use crate::values::refused::RefusedKind;

/// Waits for a deadline; made by [`Timers::sleep`](crate::Timers::sleep).
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
/// # if cfg!(feature = "tokio") {
/// let service = TimerService::builder().shards(1).runtime(Runtime::Tokio).start()?;
/// let slept = service.spawn_on(ShardId::new(0), |timers| async move {
///     let begin = timers.now();
///     let mut sleep = timers.sleep(Duration::from_secs(3600));
///     sleep.reset(Duration::from_millis(2));
///     sleep.await?;
///     Ok::<_, corewheel::RefusedKind>(timers.now() - begin)
/// })?;
/// assert!(slept.wait()?? >= Duration::from_millis(2));
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a future does nothing unless it is awaited"]
pub struct LocalSleep {
    shard: Rc<dyn LocalShard>,
    deadline: Tick,
    phase: Phase,
    class: ClassId,
}

enum Phase {
    Unpolled,
    Waiting { key: TimerKey, sleeper: u32 },
    Done,
}

impl LocalSleep {
    pub(crate) fn new(shard: Rc<dyn LocalShard>, deadline: Tick, class: ClassId) -> Self {
        Self { shard, deadline, phase: Phase::Unpolled, class }
    }

    pub(crate) fn shard(&self) -> &Rc<dyn LocalShard> {
        &self.shard
    }

    /// When the future will be done: the deadline, rounded up to a tick.
    pub fn deadline(&self) -> Instant {
        self.shard.time().instant(self.deadline)
    }

    /// Whether the future is done.
    pub fn is_elapsed(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }

    /// Waits until something else is due instead, also after it was done.
    pub fn reset<W: When>(&mut self, when: W) {
        self.reset_to(self.shard.tick_of(when));
    }

    fn reset_to(&mut self, deadline: Tick) {
        self.deadline = deadline;
        if let Phase::Waiting { key, .. } = self.phase {
            if self.shard.reset(key, deadline) == ResetOutcome::Reset {
                return;
            }
        }
        self.release();
        self.phase = Phase::Unpolled;
    }

    fn release(&mut self) {
        if let Phase::Waiting { key, sleeper } = std::mem::replace(&mut self.phase, Phase::Done) {
            self.shard.abandon_sleep(key, sleeper);
        }
    }
}

impl Future for LocalSleep {
    type Output = Result<(), RefusedKind>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let core = &self.shard;
        match self.phase {
            Phase::Unpolled if core.is_closed() => Poll::Ready(Err(core.why_closed())),
            Phase::Unpolled => {
                match core.schedule_sleep(self.class, self.deadline, cx.waker().clone()) {
                    Some((key, sleeper)) => {
                        self.phase = Phase::Waiting { key, sleeper };
                        Poll::Pending
                    }
                    None => Poll::Ready(Err(RefusedKind::Full)),
                }
            }
            Phase::Waiting { sleeper, .. } => {
                let output = match core.poll_sleeper(sleeper, cx.waker()) {
                    Slept::NotYet => return Poll::Pending,
                    Slept::Fired => Ok(()),
                    Slept::Closed => Err(core.why_closed()),
                };
                core.release_sleeper(sleeper);
                self.phase = Phase::Done;
                Poll::Ready(output)
            }
            Phase::Done => Poll::Ready(Ok(())),
        }
    }
}

impl Drop for LocalSleep {
    fn drop(&mut self) {
        self.release();
    }
}

impl fmt::Debug for LocalSleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elapsed = self.is_elapsed();
        f.debug_struct("LocalSleep")
            .field("deadline", &self.deadline)
            .field("elapsed", &elapsed)
            .finish_non_exhaustive()
    }
}

/// Gives a future until the end of a sleep on this shard to be done. After 8 outputs in a row that
/// were ready at once, the task returns to its executor before it asks for another.
pub(crate) async fn within_here<F>(sleep: LocalSleep, future: F) -> Result<F::Output, TimeoutError>
where
    F: Future,
{
    let core = Rc::clone(sleep.shard());
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
    S: Future<Output = Result<(), RefusedKind>>,
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
                Ok(()) => TimeoutError::Elapsed,
                Err(error) => TimeoutError::NoTimer(error),
            })
        })
    })
    .await
}

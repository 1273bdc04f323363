//! The timers of this core, for whatever runs on it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::rc::{Rc, Weak};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use corewheel_shard::Tick;

use crate::face::Core;
use crate::face::callback::{LocalCall, Task};
use crate::face::client::Client;
use crate::face::sleep::{Sleep, within_here};
use crate::values::class::ClassId;
use crate::values::error::{ScheduleError, TimeoutError};
use crate::values::handle::{ShardId, TimerHandle};
use crate::values::outcome::{CancelOutcome, ResetOutcome};
use crate::values::scale::Scale;

/// When timers are due, worked out once for all that share it; made by
/// [`Timers::deadline_in`]. It means nothing to another service.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Deadline(pub(crate) Tick);

/// A shard, on its own core: `!Send`, and as cheap to clone as an [`Rc`].
///
/// Handlers and callbacks are given one, [`spawn_on`](crate::TimerService::spawn_on) hands one to
/// the future that it starts, and attaching a shard to an executor returns one.
///
/// A timer fires on the core that it was scheduled on. It never fires early. How late it fires is
/// bounded by a tick, what the executor does in between, and the budget of a turn; the statistics
/// show it. Delays begin when the method is called; one of zero fires in the next turn, any other
/// is rounded up to a tick, and so is a moment. A delay that does not fit (584 years) means never.
///
/// Each command costs a few cache lines; only callbacks allocate. A command that takes a delay, or
/// tells what was left of one, reads a clock that is never behind and at most some microseconds
/// ahead, for about ten nanoseconds. Those with `_at` in their names read none.
///
/// ```
/// use corewheel::{Fired, ManualClock, ResetOutcome, TimerService, Timers};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let builder = TimerService::builder().shards(1).clock(clock.clock());
/// let service = builder.start_attached::<&str>()?;
/// let shard = service.attach(service.shards().next().unwrap())?;
/// // The handler is given the timers too: here, a timer that fires begins the next one.
/// let mut shard = shard.into_loop(|timer: Fired<&str>, timers: &Timers<&str>| {
///     if timer.task == "handshake" {
///         timers.schedule(Duration::from_secs(60), "idle").expect("there is room");
///     }
/// })?;
/// let timers = shard.timers().clone();
///
/// let handshake = timers.schedule(Duration::from_secs(5), "handshake")?;
/// // Something was heard: later is one store.
/// assert_eq!(timers.reset(handshake, Duration::from_secs(8)), ResetOutcome::Moved);
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
    core: Rc<Core<T>>,
}

impl<T> Clone for Timers<T> {
    fn clone(&self) -> Self {
        Self { core: Rc::clone(&self.core) }
    }
}

impl<T> fmt::Debug for Timers<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Timers(..)")
    }
}

impl<T: Send + 'static> Timers<T> {
    pub(crate) fn new(core: Rc<Core<T>>) -> Self {
        Self { core }
    }

    #[inline]
    pub(crate) fn core(&self) -> &Rc<Core<T>> {
        &self.core
    }

    pub(crate) fn downgrade(&self) -> Weak<Core<T>> {
        Rc::downgrade(&self.core)
    }

    /// Schedules a typed timer, to be given to the service's handler on this core after `delay`.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the task.
    #[inline]
    pub fn schedule(&self, delay: Duration, task: T) -> Result<TimerHandle, ScheduleError<T>> {
        self.core.schedule_value(ClassId::NONE, self.core.deadline_after(delay), task)
    }

    /// The same, for a moment. One that has passed fires in the next turn.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the task.
    #[inline]
    pub fn schedule_at(&self, at: Instant, task: T) -> Result<TimerHandle, ScheduleError<T>> {
        self.core.schedule_value(ClassId::NONE, self.core.deadline_at(at), task)
    }

    /// Schedules a callback, to be run on this core after `delay`. It is boxed.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the callback.
    pub fn schedule_fn(
        &self,
        delay: Duration,
        call: impl FnOnce(&Self) + 'static,
    ) -> Result<TimerHandle, ScheduleError<LocalCall<T>>> {
        self.core.schedule_call(ClassId::NONE, self.core.deadline_after(delay), Box::new(call))
    }

    /// The same, for a moment. One that has passed fires in the next turn.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the callback.
    pub fn schedule_fn_at(
        &self,
        at: Instant,
        call: impl FnOnce(&Self) + 'static,
    ) -> Result<TimerHandle, ScheduleError<LocalCall<T>>> {
        self.core.schedule_call(ClassId::NONE, self.core.deadline_at(at), Box::new(call))
    }

    /// Ends a timer of this shard, and returns its task. One that is due but not delivered yet can
    /// still be cancelled; after `Cancelled` it has not run and will not.
    #[inline]
    pub fn cancel(&self, timer: TimerHandle) -> CancelOutcome<Task<T>> {
        if timer.home() != self.core.home() {
            return self.cancel_not_here(timer);
        }
        self.core.cancel(timer.key(), self.core.nanos_near())
    }

    /// The same, for who knows what time it is: no clock is read. What was left of the timer's time
    /// is counted from `now`.
    #[inline]
    pub fn cancel_at(&self, timer: TimerHandle, now: Instant) -> CancelOutcome<Task<T>> {
        if timer.home() != self.core.home() {
            return self.cancel_not_here(timer);
        }
        self.core.cancel(timer.key(), self.core.time().nanos_at(now))
    }

    /// What a cancel finds whose timer is of another shard or of another service.
    #[cold]
    pub(crate) fn cancel_not_here(&self, timer: TimerHandle) -> CancelOutcome<Task<T>> {
        if self.core.is_foreign(timer) {
            return CancelOutcome::Foreign;
        }
        CancelOutcome::Elsewhere(timer.shard())
    }

    /// What a reset finds whose timer is of another shard or of another service.
    #[cold]
    fn reset_not_here(&self, timer: TimerHandle) -> ResetOutcome {
        if self.core.is_foreign(timer) {
            return ResetOutcome::Foreign;
        }
        ResetOutcome::Elsewhere(timer.shard())
    }

    /// Moves a timer of this shard to `delay` from now. Later is one store.
    #[inline]
    pub fn reset(&self, timer: TimerHandle, delay: Duration) -> ResetOutcome {
        if timer.home() != self.core.home() {
            return self.reset_not_here(timer);
        }
        self.core.reset(timer.key(), self.core.deadline_after(delay))
    }

    /// Moves a timer of this shard to a moment. Later is one store.
    #[inline]
    pub fn reset_at(&self, timer: TimerHandle, at: Instant) -> ResetOutcome {
        if timer.home() != self.core.home() {
            return self.reset_not_here(timer);
        }
        self.core.reset(timer.key(), self.core.deadline_at(at))
    }

    /// The deadline of whatever begins now and takes `delay`: worked out once, for all timers that
    /// share it.
    ///
    /// A server that has read from many connections at once moves the idle timers of all of them to
    /// one deadline, and each then costs what it costs the wheel: no clock is read, and nothing is
    /// converted.
    ///
    /// ```
    /// # use corewheel::{Fired, TimerService, Timers};
    /// # use std::time::Duration;
    /// # let service: TimerService<u64> = TimerService::builder().shards(1).start_attached()?;
    /// # let shard = service.attach(service.shards().next().unwrap())?;
    /// # let shard = shard.into_loop(|_: Fired<u64>, _: &Timers<u64>| {})?;
    /// # let timers = shard.timers();
    /// # let begin = |n| timers.schedule(Duration::from_secs(1), n).unwrap();
    /// # let ready: Vec<_> = (0..3).map(begin).collect();
    /// let idle = timers.deadline_in(Duration::from_secs(30));
    /// for connection in ready {
    ///     let _moved = timers.reset_to(connection, idle);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn deadline_in(&self, delay: Duration) -> Deadline {
        Deadline(self.core.deadline_after(delay))
    }

    /// The deadline of whatever is due at a moment.
    #[inline]
    pub fn deadline_at(&self, at: Instant) -> Deadline {
        Deadline(self.core.deadline_at(at))
    }

    /// Schedules a typed timer by a deadline that was worked out before, by any shard of this
    /// service. One that has passed fires in the next turn.
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
        self.core.schedule_value(ClassId::NONE, deadline.0, task)
    }

    /// Moves a timer of this shard to a deadline that was worked out before. Later is one store.
    #[inline]
    pub fn reset_to(&self, timer: TimerHandle, deadline: Deadline) -> ResetOutcome {
        if timer.home() != self.core.home() {
            return self.reset_not_here(timer);
        }
        self.core.reset(timer.key(), deadline.0)
    }

    /// Waits for `delay`, beginning now. The timer is taken when the future is first polled, and
    /// given back when it is dropped.
    pub fn sleep(&self, delay: Duration) -> Sleep<T> {
        Sleep::new(self.clone(), self.core.deadline_after(delay), ClassId::NONE)
    }

    /// Waits until a moment.
    pub fn sleep_until(&self, at: Instant) -> Sleep<T> {
        Sleep::new(self.clone(), self.core.deadline_at(at), ClassId::NONE)
    }

    /// Gives a future `delay` from now to be done. A value that is ready at the same time as the
    /// deadline wins.
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

    /// Gives a future until a moment to be done.
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

    /// Counts one result that the task did not have to wait for, such as a packet. After 8 in a
    /// row the task returns to its executor, and goes on when the other tasks have had their turn.
    /// One call in 16 reads the clock, and wakes the shard's driver if its time has come.
    ///
    /// A task on a shard's thread that never waits, and uses neither
    /// [`ConnTimers::race`](crate::ConnTimers::race) nor [`timeout`](Self::timeout), which do this
    /// themselves, awaits it once for each packet. Without it a peer that sends without a pause
    /// delays all timers of the shard on glommio, by up to 100 ms and a multiple.
    pub async fn consume_budget(&self) {
        let mut is_first = true;
        poll_fn(|cx| {
            let at_once = std::mem::replace(&mut is_first, false);
            ready!(self.core.begin_poll(at_once, cx));
            self.core.note_ready(at_once, true);
            Poll::Ready(())
        })
        .await;
    }

    /// The commands onto other shards: over lanes, as from any other thread.
    ///
    /// Do not block for an answer here; await it.
    pub fn client(&self) -> &Client<T> {
        self.core.outbox()
    }

    /// Sets by what this shard scales its [`ScaledTimeouts`](crate::ScaledTimeouts), at once: what
    /// that makes due is delivered from the next turn on. Costs one timer for each of them.
    pub fn set_scale(&self, scale: Scale) {
        self.core.set_scale(scale);
    }

    /// By what this shard scales its [`ScaledTimeouts`](crate::ScaledTimeouts).
    pub fn scale(&self) -> Scale {
        self.core.scale()
    }

    /// The present moment, by the service's clock.
    pub fn now(&self) -> Instant {
        self.core.time().now()
    }

    /// Which shard this is.
    #[inline]
    pub fn shard_id(&self) -> ShardId {
        self.core.id()
    }

    /// When a timer of this shard is due: its deadline, rounded up to a tick. `None` if it is not
    /// pending here: it has fired, was cancelled, was moved away, or is another shard's or another
    /// service's.
    pub fn deadline(&self, timer: TimerHandle) -> Option<Instant> {
        let deadline = self.pending(timer)?;
        Some(self.core.time().instant(deadline))
    }

    /// How long a timer of this shard still has; zero if it is due. `None` if it is not pending
    /// here, or is another service's.
    pub fn remaining(&self, timer: TimerHandle) -> Option<Duration> {
        let deadline = self.pending(timer)?;
        Some(self.core.time().remaining(deadline, self.core.nanos_near()))
    }

    fn pending(&self, timer: TimerHandle) -> Option<Tick> {
        if timer.home() != self.core.home() {
            return None;
        }
        self.core.deadline_of(timer.key())
    }

    /// How many timers of this shard are pending.
    pub fn len(&self) -> usize {
        self.core.pending()
    }

    /// Whether no timer of this shard is pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

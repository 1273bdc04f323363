//! The timers of one shard, for code on the shard's own core.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use corewheel_shard::Tick;

use crate::clock::Timeline;
use crate::clock::when::{Deadline, When};
use crate::face::handle::Handle;
use crate::face::handle::sleep::Sleep;
use crate::shard::local::LocalShard;
use crate::shard::stored::Stored;
pub use crate::shard::timers::Timers;
use crate::shard::timers::{LocalCall, Payload};
use crate::values::class::{ClassId, TimerClass};
use crate::values::error::{ConfigError, TimeoutError};
use crate::values::ids::{ShardId, TimerId};
use crate::values::outcome::{CancelOutcome, ResetOutcome};
use crate::values::refused::Refused;
use crate::values::scale::Scale;

impl<T: Send + 'static> Timers<T> {
    /// A view of this shard that schedules timers of `class`. The statistics count them for the
    /// class. A view of any class cancels and resets the timers of all classes.
    ///
    /// The class is found by its name among those of the service. Keep the view where many timers
    /// are scheduled; it is as cheap to clone as an [`Rc`].
    ///
    /// # Errors
    ///
    /// The service has no such class.
    pub fn of_class(&self, class: TimerClass) -> Result<Self, ConfigError> {
        let class = self.core.directory().settings.classes.find(class)?;
        Ok(Self { core: Rc::clone(&self.core), class })
    }

    /// A view of this shard that schedules timers of the class of a handle, for work that came here
    /// by the handle. Without a class if the handle has none, or is of another service.
    #[must_use]
    pub fn with_class_of(&self, handle: Handle<T>) -> Self {
        let is_own = handle.is_of(self.core.directory().service);
        let class = if is_own { handle.class() } else { ClassId::NONE };
        Self { core: Rc::clone(&self.core), class }
    }

    /// Schedules a timer that carries a value, which is given to the service's handler on this core
    /// when it is due.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the value.
    #[inline]
    pub fn schedule<W: When>(&self, when: W, payload: T) -> Result<TimerId, Refused<T>> {
        self.core.schedule_value(self.class, self.core.tick_of(when), payload)
    }

    /// Schedules a callback, which is run on this core when it is due. It is boxed.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the callback.
    pub fn schedule_fn<W: When>(
        &self,
        when: W,
        call: impl FnOnce(&Self) + 'static,
    ) -> Result<TimerId, Refused<LocalCall<T>>> {
        let deadline = self.core.tick_of(when);
        self.core.schedule_call(self.class, deadline, Box::new(call))
    }

    /// Cancels a timer of this shard, and returns its payload. A timer that is due but not
    /// delivered yet can still be cancelled; after `Cancelled` it has not fired and will not. After
    /// the end of the shard no timer is pending: the outcome of one that the end has fired is
    /// `AlreadyFired`, and that of one that was returned or dropped is `Stale`.
    #[inline]
    pub fn cancel(&self, timer: TimerId) -> CancelOutcome<Payload<T>> {
        if timer.home() != self.core.home() {
            return self.home_of(timer).map_or(CancelOutcome::Foreign, CancelOutcome::Elsewhere);
        }
        self.core.cancel(timer.key(), self.core.nanos_near()).map(Payload::into_local)
    }

    /// The other shard of a timer of this service, which it has been asked for here.
    #[cold]
    fn home_of(&self, timer: TimerId) -> Option<ShardId> {
        timer.is_of(self.core.directory().service).then(|| timer.shard())
    }

    /// Changes the deadline of a timer of this shard. Later is one store.
    #[inline]
    pub fn reset<W: When>(&self, timer: TimerId, when: W) -> ResetOutcome {
        if timer.home() != self.core.home() {
            return self.home_of(timer).map_or(ResetOutcome::Foreign, ResetOutcome::Elsewhere);
        }
        self.core.reset(timer.key(), self.core.tick_of(when))
    }

    /// The deadline of everything that is due at a time: computed once, for all timers that share
    /// it.
    ///
    /// A server that has read from many connections at once resets the idle timers of all of them
    /// to one deadline. Each reset then costs what it costs the wheel: no clock is read, and
    /// nothing is converted.
    ///
    /// ```
    /// # use corewheel::TimerService;
    /// # use std::time::Duration;
    /// # let service = TimerService::builder().shards(1).start_attached_with::<u64>()?;
    /// # let shard = service.attach(service.shards().next().unwrap())?.into_loop(|_, _| {})?;
    /// # let timers = shard.timers();
    /// # let begin = |n| timers.schedule(Duration::from_secs(1), n).unwrap();
    /// # let ready: Vec<_> = (0..3).map(begin).collect();
    /// let idle = timers.deadline(Duration::from_secs(30));
    /// for connection in ready {
    ///     let _moved = timers.reset(connection, idle);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn deadline<W: When>(&self, when: W) -> Deadline {
        Deadline(self.core.tick_of(when))
    }

    /// Waits until something is due. The timer is armed when the future is first polled, and ended
    /// when it is dropped.
    ///
    /// The future is that of [`Handle::sleep`], and is done in the turn of the shard that fires its
    /// timer. So data that lies in a socket of the shard's executor at the deadline comes first.
    pub fn sleep<W: When>(&self, when: W) -> Sleep {
        let due = self.core.time().due_of(when, || self.core.nanos_near());
        let shard = Some(self.core.id());
        let service = self.core.directory().service;
        Sleep::done_by(true, Handle::<T>::of_parts(service, shard, self.class), due)
    }

    /// Gives a future time until something is due. A value that is ready at the same time as the
    /// deadline wins.
    ///
    /// # Errors
    ///
    /// The time was up, or no timer could be had; the future is dropped.
    pub fn timeout<W: When, F: Future>(
        &self,
        when: W,
        future: F,
    ) -> impl Future<Output = Result<F::Output, TimeoutError>> + use<W, F, T> {
        within(self.local(), self.sleep(when), future)
    }

    /// Counts one result that the task did not have to wait for, such as a packet. After 8 such
    /// results in a row the task returns to its executor, and goes on when the other tasks have
    /// run. One call in 16 reads the near clock, and wakes the shard's driver if its time has come.
    ///
    /// A task on a shard's thread awaits it once for each packet if it never waits and uses neither
    /// [`ConnTimers::race`](crate::ConnTimers::race) nor [`timeout`](Self::timeout), which do this
    /// themselves. Without it, on glommio, a peer that sends without a pause delays all timers of
    /// the shard by 100 ms and multiples.
    pub async fn consume_budget(&self) {
        let mut is_first = true;
        poll_fn(|cx| {
            let at_once = std::mem::replace(&mut is_first, false);
            let shard: &dyn LocalShard = &*self.core;
            ready!(shard.begin_poll(at_once, cx));
            shard.note_ready(at_once, true);
            Poll::Ready(())
        })
        .await;
    }

    /// A handle of the service, for commands to other shards, over lanes, as from any other thread.
    ///
    /// A shard's own thread does not block for a reply; it awaits it.
    pub fn handle(&self) -> Handle<T> {
        Handle::new(self.core.directory().service)
    }

    /// Sets the scale of this shard at once: of the limits of its connections, of `ScaledTimeouts`
    /// of the package `corewheel-kit`, and of [parts](crate::part::Part::scale_changed). Timeouts
    /// that the change makes due are delivered from the next turn on. O(parts); see
    /// [`TimerService::set_scale`](crate::TimerService::set_scale) for connections.
    pub fn set_scale(&self, scale: Scale) {
        self.core.order(|orders| orders.set_scale(scale));
    }

    /// The [scale](Self::set_scale) of this shard.
    pub fn scale(&self) -> Scale {
        self.core.scale()
    }

    /// The present, by the service's clock. It asks the system for the time.
    pub fn now(&self) -> Instant {
        self.core.time().now()
    }

    /// The conversions between ticks, nanoseconds and instants of the service.
    pub(crate) fn time(&self) -> &Timeline {
        self.core.time()
    }

    /// Which shard this is.
    #[inline]
    pub fn shard_id(&self) -> ShardId {
        self.core.id()
    }

    /// When a timer of this shard is due: its deadline, rounded up to a tick. `None` if the timer
    /// is not pending here: it has fired, was cancelled, or is of another shard or
    /// another service.
    pub fn due(&self, timer: TimerId) -> Option<Instant> {
        let deadline = self.pending(timer)?;
        Some(self.core.time().instant(deadline))
    }

    /// How long a timer of this shard still has; zero if it is due. `None` if it is not pending
    /// here, as for [`due`](Self::due).
    pub fn remaining(&self, timer: TimerId) -> Option<Duration> {
        let deadline = self.pending(timer)?;
        Some(self.core.time().remaining(deadline, self.core.nanos_near()))
    }

    /// The timer of this shard that is due first of those that carry a value, for a caller that
    /// gives up timers for want of room. `None` if no timer with a value is pending.
    ///
    /// Of several timers that are due in one tick it is any.
    ///
    /// Cost: amortised O(1) entries of the wheel, some 32, whatever was cancelled before, and O(log
    /// n) comparisons of numbers in one array. From the first call on, the shard keeps those that
    /// are due first in a heap: at most a sixteenth of its timers, at 16 bytes each, and those that
    /// are scheduled before them later. A single call looks at all timers of the slots to which it
    /// comes. A slot spans a tick for timers within 256 ticks, 256 ticks for those within 65,536,
    /// and so on.
    ///
    /// ```
    /// # use corewheel::TimerService;
    /// # use std::time::Duration;
    /// # let service = TimerService::builder().shards(1).start_attached_with::<&str>()?;
    /// # let shard = service.attach(service.shards().next().unwrap())?.into_loop(|_, _| {})?;
    /// # let timers = shard.timers();
    /// timers.schedule(Duration::from_millis(200), "later")?;
    /// timers.schedule(Duration::from_millis(100), "soon")?;
    /// let soonest = timers.soonest_value().unwrap();
    /// let outcome = timers.cancel(soonest);
    /// # let corewheel::CancelOutcome::Cancelled { payload, .. } = outcome else { panic!() };
    /// assert_eq!(payload.into_value(), Some("soon"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn soonest_value(&self) -> Option<TimerId> {
        self.core.soonest(|payload| matches!(payload, Stored::Value(_)))
    }

    fn pending(&self, timer: TimerId) -> Option<Tick> {
        if timer.home() != self.core.home() {
            return None;
        }
        self.core.deadline_of(timer.key())
    }

    /// The most timers that this shard holds.
    pub fn capacity(&self) -> u32 {
        self.core.capacity()
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

/// Gives a future until the end of a sleep on this shard to be done. After 8 outputs in a row that
/// were ready at once, the task returns to its executor before it asks for another.
async fn within<F: Future>(
    shard: Rc<dyn LocalShard>,
    sleep: Sleep,
    future: F,
) -> Result<F::Output, TimeoutError> {
    let (mut sleep, mut future) = (pin!(sleep), pin!(future));
    let mut is_first = true;
    poll_fn(|cx| {
        let at_once = std::mem::replace(&mut is_first, false);
        ready!(shard.begin_poll(at_once, cx));
        // The future first: a value that is there at the deadline is there in time.
        let output = match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => sleep.as_mut().poll(cx).map(|slept| {
                Err(slept.map_or_else(TimeoutError::NoTimer, |()| TimeoutError::Elapsed))
            }),
        };
        shard.note_ready(at_once, output.is_ready());
        output
    })
    .await
}

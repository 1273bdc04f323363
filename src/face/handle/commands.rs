//! The commands of a handle: timers with values and callbacks, from any thread.
//!
//! A command goes over the lane of the calling thread to the shard, which the thread opens when it
//! first needs it. When the thread ends, its lanes do; its timers go on.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use corewheel_shard::Tick;

use super::here::Reach;
use super::{Handle, Lanes, thread_lanes};
use crate::clock::when::When;
use crate::directory::orders::{Drain, Orders};
use crate::face::reply::Reply;
use crate::face::timers::Timers;
use crate::shard::request::{ReplySender, Request};
use crate::shard::timers::{Payload, SendCall};
use crate::values::class::ClassId;
use crate::values::contain::Each;
use crate::values::error::ReplyError;
use crate::values::ids::{ShardId, TimerId};
use crate::values::outcome::{CancelOutcome, ResetOutcome};
use crate::values::refused::{Refused, RefusedKind};
use crate::values::scale::Scale;

type Outcomes<T> = Vec<Result<CancelOutcome<Payload<T, SendCall<T>>>, ReplyError>>;

/// Commands, which go over the lanes of the calling thread.
impl<T: Send + 'static> Handle<T> {
    /// The lanes of this thread.
    #[inline]
    pub(crate) fn lanes(&self) -> Result<Rc<Lanes<T>>, RefusedKind> {
        self.thread.run(|| thread_lanes::of(self.service)).ok_or(RefusedKind::Closed)
    }

    /// The lanes of this thread, and the shard of the handle or of this thread.
    #[inline(always)]
    pub(crate) fn shard_lanes(&self) -> Result<(Rc<Lanes<T>>, ShardId), RefusedKind> {
        let lanes = self.lanes()?;
        // A shard that this thread drives, or else the one that it is given.
        let shard = self.shard.or_else(|| self.with_reach(Reach::shard).flatten());
        Ok((lanes, shard.ok_or(RefusedKind::Closed)?))
    }

    /// The class and the deadline of a timer, and the present in microseconds.
    #[inline]
    fn timer(&self, lanes: &Lanes<T>, when: impl When) -> (ClassId, Tick, u32) {
        let now = lanes.nanos();
        (self.class, lanes.tick_of(when, now), (now / 1_000) as u32)
    }

    /// Sends a request about a timer with the sender of its reply. A timer of another service has
    /// the reply `foreign`. The reply says that the service has ended if it has.
    fn ask<R>(
        &self,
        timer: TimerId,
        foreign: R,
        request: impl FnOnce(&Lanes<T>, ReplySender<R>) -> Request<T>,
    ) -> Reply<R> {
        if !timer.is_of(self.service) {
            return Reply::ready(foreign);
        }
        let (sender, reply) = Reply::of_result();
        if let Ok(lanes) = self.lanes() {
            lanes.send(timer.shard(), request(&lanes, sender));
        }
        reply
    }

    /// Schedules a timer that carries a value, which is given to the service's handler on the shard
    /// of the timer when it is due. That is the shard of the handle, or of this thread.
    ///
    /// # Errors
    ///
    /// `Full`, `Reserved`, `Busy`, `Closed` or `NoSuchShard`, with the value. The first schedule of
    /// a thread may be `Busy`: see [Commands](Self#commands).
    #[inline]
    pub fn schedule<W: When>(&self, when: W, payload: T) -> Result<TimerId, Refused<T>> {
        let (lanes, shard) = match self.shard_lanes() {
            Ok(found) => found,
            Err(kind) => return Err(kind.of(payload)),
        };
        let (class, deadline, sent_us) = self.timer(&lanes, when);
        let build = |value| Request::Schedule { deadline, sent_us, class, value };
        lanes.schedule(shard, class, payload, build, Request::into_value)
    }

    /// Schedules a timer that carries a value, as [`schedule`](Self::schedule) does. While the lane
    /// is [`Busy`](Refused::Busy) or the shard is [`NotAttached`](Refused::NotAttached), which is
    /// logged once for the shard, it tries again in the next tick.
    ///
    /// The deadline counts from this call; a timer whose deadline passes meanwhile fires as soon as
    /// it is scheduled. If the future is dropped before it is done, no timer is scheduled and the
    /// value is dropped with it.
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
    /// let shard = service.handle().on(ShardId::new(0));
    /// // The shard grants no thread so many keys at once.
    /// for value in 0..10_000 {
    ///     shard.schedule_when_room(Duration::from_secs(60), value).await?;
    /// }
    /// service.begin_shutdown(ShutdownPolicy::Drop)?.await;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Cost: that of `schedule` where there is room, and of a [`sleep`](Self::sleep) for each tick
    /// of a wait.
    ///
    /// # Errors
    ///
    /// The future returns `Full`, `Reserved`, `Closed` or `NoSuchShard`, with the value.
    pub fn schedule_when_room<W: When>(
        &self,
        when: W,
        payload: T,
    ) -> impl Future<Output = Result<TimerId, Refused<T>>> + use<W, T> {
        let (handle, deadline, mut payload) = (*self, self.deadline(when), payload);
        async move {
            loop {
                match handle.schedule(deadline, payload) {
                    Err(Refused::Busy(back) | Refused::NotAttached(back)) => payload = back,
                    sent => return sent,
                }
                // The refusal has woken the shard, which grants keys in its next turn.
                if let Err(kind) = handle.sleep(Duration::from_nanos(1)).await {
                    return Err(kind.of(payload));
                }
            }
        }
    }

    /// Schedules a callback, which is run on the shard of the timer when it is due. It is boxed.
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
    ) -> Result<TimerId, Refused<SendCall<T>>> {
        let call: SendCall<T> = Box::new(call);
        let (lanes, shard) = match self.shard_lanes() {
            Ok(found) => found,
            Err(kind) => return Err(kind.of(call)),
        };
        let (class, deadline, sent_us) = self.timer(&lanes, when);
        let build = |call| Request::Call { deadline, sent_us, class, call };
        lanes.schedule(shard, class, call, build, Request::into_call)
    }

    /// Cancels a timer; the reply is the outcome, with the payload. Await the reply, or
    /// [`wait`](Reply::wait) for it; the cancel is sent either way.
    ///
    /// A cancel cannot be refused. It may arrive before the timer does that another thread has
    /// sent. The reply for a timer of another service is `Foreign`, at once. It is
    /// [`ReplyError::Closed`](crate::ReplyError::Closed) if the shard has ended, or the service was
    /// dropped; the end has given the timer its outcome.
    pub fn cancel(&self, timer: TimerId) -> Reply<CancelOutcome<Payload<T, SendCall<T>>>> {
        self.ask(timer, CancelOutcome::Foreign, |_, sender| Request::Cancel {
            key: timer.key(),
            reply: Some(sender),
        })
    }

    /// Cancels timers of any shards; the reply has the outcome of each, in the order of the
    /// ids. A group of timers that end together, as those of a connection, is a list of their ids.
    ///
    /// The reply itself is never an error. An outcome is [`ReplyError::Closed`] where the shard of
    /// its timer has ended before it replied: for all timers of the service after a shutdown, and
    /// after the service was dropped. The shutdown has given each of them its outcome.
    ///
    /// The number of ids is not limited, and the command is never refused. Each cancel counts
    /// as a request, so a turn executes no more cancels than its budget allows. The reply is ready
    /// after the last cancel.
    ///
    /// For a timer that has not arrived yet from another thread, the reply waits until it arrives.
    /// A timer of another service is left as it is, and its outcome is `Foreign`.
    ///
    /// Cost: that of [`cancel`](Self::cancel) for each timer, and room for its reply and outcome.
    ///
    /// ```
    /// use std::time::Duration;
    /// use corewheel::{CancelOutcome, Fired, Runtime, TimerService, Timers};
    ///
    /// let service = TimerService::builder()
    ///     .shards(2)
    ///     .runtime(Runtime::Thread)
    ///     .start_with(|_| |_: Fired<u32>, _: &Timers<u32>| {})?;
    /// let handle = service.handle();
    /// // A connection that has its timers on both shards is closed.
    /// let minute = Duration::from_secs(60);
    /// let mut timers = Vec::new();
    /// for (n, shard) in handle.shards().enumerate() {
    ///     timers.push(handle.on(shard).schedule(minute, n as u32)?);
    /// }
    /// let outcomes = handle.cancel_many(&timers).wait()?;
    /// assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(done) if done.won())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel_many(&self, timers: &[TimerId]) -> Reply<Outcomes<T>> {
        let replies = timers.iter().map(|timer| self.cancel(*timer)).collect();
        let mut replies = Each(replies);
        Reply::gathered(async move {
            let mut outcomes = Each(Vec::with_capacity(replies.0.len()));
            for reply in &mut replies.0 {
                outcomes.0.push(reply.await);
            }
            outcomes.take()
        })
    }

    /// Cancels a timer and asks for no reply. A timer that has not fired when its shard receives
    /// the cancel will not. A timer of another service is left as it is.
    ///
    /// The shard drops the payload within a second, or in its first turn after that if its thread
    /// is held up. A shard that sleeps for longer is woken, and takes another turn a second later.
    /// So however many such cancels come, they wake it once in a second, unless they fill their
    /// lane. A shard that no thread drives yet drops the payload when it is driven.
    ///
    /// A timer that this thread has scheduled and not reset, and that the shard has not received,
    /// is marked as cancelled where it lies in the lane. That costs less than the request which it
    /// takes otherwise. Either way the clock is read only if the shard sleeps.
    #[inline]
    pub fn cancel_detached(&self, timer: TimerId) {
        if timer.is_of(self.service) {
            if let Some(lanes) = self.thread.run(|| thread_lanes::open(self.service)) {
                lanes.cancel_detached(timer);
            }
        }
    }

    /// Changes the deadline of a timer; the reply says whether it was still pending.
    ///
    /// A reset cannot be refused. It may arrive before the timer does that another thread has sent.
    /// The reply for a timer of another service is `Foreign`, at once.
    pub fn reset<W: When>(&self, timer: TimerId, when: W) -> Reply<ResetOutcome> {
        self.ask(timer, ResetOutcome::Foreign, |lanes, sender| Request::Reset {
            key: timer.key(),
            deadline: lanes.tick_of(when, lanes.nanos()),
            reply: Some(sender),
        })
    }

    /// Changes the deadline of a timer and asks for no reply. A timer of another service is left as
    /// it is.
    #[inline]
    pub fn reset_detached<W: When>(&self, timer: TimerId, when: W) {
        if timer.is_of(self.service) {
            if let Ok(lanes) = self.lanes() {
                let deadline = lanes.tick_of(when, lanes.nanos());
                let request = Request::Reset { key: timer.key(), deadline, reply: None };
                lanes.send(timer.shard(), request);
            }
        }
    }

    /// How long a timer still has: zero if it is due, `None` if it is not pending, has not arrived
    /// yet, or is of another service.
    pub fn remaining(&self, timer: TimerId) -> Reply<Option<Duration>> {
        self.ask(timer, None, |_, reply| Request::Remaining { key: timer.key(), reply })
    }

    /// Gives an order to the shard.
    fn order(&self, give: impl FnOnce(&Orders) -> bool) -> Result<(), RefusedKind> {
        let (lanes, shard) = self.shard_lanes()?;
        lanes.directory().order(shard, give)
    }

    /// Sets the [scale](crate::Timers::set_scale) of the shard. It takes effect in the shard's next
    /// turn, for which the shard is woken; if several scales are set before, the last one applies.
    ///
    /// Cost: the locks of the shard's mailbox and of the list of its connections on any thread. A
    /// turn takes them only if it has mail or orders. A scale that does not change costs no more.
    ///
    /// # Errors
    ///
    /// `Closed` or `NoSuchShard`.
    pub fn set_scale(&self, scale: Scale) -> Result<(), RefusedKind> {
        self.order(|orders| orders.set_scale(scale))
    }

    /// Drains the shard's connections, as [`TimerService::drain`](crate::TimerService::drain) does
    /// for all shards.
    ///
    /// # Errors
    ///
    /// `Closed` or `NoSuchShard`.
    pub fn drain(&self, window: Duration) -> Result<(), RefusedKind> {
        self.order(|orders| orders.set_drain(Drain::beginning(self.nanos(), window)))
    }

    /// Tells the `n` connections of the shard to end that have been idle for longest, as
    /// [`TimerService::close_idlest`](crate::TimerService::close_idlest) does on each shard.
    ///
    /// # Errors
    ///
    /// `Closed` or `NoSuchShard`.
    pub fn close_idlest(&self, n: usize) -> Result<(), RefusedKind> {
        self.order(|orders| orders.add_idlest(n))
    }
}

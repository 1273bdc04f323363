//! Commands to the shards of a service, from any thread.

mod lanes;
pub(crate) mod many;
mod migrate;
pub(crate) mod remote;

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewheel_shard::Tick;

use self::remote::RemoteTimers;
use super::callback::{Payload, SendCall};
use super::reply::Reply;
use super::{Directory, Request};
use crate::clock::NearClock;
use crate::clock::when::When;
use crate::link::lane::LaneSender;
use crate::shard::request::Bulk;
use crate::values::class::ClassId;
use crate::values::handle::{ServiceId, ShardId, TimerId};
use crate::values::outcome::{CancelOutcome, ResetOutcome};
use crate::values::refused::Refused;

/// Schedules, cancels and resets timers of any shard from any thread: `Send` but not `Sync`, so
/// each task has a clone instead of an `Arc` of one, and tasks that share use a [`Handle`].
///
/// Its thread drives another shard or none: it is a plain thread, or one of a runtime. A client in
/// an `Arc` does not compile in a spawned task, and neither does a reference to one across an
/// `await`. [`TimerService::client`](crate::TimerService::client) and a clone make clients, and
/// many tasks may share one in a `Mutex`. A [`Handle`] is `Copy`, `Send` and `Sync`, and makes
/// sleeps, timeouts and connections.
///
/// A client may be dropped at any time; its timers go on. It opens a lane to a shard when it first
/// needs one.
///
/// [`shard`](Self::shard) is the view of one shard, with which timers are scheduled. A timer has
/// its handle at once and costs its shard as much as a local timer. The handle names the shard, so
/// [`cancel`](Self::cancel) and [`reset`](Self::reset) are methods of the client itself.
///
/// [`Handle`]: crate::Handle
///
/// # The first schedule
///
/// A timer has its handle at once because the shard has granted keys to the client in advance. A
/// lane that is just opened has keys only as far as the shard has some in store for new clients,
/// and the next turn of the shard grants more. So a first schedule may be refused as
/// [`Busy`](Refused::Busy), and most are where dozens of clients begin within one turn: of 320
/// clients with one schedule each and no retry, 22 to 26 were accepted. The refusal has woken the
/// shard; try again after its turn. A task awaits
/// [`schedule_when_room`](RemoteTimers::schedule_when_room) instead, and a thread without an
/// executor blocks on it.
///
/// # Memory
///
/// A lane takes about 12 KiB by default: 8 bytes for each key that it may ever hold, which are a
/// 32nd of the shard's capacity and at most `lane_capacity`, and 64 bytes or more for each of 64
/// requests. More requests that wait take as much each, and the shard takes 8 bytes for each key
/// that the client holds. A client has a lane to each shard that it has sent to.
///
/// ```
/// use corewheel::{CancelOutcome, Runtime, ShardId, ShutdownPolicy, TimerService};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let (sender, fired) = mpsc::channel();
/// let builder = TimerService::builder().shards(2).runtime(Runtime::Thread);
/// let service: TimerService<u64> = builder.start_with(move |_| {
///     let sender = sender.clone();
///     move |fired, _| drop(sender.send(fired.payload))
/// })?;
/// let [first, second] = [0, 1].map(ShardId::new);
///
/// // A thread that drives no shard.
/// let client = service.client();
/// let worker = std::thread::spawn(move || {
///     let quick = client.shard(first).schedule(Duration::from_millis(2), 1).unwrap();
///     let slow = client.shard(second).schedule(Duration::from_secs(60), 2).unwrap();
///     // The thread blocks for the reply; a future would await it.
///     let cancelled = client.cancel(slow).wait().unwrap();
///     (quick, cancelled.payload().and_then(|payload| payload.into_value()))
/// });
/// let (quick, value) = worker.join().unwrap();
/// assert_eq!(value, Some(2), "the timer was cancelled, and its payload came back");
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
    /// The most keys with which a lane begins.
    keys_first: usize,
    lanes: RefCell<Vec<Option<LaneSender<Request<T>>>>>,
}

impl<T: Send + 'static> Client<T> {
    /// A view of one shard: what it schedules is scheduled there. It is a reference and two
    /// numbers, made without a look at the shard; commands to a shard that the service does not
    /// have are refused with `NoSuchShard`.
    #[inline]
    pub fn shard(&self, shard: ShardId) -> RemoteTimers<'_, T> {
        RemoteTimers::new(self, shard)
    }

    /// Cancels a timer; the reply is the outcome, with the payload. Await the reply, or
    /// [`wait`](Reply::wait) for it; the cancel is sent either way.
    ///
    /// A cancel cannot be refused. It may arrive before the timer does that another client has
    /// sent. The reply for a timer of another service is `Foreign`, at once.
    pub fn cancel(&self, timer: TimerId) -> Reply<CancelOutcome<Payload<T, SendCall<T>>>> {
        if !timer.is_of(self.service) {
            return Reply::ready(CancelOutcome::Foreign);
        }
        let (sender, reply) = Reply::of_outcome();
        self.send(timer.shard(), Request::Cancel { key: timer.key(), reply: Some(sender) });
        reply
    }

    /// Cancels a timer and asks for no reply. It does not wake the shard, which drops the payload
    /// when it next receives requests; a timer that has not fired by then will not. A timer of
    /// another service is left as it is.
    ///
    /// A timer that this client has scheduled and not reset, and that the shard has not received,
    /// is marked as cancelled where it lies in the lane. That costs less than the message which it
    /// takes otherwise.
    #[inline]
    pub fn cancel_detached(&self, timer: TimerId) {
        if !timer.is_of(self.service) {
            return;
        }
        if !self.cancel_in_lane(timer) {
            self.send(timer.shard(), Request::Cancel { key: timer.key(), reply: None });
        }
    }

    /// Changes the deadline of a timer; the reply says whether it was still pending.
    ///
    /// A reset cannot be refused. It may arrive before the timer does that another client has sent.
    /// The reply for a timer of another service is `Foreign`, at once.
    pub fn reset<W: When>(&self, timer: TimerId, when: W) -> Reply<ResetOutcome> {
        if !timer.is_of(self.service) {
            return Reply::ready(ResetOutcome::Foreign);
        }
        let (sender, reply) = Reply::of_outcome();
        let deadline = self.tick_of(when);
        let request = Request::Reset { key: timer.key(), deadline, reply: Some(sender) };
        self.send(timer.shard(), request);
        reply
    }

    /// Changes the deadline of a timer and asks for no reply. A timer of another service is left as
    /// it is.
    #[inline]
    pub fn reset_detached<W: When>(&self, timer: TimerId, when: W) {
        if !timer.is_of(self.service) {
            return;
        }
        let deadline = self.tick_of(when);
        self.send(timer.shard(), Request::Reset { key: timer.key(), deadline, reply: None });
    }

    /// How long a timer still has: zero if it is due, `None` if it is not pending, has not arrived
    /// yet, or is of another service.
    pub fn remaining(&self, timer: TimerId) -> Reply<Option<Duration>> {
        if !timer.is_of(self.service) {
            return Reply::ready(None);
        }
        let (sender, reply) = Reply::of_outcome();
        let bulk = Bulk::Remaining { key: timer.key(), reply: sender };
        self.send(timer.shard(), Request::Bulk(Box::new(bulk)));
        reply
    }

    /// The shards of the service.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> + use<T> {
        self.directory.shards()
    }

    /// How many shards the service has.
    pub fn shard_count(&self) -> usize {
        self.directory.shard_count()
    }

    /// The shard for a key: `hash % shard_count`. The hash may be the number of a connection, or
    /// come from a [`Hasher`](std::hash::Hasher); equal hashes name the same shard on every thread,
    /// as long as the service has as many shards.
    pub fn shard_for(&self, hash: u64) -> ShardId {
        self.directory.shard_for(hash)
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

    /// The tick at which something is due.
    #[inline]
    pub(crate) fn tick_of(&self, when: impl When) -> Tick {
        self.directory.time.tick_of(when, || self.clock.nanos())
    }

    #[inline]
    pub(crate) fn schedule_value(
        &self,
        class: ClassId,
        shard: ShardId,
        deadline: Tick,
        now: u64,
        payload: T,
    ) -> Result<TimerId, Refused<T>> {
        let sent_us = (now / 1_000) as u32;
        let build = |value| Request::Schedule { deadline, sent_us, class, value };
        self.schedule(shard, class, payload, build, Request::into_value)
    }

    pub(crate) fn schedule_call(
        &self,
        class: ClassId,
        shard: ShardId,
        deadline: Tick,
        now: u64,
        call: SendCall<T>,
    ) -> Result<TimerId, Refused<SendCall<T>>> {
        let sent_us = (now / 1_000) as u32;
        let build = |call| Request::Call { deadline, sent_us, class, call };
        self.schedule(shard, class, call, build, Request::into_call)
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

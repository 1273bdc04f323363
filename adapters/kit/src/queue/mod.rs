//! A queue whose values come out when their deadline has come.
//!
//! For a task that takes what is due at its own pace: retries with a back-off, leases, messages
//! that are delivered later. By hand it is a timer for each value, whose handler pushes it into a
//! list and wakes the task. That costs the shard a slot and a delivery for each value; a queue
//! takes no timer of the shard, and 14 KiB for a wheel of its own.
//!
//! ```
//! use corewheel::clock::ManualClock;
//! use corewheel::{Fired, TimerService, Timers};
//! use corewheel_kit::queue::DelayQueue;
//! use std::time::Duration;
//!
//! // A shard in a loop of our own, on a clock that we move; a server starts its service instead.
//! let clock = ManualClock::new();
//! let service = TimerService::builder().shards(1).clock(&clock).start_attached_with()?;
//! let attachment = service.attach(service.shards().next().unwrap())?;
//! let shard = attachment.into_loop(|_: Fired<()>, _: &Timers<()>| {})?;
//!
//! // Requests that have failed once, and are tried again after 100 ms.
//! let retries = DelayQueue::new(shard.timers());
//! let delay = Duration::from_millis(100);
//! retries.insert(("GET /a", 1), delay)?;
//! let second = retries.insert(("GET /b", 1), delay)?;
//!
//! // Another replica has answered the second request.
//! assert_eq!(retries.remove(second).unwrap().value, ("GET /b", 1));
//!
//! // A task awaits `retries.next()`; this takes what is due without waiting.
//! assert_eq!(retries.try_next(), None);
//! clock.advance(delay);
//! while let Some(retry) = retries.try_next() {
//!     // The request fails again, and is tried again after twice the delay.
//!     let (request, failures) = retry.value;
//!     retries.insert((request, failures + 1), delay * 2)?;
//! }
//! let next = retries.peek().unwrap();
//! assert_eq!(retries.due(next), Some(shard.timers().now() + delay * 2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The consumer takes the values at its own pace, one at a time or many at once. Where a callback
//! should run when the time has come, use [`Timers::schedule_fn`] or
//! [`KeyedTimers`](crate::keyed::KeyedTimers) instead.
//!
//! The names are those of tokio-util's `DelayQueue`.
//!
//! # From other threads
//!
//! [`Handle::keep`](corewheel::Handle::keep) makes a queue that any thread reaches by a
//! [`Kept`](corewheel::kept::Kept). A thread that waits for the values has a future on the shard
//! take them by [`next`](DelayQueue::next), and send them over a channel.
//!
//! ```
//! use corewheel::{TimerService, Timers};
//! use corewheel_kit::queue::DelayQueue;
//! use std::time::Duration;
//!
//! let service = TimerService::builder().shards(1).start()?;
//! let make = |timers: &Timers| DelayQueue::<&str>::new(timers);
//! let retries = service.handle().on(service.shard_for(0)).keep(make)?.wait()?;
//! let delay = Duration::from_millis(2);
//! let first = retries.try_run(move |retries| retries.insert("GET /a", delay))?.wait()??;
//! let second = retries.try_run(move |retries| retries.insert("GET /b", delay))?.wait()??;
//! let removed = retries.try_run(move |retries| retries.remove(first).is_some())?;
//! let reset = retries.try_run(move |retries| retries.reset(second, Duration::ZERO))?;
//! println!("removed: {}, reset: {}", removed.wait()?, reset.wait()?);
//! let due = retries.try_run(|retries| retries.try_next())?.wait()?;
//! assert!(due.is_none_or(|retry| retry.value == "GET /b"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Or the values of a service are commands, and its handler owns the queue:
//!
//! ```
//! use corewheel_kit::queue::{DelayKey, DelayQueue};
//! use corewheel::{Fired, TimerService, Timers};
//! use std::collections::HashMap;
//! use std::sync::mpsc;
//! use std::time::Duration;
//!
//! enum Command {
//!     Put(u64, Duration),
//!     Reset(u64, Duration),
//!     Cancel(u64),
//!     /// Sends the requests that are due.
//!     Take(mpsc::Sender<u64>),
//! }
//!
//! let service = TimerService::builder().shards(1).start_with(|_shard| {
//!     let mut queue: Option<DelayQueue<u64>> = None;
//!     let mut keys: HashMap<u64, DelayKey> = HashMap::new();
//!     move |fired: Fired<Command>, timers: &Timers<Command>| {
//!         let queue = queue.get_or_insert_with(|| DelayQueue::new(timers));
//!         match fired.payload {
//!             Command::Put(request, delay) => match queue.insert(request, delay) {
//!                 Ok(key) => {
//!                     keys.insert(request, key);
//!                 }
//!                 Err(refused) => eprintln!("request {request}: {refused}"),
//!             },
//!             Command::Reset(request, delay) => {
//!                 if let Some(key) = keys.get(&request) {
//!                     queue.reset(*key, delay);
//!                 }
//!             }
//!             Command::Cancel(request) => {
//!                 if let Some(key) = keys.remove(&request) {
//!                     queue.remove(key);
//!                 }
//!             }
//!             Command::Take(due) => {
//!                 while let Some(next) = queue.try_next() {
//!                     keys.remove(&next.value);
//!                     let _gone = due.send(next.value);
//!                 }
//!             }
//!         }
//!     }
//! })?;
//! let handle = service.handle();
//! let shard = handle.on(service.shard_for(0));
//! let (sender, due) = mpsc::channel();
//! let minute = Duration::from_secs(60);
//! let commands = [
//!     Command::Put(7, minute),
//!     Command::Put(8, Duration::ZERO),
//!     Command::Put(9, minute),
//!     Command::Cancel(8),
//!     Command::Reset(9, Duration::ZERO),
//! ];
//! for command in commands {
//!     shard.schedule(Duration::ZERO, command).map_err(|refused| refused.kind())?;
//! }
//! shard.schedule(Duration::from_millis(5), Command::Take(sender)).map_err(|r| r.kind())?;
//! assert_eq!(due.iter().collect::<Vec<_>>(), [9]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A callback of another thread reaches none: it is `Send`, and a queue that it makes is dropped
//! when it returns.
//!
//! # Cost
//!
//! 33 bytes for an 8-byte value, 14 KiB for each queue. Inserting, taking, removing and
//! resetting are O(1) and do not allocate.

mod inner;
mod waiters;

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use corewheel::{Refused, Timers, When};
#[doc(no_inline)]
pub use corewheel_shard::TimerKey as DelayKey;
use corewheel_shard::{ResetOutcome, Shard, ShardConfig};
use futures_core::Stream;

use self::inner::Inner;

/// A value that has expired, or that was taken out before: with its key and its deadline.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Expired<V, K = DelayKey> {
    /// The key of the value, which is free or stale by now.
    pub key: K,
    /// When the value was due: the deadline as asked for, rounded up to a tick.
    pub deadline: Instant,
    /// The value.
    pub value: V,
}

/// Values of one shard, each with a deadline. See the [module](self) for an example.
///
/// `!Send`. All methods take `&self`, so the tasks and callbacks of a core share a queue through an
/// [`Rc`], and other threads use it by a [`Kept`](corewheel::kept::Kept).
///
/// **Order.** Values come in the order of their deadlines; values of one tick come in the order in
/// which they were inserted. A value that is reset to a later tick takes any place among the values
/// of that tick. A value whose deadline had passed when it was inserted comes after the values that
/// were due before. No value comes early. A value that is due stays in the queue until it is taken;
/// until then it can be [removed](Self::remove) and [reset](Self::reset).
///
/// **Keys.** A key is never reused: once its value has left the queue, the key is stale, and each
/// method answers that there is no such value. A key belongs to its queue; in another queue it may
/// name another value.
///
/// **Tasks.** Any number of tasks may wait. All of them are woken when a value is due, and the
/// first that polls takes it. After 512 values in a row, a task yields to the other tasks of its
/// core.
///
/// **Class.** A queue counts for no class; [`len`](Self::len) has its values.
///
/// **Shutdown.** When the shard is shut down, values that are due can still be taken. The other
/// values stay in the queue, to be [removed](Self::remove) or [drained](Self::drain).
///
/// **Cost.** A queue [takes part in turns](corewheel::part::Part::takes_turns). A method that takes
/// a delay reads the near clock; a method that takes values reads the system's clock when no value
/// is due by its last reading.
pub struct DelayQueue<V: 'static> {
    inner: Rc<Inner<V>>,
    /// The place of the task that polls the queue itself.
    place: usize,
}

impl<V> DelayQueue<V> {
    /// A queue on this shard, for as many values as the shard can have timers. Their memory is
    /// reserved now, and touched as it comes into use.
    ///
    /// # Panics
    ///
    /// If there is no memory for that many.
    pub fn new<T: Send + 'static>(timers: &Timers<T>) -> Self {
        let capacity = timers.capacity();
        let config = ShardConfig { capacity, level_slots: 64, ..ShardConfig::default() };
        let values = Shard::new(config).expect("there is memory for as many values as timers");
        let inner = timers.add_part(|shard| Inner::new(shard, values));
        let place = inner.waiters.enter();
        DelayQueue { inner, place }
    }
}

/// Inserting, resetting and removing.
impl<V> DelayQueue<V> {
    /// Inserts a value. If its deadline has passed, it is due at once.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the value.
    pub fn insert<W: When>(&self, value: V, when: W) -> Result<DelayKey, Refused<V>> {
        let deadline = self.inner.shard.deadline(when);
        if self.inner.shard.is_closed() {
            return Err(Refused::Closed(value));
        }
        let inserted = self.inner.values.borrow_mut().schedule(deadline.into(), value);
        let key = inserted.map_err(|full| Refused::Full(full.0))?;
        self.inner.aim(deadline);
        Ok(key)
    }

    /// Changes the deadline of a value, whether it is due or not. False if the key is stale.
    pub fn reset<W: When>(&self, key: DelayKey, when: W) -> bool {
        let deadline = self.inner.shard.deadline(when);
        let outcome = self.inner.values.borrow_mut().reset(key, deadline.into());
        let is_reset = outcome == ResetOutcome::Reset;
        if is_reset {
            self.inner.aim(deadline);
        }
        is_reset
    }

    /// Takes a value out, whether it is due or not. `None` if the key is stale.
    pub fn remove(&self, key: DelayKey) -> Option<Expired<V>> {
        let deadline = self.due(key)?;
        let value = self.inner.values.borrow_mut().cancel(key).payload()?;
        self.inner.note_taken();
        Some(Expired { key, deadline, value })
    }

    /// Takes all values out, due or not, in the order of their deadlines. The order of values of
    /// one tick is not defined.
    pub fn drain(&self) -> Vec<Expired<V>> {
        let mut drained: Vec<_> = self.inner.values.borrow_mut().drain().collect();
        drained.sort_by_key(|expired| expired.deadline);
        self.inner.note_taken();
        drained.into_iter().map(|expired| self.inner.expired(expired)).collect()
    }
}

/// Taking values that are due.
impl<V> DelayQueue<V> {
    /// Takes the next value if it is due. Does not wait.
    pub fn try_next(&self) -> Option<Expired<V>> {
        let due = self.inner.take();
        self.inner.note_taken();
        due
    }

    /// Appends up to `max` values that are due to `buffer`, and returns how many they are. Does not
    /// wait, and allocates only where the buffer grows.
    pub fn drain_expired_into(&self, buffer: &mut Vec<Expired<V>>, max: usize) -> usize {
        let before = buffer.len();
        buffer.extend(std::iter::from_fn(|| self.inner.take()).take(max));
        self.inner.note_taken();
        buffer.len() - before
    }

    /// Waits until a value is due, and takes it. `None` if the queue is or becomes empty, or if the
    /// shard is closed and no value is due: for a task that works until nothing is left.
    ///
    /// The future may be dropped at any time; no value is lost with it.
    pub async fn next(&self) -> Option<Expired<V>> {
        self.wait_for_due(false).await
    }

    /// Waits until a value is due, and takes it. Waits also while the queue is empty. `None` if the
    /// shard is closed and no value is due: for a task that lives as long as its shard.
    ///
    /// The future may be dropped at any time; no value is lost with it.
    pub async fn recv(&self) -> Option<Expired<V>> {
        self.wait_for_due(true).await
    }

    async fn wait_for_due(&self, waits_while_empty: bool) -> Option<Expired<V>> {
        let place = Place::new(&self.inner);
        poll_fn(|cx| self.inner.poll(place.index, waits_while_empty, cx)).await
    }
}

/// Queries.
impl<V> DelayQueue<V> {
    /// The key of a value with the earliest deadline, due or not. `None` if the queue is empty.
    ///
    /// Cost: amortised O(1) values, and O(log n) comparisons of numbers: see
    /// [`Shard::soonest`](corewheel_shard::Shard::soonest).
    pub fn peek(&self) -> Option<DelayKey> {
        self.inner.values.borrow_mut().soonest(|_| true)
    }

    /// When a value is due: its deadline, rounded up to a tick. `None` if the key is stale.
    pub fn due(&self, key: DelayKey) -> Option<Instant> {
        let deadline = self.inner.values.borrow().deadline(key)?;
        Some(self.inner.instant(deadline))
    }

    /// The number of values, due or not.
    pub fn len(&self) -> usize {
        self.inner.values.borrow().len()
    }

    /// Whether the queue has no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The place of one waiting task, which is left when this is dropped.
struct Place<'a, V: 'static> {
    inner: &'a Inner<V>,
    index: usize,
}

impl<'a, V> Place<'a, V> {
    fn new(inner: &'a Inner<V>) -> Self {
        Self { inner, index: inner.waiters.enter() }
    }
}

impl<V> Drop for Place<'_, V> {
    fn drop(&mut self) {
        self.inner.shard.drop_each(self.inner.waiters.leave(self.index));
    }
}

/// The stream ends when the queue is empty, and goes on when a value is inserted after that. The
/// task that has polled last is woken.
impl<V> Stream for DelayQueue<V> {
    type Item = Expired<V>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Expired<V>>> {
        self.inner.poll(self.place, false, cx)
    }
}

impl<V> fmt::Debug for DelayQueue<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayQueue").field("len", &self.len()).finish_non_exhaustive()
    }
}

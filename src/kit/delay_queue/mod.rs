//! Values that come out of a queue when their time has come.
//!
//! Retries with a back-off, cache entries, leases: the caller takes them out at its own pace, one
//! by one or many at once, where a timer's callback is run by the shard.
//!
//! The names are those of tokio-util's `DelayQueue`. Why a wheel of its own, and not a timer of the
//! shard for each value: what is due stays in the queue until it is taken, and can be removed or
//! moved as before; and the shard has one timer for all of them, the alarm.
//!
//! Invariants: where there are values there is an alarm, so that no timer is wanting when one is to
//! be waited for; it rings no later than the first value is due while a task waits, and not at all
//! while none does. Nothing is borrowed while a waker or a value's `Drop` runs. Absent by design:
//! a task of its own.
//!
//! Cost: 33 bytes for an 8-byte value, 14 KiB for each queue. Putting in, taking out, removing and
//! moving are O(1) and do not allocate.

mod waiters;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use corewheel_shard::{
    Budget, Expired as ShardExpired, ResetOutcome, Shard, ShardConfig, Tick, TimerKey,
};
use futures_core::Stream;

use self::waiters::Waiters;
use crate::face::callback::SharedCall;
use crate::face::timers::Timers;
use crate::shard::hooks::CloseListener;
use crate::values::capacity::{CAPACITY, check, no_memory};
use crate::values::class::ClassId;
use crate::values::error::{Closed, ConfigError};
use crate::values::expired::{DelayKey, Expired, InsertError};
use crate::values::outcome;

/// How many values a task is given before others have their turn, and how many it looks at.
const TURN: Budget = Budget { expired_max: u32::MAX, work_max: 1_024 };
const GIVEN_MAX: u32 = 512;

/// Values of one shard, each with a deadline, that can be taken out when that has come.
///
/// `!Send`. All methods take `&self`, so a queue that several tasks and callbacks of its core use
/// lies in an [`Rc`]. Values come in the order of their deadlines, and those of one tick in the
/// order in which they were put in; one that is moved to a later tick takes a place somewhere among
/// those of that tick. One whose time had passed when it was put in comes after what was due before
/// it. None comes early, and how late it may be taken is up to who takes it: until then it is in
/// the queue, due or not, and can be [removed](Self::remove) and [moved](Self::reset).
///
/// Any number of tasks may wait; all are woken when something is due, and the first to look has it.
/// A task that takes one value after the other lets others have their turn after 512 of them.
///
/// When the shard is shut down, what is due can still be taken, nothing is waited for any more, and
/// the rest is there to be [removed](Self::remove) or [drained](Self::drain).
///
/// Cost: one timer of the shard for as long as there are values, and until what was the first
/// deadline has passed. A method that takes a delay reads the near clock; taking out asks the
/// system for the time when nothing more is due by the last time that it did.
///
/// ```
/// use std::time::Duration;
/// use corewheel::{DelayQueue, Fired, ManualClock, TimerService};
///
/// let clock = ManualClock::new();
/// let builder = TimerService::builder().shards(1).clock(clock.clock());
/// let service = builder.start_attached::<()>()?;
/// let shard = service.shards().next().unwrap();
/// let shard = service.attach(shard)?.into_loop(|_: Fired<()>, _: &_| {})?;
///
/// let retries = DelayQueue::new(shard.timers());
/// let first = retries.insert("GET /a", Duration::from_millis(100))?;
/// let second = retries.insert("GET /b", Duration::from_millis(200))?;
/// assert_eq!(retries.peek(), Some(first));
///
/// // The first has been answered, the second may try earlier.
/// assert_eq!(retries.remove(first).map(|retry| retry.value), Some("GET /a"));
/// assert!(retries.reset(second, Duration::from_millis(50)));
/// assert!(retries.try_next().is_none(), "it is not due");
///
/// // A task would await `retries.next()`.
/// clock.advance(Duration::from_millis(50));
/// let retry = retries.try_next().unwrap();
/// assert_eq!((retry.key, retry.value), (second, "GET /b"));
/// assert!(!retries.reset(second, Duration::ZERO), "its key names nothing any more");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DelayQueue<V: 'static, T: Send + 'static = std::convert::Infallible> {
    inner: Rc<Inner<V, T>>,
    /// Where the task waits that polls the queue itself.
    place: usize,
}

struct Inner<V: 'static, T: Send + 'static> {
    timers: Timers<T>,
    shard: RefCell<Shard<V>>,
    waiters: Waiters,
    /// What the alarm calls.
    ring: SharedCall<T>,
    /// The timer of the shard, and when it rings.
    alarm: Cell<Option<(TimerKey, Tick)>>,
    /// How many values were given to tasks one after the other.
    given: Cell<u32>,
}

/// What is found when the next value is wanted.
enum Look<V> {
    Due(Expired<V>),
    /// That took so much work that the rest is left for later.
    Busy,
    Later,
    Empty,
}

/// What a task is told that waits.
enum Told<V> {
    Due(Expired<V>),
    Empty,
    Closed,
}

/// Making one, putting in, moving and removing.
impl<V, T: Send + 'static> DelayQueue<V, T> {
    /// A queue on the shard of `timers`, for up to 65,536 values.
    ///
    /// # Panics
    ///
    /// If there is no memory for that.
    pub fn new(timers: &Timers<T>) -> Self {
        Self::with_capacity(timers, CAPACITY).expect("there is memory for 65,536 values")
    }

    /// A queue for up to so many values, 1 to 2³⁰. Memory for them is reserved now and touched as
    /// it comes into use.
    ///
    /// # Errors
    ///
    /// A capacity that is out of its range or for which there is no memory.
    pub fn with_capacity(timers: &Timers<T>, capacity: u32) -> Result<Self, ConfigError> {
        let room = check("capacity", capacity)?;
        let core = timers.core();
        let start = core.time().floor(core.nanos());
        let config = ShardConfig { capacity, level_slots: 64, start, ..ShardConfig::default() };
        let shard = Shard::new(config).map_err(|_| no_memory("capacity", room))?;
        let waiters = Waiters::default();
        let place = waiters.enter();
        let inner = Rc::new_cyclic(|inner: &Weak<Inner<V, T>>| {
            let inner = inner.clone();
            let ring = move |_: &Timers<T>, _| {
                if let Some(inner) = inner.upgrade() {
                    inner.ring();
                }
            };
            Inner {
                timers: timers.clone(),
                shard: RefCell::new(shard),
                waiters,
                ring: Rc::new(ring),
                alarm: Cell::new(None),
                given: Cell::new(0),
            }
        });
        let closing: Weak<Inner<V, T>> = Rc::downgrade(&inner);
        core.parts().on_close(closing);
        Ok(Self { inner, place })
    }

    /// Puts a value in that is due in `delay` from now. A delay that does not fit (584 years) means
    /// never.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the value.
    pub fn insert(&self, value: V, delay: Duration) -> Result<DelayKey, InsertError<V>> {
        self.inner.insert(value, self.inner.timers.core().deadline_after(delay))
    }

    /// The same, for a moment. If that has passed, the value is due now.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the value.
    pub fn insert_at(&self, value: V, at: Instant) -> Result<DelayKey, InsertError<V>> {
        self.inner.insert(value, self.inner.timers.core().deadline_at(at))
    }

    /// Moves a value to `delay` from now, whether it is due or not. False if the key names nothing
    /// any more.
    pub fn reset(&self, key: DelayKey, delay: Duration) -> bool {
        self.inner.reset(key, self.inner.timers.core().deadline_after(delay))
    }

    /// Moves a value to a moment, whether it is due or not. False if the key names nothing any
    /// more.
    pub fn reset_at(&self, key: DelayKey, at: Instant) -> bool {
        self.inner.reset(key, self.inner.timers.core().deadline_at(at))
    }

    /// Takes a value out, whether it is due or not. `None` if the key names nothing any more.
    pub fn remove(&self, key: DelayKey) -> Option<Expired<V>> {
        self.inner.remove(key)
    }

    /// The same, by the name that it has in tokio-util, where [`remove`](Self::remove) panics.
    pub fn try_remove(&self, key: DelayKey) -> Option<Expired<V>> {
        self.inner.remove(key)
    }

    /// Takes all values out, due or not, in the order of their deadlines; those of one tick in no
    /// particular one.
    pub fn drain(&self) -> Vec<Expired<V>> {
        let inner = &*self.inner;
        let mut drained: Vec<_> = inner.shard.borrow_mut().drain().collect();
        drained.sort_by_key(|expired| expired.deadline);
        inner.note_taken();
        drained.into_iter().map(|expired| inner.expired(expired)).collect()
    }

    /// Drops all values, due or not.
    pub fn clear(&self) {
        self.inner.timers.core().drop_each(self.drain());
    }
}

/// Taking out what is due.
impl<V, T: Send + 'static> DelayQueue<V, T> {
    /// The next value that is due, if there is one. It does not wait.
    pub fn try_next(&self) -> Option<Expired<V>> {
        let due = self.inner.take();
        self.inner.note_taken();
        due
    }

    /// Appends what is due to `buffer`, `max` values at most, and says how many they were. It does
    /// not wait. Nothing is allocated but by the buffer.
    pub fn drain_expired_into(&self, buffer: &mut Vec<Expired<V>>, max: usize) -> usize {
        let before = buffer.len();
        buffer.extend(std::iter::from_fn(|| self.inner.take()).take(max));
        self.inner.note_taken();
        buffer.len() - before
    }

    /// Waits until a value is due, and takes it. `None` if the queue is empty, or becomes so, or
    /// when the shard is closed and nothing more is due.
    ///
    /// Dropped at whatever point, it takes nothing with it.
    pub async fn next(&self) -> Option<Expired<V>> {
        let place = Place::new(&self.inner);
        match poll_fn(|cx| self.inner.poll(place.index, false, cx)).await {
            Told::Due(expired) => Some(expired),
            Told::Empty | Told::Closed => None,
        }
    }

    /// Waits until a value is due, and takes it. Where the queue is empty, it waits for one to be
    /// put in as well: for a task that lives as long as the shard.
    ///
    /// # Errors
    ///
    /// The shard is closed, and nothing more is due.
    pub async fn wait(&self) -> Result<Expired<V>, Closed> {
        let place = Place::new(&self.inner);
        match poll_fn(|cx| self.inner.poll(place.index, true, cx)).await {
            Told::Due(expired) => Ok(expired),
            Told::Empty | Told::Closed => Err(Closed),
        }
    }

    /// The same as [`next`](Self::next), as a plain poll. The task that has polled last is woken.
    pub fn poll_expired(&self, cx: &mut Context<'_>) -> Poll<Option<Expired<V>>> {
        self.inner.poll(self.place, false, cx).map(|told| match told {
            Told::Due(expired) => Some(expired),
            Told::Empty | Told::Closed => None,
        })
    }
}

/// Questions.
impl<V, T: Send + 'static> DelayQueue<V, T> {
    /// The value that comes next, due or not: the first of those with the earliest deadline. `None`
    /// if the queue is empty.
    ///
    /// It looks at those that are filed together with it: where it is due within 256 ticks at those
    /// of one tick, else at those within 256 ticks, within 16,384, and so on.
    pub fn peek(&self) -> Option<DelayKey> {
        self.inner.shard.borrow().peek().map(DelayKey)
    }

    /// When a value is due: its deadline, rounded up to a tick. `None` if the key names nothing any
    /// more.
    pub fn deadline(&self, key: DelayKey) -> Option<Instant> {
        let deadline = self.inner.shard.borrow().deadline(key.0);
        deadline.map(|tick| self.inner.instant(tick))
    }

    /// How long it is until a value is due; zero if it is. `None` if the key names nothing any
    /// more.
    pub fn remaining(&self, key: DelayKey) -> Option<Duration> {
        let deadline = self.inner.shard.borrow().deadline(key.0)?;
        let core = self.inner.timers.core();
        Some(core.time().remaining(deadline, core.nanos_near()))
    }

    /// How many values there are, due or not.
    pub fn len(&self) -> usize {
        self.inner.shard.borrow().len()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many values there is room for, those included that are there.
    pub fn capacity(&self) -> usize {
        self.inner.shard.borrow().capacity()
    }

    /// The shard's timers.
    pub fn timers(&self) -> &Timers<T> {
        &self.inner.timers
    }
}

impl<V, T: Send + 'static> Inner<V, T> {
    fn insert(&self, value: V, deadline: Tick) -> Result<DelayKey, InsertError<V>> {
        if self.timers.core().is_closed() {
            return Err(InsertError::Closed(value));
        }
        let inserted = self.shard.borrow_mut().schedule(deadline, value);
        let key = DelayKey(inserted.map_err(|full| InsertError::Full(full.0))?);
        if self.note_deadline(deadline) {
            return Ok(key);
        }
        // Nothing has run meanwhile that could have taken it.
        match self.remove(key) {
            Some(expired) => Err(InsertError::Full(expired.value)),
            None => Ok(key),
        }
    }

    fn reset(&self, key: DelayKey, deadline: Tick) -> bool {
        let outcome = self.shard.borrow_mut().reset(key.0, deadline);
        if outcome != ResetOutcome::Moved {
            return false;
        }
        if !self.note_deadline(deadline) {
            self.wake_all();
        }
        true
    }

    fn remove(&self, key: DelayKey) -> Option<Expired<V>> {
        let deadline = self.shard.borrow().deadline(key.0)?;
        let value = self.shard.borrow_mut().cancel(key.0).task()?;
        self.note_taken();
        Some(Expired { key, deadline: self.instant(deadline), value })
    }

    /// The next value that is due, at whatever work.
    fn take(&self) -> Option<Expired<V>> {
        loop {
            match self.look() {
                Look::Due(expired) => return Some(expired),
                Look::Busy => {}
                Look::Later | Look::Empty => return None,
            }
        }
    }

    #[inline]
    fn look(&self) -> Look<V> {
        let mut shard = self.shard.borrow_mut();
        if let Some(expired) = shard.pop_expired() {
            return Look::Due(self.expired(expired));
        }
        if shard.is_empty() {
            return Look::Empty;
        }
        let core = self.timers.core();
        shard.advance(core.time().floor(core.nanos()), TURN);
        match shard.pop_expired() {
            Some(expired) => Look::Due(self.expired(expired)),
            None if shard.is_behind() => Look::Busy,
            None => Look::Later,
        }
    }

    fn poll(&self, place: usize, stays: bool, cx: &mut Context<'_>) -> Poll<Told<V>> {
        if self.given.get() >= GIVEN_MAX {
            return self.pause(cx);
        }
        let closed = self.timers.core().is_closed();
        let told = match self.look() {
            Look::Due(expired) => {
                self.given.set(self.given.get() + 1);
                Told::Due(expired)
            }
            Look::Busy => return self.pause(cx),
            Look::Later | Look::Empty if closed => Told::Closed,
            Look::Empty if !stays => Told::Empty,
            Look::Later | Look::Empty => return self.wait(place, stays, cx),
        };
        self.waiters.rest(place);
        self.note_taken();
        Poll::Ready(told)
    }

    /// Lets others have their turn.
    fn pause(&self, cx: &mut Context<'_>) -> Poll<Told<V>> {
        self.given.set(0);
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn wait(&self, place: usize, stays: bool, cx: &mut Context<'_>) -> Poll<Told<V>> {
        self.given.set(0);
        self.waiters.wait(place, cx.waker());
        // Only now, as the waker is the user's code and may have put something in.
        let next = self.shard.borrow().next_deadline();
        let is_settled = match next {
            Some(next) => self.aim(next),
            None => stays,
        };
        if is_settled { Poll::Pending } else { self.pause(cx) }
    }

    /// A value is due at `deadline`. False if there is no timer to be had for the alarm.
    #[inline]
    fn note_deadline(&self, deadline: Tick) -> bool {
        // For nobody it need not ring.
        self.aim(if self.waiters.is_waiting() { deadline } else { Tick::NEVER })
    }

    /// Values may have gone: who waits for one of them is told where none is left.
    #[inline]
    fn note_taken(&self) {
        if self.waiters.is_waiting() && self.shard.borrow().is_empty() {
            self.wake_all();
        }
    }

    /// Sets the alarm to this tick, unless it rings before that. It may wake the driver, by a waker
    /// that is the user's. False if there is no timer to be had.
    #[inline]
    fn aim(&self, at: Tick) -> bool {
        matches!(self.alarm.get(), Some((_, rings)) if rings <= at) || self.aim_earlier(at)
    }

    fn aim_earlier(&self, at: Tick) -> bool {
        let core = self.timers.core();
        if let Some((key, _)) = self.alarm.get() {
            // What it wakes finds it as it is.
            self.alarm.set(Some((key, at)));
            if core.reset(key, at) == outcome::ResetOutcome::Moved {
                return true;
            }
            self.alarm.set(None);
        }
        // The driver is woken when the alarm is known: it may take a turn in which the alarm rings.
        let _compound = core.compound();
        let key = core.schedule_shared(ClassId::NONE, at, &self.ring, 0);
        self.alarm.set(key.map(|key| (key, at)));
        key.is_some()
    }

    /// The alarm rings.
    fn ring(&self) {
        self.alarm.set(None);
        if !self.shard.borrow().is_empty() {
            // The timer that has just gone is free, and kept.
            self.aim(Tick::NEVER);
        }
        self.wake_all();
    }

    fn wake_all(&self) {
        self.waiters.wake_all(|waker| self.contain(|| waker.wake()));
    }

    /// Runs something of the user's.
    fn contain(&self, run: impl FnOnce()) {
        self.timers.core().contain(run);
    }

    fn expired(&self, expired: ShardExpired<V>) -> Expired<V> {
        let ShardExpired { key, deadline, task } = expired;
        Expired { key: DelayKey(key), deadline: self.instant(deadline), value: task }
    }

    fn instant(&self, tick: Tick) -> Instant {
        self.timers.core().time().instant(tick)
    }
}

impl<V, T: Send + 'static> CloseListener for Inner<V, T> {
    fn closed(&self) {
        self.alarm.set(None);
        self.wake_all();
    }
}

impl<V, T: Send + 'static> Drop for Inner<V, T> {
    fn drop(&mut self) {
        if let Some((alarm, _)) = self.alarm.get() {
            self.timers.core().cancel_shared(alarm);
        }
        let values: Vec<_> = self.shard.get_mut().drain().collect();
        self.timers.core().drop_each(values);
    }
}

/// The place of one task that waits; it is left when this is dropped.
struct Place<'a, V: 'static, T: Send + 'static> {
    inner: &'a Inner<V, T>,
    index: usize,
}

impl<'a, V, T: Send + 'static> Place<'a, V, T> {
    fn new(inner: &'a Inner<V, T>) -> Self {
        Self { inner, index: inner.waiters.enter() }
    }
}

impl<V, T: Send + 'static> Drop for Place<'_, V, T> {
    fn drop(&mut self) {
        self.inner.waiters.leave(self.index);
    }
}

/// Ends when the queue is empty, and goes on when something is put in after that.
impl<V, T: Send + 'static> Stream for DelayQueue<V, T> {
    type Item = Expired<V>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Expired<V>>> {
        self.poll_expired(cx)
    }
}

/// The same for a queue that others use as well.
impl<V, T: Send + 'static> Stream for &DelayQueue<V, T> {
    type Item = Expired<V>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Expired<V>>> {
        self.poll_expired(cx)
    }
}

impl<V, T: Send + 'static> fmt::Debug for DelayQueue<V, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayQueue")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

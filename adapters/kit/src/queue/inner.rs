//! The state that a queue, its alarm and the tasks that wait for it share.
//!
//! The values lie in a wheel of their own. The service's shard has one timer for all of them, the
//! alarm, which wakes the waiting tasks.
//!
//! Why not a timer of the shard for each value: a value that is due stays in the queue until it is
//! taken, and can be removed or reset until then.
//!
//! Invariants: while there are values there is an alarm, so a task that begins to wait needs no
//! timer that the shard could refuse. The alarm rings no later than the first value is due, whether
//! a task waits or the caller looks after each turn; it does not ring again for values that are due
//! and are not taken. Nothing is borrowed while a waker or the `Drop` of a value runs.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use corewheel::part::{Part, PartHandle, PartTimer};
use corewheel::stats::ClassStats;
use corewheel::{Deadline, Refused};
use corewheel_shard::{
    Budget, Expired as ShardExpired, ResetOutcome as ShardReset, Shard, Tick, TimerKey,
};

use super::waiters::Waiters;
use super::{DelayKey, Expired};
use crate::ages::Ages;

/// The work of one poll. The shard's other tasks have their turn after it.
const POLL_BUDGET: Budget = Budget { expired_max: u32::MAX, work_max: 1_024 };
/// How many values tasks take in a row before the shard's other tasks have their turn.
const TAKEN_MAX: u32 = 512;

pub(super) struct Inner<V: 'static> {
    pub(super) shard: PartHandle,
    pub(super) values: RefCell<Shard<V>>,
    pub(super) waiters: Waiters,
    /// Whether values count for the class: until the shard has ended.
    is_counted: Cell<bool>,
    /// `None` if the queue was made without a class.
    ages: Option<RefCell<Ages>>,
    /// The timer of the shard, and when it rings. None while the queue has had no value since the
    /// last ring.
    alarm: Cell<Option<(PartTimer, Deadline)>>,
    /// How many values tasks have taken in a row, up to [`TAKEN_MAX`].
    taken: Cell<u32>,
}

/// The next value, if it is due.
enum Next<V> {
    Due(Expired<V>),
    /// The budget was used up before the wheel came to the present.
    Busy,
    NotDue,
    Empty,
}

impl<V> Inner<V> {
    pub(super) fn new(shard: PartHandle, mut values: Shard<V>) -> Self {
        // The wheel comes to the present, as long as it is empty.
        values.advance(shard.tick(), POLL_BUDGET);
        let _none = values.pop_expired();
        let ages = shard.has_class().then(|| {
            let mut ages = Ages::default();
            ages.reserve(values.capacity());
            RefCell::new(ages)
        });
        Self {
            shard,
            values: RefCell::new(values),
            waiters: Waiters::default(),
            is_counted: Cell::new(true),
            ages,
            alarm: Cell::new(None),
            taken: Cell::new(0),
        }
    }

    #[inline]
    pub(super) fn insert(&self, value: V, deadline: Deadline) -> Result<DelayKey, Refused<V>> {
        if self.shard.is_closed() {
            return Err(self.shard.why_closed().of(value));
        }
        // The first value needs the alarm, which the shard may refuse. The driver is woken when the
        // value is in the queue.
        let is_first = self.alarm.get().is_none();
        let _compound = is_first.then(|| self.shard.compound());
        if is_first && !self.aim(deadline) {
            self.count(|counts| counts.refused += 1);
            return Err(Refused::Full(value));
        }
        let inserted = self.values.borrow_mut().schedule(deadline.into(), value);
        let key = match inserted {
            Ok(key) => DelayKey(self.begin(key)),
            Err(full) => {
                self.count(|counts| counts.refused += 1);
                return Err(Refused::Full(full.0));
            }
        };
        self.aim_or_wake(deadline);
        Ok(key)
    }

    #[inline]
    pub(super) fn reset(&self, key: DelayKey, deadline: Deadline) -> bool {
        let outcome = self.values.borrow_mut().reset(key.0, deadline.into());
        let is_reset = outcome == ShardReset::Reset;
        if is_reset {
            self.aim_or_wake(deadline);
        }
        is_reset
    }

    #[inline]
    pub(super) fn remove(&self, key: DelayKey) -> Option<Expired<V>> {
        let deadline = self.values.borrow().deadline(key.0)?;
        let value = self.values.borrow_mut().cancel(key.0).payload()?;
        self.count_removed([key.0]);
        self.note_taken();
        Some(Expired { key, deadline: self.instant(deadline), value })
    }

    pub(super) fn drain(&self) -> Vec<Expired<V>> {
        let mut drained: Vec<_> = self.values.borrow_mut().drain().collect();
        self.count_removed(drained.iter().map(|expired| expired.key));
        drained.sort_by_key(|expired| expired.deadline);
        self.note_taken();
        drained.into_iter().map(|expired| self.expired(expired)).collect()
    }

    /// The next value that is due, whatever work it takes to find it. If none is due, the alarm is
    /// set to the next deadline, so that the shard takes a turn then.
    #[inline]
    pub(super) fn take(&self) -> Option<Expired<V>> {
        loop {
            match self.next() {
                Next::Due(expired) => return Some(expired),
                Next::Busy => {}
                Next::NotDue => {
                    let next = self.values.borrow().next_deadline();
                    self.aim_or_wake(next.unwrap_or(Tick::NEVER).into());
                    return None;
                }
                Next::Empty => return None,
            }
        }
    }

    #[inline]
    fn next(&self) -> Next<V> {
        let next = self.pop();
        if let Next::Due(Expired { key, .. }) = &next {
            if let Some(mut ages) = self.ages() {
                let is_first = ages.first() == Some(key.0.index());
                ages.end(key.0.index());
                if is_first {
                    self.note_first(&ages);
                }
                self.count(|counts| {
                    counts.pending -= 1;
                    counts.fired += 1;
                });
            }
        }
        next
    }

    /// Takes the next value out if it is due. Reads the clock when no value is due by the last
    /// reading.
    #[inline]
    fn pop(&self) -> Next<V> {
        let mut values = self.values.borrow_mut();
        if let Some(expired) = values.pop_expired() {
            return Next::Due(self.expired(expired));
        }
        if values.is_empty() {
            return Next::Empty;
        }
        values.advance(self.shard.tick(), POLL_BUDGET);
        match values.pop_expired() {
            Some(expired) => Next::Due(self.expired(expired)),
            None if values.is_behind() => Next::Busy,
            None => Next::NotDue,
        }
    }

    /// Polls for the next value that is due. `waits_while_empty` if an empty queue is not the end.
    pub(super) fn poll(
        &self,
        place: usize,
        waits_while_empty: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Expired<V>>> {
        if self.taken.get() >= TAKEN_MAX {
            return self.pause(cx);
        }
        let closed = self.shard.is_closed();
        let waited = match self.next() {
            Next::Due(expired) => {
                self.taken.set(self.taken.get() + 1);
                Some(expired)
            }
            Next::Busy => return self.pause(cx),
            Next::NotDue | Next::Empty if closed => None,
            Next::Empty if !waits_while_empty => None,
            Next::NotDue | Next::Empty => return self.wait(place, waits_while_empty, cx),
        };
        self.waiters.unregister(place, &self.shard);
        self.note_taken();
        Poll::Ready(waited)
    }

    /// Ends a poll early; the task is polled again after the shard's other tasks.
    fn pause(&self, cx: &mut Context<'_>) -> Poll<Option<Expired<V>>> {
        self.taken.set(0);
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn wait(
        &self,
        place: usize,
        waits_while_empty: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Expired<V>>> {
        self.taken.set(0);
        self.waiters.register(place, cx.waker(), &self.shard);
        // After the registration, since cloning a waker runs code of the user, which may have
        // inserted a value.
        let next = self.values.borrow().next_deadline();
        let is_waiting = match next {
            Some(next) => self.aim(next.into()),
            None => waits_while_empty,
        };
        if is_waiting { Poll::Pending } else { self.pause(cx) }
    }

    /// A value is due at `deadline`. If the shard refuses the alarm, the waiting tasks look for
    /// themselves.
    #[inline]
    fn aim_or_wake(&self, deadline: Deadline) {
        if !self.aim(deadline) {
            self.wake_all();
        }
    }

    /// Values may have been taken. If none is left, the tasks that wait for one are woken.
    #[inline]
    pub(super) fn note_taken(&self) {
        if self.waiters.is_waiting() && self.values.borrow().is_empty() {
            self.wake_all();
        }
    }

    /// Sets the alarm, unless it rings before that. It may wake the driver, whose waker
    /// is code of the user. False if the shard refuses the alarm.
    #[inline]
    fn aim(&self, at: Deadline) -> bool {
        matches!(self.alarm.get(), Some((_, rings)) if rings <= at) || self.aim_earlier(at)
    }

    fn aim_earlier(&self, at: Deadline) -> bool {
        if let Some((key, _)) = self.alarm.get() {
            // Before the reset, which may wake the driver.
            self.alarm.set(Some((key, at)));
            if self.shard.reset(key, at) {
                return true;
            }
            self.alarm.set(None);
        }
        // The driver is woken when the alarm is stored: it may take a turn in which the alarm
        // rings.
        let _compound = self.shard.compound();
        // The values count for the class, the alarm does not.
        let timer = self.shard.schedule_uncounted(at, 0).ok();
        self.alarm.set(timer.map(|timer| (timer, at)));
        timer.is_some()
    }

    /// The alarm rings.
    fn ring(&self) {
        self.alarm.set(None);
        let next = self.values.borrow().next_deadline();
        if let Some(next) = next {
            // A value that is due already stays in the queue until it is taken: the alarm does not
            // ring for it again. The slot of the timer that has just rung is free, so the shard
            // does not refuse.
            let is_due = self.shard.time_left(next.into()).is_zero();
            self.aim(if is_due { Tick::NEVER } else { next }.into());
        }
        self.wake_all();
    }

    fn wake_all(&self) {
        self.waiters.wake_all(|waker| {
            self.shard.contain(|| waker.wake());
        });
    }

    /// Counts for the class of the queue.
    #[inline]
    fn count(&self, count: impl FnMut(&mut ClassStats)) {
        if self.is_counted.get() {
            self.shard.count(count);
        }
    }

    /// Counts a value that has come.
    #[inline]
    fn begin(&self, key: TimerKey) -> TimerKey {
        if let Some(mut ages) = self.ages() {
            ages.begin(key.index(), self.shard.since_start());
            if ages.first() == Some(key.index()) {
                self.note_first(&ages);
            }
            self.count(|counts| {
                counts.scheduled += 1;
                counts.pending += 1;
            });
        }
        key
    }

    /// Counts values that were removed, drained or dropped with the queue, whether due or not.
    fn count_removed(&self, removed: impl IntoIterator<Item = TimerKey>) {
        let Some(mut ages) = self.ages() else { return };
        let mut count = 0;
        for key in removed {
            ages.end(key.index());
            count += 1;
        }
        self.count(|counts| {
            counts.pending -= count;
            counts.cancelled += count;
        });
        self.note_first(&ages);
    }

    /// The oldest value may be another one.
    fn note_first(&self, ages: &Ages) {
        self.shard.set_oldest(ages.oldest().map(|since| self.shard.instant_after(since)));
    }

    /// `None` without a class, and when the shard has ended.
    #[inline]
    fn ages(&self) -> Option<RefMut<'_, Ages>> {
        self.ages.as_ref().filter(|_| self.is_counted.get()).map(RefCell::borrow_mut)
    }

    #[inline]
    fn expired(&self, expired: ShardExpired<V>) -> Expired<V> {
        let ShardExpired { key, deadline, payload } = expired;
        Expired { key: DelayKey(key), deadline: self.instant(deadline), value: payload }
    }

    #[inline]
    pub(super) fn instant(&self, tick: Tick) -> Instant {
        self.shard.instant_of(tick.into())
    }
}

impl<V> Part for Inner<V> {
    fn expired(self: Rc<Self>, _index: u32) {
        self.ring();
    }

    fn closed(&self, _is_dead: bool) {
        self.alarm.set(None);
        let left = self.values.borrow().len() as u64;
        self.count(|counts| {
            counts.pending -= left;
            counts.returned += left;
        });
        self.is_counted.set(false);
        self.shard.set_oldest(None);
        self.wake_all();
    }
}

impl<V> Drop for Inner<V> {
    fn drop(&mut self) {
        if let Some((alarm, _)) = self.alarm.get() {
            self.shard.cancel(alarm);
        }
        let values: Vec<_> = self.values.get_mut().drain().collect();
        self.count_removed(values.iter().map(|expired| expired.key));
        self.shard.drop_each(values);
    }
}

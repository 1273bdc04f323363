//! The state that a queue and the tasks that wait for it share.
//!
//! The values lie in a wheel of their own. The queue asks the shard for a turn when the first of
//! them is due, in which it wakes the waiting tasks, and has no timer of the shard.
//!
//! Why not a timer of the shard for each value: a value that is due stays in the queue until it is
//! taken, and can be removed or reset until then.
//!
//! Invariants: while there are values there is an alarm, no later than the first value is due,
//! whether a task waits or the caller looks after each turn. It does not ring again for values that
//! are due and are not taken. Nothing is borrowed while a waker or the `Drop` of a value runs.

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use corewheel::Deadline;
use corewheel::part::{Part, PartHandle, Wants};
use corewheel_shard::{Budget, Expired as ShardExpired, Shard, Tick};

use super::Expired;
use super::waiters::Waiters;

/// The work of one poll. The shard's other tasks have their turn after it.
const POLL_BUDGET: Budget = Budget { expired_max: u32::MAX, work_max: 1_024 };
/// How many values tasks take in a row before the shard's other tasks have their turn.
const TAKEN_MAX: u32 = 512;

pub(super) struct Inner<V: 'static> {
    pub(super) shard: PartHandle,
    pub(super) values: RefCell<Shard<V>>,
    pub(super) waiters: Waiters,
    /// When the waiting tasks are to be woken. `None` while the queue has had no value since they
    /// were.
    alarm: Cell<Option<Deadline>>,
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
        Self {
            shard,
            values: RefCell::new(values),
            waiters: Waiters::default(),
            alarm: Cell::new(None),
            taken: Cell::new(0),
        }
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
                    self.aim(next.unwrap_or(Tick::NEVER).into());
                    return None;
                }
                Next::Empty => return None,
            }
        }
    }

    /// Takes the next value out if it is due. Reads the clock when no value is due by the last
    /// reading.
    #[inline]
    fn next(&self) -> Next<V> {
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
        self.shard.drop_each(self.waiters.unregister(place));
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
        self.shard.drop_each(self.waiters.register(place, cx.waker()));
        // After the registration, since cloning a waker runs code of the user, which may have
        // inserted a value.
        let next = self.values.borrow().next_deadline();
        if let Some(next) = next {
            self.aim(next.into());
        } else if !waits_while_empty {
            return self.pause(cx);
        }
        Poll::Pending
    }

    /// Values may have been taken. If none is left, the tasks that wait for one are woken.
    #[inline]
    pub(super) fn note_taken(&self) {
        if self.values.borrow().is_empty() {
            self.wake_all();
        }
    }

    /// Sets the alarm, unless it rings before that. It may wake the driver, whose waker is code of
    /// the user.
    #[inline]
    pub(super) fn aim(&self, at: Deadline) {
        if self.alarm.get().is_none_or(|rings| at < rings) {
            self.alarm.set(Some(at));
            self.shard.wake_past(at);
        }
    }

    fn wake_all(&self) {
        self.waiters.wake_all(|waker| {
            self.shard.contain(|| waker.wake());
        });
    }

    #[inline]
    pub(super) fn expired(&self, expired: ShardExpired<V>) -> Expired<V> {
        let ShardExpired { key, deadline, payload } = expired;
        Expired { key, deadline: self.instant(deadline), value: payload }
    }

    #[inline]
    pub(super) fn instant(&self, tick: Tick) -> Instant {
        self.shard.instant_of(tick.into())
    }
}

impl<V> Part for Inner<V> {
    fn takes_turns(&self) -> bool {
        true
    }

    /// Wakes the waiting tasks if the alarm rings.
    fn turn_begins(&self, _now: Duration) {
        let Some(alarm) = self.alarm.get() else { return };
        let now = Deadline::from(self.shard.tick());
        if alarm <= now {
            let next = self.values.borrow().next_deadline().map(Deadline::from);
            // A value that is due already stays in the queue until it is taken.
            self.alarm.set(next.filter(|next| *next > now));
            self.wake_all();
        }
    }

    fn wants(&self) -> Wants {
        self.alarm.get().map_or(Wants::Nothing, Wants::TurnBy)
    }

    fn closed(&self, _is_dead: bool) {
        self.alarm.set(None);
        self.wake_all();
    }
}

impl<V> Drop for Inner<V> {
    fn drop(&mut self) {
        self.shard.drop_each(self.values.get_mut().drain());
    }
}

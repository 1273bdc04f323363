//! What keeps tasks that are always ready from holding up the shard that they share a thread with.
//!
//! An executor may leave its alarms unread while its tasks are ready to run: glommio reads them
//! once in a preempt timer's period then, and it has no budget that makes a task return whose
//! socket is always ready. So the tasks read the clock for the shard, once in [`LOOKS`] results,
//! and wake the driver if its time has come; and a task returns to its executor after [`READY_MAX`]
//! results in a row that it did not have to wait for.
//!
//! Why not a shorter preempt timer: glommio 0.9 may then park with tasks that are ready to run.
//!
//! Cost: the first poll for a result adds one to a count, and one in 16 reads the near clock.

use std::cell::Cell;
use std::task::{Context, Poll};

use corewheel_shard::Tick;

use super::Core;
use super::payload::Payload;

/// One result in so many reads the clock.
const LOOKS: u32 = 16;
/// The most results in a row that are handed out without a return to the executor.
const READY_MAX: u32 = 8;

pub(super) struct PollBudget {
    polls: Cell<u32>,
    /// How many results in a row were ready at the first poll.
    ready: Cell<u32>,
    /// How many there may be: [`READY_MAX`], or 1 while the driver waits for the sockets.
    ready_max: Cell<u32>,
    /// Makes the executor run the driver's task queue next.
    prefer_driver: Cell<Option<fn()>>,
}

impl PollBudget {
    pub(super) fn new() -> Self {
        Self {
            polls: Cell::new(0),
            ready: Cell::new(0),
            ready_max: Cell::new(READY_MAX),
            prefer_driver: Cell::new(None),
        }
    }
}

impl<P: Payload> Core<P> {
    /// Has a function called by tasks that keep the core busy while the driver is ready to run, for
    /// an executor that would not run it before those tasks.
    #[allow(dead_code, reason = "only some executors need it")]
    pub(crate) fn set_prefer_driver(&self, prefer: fn()) {
        self.budget.prefer_driver.set(Some(prefer));
    }

    /// Says whether the driver waits until the sockets are read. Meanwhile a task returns after
    /// each result, so that the wait is no longer than it must be.
    #[allow(dead_code, reason = "only drivers in executors wait for the sockets")]
    pub(crate) fn set_waits_for_sockets(&self, waits: bool) {
        self.budget.ready_max.set(if waits { 1 } else { READY_MAX });
    }

    /// Counts one result that a task asks for. One in 16 reads the clock, and wakes the driver if
    /// its time has come. Nothing may be borrowed.
    #[inline]
    pub(crate) fn count_poll(&self) {
        let polls = self.budget.polls.get().wrapping_add(1);
        self.budget.polls.set(polls);
        if polls.is_multiple_of(LOOKS) {
            let _wanted = self.is_wanted();
        }
    }

    /// Begins one poll for a result, `is_first` if the task has not waited for that result yet.
    /// Pending if the task must return to its executor before it asks: its waker has been woken.
    #[inline]
    pub(crate) fn begin_poll(&self, is_first: bool, cx: &Context<'_>) -> Poll<()> {
        if is_first {
            self.count_poll();
            if self.budget.ready.get() >= self.budget.ready_max.get() {
                return self.send_back(cx);
            }
        }
        Poll::Ready(())
    }

    #[cold]
    fn send_back(&self, cx: &Context<'_>) -> Poll<()> {
        self.budget.ready.set(0);
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Notes whether a result was there without a wait, which its first poll tells.
    #[inline]
    pub(crate) fn note_ready(&self, is_first: bool, is_ready: bool) {
        if is_first {
            let ready = if is_ready { self.budget.ready.get().saturating_add(1) } else { 0 };
            self.budget.ready.set(ready);
        }
    }

    /// Whether the driver has something to do; wakes it if its time has come. For tasks that keep
    /// the core busy, and with it the executor from reading its alarms.
    #[inline(never)]
    pub(crate) fn is_wanted(&self) -> bool {
        let until = self.asleep_until.get();
        if until > Tick::ZERO {
            if until > self.time().floor(self.nanos_near()) {
                return false;
            }
            self.wake_driver();
        }
        if let Some(prefer) = self.budget.prefer_driver.get()
            && !self.closed.get()
        {
            prefer();
        }
        true
    }
}

//! The poll budget: it keeps tasks that are always ready from delaying the shard on their thread.
//!
//! An executor may not read its alarms while tasks are ready to run: glommio reads them only once
//! in each period of its preempt timer then, and it has no budget that makes a task return whose
//! socket is always ready. So the tasks read the clock for the shard, once in
//! [`POLLS_PER_CLOCK_READ`] results, and wake the driver if its time has come. And a task returns
//! to its executor after [`READY_MAX`] results in a row for which it did not have to wait.
//!
//! Why not a shorter preempt timer: glommio may then park although tasks are ready to run.
//!
//! Cost: the first poll for a result adds 1 to a count, and every 16th of these polls reads the
//! near clock.

use std::cell::Cell;
use std::task::{Context, Poll};

use corewheel_shard::Tick;

use super::base::Base;

/// One result in this many reads the clock.
const POLLS_PER_CLOCK_READ: u32 = 16;
/// The most results in a row without a return to the executor.
const READY_MAX: u32 = 8;

pub(super) struct PollBudget {
    /// The number of first polls; it wraps around.
    polls: Cell<u32>,
    /// How many results in a row were ready at the first poll.
    ready: Cell<u32>,
    /// The limit of `ready`: [`READY_MAX`], or 1 while the driver waits for the sockets.
    ready_max: Cell<u32>,
    /// Makes the executor run the driver's task queue next. `None` if the executor does not need
    /// it.
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

impl Base {
    /// Notes whether the first poll for a result was ready. Later polls change nothing.
    #[inline]
    pub(crate) fn note_ready(&self, is_first: bool, is_ready: bool) {
        if is_first {
            let ready = if is_ready { self.budget.ready.get().saturating_add(1) } else { 0 };
            self.budget.ready.set(ready);
        }
    }

    /// Begins a poll for a result, `is_first` if the task has not polled for that result before.
    /// Pending if the task must return to its executor first; its waker has been woken then.
    pub(crate) fn begin_poll(&self, is_first: bool, cx: &Context<'_>) -> Poll<()> {
        if is_first {
            self.count_poll();
            if self.budget.ready.get() >= self.budget.ready_max.get() {
                self.budget.ready.set(0);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }

    /// Counts a poll for a result. One in [`POLLS_PER_CLOCK_READ`] reads the clock, and wakes the
    /// driver if its time has come. Nothing may be borrowed.
    pub(crate) fn count_poll(&self) {
        let polls = self.budget.polls.get().wrapping_add(1);
        self.budget.polls.set(polls);
        if polls % POLLS_PER_CLOCK_READ == 0 {
            let _is_awake = self.wake_driver_if_due();
        }
    }

    /// Sets a function that tasks call while they keep the core busy and the driver is ready to
    /// run, for an executor that would run those tasks before the driver.
    pub(crate) fn set_prefer_driver(&self, prefer: fn()) {
        self.budget.prefer_driver.set(Some(prefer));
    }

    /// Sets whether the driver waits until the executor has read the sockets. Meanwhile a task
    /// returns to the executor after each result, so that the wait is short.
    pub(crate) fn set_waits_for_sockets(&self, waits: bool) {
        self.budget.ready_max.set(if waits { 1 } else { READY_MAX });
    }

    /// Wakes the driver if it sleeps and its deadline has passed. Returns whether the driver is
    /// awake. For tasks that keep the core busy and so keep the executor from reading its alarms.
    #[inline(never)]
    pub(crate) fn wake_driver_if_due(&self) -> bool {
        let until = self.asleep_until.get();
        if until > Tick::ZERO {
            if until > self.time().floor(self.nanos_near()) {
                return false;
            }
            self.wake_driver();
        }
        if let Some(prefer) = self.budget.prefer_driver.get() {
            if !self.closed.get() {
                prefer();
            }
        }
        true
    }
}

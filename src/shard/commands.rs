//! The commands of a shard's own thread.

use std::time::{Duration, Instant};

use corewheel_shard::{CancelOutcome as ShardCancel, ResetOutcome as ShardReset, Tick, TimerKey};

use super::payload::Payload;
use super::{Core, State};
use crate::values::class::ClassId;
use crate::values::error::{ScheduleError, ScheduleManyError};
use crate::values::handle::TimerHandle;
use crate::values::outcome::{CancelOutcome, ResetOutcome};

impl<P: Payload> Core<P> {
    /// Schedules a timer with a value.
    #[inline]
    pub(crate) fn schedule_value(
        &self,
        class: ClassId,
        deadline: Tick,
        value: P::Value,
    ) -> Result<TimerHandle, ScheduleError<P::Value>> {
        if self.is_closed() {
            return Err(ScheduleError::Closed(value));
        }
        match self.schedule(class, deadline, P::of_value(value)) {
            Ok(key) => Ok(self.handle_of(key)),
            Err(payload) => match payload.into_value() {
                Some(value) => Err(ScheduleError::Full(value)),
                None => unreachable!("a refusal returns what was given"),
            },
        }
    }

    /// Schedules a timer. `Err` with the payload if the shard is full. The caller has made sure
    /// that the shard is not closed.
    #[inline]
    pub(crate) fn schedule(
        &self,
        class: ClassId,
        deadline: Tick,
        payload: P,
    ) -> Result<TimerKey, P> {
        let scheduled = self.state.borrow_mut().schedule(deadline, payload);
        if class.is_some() {
            self.count_scheduled(class, scheduled.as_ref().ok().copied());
        }
        if scheduled.is_ok() {
            self.note_deadline(deadline);
        }
        scheduled
    }

    /// A timer of a class was scheduled, or refused.
    #[inline(never)]
    fn count_scheduled(&self, class: ClassId, key: Option<TimerKey>) {
        let now = self.nanos_near();
        {
            let classes = &mut self.state.borrow_mut().classes;
            match key {
                Some(key) => classes.begin(class, key.index(), now),
                None => drop(classes.count(class, |counts| counts.refused += 1)),
            }
        }
        self.publish_command();
    }

    /// Schedules all of these, or none. The driver is woken once, when all are there.
    pub(crate) fn schedule_all<D>(
        &self,
        class: ClassId,
        timers: Vec<(D, P::Value)>,
        deadline_of: impl Fn(D) -> Tick,
    ) -> Result<Vec<TimerHandle>, ScheduleManyError<(D, P::Value)>> {
        if self.is_closed() {
            return Err(ScheduleManyError::Closed(timers));
        }
        let now = if class.is_some() { self.nanos_near() } else { 0 };
        let mut earliest = Tick::NEVER;
        let handles: Vec<_> = {
            let State { wheel, counts, classes, .. } = &mut *self.state.borrow_mut();
            // Without what is reserved for clients.
            let room = wheel.capacity() - wheel.len() - wheel.granted() - wheel.retired();
            if timers.len() > room {
                counts.refused += 1;
                classes.count(class, |counts| counts.refused += 1);
                return Err(ScheduleManyError::Full(timers));
            }
            let schedule = |(when, value)| {
                let deadline = deadline_of(when);
                earliest = earliest.min(deadline);
                let Ok(key) = wheel.schedule(deadline, P::of_value(value)) else {
                    unreachable!("there is room for all of them")
                };
                if class.is_some() {
                    classes.begin(class, key.index(), now);
                }
                self.handle_of(key)
            };
            timers.into_iter().map(schedule).collect()
        };
        self.note_deadline(earliest);
        Ok(handles)
    }

    /// Ends a timer. What was left of its time is counted from `now`.
    #[inline]
    pub(crate) fn cancel(&self, key: TimerKey, now: u64) -> CancelOutcome<P::Taken> {
        let outcome = self.state.borrow_mut().cancel(key);
        self.publish_command();
        match outcome {
            ShardCancel::Cancelled { deadline, task } => match task.take_plain() {
                // Most payloads are plain, and are not carried through what the others take.
                Ok(task) => {
                    let remaining = self.time().remaining(deadline, now);
                    CancelOutcome::Cancelled { remaining, task }
                }
                Err(task) => self.finish_cancel(ShardCancel::Cancelled { deadline, task }, now),
            },
            ShardCancel::Stale => self.cancel_migrated(key, now),
            outcome => self.finish_cancel(outcome, now),
        }
    }

    fn finish_cancel(&self, outcome: ShardCancel<P>, now: u64) -> CancelOutcome<P::Taken> {
        let outcome = self.state.borrow_mut().finish_cancel(outcome, now);
        self.run_effects();
        outcome
    }

    /// Moves the deadline of a timer.
    #[inline]
    pub(crate) fn reset(&self, key: TimerKey, deadline: Tick) -> ResetOutcome {
        let outcome = self.state.borrow_mut().wheel.reset(key, deadline);
        match outcome {
            ShardReset::Moved => {
                self.note_deadline(deadline);
                ResetOutcome::Moved
            }
            ShardReset::Stale => self.reset_migrated(key, deadline),
            outcome => outcome.into(),
        }
    }

    /// Ends a timer without reading a clock. Returns what it stored, if it had not fired; the
    /// caller takes that out of the tables.
    #[inline]
    pub(crate) fn cancel_unread(&self, key: TimerKey) -> Option<P> {
        let outcome = self.state.borrow_mut().cancel(key);
        self.publish_command();
        match outcome {
            ShardCancel::Cancelled { task, .. } => Some(task),
            _ => None,
        }
    }

    /// When a timer is due that is pending here.
    pub(crate) fn deadline_of(&self, key: TimerKey) -> Option<Tick> {
        self.state.borrow().wheel.deadline(key)
    }

    /// How many timers are pending here.
    pub(crate) fn pending(&self) -> usize {
        self.state.borrow().wheel.len()
    }

    /// The handle of a timer of this shard.
    #[inline]
    pub(crate) fn handle_of(&self, key: TimerKey) -> TimerHandle {
        self.home.handle(key)
    }

    /// The class of a timer that is pending here.
    pub(crate) fn class_of(&self, key: TimerKey) -> ClassId {
        self.state.borrow().classes.class_of(key.index())
    }

    /// The class of the timer that is being delivered, if it has one.
    pub(crate) fn class_delivered(&self) -> ClassId {
        self.state.borrow().delivering
    }

    /// What is delivered from now on counts for a class.
    pub(crate) fn deliver_as(&self, class: ClassId) {
        self.state.borrow_mut().delivering = class;
    }

    /// Counts a delivery by how late it is, in nanoseconds.
    pub(crate) fn note_lateness(&self, late: u64) {
        let bound = self.directory.settings.lateness_bound.as_nanos();
        let state = &mut *self.state.borrow_mut();
        state.lateness.record(late);
        state.counts.late += u64::from(u128::from(late) > bound);
    }

    /// The deadline that is `delay` from now.
    #[inline]
    pub(crate) fn deadline_after(&self, delay: Duration) -> Tick {
        self.time().deadline_after(self.nanos_near(), delay)
    }

    /// The deadline of what is due at an instant.
    #[inline]
    pub(crate) fn deadline_at(&self, at: Instant) -> Tick {
        self.time().deadline_at(at)
    }
}

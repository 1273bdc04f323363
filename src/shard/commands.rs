//! The commands of a shard's own thread.

use corewheel_shard::{CancelOutcome as ShardCancel, ResetOutcome as ShardReset, Tick, TimerKey};

use super::classes::Ended;
use super::core::{Core, State};
use super::request::{RemainingReply, freed_by};
use super::stored::Stored;
use super::timers::Taken;
use crate::values::class::ClassId;
use crate::values::ids::TimerId;
use crate::values::outcome::{CancelOutcome, ResetOutcome};
use crate::values::refused::Refused;

impl<T: 'static> Core<T> {
    /// Schedules a timer with a value.
    // Compiled into the caller, as the two below: calls were a fifth of what a command costs.
    #[inline(always)]
    pub(crate) fn schedule_value(
        &self,
        class: ClassId,
        deadline: Tick,
        value: T,
    ) -> Result<TimerId, Refused<T>> {
        if self.is_closed() {
            return Err(Refused::Closed(value));
        }
        match self.schedule(class, deadline, Stored::Value(value)) {
            Ok(key) => Ok(self.timer_of(key)),
            Err(payload) => match payload.into_value() {
                Some(value) => Err(Refused::Full(value)),
                None => unreachable!("a refusal returns what was given"),
            },
        }
    }

    /// Schedules a timer. `Err` with the payload if the shard is full. The caller has made sure
    /// that the shard is not closed.
    #[inline(always)]
    pub(crate) fn schedule(
        &self,
        class: ClassId,
        deadline: Tick,
        payload: Stored<T>,
    ) -> Result<TimerKey, Stored<T>> {
        let scheduled = self.state.borrow_mut().schedule(deadline, payload);
        if class.is_some() {
            self.count_scheduled(class, scheduled.as_ref().ok().copied());
        }
        if scheduled.is_ok() {
            self.note_deadline(deadline);
        } else {
            self.wake_for_effects();
        }
        scheduled
    }

    /// Counts a timer of a class that was scheduled, or refused (`None`).
    #[inline(never)]
    fn count_scheduled(&self, class: ClassId, key: Option<TimerKey>) {
        let now = self.nanos_near();
        {
            let classes = &mut self.state.borrow_mut().measured.classes;
            match key {
                Some(key) => classes.begin(class, key.index(), now),
                None => drop(classes.count(class, |counts| counts.refused += 1)),
            }
        }
        self.publish_command();
    }

    /// Cancels a timer. The time until its deadline is counted from `now`.
    #[inline(always)]
    pub(crate) fn cancel(&self, key: TimerKey, now: u64) -> CancelOutcome<Taken<T>> {
        let outcome = self.state.borrow_mut().cancel(key);
        self.publish_command();
        match outcome {
            ShardCancel::Cancelled { deadline, payload } => match payload.take_plain() {
                // Most payloads are plain and take this short path.
                Ok(payload) => {
                    let remaining = self.time().remaining(deadline, now);
                    CancelOutcome::Cancelled { remaining, payload }
                }
                Err(payload) => {
                    self.finish_cancel(ShardCancel::Cancelled { deadline, payload }, now)
                }
            },
            ShardCancel::Overtook => self.await_cancelled(),
            ShardCancel::Stale => CancelOutcome::Stale,
            ShardCancel::AlreadyFired => CancelOutcome::AlreadyFired,
        }
    }

    /// A cancel has come before its timer: a turn soon receives the timer and drops it.
    #[cold]
    fn await_cancelled<K>(&self) -> CancelOutcome<K> {
        let soon = freed_by(self.time(), self.nanos_near());
        {
            let frees_at = &mut self.state.borrow_mut().inbox.frees_at;
            *frees_at = Some(frees_at.map_or(soon, |at| at.min(soon)));
        }
        self.note_deadline(soon);
        CancelOutcome::Overtook
    }

    fn finish_cancel(&self, outcome: ShardCancel<Stored<T>>, now: u64) -> CancelOutcome<Taken<T>> {
        let outcome = self.state.borrow_mut().finish_cancel(outcome, now);
        self.run_effects();
        outcome
    }

    /// Changes the deadline of a timer.
    #[inline]
    pub(crate) fn reset(&self, key: TimerKey, deadline: Tick) -> ResetOutcome {
        let outcome = self.state.borrow_mut().wheel.reset(key, deadline);
        if matches!(outcome, ShardReset::Reset | ShardReset::Overtook) {
            self.note_deadline(deadline);
        }
        outcome.into()
    }

    /// Cancels a timer, without reading a clock unless the timer has a class. Returns its payload
    /// if it was pending; the caller must take that out of its table.
    #[inline]
    pub(crate) fn cancel_unread(&self, key: TimerKey) -> Option<Stored<T>> {
        let outcome = self.state.borrow_mut().cancel(key);
        self.publish_command();
        match outcome {
            ShardCancel::Cancelled { payload, .. } => Some(payload),
            _ => None,
        }
    }

    /// The deadline of a timer; `None` if it is not pending here.
    pub(crate) fn deadline_of(&self, key: TimerKey) -> Option<Tick> {
        self.state.borrow().wheel.deadline(key)
    }

    /// Replies how long it is until a timer is due.
    pub(super) fn reply_remaining(&self, key: TimerKey, reply: RemainingReply) {
        let deadline = self.deadline_of(key);
        let remaining = deadline.map(|at| self.time().remaining(at, self.nanos_near()));
        // If the reply cannot be sent, no caller waits for it.
        drop(reply.send(Ok(remaining)));
    }

    /// The soonest timer whose payload is accepted: see [`Shard::soonest`]. All calls pass the same
    /// `accept`.
    ///
    /// [`Shard::soonest`]: corewheel_shard::Shard::soonest
    pub(crate) fn soonest(&self, accept: fn(&Stored<T>) -> bool) -> Option<TimerId> {
        let key = self.state.borrow_mut().wheel.soonest(accept)?;
        Some(self.timer_of(key))
    }

    /// The number of timers that are pending here, those of futures included.
    pub(crate) fn pending(&self) -> usize {
        let of_threads = self.pending_of_threads();
        self.state.borrow().wheel.len() + of_threads
    }

    /// The id of a timer of this shard.
    #[inline]
    pub(crate) fn timer_of(&self, key: TimerKey) -> TimerId {
        self.home.timer(key)
    }
}

impl<T: 'static> State<T> {
    /// Schedules a payload. `Err` with the payload if the shard is full.
    #[inline(always)]
    pub(super) fn schedule(
        &mut self,
        deadline: Tick,
        payload: Stored<T>,
    ) -> Result<TimerKey, Stored<T>> {
        if !self.has_own_slot() {
            return self.schedule_in_reserve(deadline, payload);
        }
        self.wheel.schedule(deadline, payload).map_err(|full| full.0)
    }

    /// Schedules in a slot that is lent to threads or reserved for threads, the last reserve of a
    /// full shard.
    #[cold]
    fn schedule_in_reserve(
        &mut self,
        deadline: Tick,
        payload: Stored<T>,
    ) -> Result<TimerKey, Stored<T>> {
        let mut payload = payload;
        if self.take_credit_back() || self.free_slot() {
            match self.wheel.schedule(deadline, payload) {
                Ok(key) => return Ok(key),
                Err(full) => payload = full.0,
            }
        }
        self.measured.counts.refused += 1;
        Err(payload)
    }

    /// Cancels a timer in the wheel, and counts it for its class.
    #[inline(always)]
    pub(super) fn cancel(&mut self, key: TimerKey) -> ShardCancel<Stored<T>> {
        let outcome = self.wheel.cancel(key);
        if let ShardCancel::Cancelled { .. } = outcome {
            self.measured.classes.end(key.index(), Ended::Cancelled);
        }
        outcome
    }

    /// Takes the payload of a cancelled timer out of its table. Returns the outcome for the
    /// caller.
    #[inline(never)]
    pub(super) fn finish_cancel(
        &mut self,
        outcome: ShardCancel<Stored<T>>,
        now: u64,
    ) -> CancelOutcome<Taken<T>> {
        match outcome {
            ShardCancel::Cancelled { deadline, payload } => {
                let remaining = self.directory.time.remaining(deadline, now);
                CancelOutcome::Cancelled { remaining, payload: self.take(payload) }
            }
            ShardCancel::Overtook => CancelOutcome::Overtook,
            ShardCancel::AlreadyFired => CancelOutcome::AlreadyFired,
            ShardCancel::Stale => CancelOutcome::Stale,
        }
    }

    /// Takes the payload of a timer that will not fire out of its table.
    #[inline]
    pub(super) fn take(&mut self, payload: Stored<T>) -> Taken<T> {
        payload.take(&mut self.calls)
    }
}

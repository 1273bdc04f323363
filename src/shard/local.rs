//! One shard on its own thread, for what does not name the type of the service's values.
//!
//! Futures, connections and containers of values live on a shard whatever its timers carry. They
//! hold it as this trait, so their types have no parameter for it.
//!
//! Why not a shard that is not generic: a value lies in the slot of its timer, so the slots have
//! the size of the service's values.
//!
//! Cost: a dynamic call for each use, about a nanosecond.

use std::ops::Deref;
use std::rc::Rc;

use corewheel_shard::{Tick, TimerKey};

use super::base::Base;
use super::core::Core;
use super::measures::Measures;
use super::part::PartId;
use super::parts::Message;
use super::stored::Stored;
use super::timers::Timers;
use crate::values::class::ClassId;
use crate::values::outcome::ResetOutcome;
use crate::values::refused::RefusedKind;

/// One shard on its own thread, which is a [`Core`]. It dereferences to what a shard has whatever
/// its timers carry.
pub(crate) trait LocalShard: Deref<Target = Base> {
    /// See [`Core::reset`]. It reaches the wheel.
    fn reset(&self, key: TimerKey, deadline: Tick) -> ResetOutcome;
    /// The deadline of a timer; `None` if it is not pending here. It reaches the wheel.
    fn deadline_of(&self, key: TimerKey) -> Option<Tick>;
    /// Wakes the driver, which sleeps, if it sleeps past a tick. If it does not, publishes the
    /// counts. It reaches those of the wheel, and the effects that a command has left.
    fn note_deadline_asleep(&self, deadline: Tick);

    /// Schedules a timer of a part. It reaches the wheel.
    fn schedule_part(
        &self,
        class: ClassId,
        deadline: Tick,
        part: PartId,
        index: u32,
    ) -> Result<TimerKey, RefusedKind>;
    /// Cancels a timer of a part. False if it is not pending. It reaches the wheel.
    fn cancel_part(&self, key: TimerKey) -> bool;

    /// Lends one more slot, for a future on the shard's own thread: it has the slots that are
    /// reserved for threads, too, and those of timers that have ended if the caller has borrowed
    /// nothing. False if there is none. It reaches the wheel, whose slots these are.
    fn lend_one(&self, is_borrowed: bool) -> bool;

    /// Begins the delivery of a value of a container, which is late by so many nanoseconds: counts
    /// it as a timer that has fired, and its handler runs for its class. It reaches the measures,
    /// and takes fewer instructions than [`measure`](Self::measure).
    fn begin_delivery(&self, class: ClassId, late: u64);
    /// Calls `change` with what the shard has measured. It reaches the state, whose borrow covers
    /// the wheel and the measures. If `change` returns true, the counts of classes are published,
    /// unless a turn soon does so.
    fn measure(&self, change: &mut dyn FnMut(&mut Measures) -> bool);
}

impl dyn LocalShard + '_ {
    /// Wakes the driver if it sleeps past a tick.
    #[inline]
    pub(crate) fn note_deadline(&self, deadline: Tick) {
        if self.is_asleep() {
            self.note_deadline_asleep(deadline);
        }
    }

    /// Gives a message to a part of the shard, and wakes the driver for it.
    pub(crate) fn receive(&self, message: Box<dyn Message>) {
        self.contain(|| message.receive(self.parts()));
        self.note_deadline(Tick::ZERO);
    }
}

impl<T: Send + 'static> Timers<T> {
    /// The shard, for types that do not name the type of the service's values.
    pub(crate) fn local(&self) -> Rc<dyn LocalShard> {
        Rc::clone(&self.core) as _
    }
}

impl<T: 'static> LocalShard for Core<T> {
    fn reset(&self, key: TimerKey, deadline: Tick) -> ResetOutcome {
        self.reset(key, deadline)
    }

    fn deadline_of(&self, key: TimerKey) -> Option<Tick> {
        self.deadline_of(key)
    }

    fn note_deadline_asleep(&self, deadline: Tick) {
        self.note_deadline_asleep(deadline);
    }

    fn schedule_part(
        &self,
        class: ClassId,
        deadline: Tick,
        part: PartId,
        index: u32,
    ) -> Result<TimerKey, RefusedKind> {
        if self.is_closed() {
            return Err(RefusedKind::Closed);
        }
        // Before the timer, which may expire in a turn that the waker of the driver takes.
        self.parts.note_scheduled(part);
        self.schedule(class, deadline, Stored::Part(part, index)).map_err(|_full| {
            self.parts.note_ended(part);
            RefusedKind::Full
        })
    }

    fn cancel_part(&self, key: TimerKey) -> bool {
        let cancelled = self.cancel_unread(key);
        if let Some(Stored::Part(part, _)) = cancelled {
            self.parts.note_ended(part);
        }
        cancelled.is_some()
    }

    fn lend_one(&self, is_borrowed: bool) -> bool {
        if !is_borrowed {
            self.state.borrow_mut().end_on_all_threads();
            self.run_effects();
        }
        let has_slot = {
            let state = &mut *self.state.borrow_mut();
            let has_slot = state.has_own_slot() || state.take_credit_back() || state.free_slot();
            if has_slot {
                state.threads.lend(1);
            }
            has_slot
        };
        self.wake_for_effects();
        has_slot
    }

    fn begin_delivery(&self, class: ClassId, late: u64) {
        let measured = &mut self.state.borrow_mut().measured;
        measured.classes.count(class, |counts| counts.pending -= 1);
        measured.begin_delivery((class, None), late, self.time(), || self.nanos_near());
    }

    fn measure(&self, change: &mut dyn FnMut(&mut Measures) -> bool) {
        let is_class = change(&mut self.state.borrow_mut().measured);
        if is_class && (self.is_asleep() || self.is_closed()) {
            self.publish_asleep();
        }
    }
}

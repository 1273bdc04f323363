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

use super::parts::{Entry, Message, PartId};
use super::timers::Timers;
use super::{Base, Core};
use crate::stats::class::ClassStats;
use crate::values::class::ClassId;
use crate::values::contain::contain;
use crate::values::outcome::ResetOutcome;
use crate::values::refused::RefusedKind;

/// One shard on its own thread. The methods are those of [`Core`], which documents them.
pub(crate) trait LocalShard {
    fn base(&self) -> &Base;
    fn reset(&self, key: TimerKey, deadline: Tick) -> ResetOutcome;
    fn deadline_of(&self, key: TimerKey) -> Option<Tick>;
    /// Wakes the driver, which sleeps, if it sleeps past a tick.
    fn note_deadline_asleep(&self, deadline: Tick);

    fn schedule_part(
        &self,
        class: ClassId,
        deadline: Tick,
        part: PartId,
        index: u32,
    ) -> Result<TimerKey, RefusedKind>;
    fn cancel_part(&self, key: TimerKey) -> bool;

    /// Lends one more slot to the nurseries. False if there is none.
    fn lend_one(&self, is_borrowed: bool) -> bool;

    fn class_of(&self, key: TimerKey) -> ClassId;
    fn begin_delivery(&self, class: ClassId, late: u64);

    /// Counts a panic of code of the user.
    fn note_panicked(&self);
    fn count_class_mut(&self, class: ClassId, count: &mut dyn FnMut(&mut ClassStats));
    /// Publishes the gauges of a part, if no turn will soon.
    fn publish_part(&self, entry: Entry);
}

impl Deref for dyn LocalShard + '_ {
    type Target = Base;

    fn deref(&self) -> &Base {
        self.base()
    }
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

    /// See [`Core::contain`].
    pub(crate) fn contain(&self, run: impl FnOnce()) -> bool {
        let is_ok = contain(self.id(), run);
        if !is_ok {
            self.note_panicked();
        }
        is_ok
    }

    /// See [`Core::drop_each`].
    pub(crate) fn drop_each<V>(&self, values: impl IntoIterator<Item = V>) {
        for value in values {
            self.contain(|| drop(value));
        }
    }

    /// See [`Core::count_class`].
    pub(crate) fn count_class(&self, class: ClassId, mut count: impl FnMut(&mut ClassStats)) {
        if class.is_some() {
            self.count_class_mut(class, &mut count);
        }
    }
}

impl<T: Send + 'static> Timers<T> {
    /// The shard, for types that do not name the type of the service's values.
    pub(crate) fn local(&self) -> Rc<dyn LocalShard> {
        Rc::clone(&self.core) as _
    }
}

impl<T: Send + 'static> LocalShard for Core<T> {
    fn base(&self) -> &Base {
        self
    }

    fn lend_one(&self, is_borrowed: bool) -> bool {
        self.lend_one(is_borrowed)
    }

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
        self.schedule_part(class, deadline, part, index)
    }

    fn cancel_part(&self, key: TimerKey) -> bool {
        self.cancel_part(key)
    }

    fn class_of(&self, key: TimerKey) -> ClassId {
        self.class_of(key)
    }

    fn begin_delivery(&self, class: ClassId, late: u64) {
        self.begin_delivery(class, late);
    }

    fn note_panicked(&self) {
        self.note_delivery(false, 0);
    }

    fn count_class_mut(&self, class: ClassId, count: &mut dyn FnMut(&mut ClassStats)) {
        self.count_class(class, count);
    }

    fn publish_part(&self, entry: Entry) {
        self.publish_part(entry);
    }
}

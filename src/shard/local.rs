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
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use corewheel_shard::{Tick, TimerKey};

use super::part::Part;
use super::parts::{Message, PartId};
use super::sleepers::Slept;
use super::timers::Timers;
use super::{Base, Core};
use crate::stats::class::{ClassStats, FirstHeld};
use crate::stats::tally::Tally;
use crate::values::class::ClassId;
use crate::values::outcome::ResetOutcome;
use crate::values::refused::RefusedKind;

/// One shard on its own thread. The methods are those of [`Core`], which documents them.
pub(crate) trait LocalShard {
    fn base(&self) -> &Base;
    /// Why the shard, which is closed, takes no timer.
    fn why_closed(&self) -> RefusedKind;
    /// The deadlines of connections that have come.
    fn tally(&self) -> &Tally;

    fn reset(&self, key: TimerKey, deadline: Tick) -> ResetOutcome;
    fn deadline_of(&self, key: TimerKey) -> Option<Tick>;
    fn note_deadline(&self, deadline: Tick);

    /// Schedules an entry of a part. `None` if the shard is full; the caller has made sure that it
    /// is not closed.
    fn schedule_part(
        &self,
        class: ClassId,
        deadline: Tick,
        part: PartId,
        index: u32,
    ) -> Option<TimerKey>;
    /// Cancels an entry of a part. False if it is not pending.
    fn cancel_part(&self, key: TimerKey) -> bool;

    fn schedule_sleep(
        &self,
        class: ClassId,
        deadline: Tick,
        waker: Waker,
    ) -> Option<(TimerKey, u32)>;
    fn poll_sleeper(&self, index: u32, waker: &Waker) -> Slept;
    fn release_sleeper(&self, index: u32);
    fn abandon_sleep(&self, key: TimerKey, index: u32);

    fn wake_driver_if_due(&self) -> bool;
    /// Lends one more slot to the nurseries. False if there is none.
    fn lend_one(&self, is_borrowed: bool) -> bool;

    fn class_of(&self, key: TimerKey) -> ClassId;
    fn class_delivered(&self) -> ClassId;
    fn begin_delivery(&self, class: ClassId, late: u64);

    fn begin_compound(&self);
    fn end_compound(&self);
    fn contain_mut(&self, run: &mut dyn FnMut()) -> bool;
    fn count_class_mut(&self, class: ClassId, count: &mut dyn FnMut(&mut ClassStats));
    /// A container is made whose values are of a class. `None` if that is none.
    fn hold(&self, class: ClassId) -> Option<Arc<FirstHeld>>;
    /// Publishes the gauges of a part, if no turn will soon.
    fn publish_part(&self, id: PartId, part: &dyn Part);
}

/// A command of several steps. The driver is woken at most once, when this is dropped.
pub(crate) struct Compound<'a>(&'a dyn LocalShard);

impl Drop for Compound<'_> {
    fn drop(&mut self) {
        self.0.end_compound();
    }
}

impl Deref for dyn LocalShard + '_ {
    type Target = Base;

    fn deref(&self) -> &Base {
        self.base()
    }
}

impl dyn LocalShard + '_ {
    /// Gives a message to a part of the shard, and wakes the driver for it.
    pub(crate) fn receive(&self, message: Box<dyn Message>) {
        self.contain(|| message.receive(self.parts()));
        self.note_deadline(Tick::ZERO);
    }

    /// Begins a poll for a result, `is_first` if the task has not polled for that result before.
    /// Pending if the task must return to its executor first; its waker has been woken then.
    pub(crate) fn begin_poll(&self, is_first: bool, cx: &Context<'_>) -> Poll<()> {
        if is_first {
            self.count_poll();
        }
        self.poll_within_budget(is_first, cx)
    }

    /// Counts a poll for a result. Some of them read the clock, and wake the driver if its time has
    /// come. Nothing may be borrowed.
    pub(crate) fn count_poll(&self) {
        if self.note_poll() {
            let _is_awake = self.wake_driver_if_due();
        }
    }

    /// Begins a command of several steps, which wakes the driver at most once, when it is complete.
    pub(crate) fn compound(&self) -> Compound<'_> {
        self.begin_compound();
        Compound(self)
    }

    /// See [`Core::contain`].
    pub(crate) fn contain(&self, run: impl FnOnce()) -> bool {
        let mut run = Some(run);
        self.contain_mut(&mut || {
            if let Some(run) = run.take() {
                run();
            }
        })
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

    fn wake_driver_if_due(&self) -> bool {
        self.wake_driver_if_due()
    }

    fn lend_one(&self, is_borrowed: bool) -> bool {
        self.lend_one(is_borrowed)
    }

    fn tally(&self) -> &Tally {
        &self.directory().tally
    }

    fn why_closed(&self) -> RefusedKind {
        self.why_closed()
    }

    fn reset(&self, key: TimerKey, deadline: Tick) -> ResetOutcome {
        self.reset(key, deadline)
    }

    fn deadline_of(&self, key: TimerKey) -> Option<Tick> {
        self.deadline_of(key)
    }

    fn note_deadline(&self, deadline: Tick) {
        self.note_deadline(deadline);
    }

    fn schedule_part(
        &self,
        class: ClassId,
        deadline: Tick,
        part: PartId,
        index: u32,
    ) -> Option<TimerKey> {
        self.schedule_part(class, deadline, part, index)
    }

    fn cancel_part(&self, key: TimerKey) -> bool {
        self.cancel_part(key)
    }

    fn schedule_sleep(
        &self,
        class: ClassId,
        deadline: Tick,
        waker: Waker,
    ) -> Option<(TimerKey, u32)> {
        self.schedule_sleep(class, deadline, waker)
    }

    fn poll_sleeper(&self, index: u32, waker: &Waker) -> Slept {
        self.poll_sleeper(index, waker)
    }

    fn release_sleeper(&self, index: u32) {
        self.release_sleeper(index);
    }

    fn abandon_sleep(&self, key: TimerKey, index: u32) {
        self.abandon_sleep(key, index);
    }

    fn class_of(&self, key: TimerKey) -> ClassId {
        self.class_of(key)
    }

    fn class_delivered(&self) -> ClassId {
        self.class_delivered()
    }

    fn begin_delivery(&self, class: ClassId, late: u64) {
        self.begin_delivery(class, late);
    }

    fn begin_compound(&self) {
        self.begin_compound();
    }

    fn end_compound(&self) {
        self.end_compound();
    }

    fn contain_mut(&self, run: &mut dyn FnMut()) -> bool {
        self.contain(run)
    }

    fn count_class_mut(&self, class: ClassId, count: &mut dyn FnMut(&mut ClassStats)) {
        self.count_class(class, count);
    }

    fn hold(&self, class: ClassId) -> Option<Arc<FirstHeld>> {
        Some(self.post().published.hold(class.index()?))
    }

    fn publish_part(&self, id: PartId, part: &dyn Part) {
        self.publish_part(id, part);
    }
}

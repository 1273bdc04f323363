//! The class of each timer of a shard, beside its slab, and what is counted for each class.
//!
//! The timers of a class are in a list in the order in which they were scheduled, so that the
//! oldest is the first, whatever ended before it. Cost: see [`crate::values::class`].

use std::time::Duration;

use super::Core;
use super::payload::Payload;
use super::slots::SlotLinks;
use crate::stats::class::ClassCounts;
use crate::stats::publish::Published;
use crate::values::class::{ClassId, TimerClass};
use crate::values::list::List;

/// How a timer has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    Fired { late: bool },
    Cancelled,
    Returned,
}

pub(super) struct ClassTable {
    /// For each slot, when its timer was scheduled and of which class it is. Empty until the first
    /// one of any class comes.
    links: SlotLinks,
    classes: Box<[Account]>,
    /// A bit for each class that has changed since it was published.
    changed: u64,
    /// How many slots there are.
    capacity: usize,
}

#[derive(Clone, Copy, Default)]
struct Account {
    counts: ClassCounts,
    live: List,
}

impl ClassCounts {
    fn end(&mut self, how: Ended) {
        match how {
            Ended::Fired { late } => {
                self.fired += 1;
                self.late += u64::from(late);
            }
            Ended::Cancelled => self.cancelled += 1,
            Ended::Returned => self.returned += 1,
        }
    }
}

/// Microseconds since the service's epoch, in 56 bits: 2,283 years.
const MICROS_MAX: u64 = (1 << 56) - 1;

impl ClassTable {
    pub(super) fn new(classes: usize, capacity: u32) -> Self {
        let classes = vec![Account::default(); classes].into_boxed_slice();
        Self { links: SlotLinks::default(), classes, changed: 0, capacity: capacity as usize }
    }

    /// The class of the timer in a slot.
    #[inline]
    pub(super) fn class_of(&self, index: u32) -> ClassId {
        ClassId::from_bits(self.links.mark(index) as u8)
    }

    /// A timer of a class is pending from now on. The first one of all makes the table.
    pub(super) fn begin(&mut self, class: ClassId, index: u32, now: u64) {
        self.links.reserve(self.capacity);
        let since = (now / 1_000).min(MICROS_MAX);
        let links = &mut self.links;
        let Some(account) = class.index().and_then(|at| self.classes.get_mut(at)) else { return };
        account.counts.scheduled += 1;
        account.counts.live += 1;
        links.set_mark(index, since << 8 | u64::from(class.bits()));
        account.live.append(links, index);
        self.note_change(class);
    }

    /// The timer in a slot is pending no more. Tells its class.
    #[inline]
    pub(super) fn end(&mut self, index: u32, how: Ended) -> ClassId {
        let class = self.class_of(index);
        if class.is_some() {
            self.end_of(class, index, how);
        }
        class
    }

    #[inline(never)]
    fn end_of(&mut self, class: ClassId, index: u32, how: Ended) {
        let links = &mut self.links;
        let Some(account) = class.index().and_then(|at| self.classes.get_mut(at)) else { return };
        account.live.remove(links, index);
        links.set_mark(index, 0);
        account.counts.live -= 1;
        account.counts.end(how);
        self.note_change(class);
    }

    /// Counts something else for a class. Returns its counts.
    pub(super) fn count(
        &mut self,
        class: ClassId,
        count: impl FnOnce(&mut ClassCounts),
    ) -> Option<ClassCounts> {
        let account = self.classes.get_mut(class.index()?)?;
        count(&mut account.counts);
        let counts = account.counts;
        self.note_change(class);
        Some(counts)
    }

    /// A timer that has ended before it was known to be of this class.
    pub(super) fn pass(&mut self, class: ClassId, how: Ended) {
        self.count(class, |counts| {
            counts.scheduled += 1;
            counts.end(how);
        });
    }

    /// Stores the counts of the classes that have changed. To be called while counts are stored.
    #[inline]
    pub(super) fn publish(&mut self, published: &Published) {
        // Apart, so that what publishes for all timers stays small.
        if self.changed != 0 {
            self.publish_changed(published);
        }
    }

    #[inline(never)]
    fn publish_changed(&mut self, published: &Published) {
        while self.changed != 0 {
            let index = self.changed.trailing_zeros() as usize;
            self.changed &= self.changed - 1;
            let Account { counts, live } = &self.classes[index];
            let since = live.first().map(|first| self.links.mark(first) >> 8);
            published.store_class(index, counts, since);
        }
    }

    fn note_change(&mut self, class: ClassId) {
        if let Some(index) = class.index() {
            self.changed |= 1 << index;
        }
    }
}

const _: () = assert!(TimerClass::COUNT_MAX <= u64::BITS as usize);

impl<P: Payload> Core<P> {
    /// Counts a delivery that took too long for the class of its timer, and logs it: the first one
    /// and each that makes twice as many as were logged before.
    #[cold]
    pub(super) fn note_overrun(&self, took: u64) {
        let counts = {
            let state = &mut *self.state.borrow_mut();
            state.classes.count(state.delivering, |counts| counts.overrun += 1)
        };
        let Some(ClassCounts { overrun, .. }) = counts else { return };
        if overrun.is_power_of_two()
            && let Some(class) = self.directory.settings.classes.name(self.class_delivered())
        {
            let (shard, took) = (self.id.number(), Duration::from_nanos(took));
            tracing::warn!(shard, class, ?took, overrun, "a timer's task took too long");
        }
    }
}

//! The class of each timer of a shard, in a table beside its slab, and the counts of each class.
//!
//! Each class has a list of its timers in the order of scheduling, so that the first timer of the
//! list is always the oldest. Cost: see [`crate::values::class`].

use corewheel_shard::List;

use crate::stats::ClassStats;
use crate::stats::publish::Published;
use crate::values::class::{ClassId, TimerClass};

/// The way in which a timer has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// So many nanoseconds late, which is later than the service's bound or not.
    Fired {
        late: u64,
        is_late: bool,
    },
    Cancelled,
    Returned,
    Dropped,
}

pub(super) struct ClassTable {
    /// Empty until the first timer of any class is scheduled. Then it is zeroed memory for all
    /// slots, which the system maps when it is written: only timers with a class take memory of it.
    slots: Vec<Slot>,
    classes: Box<[Class]>,
    /// One bit for each class, set if its counts have changed since they were published.
    changed: u64,
    /// The number of slots.
    capacity: usize,
}

/// The link of a slot's timer in the list of its class; and the time when the timer was scheduled,
/// in microseconds, above the 8 bits of its class: 0 if it has none. A tuple, since `vec!` takes
/// zeroed memory for numbers, arrays and tuples alone.
type Slot = ([u32; 2], u64);

fn link(slots: &mut [Slot], index: u32) -> &mut [u32; 2] {
    &mut slots[index as usize].0
}

#[derive(Clone, Copy, Default)]
struct Class {
    counts: ClassStats,
    /// The pending timers of the class, oldest first.
    pending: List,
}

impl ClassStats {
    fn end(&mut self, how: Ended) {
        match how {
            Ended::Fired { late, is_late } => {
                self.fired += 1;
                self.late += u64::from(is_late);
                self.measure(late);
            }
            Ended::Cancelled => self.cancelled += 1,
            Ended::Returned => self.returned += 1,
            Ended::Dropped => self.dropped += 1,
        }
    }
}

/// Microseconds since the service's epoch, in 56 bits: 2,283 years.
const MICROS_MAX: u64 = (1 << 56) - 1;

impl ClassTable {
    pub(super) fn new(classes: usize, capacity: u32) -> Self {
        let classes = vec![Class::default(); classes].into_boxed_slice();
        Self { slots: Vec::new(), classes, changed: 0, capacity: capacity as usize }
    }

    /// The class of the timer in a slot.
    #[inline]
    pub(super) fn class_of(&self, index: u32) -> ClassId {
        ClassId::from_bits(self.slots.get(index as usize).map_or(0, |slot| slot.1 as u8))
    }

    /// Counts and enters a timer of a class that was just scheduled. The first timer of any class
    /// makes the table.
    pub(super) fn begin(&mut self, class: ClassId, index: u32, now: u64) {
        self.count(class, |counts| {
            counts.scheduled += 1;
            counts.pending += 1;
        });
        if self.slots.is_empty() {
            self.slots = vec![([0; 2], 0); self.capacity];
        }
        let since = (now / 1_000).min(MICROS_MAX);
        let slots = &mut self.slots[..];
        let Some(entry) = class.index().and_then(|at| self.classes.get_mut(at)) else { return };
        slots[index as usize].1 = since << 8 | u64::from(class.bits());
        entry.pending.append(slots, link, index);
    }

    /// Removes the timer in a slot, which is no longer pending. Returns its class.
    #[inline]
    pub(super) fn end(&mut self, index: u32, how: Ended) -> ClassId {
        let class = self.take(index);
        if class.is_some() {
            self.count(class, |counts| counts.end(how));
        }
        class
    }

    /// Counts a delivery of a class that is late by so many nanoseconds. Most timers have no class.
    #[inline(never)]
    pub(super) fn count_fired(&mut self, class: ClassId, late: u64, is_late: bool) {
        self.count(class, |counts| counts.end(Ended::Fired { late, is_late }));
    }

    /// Removes the timer in a slot, whose end the caller counts. Returns its class.
    #[inline]
    pub(super) fn take(&mut self, index: u32) -> ClassId {
        let class = self.class_of(index);
        if class.is_some() {
            self.take_of(class, index);
        }
        class
    }

    #[inline(never)]
    fn take_of(&mut self, class: ClassId, index: u32) {
        let slots = &mut self.slots[..];
        let Some(entry) = class.index().and_then(|at| self.classes.get_mut(at)) else { return };
        entry.pending.remove(slots, link, index);
        slots[index as usize].1 = 0;
        entry.counts.pending -= 1;
        self.note_change(class);
    }

    /// Changes the counts of a class and returns a number of them; `None` if `class` is no class.
    pub(super) fn count<N>(
        &mut self,
        class: ClassId,
        count: impl FnOnce(&mut ClassStats) -> N,
    ) -> Option<N> {
        let number = count(&mut self.classes.get_mut(class.index()?)?.counts);
        self.note_change(class);
        Some(number)
    }

    /// Counts the end of a timer of a class that lies on its thread.
    pub(super) fn end_of_thread(&mut self, class: ClassId, how: Ended) {
        self.count(class, |counts| {
            counts.end(how);
            counts.pending -= 1;
        });
    }

    /// Counts a timer of a class that was cancelled before it came to the shard.
    pub(super) fn pass_cancelled(&mut self, class: ClassId) {
        self.count(class, |counts| {
            counts.scheduled += 1;
            counts.end(Ended::Cancelled);
        });
    }

    /// Stores the counts of the classes that have changed. The caller is storing the shard's
    /// counts.
    #[inline]
    pub(super) fn publish(&mut self, published: &Published) {
        // A function of its own, so that this one is small enough to be inlined.
        if self.changed != 0 {
            self.publish_changed(published);
        }
    }

    #[inline(never)]
    fn publish_changed(&mut self, published: &Published) {
        while self.changed != 0 {
            let index = self.changed.trailing_zeros() as usize;
            self.changed &= self.changed - 1;
            let Class { counts, pending } = &self.classes[index];
            let since = pending.first().map(|first| self.slots[first as usize].1 >> 8);
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

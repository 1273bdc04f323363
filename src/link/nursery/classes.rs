//! What is counted of the timers of each class, which are in the order of arming.
//!
//! Cost: a timer without a class costs a comparison. One with a class has 16 bytes more, for as
//! many slots as there are.

use corewheel_shard::{List, MarkedLinks};

use super::Counts;
use super::slots::Slot;
use super::timers::Timers;

/// What is counted of each class, and its timers.
#[derive(Debug)]
pub(super) struct Classes {
    /// For each slot with a timer of a class, when that was armed.
    links: MarkedLinks,
    all: Box<[OfClass]>,
}

#[derive(Clone, Default, Debug)]
struct OfClass {
    counts: Counts,
    /// The pending timers, oldest first.
    pending: List,
}

impl Classes {
    pub(super) fn new(classes: usize) -> Self {
        Self { links: MarkedLinks::default(), all: vec![OfClass::default(); classes].into() }
    }

    /// A timer was armed at `since`, in one of so many slots.
    #[cold]
    pub(super) fn enter(&mut self, class: u8, slot: u32, since: u64, slots: u32) {
        let Some(known) = self.all.get_mut(usize::from(class) - 1) else { return };
        known.counts.armed += 1;
        self.links.reserve(slots as usize);
        self.links.set_mark(slot, since);
        known.pending.append(&mut self.links, slot);
    }

    /// A timer has fired, or is taken out.
    #[inline]
    pub(super) fn take(&mut self, class: u8, slot: u32, has_fired: bool) {
        if let Some(known) = self.leave(class, slot) {
            known.counts.fired += u64::from(has_fired);
        }
    }

    /// A timer of a class has ended, which had this slot.
    #[cold]
    pub(super) fn end<W>(&mut self, timer: &Slot<W>, slot: u32) {
        if let Some(known) = self.leave(timer.class, slot) {
            known.counts.ended += 1;
            known.counts.young += u64::from(!timer.is_filed());
        }
    }

    /// A timer has ended or fired. `None` if it has no class.
    #[inline]
    fn leave(&mut self, class: u8, slot: u32) -> Option<&mut OfClass> {
        let known = self.all.get_mut(usize::from(class).checked_sub(1)?)?;
        known.pending.remove(&mut self.links, slot);
        Some(known)
    }
}

impl<W> Timers<W> {
    /// What was counted that the shard does not know, of each class and of all. For each class also
    /// when its oldest timer was armed.
    pub(super) fn unseen(&self, mut of_class: impl FnMut(u8, Counts, Option<u64>)) -> Counts {
        let Classes { links, all } = &self.classes;
        for (index, known) in all.iter().enumerate() {
            let oldest = known.pending.first().map(|first| links.mark(first));
            of_class(index as u8 + 1, known.counts, oldest);
        }
        self.counts
    }

    /// Takes what was counted since the last call: of all classes, and of each class with its
    /// number.
    pub(super) fn take_counts(&mut self, mut of_class: impl FnMut(u8, Counts)) -> Counts {
        for (index, known) in self.classes.all.iter_mut().enumerate() {
            if known.counts != Counts::default() {
                of_class(index as u8 + 1, std::mem::take(&mut known.counts));
            }
        }
        std::mem::take(&mut self.counts)
    }
}

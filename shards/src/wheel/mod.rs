//! The two wheels behind one set of method names.
//!
//! A wheel is arithmetic: it says in which slot an entry with a given deadline belongs and which
//! slot comes next. The entries lie in [`Slots`], the timers in the slab; neither wheel knows what
//! a task is. A wheel's `now` is how far it has come, which is what the shard has delivered and not
//! what the clock shows: it moves only in [`Wheel::step`], from one occupied slot to the next.

mod bitmap;
mod hashed;
mod hierarchical;
mod slots;

pub(crate) use hashed::HashedWheel;
pub(crate) use hierarchical::HierarchicalWheel;
pub(crate) use slots::{Batch, SLICE_CHUNKS, Side, Slots};

use crate::counters::Counters;
use crate::slab::{Entry, Slab};

/// Where [`Wheel::step`] has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// At a tick for which entries were filed, and these are left of them. The next step comes to
    /// the same, until they have been taken.
    Due { slot: usize },
    /// At the limit; nothing is filed up to it, and nothing comes up before `next`.
    Reached { next: u64 },
    /// The budget is used up before the next such tick.
    Exhausted,
}

#[derive(Debug)]
pub(crate) enum Wheel {
    Hierarchical(HierarchicalWheel),
    Hashed(HashedWheel),
}

impl Wheel {
    /// How far the wheel has come. Everything filed lies behind it, but for what is due at it.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        match self {
            Self::Hierarchical(wheel) => wheel.now(),
            Self::Hashed(wheel) => wheel.now(),
        }
    }

    /// Files an entry whose deadline is later than [`now`](Self::now). Returns a tick before which
    /// it does not come up.
    #[inline]
    pub(crate) fn file(&mut self, slots: &mut Slots, entry: Entry, deadline: u64) -> u64 {
        debug_assert!(deadline > self.now(), "{deadline} is not later than {}", self.now());
        match self {
            Self::Hierarchical(wheel) => wheel.file(slots, entry, deadline),
            Self::Hashed(wheel) => wheel.file(slots, entry, deadline),
        }
    }

    /// Goes on to `tick`, before which nothing comes up. What is filed next is filed as of then,
    /// where that makes a difference.
    #[inline]
    pub(crate) fn pass(&mut self, tick: u64) {
        match self {
            Self::Hierarchical(wheel) => wheel.pass(tick),
            // Its slots are the same whatever the time, and it counts the rounds it walks.
            Self::Hashed(_) => {}
        }
    }

    /// Goes on to the next tick for which something is filed, but not beyond `limit`.
    ///
    /// `work` is what may still be spent on it, in entries; it is counted down.
    pub(crate) fn step<T>(
        &mut self,
        slots: &mut Slots,
        slab: &Slab<T>,
        limit: u64,
        work: &mut u32,
        counters: &mut Counters,
    ) -> Step {
        match self {
            Self::Hierarchical(wheel) => wheel.step(slots, slab, limit, work, counters),
            Self::Hashed(wheel) => wheel.step(slots, slab, limit, work, counters),
        }
    }

    /// A tick not later than the first one for which something is filed.
    #[inline]
    pub(crate) fn next(&self, slots: &Slots) -> Option<u64> {
        match self {
            Self::Hierarchical(wheel) => wheel.next(slots),
            Self::Hashed(wheel) => wheel.next(slots),
        }
    }

    /// Calls `visit` with each slot that holds anything and a tick before which nothing in it comes
    /// up, in the order of these ticks, until it says that it has seen enough.
    pub(crate) fn visit(&self, slots: &Slots, visit: impl FnMut(usize, u64) -> bool) {
        match self {
            Self::Hierarchical(wheel) => wheel.visit(slots, visit),
            Self::Hashed(wheel) => wheel.visit(slots, visit),
        }
    }

    /// Whether an entry with this deadline would be filed in `slot` now.
    pub(crate) fn files_in(&self, slot: usize, deadline: u64) -> bool {
        match self {
            Self::Hierarchical(wheel) => wheel.files_in(slot, deadline),
            Self::Hashed(wheel) => wheel.files_in(slot, deadline),
        }
    }

    /// Whether the slot that is being walked is that of this deadline.
    pub(crate) fn is_walking_slot_of(&self, deadline: u64) -> bool {
        match self {
            Self::Hierarchical(_) => false,
            Self::Hashed(wheel) => wheel.is_walking_slot_of(deadline),
        }
    }

    /// Checks that an entry with this deadline, filed in `slot`, will come up in time.
    ///
    /// # Panics
    ///
    /// If it will not.
    pub(crate) fn check_filing(&self, slot: usize, deadline: u64) {
        match self {
            Self::Hierarchical(wheel) => wheel.check_filing(slot, deadline),
            Self::Hashed(wheel) => wheel.check_filing(slot, deadline),
        }
    }
}

//! The two wheels behind one set of method names.
//!
//! A wheel is arithmetic: it computes the slot for a deadline and finds the slot that comes next.
//! The entries lie in [`Slots`] and the timers in the slab; a wheel does not know payloads. The
//! `now` of a wheel is the tick up to which it has processed its slots, which may be behind the
//! tick of the last advance. [`Wheel::step`] moves it from one occupied slot to the next, and
//! [`Wheel::skip_to`] over ticks at which nothing comes up.

mod bitmap;
mod hashed;
mod hierarchical;
mod slots;

pub(crate) use hashed::HashedWheel;
pub(crate) use hierarchical::HierarchicalWheel;
pub(crate) use slots::{Batch, SLICE_CHUNKS, Side, Slots};

use crate::counters::Counters;
use crate::slab::{Entry, Slab};

/// The outcome of [`Wheel::step`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// The entries in `slot` were filed for the tick that the wheel has reached. Each step returns
    /// this slot until the shard has taken all entries off it.
    Due { slot: usize },
    /// The wheel has reached the limit: no entry is filed up to it, and none comes up before
    /// `next`.
    Reached { next: u64 },
    /// The budget was used up before the wheel reached the next occupied slot or the limit.
    Exhausted,
}

#[derive(Debug)]
pub(crate) enum Wheel {
    Hierarchical(HierarchicalWheel),
    Hashed(HashedWheel),
}

impl Wheel {
    /// The tick that the wheel has reached. All entries in its slots come up after this tick,
    /// except those of a slot that is due at it.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        match self {
            Self::Hierarchical(wheel) => wheel.now(),
            Self::Hashed(wheel) => wheel.now(),
        }
    }

    /// Files an entry whose deadline is later than [`now`](Self::now). Returns a tick before which
    /// it does not come up.
    #[inline(always)]
    pub(crate) fn file(&mut self, slots: &mut Slots, entry: Entry, deadline: u64) -> u64 {
        debug_assert!(deadline > self.now(), "{deadline} is not later than {}", self.now());
        match self {
            Self::Hierarchical(wheel) => wheel.file(slots, entry, deadline),
            Self::Hashed(wheel) => wheel.file(slots, entry, deadline),
        }
    }

    /// Sets `now` of the hierarchical wheel to `tick`, up to which no entry comes up, so that the
    /// next entries are filed relative to it.
    #[inline]
    pub(crate) fn skip_to(&mut self, tick: u64) {
        match self {
            Self::Hierarchical(wheel) => wheel.skip_to(tick),
            // The slot for a deadline is the same at any `now`, which counts the slots of a round.
            Self::Hashed(_) => {}
        }
    }

    /// Advances to the next tick for which an entry is filed, but not beyond `limit`.
    ///
    /// `work` is the rest of the budget, in entries; the step subtracts the entries that it looks
    /// at.
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

    /// A tick not later than the deadline of any live entry in the wheel; `None` if the wheel is
    /// empty.
    #[inline]
    pub(crate) fn next_tick(&self, slots: &Slots) -> Option<u64> {
        match self {
            Self::Hierarchical(wheel) => wheel.next_tick(slots),
            Self::Hashed(wheel) => wheel.next_tick(slots),
        }
    }

    /// Calls `visit` with each occupied slot and a tick before which no entry of the slot comes up,
    /// in the order of these ticks, until `visit` returns false.
    pub(crate) fn visit_slots(&self, slots: &Slots, visit: impl FnMut(usize, u64) -> bool) {
        match self {
            Self::Hierarchical(wheel) => wheel.visit_slots(slots, visit),
            Self::Hashed(wheel) => wheel.visit_slots(slots, visit),
        }
    }

    /// The last tick for which an entry of a slot can be, whose entries come up from `start` on.
    pub(crate) fn last_tick(&self, slot: usize, start: u64) -> u64 {
        match self {
            Self::Hierarchical(wheel) => wheel.last_tick(slot, start),
            // The slot holds entries of later rounds too.
            Self::Hashed(_) => u64::MAX,
        }
    }

    /// Checks that an entry with this deadline, filed in `slot`, comes up at its deadline or
    /// before.
    ///
    /// # Panics
    ///
    /// If it comes up later.
    pub(crate) fn check_filing(&self, slot: usize, deadline: u64) {
        match self {
            Self::Hierarchical(wheel) => wheel.check_filing(slot, deadline),
            Self::Hashed(wheel) => wheel.check_filing(slot, deadline),
        }
    }
}

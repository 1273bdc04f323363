//! The slots of a thread's timers: which timer a slot has, and where that lies.
//!
//! A timer is named by its slot and a number, which counts the timers of its thread. So a name is
//! that of one timer for ever: the numbers have 64 bits, and none is used twice. The number of a
//! slot is written under the lock and read without it: a timer whose number is not in its slot any
//! more is over.
//!
//! Slots lie in blocks that stay where they are, each twice as long as the one before. Why not in a
//! `Vec`: it moves when it grows, while other threads read.
//!
//! Cost: 16 bytes a slot, and up to twice as many slots as there ever were timers at once, until
//! the thread ends.

use std::num::NonZeroU64;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64 as Plain;

use super::super::sync::{AtomicU64, Ordering};

/// No slot.
pub(super) const NIL: u32 = u32::MAX;
/// The length of the first block is a power of two with this exponent.
const FIRST_BITS: u32 = if cfg!(corewheel_loom) { 1 } else { 5 };
const BLOCKS: usize = (u32::BITS - FIRST_BITS) as usize;

/// Which timer of its thread one is, counted from 1.
pub(crate) type Number = NonZeroU64;

/// Names a timer among those of its thread, for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Name {
    pub(crate) slot: u32,
    pub(crate) number: Number,
}

/// The list of a timer, and its index there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) list: u32,
    pub(super) index: u32,
}

/// The slot of a timer. But for [`Slots::is_over`], it is used under the lock.
#[derive(Debug)]
pub(super) struct Slot {
    /// The number of its timer; 0 while the slot is free.
    number: AtomicU64,
    /// The place of its timer, or the next free slot. Used under the lock only, so its accesses
    /// order nothing, and the model checker need not see them.
    place: Plain,
}

impl Slot {
    #[inline]
    fn is_of(&self, number: Number) -> bool {
        // Relaxed: it orders nothing. What a timer carries is used under the lock only.
        self.number.load(Ordering::Relaxed) == number.get()
    }

    /// Where its timer lies. Of a free slot, the index is the next free slot.
    #[inline]
    pub(super) fn place(&self) -> Place {
        let place = self.place.load(Ordering::Relaxed);
        Place { list: (place >> 32) as u32, index: place as u32 }
    }

    #[inline]
    pub(super) fn set_place(&self, Place { list, index }: Place) {
        self.place.store(u64::from(list) << 32 | u64::from(index), Ordering::Relaxed);
    }

    /// It has a timer from now on.
    #[inline]
    pub(super) fn occupy(&self, number: Number, place: Place) {
        self.number.store(number.get(), Ordering::Relaxed);
        self.set_place(place);
    }

    /// It is free from now on, before the free slot `next`.
    #[inline]
    pub(super) fn free(&self, next: u32) {
        self.number.store(0, Ordering::Relaxed);
        self.set_place(Place { list: 0, index: next });
    }

    /// Whether it has no timer.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn is_free(&self) -> bool {
        self.number.load(Ordering::Relaxed) == 0
    }
}

#[derive(Debug, Default)]
pub(super) struct Slots([OnceLock<Box<[Slot]>>; BLOCKS]);

impl Slots {
    /// The block of a slot, and the place in that block.
    #[inline]
    fn find(slot: u32) -> (usize, usize) {
        let place = u64::from(slot) + (1 << FIRST_BITS);
        let power = place.ilog2();
        ((power - FIRST_BITS) as usize, (place - (1 << power)) as usize)
    }

    #[inline]
    fn get(&self, slot: u32) -> Option<&Slot> {
        let (block, place) = Self::find(slot);
        self.0[block].get().map(|block| &block[place])
    }

    /// A slot that there is.
    #[inline]
    pub(super) fn known(&self, slot: u32) -> &Slot {
        self.get(slot).expect("a slot that is named was made")
    }

    /// Makes room for a slot. Called under the lock.
    #[cold]
    pub(super) fn need(&self, slot: u32) {
        let (block, _) = Self::find(slot);
        self.0[block].get_or_init(|| {
            let free = || Slot { number: AtomicU64::new(0), place: Plain::new(u64::from(NIL)) };
            (0..1_usize << (FIRST_BITS as usize + block)).map(|_| free()).collect()
        });
    }

    /// The slot of a timer; `None` if it is over. Called under the lock.
    #[inline]
    pub(super) fn pending(&self, Name { slot, number }: Name) -> Option<&Slot> {
        self.get(slot).filter(|slot| slot.is_of(number))
    }

    /// Whether a timer is over, without the lock. One that has just fired may not show.
    #[inline]
    pub(super) fn is_over(&self, name: Name) -> bool {
        self.pending(name).is_none()
    }
}

#[cfg(all(test, not(corewheel_loom)))]
mod tests {
    use super::*;

    #[test]
    fn slots_follow_each_other_in_their_blocks() {
        let mut expected = (0, 0);
        for slot in 0..100_000 {
            assert_eq!(Slots::find(slot), expected);
            expected.1 += 1;
            if expected.1 == 32 << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(Slots::find(NIL - 32).0 < BLOCKS);
    }
}

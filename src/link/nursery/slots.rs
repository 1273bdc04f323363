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

#[derive(Debug)]
struct Slot {
    /// The number of its timer; 0 while the slot is free.
    number: AtomicU64,
    /// The place of its timer, or the next free slot. Used under the lock only, so its accesses
    /// order nothing, and the model checker need not see them.
    place: Plain,
}

impl Slot {
    #[inline]
    fn place(&self) -> Place {
        let place = self.place.load(Ordering::Relaxed);
        Place { list: (place >> 32) as u32, index: place as u32 }
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
    fn known(&self, slot: u32) -> &Slot {
        self.get(slot).expect("a slot that is named was made")
    }

    /// Makes room for a slot. Called under the lock.
    pub(super) fn need(&self, slot: u32) {
        let (block, _) = Self::find(slot);
        self.0[block].get_or_init(|| {
            let free = || Slot { number: AtomicU64::new(0), place: Plain::new(0) };
            (0..1_usize << (FIRST_BITS as usize + block)).map(|_| free()).collect()
        });
    }

    /// Whether a timer is over. One that has just fired may not show.
    #[inline]
    pub(super) fn is_over(&self, Name { slot, number }: Name) -> bool {
        // Relaxed: it orders nothing. What a timer carries is used under the lock only.
        self.get(slot).is_none_or(|slot| slot.number.load(Ordering::Relaxed) != number.get())
    }

    /// Where a timer lies; `None` if it is over. Called under the lock.
    #[inline]
    pub(super) fn place_of(&self, name: Name) -> Option<Place> {
        let slot = self.get(name.slot)?;
        if slot.number.load(Ordering::Relaxed) != name.number.get() {
            return None;
        }
        Some(slot.place())
    }

    /// A slot has a timer from now on. Called under the lock.
    #[inline]
    pub(super) fn occupy(&self, Name { slot, number }: Name) {
        self.known(slot).number.store(number.get(), Ordering::Relaxed);
    }

    /// Sets the place of a slot's timer. Called under the lock.
    #[inline]
    pub(super) fn set_place(&self, slot: u32, Place { list, index }: Place) {
        let place = u64::from(list) << 32 | u64::from(index);
        self.known(slot).place.store(place, Ordering::Relaxed);
    }

    /// A slot is free from now on, before the slot `next`. Called under the lock.
    #[inline]
    pub(super) fn free(&self, slot: u32, next: u32) {
        let slot = self.known(slot);
        slot.number.store(0, Ordering::Relaxed);
        slot.place.store(u64::from(next), Ordering::Relaxed);
    }

    /// The free slot that follows a free slot. Called under the lock.
    #[inline]
    pub(super) fn next_free(&self, slot: u32) -> u32 {
        self.known(slot).place().index
    }

    /// The number of a slot's timer, 0 if the slot is free, and its place.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn check(&self, slot: u32) -> (u64, Place) {
        let slot = self.known(slot);
        (slot.number.load(Ordering::Relaxed), slot.place())
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

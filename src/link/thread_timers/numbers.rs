//! Which timers are over, to be read without the lock.
//!
//! Each slot has the number of its last timer that is over. Numbers of a thread grow, so a timer is
//! over once its slot shows its number or a greater one.
//!
//! They lie in blocks that stay where they are, each twice as long as the one before. Why not in a
//! `Vec`: it moves when it grows, while other threads read. A block is memory that the system has
//! zeroed, so to make one takes as long for a million timers as for a thousand.
//!
//! Cost: 8 bytes a slot, and up to twice as many slots as there ever were timers at once, until the
//! thread ends.

use std::sync::OnceLock;

use super::super::sync::{AtomicU64, Ordering, zeros};
use super::slots::{Name, Number};

/// The length of the first block is a power of two with this exponent.
const FIRST_BITS: u32 = if cfg!(corewheel_loom) { 1 } else { 5 };
const BLOCKS: usize = (u32::BITS - FIRST_BITS) as usize;

/// For each slot the number of the timer that was over last; 0 before.
#[derive(Debug, Default)]
pub(super) struct Numbers([OnceLock<Box<[AtomicU64]>>; BLOCKS]);

impl Numbers {
    /// The block of a slot, and the place in that block.
    #[inline]
    fn find(slot: u32) -> (usize, usize) {
        let place = u64::from(slot) + (1 << FIRST_BITS);
        let power = place.ilog2();
        ((power - FIRST_BITS) as usize, (place - (1 << power)) as usize)
    }

    /// Makes room for a slot. Called under the lock.
    #[cold]
    pub(super) fn need(&self, slot: u32) {
        let (block, _) = Self::find(slot);
        self.0[block].get_or_init(|| zeros(1 << (FIRST_BITS as usize + block)));
    }

    /// The timer of a slot is over. Called under the lock.
    #[inline]
    pub(super) fn note_over(&self, slot: u32, number: Number) {
        let (block, place) = Self::find(slot);
        let last = &self.0[block].get().expect("there is room for each slot")[place];
        // Relaxed: it orders nothing. What a timer carries is used under the lock only.
        last.store(number.get(), Ordering::Relaxed);
    }

    /// Whether a timer is over, without the lock. One that has just fired may not show.
    #[inline]
    pub(super) fn is_over(&self, Name { slot, number }: Name) -> bool {
        let (block, place) = Self::find(slot);
        let Some(last) = self.0[block].get().map(|block| &block[place]) else { return false };
        last.load(Ordering::Relaxed) >= number.get()
    }

    /// For how many slots there is memory.
    #[cfg(all(test, not(corewheel_loom)))]
    pub(super) fn allocated(&self) -> usize {
        self.0.iter().filter_map(OnceLock::get).map(|block| block.len()).sum()
    }
}

#[cfg(all(test, not(corewheel_loom)))]
mod tests {
    use super::*;

    #[test]
    fn slots_follow_each_other_in_their_blocks() {
        let mut expected = (0, 0);
        for slot in 0..100_000 {
            assert_eq!(Numbers::find(slot), expected);
            expected.1 += 1;
            if expected.1 == 32 << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(Numbers::find(u32::MAX - 32).0 < BLOCKS);
    }
}

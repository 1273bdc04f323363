//! Checks of the slots, for tests and for the simulation.

use super::{CHUNK, NIL, Slot, Slots};

impl<W> Slot<W> {
    /// Whether it has no timer.
    pub(in super::super) fn is_free(&self) -> bool {
        self.number.is_none()
    }
}

impl<W> Slots<W> {
    /// How many slots there are.
    pub(in super::super) fn made(&self) -> u32 {
        self.made
    }

    /// How many slots are free.
    ///
    /// # Panics
    ///
    /// If one of them has a timer, with its slot.
    pub(in super::super) fn check_free(&self) -> u32 {
        let (mut free, mut count) = (self.free, 0);
        while free != NIL {
            let slot = self.known(free);
            assert!(slot.number.is_none() && slot.carried.is_none(), "free slot {free} is used");
            (free, count) = (slot.index, count + 1);
        }
        count
    }

    /// A slot that there is.
    pub(in super::super) fn known(&self, slot: u32) -> &Slot<W> {
        &self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
    }

    /// For how many timers there is memory.
    #[cfg(all(test, not(corewheel_loom)))]
    pub(in super::super) fn allocated(&self) -> usize {
        self.chunks.iter().map(Vec::capacity).sum()
    }
}

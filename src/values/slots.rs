//! A list link and a mark of 64 bits for each slot of a shard or a thread, in a table of its own.
//!
//! Why not in the slots themselves: every slot would grow, though few timers are in a list.
//!
//! The table is zero at first. The system maps zeroed memory only when it is written, so the table
//! takes memory only for slots that were in a list, however large the shard is.
//!
//! Cost: 16 bytes a slot.

use corewheel_shard::{Link, Links};

/// For each slot the bits of its link, and a mark, which is 0 if the slot is in no list.
#[derive(Default, Debug)]
pub(crate) struct SlotLinks(Vec<[u64; 2]>);

impl SlotLinks {
    /// Makes the table with `capacity` slots at least.
    pub(crate) fn reserve(&mut self, capacity: usize) {
        let known = self.0.len();
        if known < capacity {
            let mut grown = vec![[0; 2]; capacity];
            grown[..known].copy_from_slice(&self.0);
            self.0 = grown;
        }
    }

    /// The mark of a slot; 0 if there is no table yet.
    #[inline]
    pub(crate) fn mark(&self, index: u32) -> u64 {
        self.0.get(index as usize).map_or(0, |slot| slot[1])
    }

    #[inline]
    pub(crate) fn set_mark(&mut self, index: u32, mark: u64) {
        self.0[index as usize][1] = mark;
    }
}

impl Links for SlotLinks {
    #[inline]
    fn link(&self, index: u32) -> Link {
        Link::from_bits(self.0[index as usize][0])
    }

    #[inline]
    fn set_link(&mut self, index: u32, link: Link) {
        self.0[index as usize][0] = link.to_bits();
    }
}

//! A list link and 64 bits for each slot of a shard, beside its slab.
//!
//! Why not in the slots themselves: they would grow for every timer, for the sake of those that are
//! in a list.
//!
//! All of it is zero at first. So the system hands it out untouched, and it costs memory only where
//! members have been, however large the shard is.
//!
//! Cost: 16 bytes a slot.

use crate::values::list::{Link, Links};

/// For each slot the bits of its link, and a mark; the mark of a slot that is in no list is 0.
#[derive(Default)]
pub(super) struct SlotLinks(Vec<[u64; 2]>);

impl SlotLinks {
    /// Makes room for every slot, once.
    pub(super) fn reserve(&mut self, capacity: usize) {
        if self.0.is_empty() {
            self.0 = vec![[0; 2]; capacity];
        }
    }

    /// The mark of a slot.
    #[inline]
    pub(super) fn mark(&self, index: u32) -> u64 {
        self.0.get(index as usize).map_or(0, |slot| slot[1])
    }

    #[inline]
    pub(super) fn set_mark(&mut self, index: u32, mark: u64) {
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

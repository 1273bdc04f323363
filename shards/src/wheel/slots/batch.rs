//! Entries that are taken off a slot together.

use super::{CHUNK_ENTRIES, NIL, POOL, Slot, Slots};
use crate::slab::{Entry, Slab};

/// Room for the entries of some chunks, a power of two so that a remainder is a mask.
const BATCH_MAX: usize = 4 * POOL;

/// Entries taken off a slot, without the stale ones, and the deadlines of their timers.
#[derive(Debug)]
pub(crate) struct Batch {
    entries: [Entry; BATCH_MAX],
    deadlines: [u64; BATCH_MAX],
    next: usize,
    len: usize,
    examined: u32,
}

impl Batch {
    pub(crate) const EMPTY: Self = Self {
        entries: [Entry::EMPTY; BATCH_MAX],
        deadlines: [0; BATCH_MAX],
        next: 0,
        len: 0,
        examined: 0,
    };

    /// The next entry.
    #[inline]
    pub(crate) fn first(&self) -> Option<Entry> {
        self.entries[..self.len].get(self.next).copied()
    }

    /// Goes on behind the next entry, which [`first`](Self::first) has told.
    #[inline]
    pub(crate) fn skip(&mut self) {
        debug_assert!(self.next < self.len, "there is no entry to skip");
        self.next += 1;
    }

    /// The entries that are left, in order, each with its timer's deadline when it was looked up.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Entry, u64)> {
        let deadlines = self.deadlines.iter().copied();
        self.entries.iter().copied().zip(deadlines).take(self.len).skip(self.next)
    }

    /// How many entries are left.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        (self.len - self.next) as u32
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.next == self.len
    }

    /// How many entries were looked at.
    #[inline]
    pub(crate) fn examined(&self) -> u32 {
        self.examined
    }
}

impl Slots {
    /// Takes entries off a slot and looks their timers up, until `most` or a few more have been
    /// looked at or [`Batch`] is full. False if there are none.
    ///
    /// The look-ups depend on each other in nothing and there is little else between them, so that
    /// the processor waits for many of them, and for the next chunk, at once.
    pub(crate) fn take_batch<T>(
        &mut self,
        slot: usize,
        most: u32,
        slab: &Slab<T>,
        batch: &mut Batch,
    ) -> bool {
        self.take_entries(slot, most as usize, usize::MAX, slab, batch) > 0
    }

    /// Takes chunks off the front of a slot until `most` entries are taken, and no more entries
    /// than `end`: the rest of a chunk stays. Returns how many were taken.
    #[inline]
    pub(super) fn take_entries<T>(
        &mut self,
        slot: usize,
        most: usize,
        end: usize,
        slab: &Slab<T>,
        batch: &mut Batch,
    ) -> usize {
        let Slot { mut kept, mut young } = self.table[slot];
        let (mut len, mut examined) = (0, 0);
        while examined < most && examined < end && examined <= BATCH_MAX - CHUNK_ENTRIES {
            let chain = if kept.is_empty() { &mut young } else { &mut kept };
            let Some(chunk) = self.chunks.get_mut(chain.head as usize) else { break };
            let held = (chunk.len as usize).min(CHUNK_ENTRIES);
            let taken = held.min(end - examined);
            for entry in &chunk.entries[..taken] {
                let (deadline, live) = slab.look(*entry);
                batch.entries[len % BATCH_MAX] = *entry;
                batch.deadlines[len % BATCH_MAX] = deadline;
                len += usize::from(live);
            }
            examined += taken;
            if taken < held {
                chunk.entries.copy_within(taken..held, 0);
                chunk.len = (held - taken) as u32;
                break;
            }
            let next = core::mem::replace(&mut chunk.next, self.free);
            self.free = core::mem::replace(&mut chain.head, next);
            if next == NIL {
                chain.tail = NIL;
            }
        }
        self.table[slot] = Slot { kept, young };
        if self.table[slot].is_empty() {
            self.occupied.clear(slot);
        }
        self.entries -= examined as u64;
        batch.next = 0;
        batch.len = len;
        batch.examined = examined as u32;
        examined
    }
}

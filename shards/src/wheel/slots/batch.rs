//! A batch of entries that are taken off a slot together.

use super::{CHUNK_ENTRIES, CHUNK_ROOM, NIL, Slot, Slots};
use crate::slab::{Entry, Slab};

/// The most entries in a batch: a few chunks, and a power of two so that a remainder is a mask.
const BATCH_MAX: usize = 4 * CHUNK_ROOM;

/// Live entries taken off a slot, and the deadlines of their timers at that time.
#[derive(Debug)]
pub(crate) struct Batch {
    entries: [Entry; BATCH_MAX],
    deadlines: [u64; BATCH_MAX],
    /// The first entry that was not removed.
    next: usize,
    /// The end of the entries; at most [`BATCH_MAX`].
    len: usize,
    /// How many entries were taken off the slot, stale ones included.
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

    /// Drops the entries that are not live, by overwriting them. Without a branch, since it would
    /// be mispredicted for half of the entries.
    fn drop_stale(&mut self, is_live: &[bool]) {
        let mut len = 0;
        for (place, is_live) in is_live.iter().enumerate() {
            self.entries[len % BATCH_MAX] = self.entries[place % BATCH_MAX];
            self.deadlines[len % BATCH_MAX] = self.deadlines[place % BATCH_MAX];
            len += usize::from(*is_live);
        }
    }

    /// The first entry; `None` if the batch is empty.
    #[inline]
    pub(crate) fn first(&self) -> Option<Entry> {
        self.entries[..self.len].get(self.next).copied()
    }

    /// Removes the entry that [`first`](Self::first) returns.
    #[inline]
    pub(crate) fn remove_first(&mut self) {
        debug_assert!(self.next < self.len, "the batch is empty");
        self.next += 1;
    }

    /// The entries that are left, in order, each with the deadline that its timer had when the
    /// batch was taken.
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

    /// How many entries were taken off the slot, stale ones included.
    #[inline]
    pub(crate) fn examined(&self) -> u32 {
        self.examined
    }
}

impl Slots {
    /// Takes entries off a slot and looks up their timers, until it has taken `examined_max` or
    /// less than a chunk more, or [`Batch`] is full. False if the slot is empty.
    ///
    /// The look-ups do not depend on each other and there are few instructions in between, so the
    /// processor waits for many of them, and for the next chunk, at once. In particular no store
    /// between them has an address that depends on a look-up, since a processor may hold the next
    /// look-ups back until it knows where such a store goes. So stale entries are dropped behind
    /// the look-ups.
    pub(crate) fn take_batch<T>(
        &mut self,
        slot: usize,
        examined_max: u32,
        slab: &Slab<T>,
        batch: &mut Batch,
    ) -> bool {
        self.take_entries(slot, examined_max as usize, usize::MAX, slab, batch) > 0
    }

    /// Takes chunks off the front of a slot until at least `examined_max` entries are taken, but no
    /// more entries than `taken_max`: the rest of a chunk stays. Returns how many were taken.
    #[inline]
    pub(super) fn take_entries<T>(
        &mut self,
        slot: usize,
        examined_max: usize,
        taken_max: usize,
        slab: &Slab<T>,
        batch: &mut Batch,
    ) -> usize {
        let Slot { mut old, mut new } = self.table[slot];
        let (mut live, mut examined) = (0, 0);
        let mut is_live = [false; BATCH_MAX];
        while examined < examined_max
            && examined < taken_max
            && examined <= BATCH_MAX - CHUNK_ENTRIES
        {
            let chain = if old.is_empty() { &mut new } else { &mut old };
            let Some(chunk) = self.chunks.get_mut(chain.head as usize) else { break };
            let held = (chunk.len as usize).min(CHUNK_ENTRIES);
            let taken = held.min(taken_max - examined);
            for (place, entry) in (examined..).zip(&chunk.entries[..taken]) {
                let (deadline, is_it) = slab.deadline_and_live(*entry);
                batch.entries[place % BATCH_MAX] = *entry;
                batch.deadlines[place % BATCH_MAX] = deadline;
                is_live[place % BATCH_MAX] = is_it;
                live += usize::from(is_it);
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
        self.table[slot] = Slot { old, new };
        if self.table[slot].is_empty() {
            self.occupied.clear(slot);
        }
        self.entries -= examined as u64;
        if live < examined {
            batch.drop_stale(&is_live[..examined]);
        }
        batch.next = 0;
        batch.len = live;
        batch.examined = examined as u32;
        examined
    }
}

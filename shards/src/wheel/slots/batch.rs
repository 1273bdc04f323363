//! A batch of entries that are taken off a slot together.

use super::{CHUNK_ENTRIES, CHUNK_ROOM, Chain, NIL, Slot, Slots};
use crate::slab::{Entry, Slab};
use crate::tick::Tick;

/// The most entries in a batch: a few chunks, and a power of two so that a remainder is a mask.
const BATCH_MAX: usize = 4 * CHUNK_ROOM;

/// The deadline of a stale entry, which no timer has.
const STALE: u64 = u64::MAX;
const _: () = assert!(Tick::NEVER.index() < STALE);

/// An entry and what its timer's slot held when the batch was taken.
#[derive(Clone, Copy, Debug)]
struct LookedUp {
    entry: Entry,
    /// The deadline of the timer, or [`STALE`].
    deadline: u64,
}

/// Live entries taken off a slot, and the deadlines of their timers at that time.
#[derive(Debug)]
pub(crate) struct Batch {
    looked_up: [LookedUp; BATCH_MAX],
    /// The first entry that was not removed.
    next: usize,
    /// The end of the entries; at most [`BATCH_MAX`].
    len: usize,
    /// How many entries were taken off the slot, stale ones included.
    examined: u32,
}

impl Batch {
    pub(crate) const EMPTY: Self = Self {
        looked_up: [LookedUp { entry: Entry::EMPTY, deadline: STALE }; BATCH_MAX],
        next: 0,
        len: 0,
        examined: 0,
    };

    /// Drops the stale ones among the first `examined` entries, by overwriting them. Without a
    /// branch, since it would be mispredicted for half of the entries.
    fn drop_stale(&mut self, examined: usize) {
        let mut len = 0;
        for place in 0..examined {
            let looked_up = self.looked_up[place % BATCH_MAX];
            self.looked_up[len % BATCH_MAX] = looked_up;
            len += usize::from(looked_up.deadline != STALE);
        }
    }

    /// The first entry; `None` if the batch is empty.
    #[inline]
    pub(crate) fn first(&self) -> Option<Entry> {
        (self.next < self.len).then(|| self.looked_up[self.next % BATCH_MAX].entry)
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
        let left = &self.looked_up[self.next..self.len];
        left.iter().map(|looked_up| (looked_up.entry, looked_up.deadline))
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
    /// less than a chunk more, [`Batch`] is full, or the last old entry is taken. False if the slot
    /// is empty.
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
        let Slot { old, new } = self.table[slot];
        let is_old = !old.is_empty();
        let chain = if is_old { old } else { new };
        let (mut head, mut free) = (chain.head, self.free);
        let (mut live, mut examined) = (0, 0);
        let wanted = examined_max.min(taken_max).min(BATCH_MAX - CHUNK_ENTRIES + 1);
        while examined < wanted {
            let Some(chunk) = self.chunks.get_mut(head as usize) else { break };
            let in_use = chunk.entries().len();
            let taken = in_use.min(taken_max - examined);
            let room = &mut batch.looked_up[examined..examined + taken];
            for (entry, looked_up) in chunk.entries[..taken].iter().zip(room) {
                let (deadline, is_live) = slab.deadline_and_live(*entry);
                let deadline = if is_live { deadline } else { STALE };
                *looked_up = LookedUp { entry: *entry, deadline };
                live += usize::from(is_live);
            }
            examined += taken;
            if taken < in_use {
                chunk.entries.copy_within(taken..in_use, 0);
                chunk.len = (in_use - taken) as u32;
                break;
            }
            let next = core::mem::replace(&mut chunk.next, free);
            free = core::mem::replace(&mut head, next);
        }
        self.free = free;
        let left = if head == NIL { Chain::EMPTY } else { Chain { head, ..chain } };
        if is_old {
            self.table[slot].old = left;
        } else {
            self.table[slot].new = left;
        }
        if self.table[slot].is_empty() {
            self.occupied.clear(slot);
        }
        self.entries -= examined as u64;
        if live < examined {
            batch.drop_stale(examined);
        }
        batch.next = 0;
        batch.len = live;
        batch.examined = examined as u32;
        examined
    }
}

//! Slots as chains of entry chunks from one pool.
//!
//! Why not a list through the timers: the entries of a chunk are independent of each other, so the
//! cache misses on their timers overlap, and a whole chain moves to another slot by writing one
//! index. A cancel or a reset to an earlier deadline leaves a stale entry behind; the code that
//! takes entries off a slot drops it, or the sweep does.
//!
//! All entries lie in slots: those of the wheel, which the wheel numbers from 0, and a few [`Side`]
//! slots behind them. So the sweep reaches all entries, and its state is a slot number and one
//! rule: *a slot is its old entries, which a sweep has seen and kept, followed by its new ones*, in
//! order. Code that takes entries off a slot takes the old ones first.
//!
//! Cost: 128 bytes for 15 entries, 8.53 bytes an entry in full chunks.

mod batch;
mod late;
mod sweep;

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

pub(crate) use self::batch::Batch;
use self::late::LateGroups;
pub(crate) use self::sweep::SLICE_CHUNKS;
use self::sweep::{Sweep, entries_max};
use super::bitmap::Bitmap;
use crate::slab::Entry;

/// Entries in a chunk: with the header they fill two cache lines.
pub(crate) const CHUNK_ENTRIES: usize = 15;

/// Entries in a chunk, rounded up to a power of two, so that a remainder by it is a mask.
const CHUNK_ROOM: usize = CHUNK_ENTRIES.next_power_of_two();

/// The index of no chunk: the end of a chain or of the free list.
const NIL: u32 = u32::MAX;

/// The slots behind those of the wheel.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(crate) enum Side {
    /// Late timers: timers whose deadline had passed when they were scheduled. The module `late`
    /// says when they are delivered.
    Late,
    /// Late timers that were scheduled since the last advance: deferred to the next turn.
    Deferred,
    /// Entries of the slot that the hashed wheel is walking that are for a later round.
    LaterRound,
    /// Entries of the slot that the hashed wheel is walking that are due.
    Due,
}
const SIDES: usize = Side::Due as usize + 1;

impl Side {
    pub(crate) const ALL: [Self; SIDES] = [Self::Late, Self::Deferred, Self::LaterRound, Self::Due];
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Chunk {
    /// The next chunk of the chain or of the free list, or [`NIL`].
    next: u32,
    /// How many of the entries are in use: at least 1 in a chain.
    len: u32,
    entries: [Entry; CHUNK_ENTRIES],
}
const _: () = assert!(size_of::<Chunk>() == 128);

impl Chunk {
    /// The entries that are in use.
    #[inline]
    fn entries(&self) -> &[Entry] {
        &self.entries[..(self.len as usize).min(CHUNK_ENTRIES)]
    }
}

#[derive(Clone, Copy, Debug)]
struct Chain {
    head: u32,
    tail: u32,
}

impl Chain {
    const EMPTY: Self = Self { head: NIL, tail: NIL };

    fn is_empty(self) -> bool {
        self.head == NIL
    }
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Entries that a sweep has seen and kept.
    old: Chain,
    /// Entries that no sweep has seen.
    new: Chain,
}

impl Slot {
    const EMPTY: Self = Self { old: Chain::EMPTY, new: Chain::EMPTY };

    fn is_empty(self) -> bool {
        self.old.is_empty() && self.new.is_empty()
    }
}

#[derive(Debug)]
pub(crate) struct Slots {
    /// The slots of the wheel, followed by one slot for each [`Side`].
    table: Box<[Slot]>,
    /// The slots that are not empty.
    occupied: Bitmap,
    chunks: Vec<Chunk>,
    /// The first free chunk, or [`NIL`].
    free: u32,
    /// Entries in all slots, stale ones included.
    entries: u64,
    /// `None` between passes.
    sweep: Option<Sweep>,
    /// Whether the last pass looked at the new entries only and left too many stale entries.
    next_is_full: bool,
    late: LateGroups,
}

impl Slots {
    /// Slots for a wheel of `wheel_slots`, with room for the entries of `capacity` timers; `None`
    /// if the allocator refuses.
    pub(crate) fn with_capacity(wheel_slots: usize, capacity: u32) -> Option<Self> {
        let len = wheel_slots + SIDES;
        // A slot has at most three chunks that are not full: the last one of either part, and one
        // where a full pass has concatenated the two parts.
        let entries_max = entries_max(wheel_slots, u64::from(capacity));
        let full = entries_max.div_ceil(CHUNK_ENTRIES as u64);
        let mut chunks = Vec::new();
        chunks.try_reserve_exact(full as usize + 3 * len).ok()?;
        Some(Self {
            table: vec![Slot::EMPTY; len].into_boxed_slice(),
            occupied: Bitmap::new(len),
            chunks,
            free: NIL,
            entries: 0,
            sweep: None,
            next_is_full: false,
            late: LateGroups::new(),
        })
    }

    /// Appends an entry to a slot.
    #[expect(clippy::inline_always, reason = "each schedule comes here")]
    #[inline(always)]
    pub(crate) fn push(&mut self, slot: usize, entry: Entry) {
        self.entries += 1;
        let tail = self.table[slot].new.tail;
        if let Some(chunk) = self.chunks.get_mut(tail as usize) {
            let len = chunk.len as usize;
            if len < CHUNK_ENTRIES {
                chunk.entries[len] = entry;
                chunk.len += 1;
                return;
            }
        }
        self.push_into_another_chunk(slot, entry);
    }

    #[inline(never)]
    fn push_into_another_chunk(&mut self, slot: usize, entry: Entry) {
        let index = self.new_chunk(entry);
        let new = &mut self.table[slot].new;
        let last = core::mem::replace(&mut new.tail, index);
        if last == NIL {
            new.head = index;
            self.occupied.set(slot);
        } else {
            self.chunks[last as usize].next = index;
        }
    }

    #[inline]
    pub(crate) fn push_side(&mut self, side: Side, entry: Entry) {
        self.push(self.side(side), entry);
    }

    /// Appends all entries of slot `from` to slot `to`, in O(1).
    pub(crate) fn splice(&mut self, from: usize, to: usize) {
        let moved = core::mem::replace(&mut self.table[from], Slot::EMPTY);
        if moved.is_empty() {
            return;
        }
        self.occupied.clear(from);
        self.occupied.set(to);
        let target = self.table[to];
        self.table[to] = if target.is_empty() {
            moved
        } else {
            let moved = self.concat(moved.old, moved.new);
            Slot { old: target.old, new: self.concat(target.new, moved) }
        };
    }

    /// The number of a side slot.
    pub(crate) fn side(&self, side: Side) -> usize {
        self.table.len() - SIDES + side as usize
    }

    pub(crate) fn side_is_empty(&self, side: Side) -> bool {
        !self.occupied.contains(self.side(side))
    }

    /// The first slot in `from..to` that is not empty.
    #[inline]
    pub(crate) fn first_in(&self, from: usize, to: usize) -> Option<usize> {
        self.occupied.first_in(from, to)
    }

    /// How many entries all slots hold, stale ones included.
    #[inline]
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// Calls `visit` with each entry and its slot, in the order of the slots.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(usize, Entry)) {
        for number in self.occupied_slots() {
            self.entries_of(number).for_each(|entry| visit(number, entry));
        }
    }

    fn occupied_slots(&self) -> impl Iterator<Item = usize> {
        let len = self.table.len();
        let first = self.occupied.first_in(0, len);
        core::iter::successors(first, move |number| self.occupied.first_in(number + 1, len))
    }

    /// The entries of one slot, in order.
    pub(crate) fn entries_of(&self, slot: usize) -> impl Iterator<Item = Entry> {
        let chunks = self.chunks_of(slot);
        chunks.flat_map(|chunk| chunk.entries().iter().copied())
    }

    fn chunks_of(&self, slot: usize) -> impl Iterator<Item = &Chunk> {
        let Slot { old, new } = self.table[slot];
        [old, new].into_iter().flat_map(move |chain| {
            let mut next = chain.head;
            core::iter::from_fn(move || {
                let chunk = self.chunks.get(next as usize)?;
                next = chunk.next;
                Some(chunk)
            })
        })
    }

    /// The bytes of the table and of the chunks that were in use at least once.
    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.table) + size_of_val(&*self.chunks)
    }

    /// Checks the counts, the bitmap, the chains and the free list.
    ///
    /// # Panics
    ///
    /// If one of them is wrong.
    pub(crate) fn check_invariants(&self) {
        let mut count = 0;
        self.for_each(|_, _| count += 1);
        assert_eq!(count, self.entries, "the count of entries is wrong");
        // A slot with entries whose bit is not set shows too: its chunks are not counted.
        let mut used = 0;
        for number in self.occupied_slots() {
            let slot = self.table[number];
            for chain in [slot.old, slot.new] {
                let mut last = NIL;
                let mut next = chain.head;
                while next != NIL {
                    assert!(self.chunks[next as usize].len > 0, "chunk {next} in a chain is empty");
                    (last, next) = (next, self.chunks[next as usize].next);
                    used += 1;
                }
                assert_eq!(last, chain.tail, "a chain of slot {number} has a wrong tail");
            }
            assert!(!slot.is_empty(), "slot {number} is empty, but its bit is set");
        }
        let mut next = self.free;
        while next != NIL {
            used += 1;
            assert!(used <= self.chunks.len(), "the free list of chunks has a cycle");
            next = self.chunks[next as usize].next;
        }
        assert_eq!(used, self.chunks.len(), "a chunk is neither in a chain nor free");
        self.check_late();
    }

    /// The chain of the chunks of `first` followed by those of `second`.
    fn concat(&mut self, first: Chain, second: Chain) -> Chain {
        match (first.is_empty(), second.is_empty()) {
            (true, _) => second,
            (_, true) => first,
            (false, false) => {
                self.chunks[first.tail as usize].next = second.head;
                Chain { head: first.head, tail: second.tail }
            }
        }
    }

    /// Appends a chunk with one entry to a chain.
    fn append_chunk(&mut self, chain: &mut Chain, entry: Entry) -> &mut Chunk {
        let index = self.new_chunk(entry);
        let last = core::mem::replace(&mut chain.tail, index);
        if last == NIL {
            chain.head = index;
        } else {
            self.chunks[last as usize].next = index;
        }
        &mut self.chunks[index as usize]
    }

    /// A chunk with one entry, which is in no chain.
    #[inline]
    fn new_chunk(&mut self, entry: Entry) -> u32 {
        let index = self.free;
        if let Some(chunk) = self.chunks.get_mut(index as usize) {
            self.free = core::mem::replace(&mut chunk.next, NIL);
            chunk.len = 1;
            chunk.entries[0] = entry;
            return index;
        }
        self.push_chunk(entry)
    }

    #[inline(never)]
    fn push_chunk(&mut self, entry: Entry) -> u32 {
        debug_assert!(self.chunks.len() < self.chunks.capacity(), "the chunks are reserved");
        let mut entries = [Entry::default(); CHUNK_ENTRIES];
        entries[0] = entry;
        self.chunks.push(Chunk { next: NIL, len: 1, entries });
        self.chunks.len() as u32 - 1
    }
}

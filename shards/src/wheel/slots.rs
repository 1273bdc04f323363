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
//! The two parts are the two generations of a generational garbage collector, for the same reason:
//! if timers are cancelled soon after they were scheduled, as the timeouts of requests are, nearly
//! all stale entries are new. A sweep that looked at the old ones each time would find almost none.
//! A sweep that drops too few new entries looks at all entries.
//!
//! Cost: 128 bytes for 15 entries, 8.53 bytes an entry in full chunks.

mod batch;
mod late;

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

pub(crate) use self::batch::Batch;
use self::late::LateGroups;
use super::bitmap::Bitmap;
use crate::slab::{Entry, Slab};

/// Entries in a chunk: with the header they fill two cache lines.
pub(crate) const CHUNK_ENTRIES: usize = 15;

/// Chunks in a slice of the sweep. During a pass, one in so many of the operations that end a timer
/// or leave a stale entry behind sweeps a slice, so that the misses on several chunks overlap.
pub(crate) const SLICE_CHUNKS: u32 = 4;
const SLICE_ENTRIES: u32 = SLICE_CHUNKS * CHUNK_ENTRIES as u32;

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

/// The state of a pass over all slots, between two slices.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    /// The slot that the pass has reached; `usize::MAX` before the first one.
    slot: usize,
    /// Whether the pass looks at the old entries too.
    full: bool,
    /// How many entries the pass has looked at.
    examined: u32,
    /// How many of the examined entries were stale.
    dropped: u32,
}

impl Sweep {
    /// Goes on to `slot`. The pass becomes a full one if it has looked at [`NEW_EXAMINED_MIN`]
    /// entries and less than half of them were stale.
    fn enter(&mut self, slot: usize) {
        self.slot = slot;
        self.full |= self.examined >= NEW_EXAMINED_MIN && self.dropped * 2 < self.examined;
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
    /// A sweep begins when the stale entries exceed three quarters of the live ones by this number.
    slack: u64,
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
        let slack = (u64::from(capacity) / 256).clamp(SLACK_MIN, SLACK_MAX);
        // A slot has at most three chunks that are not full: the last one of either part, and one
        // where a full pass has concatenated the two parts.
        let entries_max = entries_max(wheel_slots, slack, u64::from(capacity));
        let full = entries_max.div_ceil(CHUNK_ENTRIES as u64);
        let mut chunks = Vec::new();
        chunks.try_reserve_exact(full as usize + 3 * len).ok()?;
        Some(Self {
            table: vec![Slot::EMPTY; len].into_boxed_slice(),
            occupied: Bitmap::new(len),
            chunks,
            free: NIL,
            entries: 0,
            slack,
            sweep: None,
            next_is_full: false,
            late: LateGroups::new(),
        })
    }

    /// Appends an entry to a slot.
    #[expect(clippy::inline_always, reason = "each schedule comes here, and a call costs a third")]
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
        self.occupied.set(slot);
        let mut new = self.table[slot].new;
        self.append_chunk(&mut new, entry);
        self.table[slot].new = new;
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

    /// Sweeps the next slice: drops the stale entries among those of about [`SLICE_CHUNKS`] chunks.
    /// Begins a pass if the last one has ended. Returns how many entries were dropped.
    pub(crate) fn sweep_slice<T>(&mut self, slab: &Slab<T>) -> u32 {
        let mut sweep = self.sweep.take().unwrap_or(Sweep {
            slot: usize::MAX,
            full: self.next_is_full || self.entries < PARTIAL_ENTRIES_MIN,
            examined: 0,
            dropped: 0,
        });
        // The first slot behind those of the wheel.
        let late = self.side(Side::Late);
        let mut cost = 0;
        let mut dropped = 0;
        while cost < SLICE_ENTRIES {
            if self.table.get(sweep.slot).is_none_or(|slot| slot.new.is_empty()) {
                let Some(slot) = self.next_to_sweep(sweep.slot) else {
                    self.entries -= u64::from(dropped);
                    self.next_is_full = !sweep.full && self.needs_sweep(u64::from(slab.armed()));
                    return dropped;
                };
                sweep.enter(slot);
                if sweep.full {
                    let Slot { old, new } = self.table[slot];
                    self.table[slot] = Slot { old: Chain::EMPTY, new: self.concat(old, new) };
                    if slot == late {
                        self.late.count_all_as_new();
                    }
                }
            }
            let examined_max = SLICE_ENTRIES - cost;
            let (examined, stale) = if sweep.slot < late {
                self.sweep_slot(sweep.slot, examined_max, slab)
            } else {
                self.sweep_side(sweep.slot, examined_max, slab)
            };
            dropped += stale;
            sweep.examined += examined;
            sweep.dropped += stale;
            // A slot with few entries costs a cache miss too, so it counts as a few entries.
            cost += examined.max(CHUNK_ENTRIES as u32 / 4);
        }
        self.sweep = Some(sweep);
        self.entries -= u64::from(dropped);
        dropped
    }

    /// Sweeps a [`Side`] slot with [`sweep_slot`](Self::sweep_slot) and updates the counts of late
    /// entries.
    #[cold]
    fn sweep_side<T>(&mut self, slot: usize, examined_max: u32, slab: &Slab<T>) -> (u32, u32) {
        if slot == self.side(Side::Late) {
            self.count_swept_late(examined_max, slab);
        }
        let (examined, stale) = self.sweep_slot(slot, examined_max, slab);
        if slot == self.side(Side::Deferred) {
            self.late.drop_deferred(stale);
        }
        (examined, stale)
    }

    /// Looks at new entries of a slot, drops the stale ones and appends the others to the old
    /// entries, until it has looked at `examined_max` or less than a chunk more. Returns how many
    /// entries it looked at and how many it dropped.
    ///
    /// The cost is the cache misses on chunks and timers. The processor can wait for many of them
    /// at once if there are few instructions in between. So an entry is dropped by being
    /// overwritten, without a branch that would be mispredicted half the time, and the others are
    /// stored by the chunk.
    fn sweep_slot<T>(&mut self, slot: usize, examined_max: u32, slab: &Slab<T>) -> (u32, u32) {
        let Slot { mut old, mut new } = self.table[slot];
        // The entries of the last old chunk, followed by the new ones that are live.
        let mut buffer = [Entry::default(); 2 * CHUNK_ROOM];
        let mut len = 0;
        let mut last = NIL;
        if let Some(chunk) = self.chunks.get(old.tail as usize) {
            buffer[..CHUNK_ENTRIES].copy_from_slice(&chunk.entries);
            len = (chunk.len as usize).min(CHUNK_ENTRIES);
            last = old.tail;
        }
        let before = len;
        let (mut examined, mut stored) = (0, 0);
        while examined < examined_max as usize
            && let Some(chunk) = self.chunks.get_mut(new.head as usize)
        {
            let held = (chunk.len as usize).min(CHUNK_ENTRIES);
            for entry in &chunk.entries[..held] {
                buffer[len % (2 * CHUNK_ROOM)] = *entry;
                len += usize::from(slab.is_live(*entry));
            }
            examined += held;
            let next = core::mem::replace(&mut chunk.next, self.free);
            self.free = core::mem::replace(&mut new.head, next);
            if len >= CHUNK_ENTRIES {
                self.store_old(&mut old, last, &buffer, CHUNK_ENTRIES);
                // The chunk is full; the rest of the buffer goes into another one.
                last = NIL;
                buffer.copy_within(CHUNK_ENTRIES..2 * CHUNK_ENTRIES, 0);
                len -= CHUNK_ENTRIES;
                stored += CHUNK_ENTRIES;
            }
        }
        if len > 0 {
            self.store_old(&mut old, last, &buffer, len);
        }
        if new.head == NIL {
            new.tail = NIL;
        }
        self.table[slot] = Slot { old, new };
        if self.table[slot].is_empty() {
            self.occupied.clear(slot);
        }
        let dropped = before + examined - (stored + len);
        (examined as u32, dropped as u32)
    }

    /// Stores the first `len` entries of the buffer in the chunk `last` of a chain, or in a chunk
    /// appended to the chain if `last` is [`NIL`].
    #[inline]
    fn store_old(
        &mut self,
        chain: &mut Chain,
        last: u32,
        buffer: &[Entry; 2 * CHUNK_ROOM],
        len: usize,
    ) {
        let chunk = if last == NIL {
            self.append_chunk(chain, Entry::default())
        } else {
            &mut self.chunks[last as usize]
        };
        chunk.entries.copy_from_slice(&buffer[..CHUNK_ENTRIES]);
        chunk.len = len as u32;
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

    pub(crate) fn is_sweeping(&self) -> bool {
        self.sweep.is_some()
    }

    /// The bound on [`entries`](Self::entries) with `live` timers.
    pub(crate) fn entries_max(&self, live: u64) -> u64 {
        entries_max(self.table.len() - SIDES, self.slack, live)
    }

    /// Whether there are so many stale entries that a sweep must begin.
    ///
    /// There may be fewer entries than live timers, since some are in the shard's batch.
    #[inline]
    pub(crate) fn needs_sweep(&self, live: u64) -> bool {
        self.entries > live + live / 4 * 3 + self.slack
    }

    /// How many operations that end a timer or leave a stale entry behind can happen before
    /// [`needs_sweep`](Self::needs_sweep) can be true. Each of them adds at most one entry, or
    /// lowers the number of allowed entries by one and three quarters.
    pub(crate) fn operations_to_sweep(&self, live: u64) -> u32 {
        let allowed = live + live / 4 * 3 + self.slack;
        (allowed.saturating_sub(self.entries) / 3).clamp(1, u64::from(u32::MAX)) as u32
    }

    /// Whether the entries are so near their bound that each operation must sweep a slice.
    #[inline]
    pub(crate) fn is_near_entries_max(&self, live: u64) -> bool {
        self.entries > live + live / 8 * 7 + self.slack
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
        chunks.flat_map(|chunk| chunk.entries[..chunk.len as usize].iter().copied())
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

    /// How many entries a slot holds; `None` if that takes more than `chunks_left` chunks, from
    /// which the chunks of the slot are subtracted.
    pub(crate) fn count(&self, slot: usize, chunks_left: &mut usize) -> Option<u64> {
        let mut entries = 0;
        for chunk in self.chunks_of(slot) {
            *chunks_left = chunks_left.checked_sub(1)?;
            entries += u64::from(chunk.len);
        }
        Some(entries)
    }

    /// How many entries the [`Side`] slots hold, within the limit of [`count`](Self::count).
    pub(crate) fn count_sides(&self, chunks_left: &mut usize) -> Option<u64> {
        (self.side(Side::Late)..self.table.len()).map(|side| self.count(side, chunks_left)).sum()
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

    /// The first occupied slot after `slot`; `usize::MAX` counts as the number before the first.
    fn next_to_sweep(&self, slot: usize) -> Option<usize> {
        self.occupied.first_in(slot.wrapping_add(1), self.table.len())
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
        let index = if self.free == NIL {
            debug_assert!(self.chunks.len() < self.chunks.capacity(), "the chunks are reserved");
            self.chunks.push(Chunk { next: NIL, len: 0, entries: [Entry::default(); _] });
            self.chunks.len() as u32 - 1
        } else {
            let free = self.free;
            self.free = self.chunks[free as usize].next;
            free
        };
        if let Some(last) = self.chunks.get_mut(chain.tail as usize) {
            last.next = index;
        } else {
            chain.head = index;
        }
        chain.tail = index;
        let chunk = &mut self.chunks[index as usize];
        chunk.next = NIL;
        chunk.len = 1;
        chunk.entries[0] = entry;
        chunk
    }
}

/// The limits of the slack, which is a small part of the capacity. With more slack, a shard with
/// few timers sweeps less often.
const SLACK_MIN: u64 = 1_024;
const SLACK_MAX: u64 = 4_096;

/// With fewer entries than this, which fit into the cache, each pass is a full one.
const PARTIAL_ENTRIES_MIN: u64 = 1 << 14;

/// New entries that a pass looks at before it may become a full one.
const NEW_EXAMINED_MIN: u32 = 256;

/// The bound on the entries: twice the live timers plus a constant.
///
/// The sweep begins when the stale entries exceed three quarters of the live timers. From then on
/// one in four of the operations that end a timer or leave a stale entry behind sweeps a slice of
/// about four chunks. Each of them does when the stale entries exceed seven eighths. So a full
/// pass ends before the stale entries are as many as the live ones, except for slots with only a
/// few entries: each of them counts as a few entries of a slice, hence the constant.
fn entries_max(wheel_slots: usize, slack: u64, live: u64) -> u64 {
    2 * live + 2 * slack + 2 * wheel_slots as u64
}

//! Slots as chains of pooled chunks of entries.
//!
//! Why not a list through the timers: the entries of a chunk are independent of each other, so the
//! cache misses on their timers overlap, and a chain is passed on whole by writing one index. What
//! is cancelled or moved stays behind as a stale entry, to be dropped where it is met or by the
//! sweep.
//!
//! Every place where an entry can lie is a slot here: those of the wheel, numbered by the wheel
//! from 0, and a few behind them that the shard and the wheel use for what is under way. So the
//! sweep reaches everything, and needs no state but a place and one rule: *a slot is what a sweep
//! has kept of it, followed by what is young*, in order. Whoever takes from a slot takes the kept
//! part first.
//!
//! The two parts are the two generations of a garbage collector, and for the same reason: where
//! timers are cancelled soon after they were scheduled, as requests' are, nearly all of what is
//! stale is young, and a sweep that looked at the idle ones again and again would do it in vain.
//! Where it finds too little among the young, it looks at all.
//!
//! Cost: 128 bytes for 15 entries, 8.53 bytes an entry in full chunks.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::bitmap::Bitmap;
use crate::slab::{Entry, Slab};

/// Entries in a chunk: with the header they fill two cache lines.
pub(crate) const CHUNK_ENTRIES: usize = 15;
const NIL: u32 = u32::MAX;

/// The slots behind those of the wheel.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(crate) enum Side {
    /// Due now, in order of delivery.
    Due,
    /// Was due when it was scheduled; delivered once the wheel has come as far as that.
    Fresh,
    /// The same, since the last advance: waits for the next one.
    FreshNext,
    /// Of a slot of the hashed wheel that is being walked: what is for a later round.
    Kept,
    /// Of the same: what is due.
    Ripe,
}
const SIDES: usize = Side::Ripe as usize + 1;

#[derive(Debug)]
#[repr(C, align(64))]
struct Chunk {
    next: u32,
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
    /// What a sweep has seen and kept.
    kept: Chain,
    /// What came since.
    young: Chain,
}

impl Slot {
    const EMPTY: Self = Self { kept: Chain::EMPTY, young: Chain::EMPTY };

    fn is_empty(self) -> bool {
        self.kept.is_empty() && self.young.is_empty()
    }
}

/// The entries of one chunk, taken off a chain.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Batch {
    entries: [Entry; CHUNK_ENTRIES],
    len: usize,
}

impl Batch {
    #[inline]
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries[..self.len]
    }

    /// The entry at a position below [`CHUNK_ENTRIES`].
    #[inline]
    pub(crate) fn entry(&self, position: usize) -> Entry {
        self.entries[position]
    }

    /// Looks all timers of the batch up, one after the other and independently, so that the
    /// processor waits for all of them at once. Returns their deadlines, and a bit for each entry
    /// that is not stale.
    #[inline]
    pub(crate) fn screen<T>(&self, slab: &Slab<T>) -> ([u64; CHUNK_ENTRIES], u32) {
        let mut deadlines = [0; CHUNK_ENTRIES];
        let mut live = 0;
        for (position, (deadline, entry)) in deadlines.iter_mut().zip(self.entries()).enumerate() {
            let (at, is_live) = slab.look(*entry);
            *deadline = at;
            live |= u32::from(is_live) << position;
        }
        (deadlines, live)
    }

    /// The entries that are not stale.
    ///
    /// Without a branch on what is looked up: it would be mispredicted half the time, and the
    /// processor would wait for each miss before it goes on to the next.
    #[inline]
    fn live<T>(&self, slab: &Slab<T>) -> Self {
        let mut live = Self::default();
        for entry in self.entries() {
            live.entries[live.len] = *entry;
            live.len += usize::from(slab.look(*entry).1);
        }
        live
    }
}

/// A pass over all slots that is under way.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    slot: usize,
    /// It looks at what earlier ones have kept as well.
    deep: bool,
    /// Of the young entries, while it looks at those only.
    examined: u32,
    dropped: u32,
}

impl Sweep {
    /// Goes on to this slot, and at all entries from there on if the young ones are not worth it.
    fn enter(&mut self, slot: usize) {
        self.slot = slot;
        self.deep |= self.examined >= SHALLOW_MIN && self.dropped * 2 < self.examined;
    }
}

#[derive(Debug)]
pub(crate) struct Slots {
    table: Box<[Slot]>,
    occupied: Bitmap,
    chunks: Vec<Chunk>,
    free: u32,
    entries: u64,
    /// Stale entries that are left alone beside three quarters of the live ones.
    slack: u64,
    sweep: Option<Sweep>,
    /// The last pass looked at the young entries only, and that was not enough.
    next_is_deep: bool,
}

impl Slots {
    /// Slots for a wheel of `wheel_slots`, with room for `capacity` timers; `None` if the allocator
    /// refuses.
    pub(crate) fn with_capacity(wheel_slots: usize, capacity: u32) -> Option<Self> {
        let len = wheel_slots + SIDES;
        let slack = (u64::from(capacity) / 256).clamp(SLACK_MIN, SLACK_MAX);
        // Never more entries than this, and beside the full chunks some that are not: the last of
        // either part of a slot, and where a sweep has joined the two.
        let most = entries_max(wheel_slots, slack, u64::from(capacity));
        let full = most.div_ceil(CHUNK_ENTRIES as u64);
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
            next_is_deep: false,
        })
    }

    /// Appends an entry to a slot.
    #[inline]
    pub(crate) fn push(&mut self, slot: usize, entry: Entry) {
        self.entries += 1;
        let tail = self.table[slot].young.tail;
        if let Some(chunk) = self.chunks.get_mut(tail as usize) {
            let len = chunk.len as usize;
            if len < CHUNK_ENTRIES {
                chunk.entries[len] = entry;
                chunk.len += 1;
                return;
            }
        }
        self.occupied.set(slot);
        let mut young = self.table[slot].young;
        self.append_chunk(&mut young, entry);
        self.table[slot].young = young;
    }

    #[inline]
    pub(crate) fn push_side(&mut self, side: Side, entry: Entry) {
        self.push(self.side(side), entry);
    }

    /// Takes the first entries off a slot, at most a chunk of them. False if there are none.
    #[inline]
    pub(crate) fn take_batch(&mut self, slot: usize, batch: &mut Batch) -> bool {
        let Slot { mut kept, mut young } = self.table[slot];
        let taken = self.detach_head(if kept.is_empty() { &mut young } else { &mut kept }, batch);
        if taken {
            self.table[slot] = Slot { kept, young };
            if kept.is_empty() && young.is_empty() {
                self.occupied.clear(slot);
            }
            self.entries -= batch.len as u64;
        }
        taken
    }

    #[inline]
    pub(crate) fn take_batch_side(&mut self, side: Side, batch: &mut Batch) -> bool {
        self.take_batch(self.side(side), batch)
    }

    /// Moves all entries of slot `from` behind those of slot `to`, in O(1).
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
            let moved = self.join(moved.kept, moved.young);
            Slot { kept: target.kept, young: self.join(target.young, moved) }
        };
    }

    /// Drops the stale entries of about a chunk, wherever the sweep has come to; begins one if none
    /// is under way. Returns how many were dropped.
    pub(crate) fn sweep_slice<T>(&mut self, slab: &Slab<T>) -> u32 {
        let mut sweep = self.sweep.take().unwrap_or(Sweep {
            slot: usize::MAX,
            deep: self.next_is_deep || self.entries < SHALLOW_ENTRIES_MIN,
            examined: 0,
            dropped: 0,
        });
        let mut batch = Batch::default();
        let mut cost = 0;
        let mut dropped = 0;
        while cost < CHUNK_ENTRIES {
            if self.table.get(sweep.slot).is_none_or(|slot| slot.young.is_empty()) {
                let Some(slot) = self.next_to_sweep(sweep.slot) else {
                    self.entries -= u64::from(dropped);
                    self.next_is_deep = !sweep.deep && self.wants_sweep(u64::from(slab.armed()));
                    return dropped;
                };
                sweep.enter(slot);
                if sweep.deep {
                    let Slot { kept, young } = self.table[slot];
                    self.table[slot] = Slot { kept: Chain::EMPTY, young: self.join(kept, young) };
                }
            }
            let Slot { mut kept, mut young } = self.table[sweep.slot];
            batch.len = 0;
            self.detach_head(&mut young, &mut batch);
            let live = batch.live(slab);
            self.append_batch(&mut kept, &live);
            let slot = Slot { kept, young };
            self.table[sweep.slot] = slot;
            if slot.is_empty() {
                self.occupied.clear(sweep.slot);
            }
            let stale = (batch.len - live.len) as u32;
            dropped += stale;
            sweep.examined += batch.len as u32;
            sweep.dropped += stale;
            // A slot where there is little to do counts as a few entries: it costs a miss too.
            cost += batch.len.max(CHUNK_ENTRIES / 4);
        }
        self.sweep = Some(sweep);
        self.entries -= u64::from(dropped);
        dropped
    }

    pub(crate) fn side(&self, side: Side) -> usize {
        self.table.len() - SIDES + side as usize
    }

    pub(crate) fn side_is_empty(&self, side: Side) -> bool {
        !self.occupied.contains(self.side(side))
    }

    /// The first slot in `from..to` that holds anything.
    #[inline]
    pub(crate) fn first_in(&self, from: usize, to: usize) -> Option<usize> {
        self.occupied.first_in(from, to)
    }

    /// All entries, stale ones included.
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
    /// There may be fewer entries than timers: the shard holds a batch of them in its hands.
    #[inline]
    pub(crate) fn wants_sweep(&self, live: u64) -> bool {
        self.entries > live + live / 4 * 3 + self.slack
    }

    /// Whether the stale entries are so near their bound that the sweep must hurry.
    #[inline]
    pub(crate) fn must_hurry(&self, live: u64) -> bool {
        self.entries > live + live / 8 * 7 + self.slack
    }

    /// Calls `visit` with each entry and its slot, in the order of the slots.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(usize, Entry)) {
        for (number, slot) in self.table.iter().enumerate() {
            for chain in [slot.kept, slot.young] {
                let mut next = chain.head;
                while next != NIL {
                    let chunk = &self.chunks[next as usize];
                    for entry in &chunk.entries[..chunk.len as usize] {
                        visit(number, *entry);
                    }
                    next = chunk.next;
                }
            }
        }
    }

    /// Walks all chains.
    ///
    /// # Panics
    ///
    /// If the count of entries, a bit, a chain's end or the pool is wrong.
    pub(crate) fn check_invariants(&self) {
        let mut count = 0;
        self.for_each(|_, _| count += 1);
        assert_eq!(count, self.entries, "entries are counted");
        let mut used = 0;
        for (number, slot) in self.table.iter().enumerate() {
            for chain in [slot.kept, slot.young] {
                let mut last = NIL;
                let mut next = chain.head;
                while next != NIL {
                    assert!(self.chunks[next as usize].len > 0, "a chunk in use holds something");
                    (last, next) = (next, self.chunks[next as usize].next);
                    used += 1;
                }
                assert_eq!(last, chain.tail, "a chain of slot {number} ends at its tail");
            }
            let holds = !slot.is_empty();
            assert_eq!(self.occupied.contains(number), holds, "the bit of slot {number} is right");
        }
        let mut next = self.free;
        while next != NIL {
            used += 1;
            assert!(used <= self.chunks.len(), "the pool's free list is a circle");
            next = self.chunks[next as usize].next;
        }
        assert_eq!(used, self.chunks.len(), "every chunk is in a chain or free");
    }

    /// The slot that a sweep comes to after this one.
    fn next_to_sweep(&self, slot: usize) -> Option<usize> {
        self.occupied.first_in(slot.wrapping_add(1), self.table.len())
    }

    fn join(&mut self, first: Chain, second: Chain) -> Chain {
        match (first.is_empty(), second.is_empty()) {
            (true, _) => second,
            (_, true) => first,
            (false, false) => {
                self.chunks[first.tail as usize].next = second.head;
                Chain { head: first.head, tail: second.tail }
            }
        }
    }

    /// Appends all entries of a batch.
    fn append_batch(&mut self, chain: &mut Chain, batch: &Batch) {
        let mut rest = batch.entries();
        if let Some(chunk) = self.chunks.get_mut(chain.tail as usize) {
            let len = chunk.len as usize;
            let (first, others) = rest.split_at(rest.len().min(CHUNK_ENTRIES - len));
            chunk.entries[len..len + first.len()].copy_from_slice(first);
            chunk.len += first.len() as u32;
            rest = others;
        }
        if let Some((entry, others)) = rest.split_first() {
            let chunk = self.append_chunk(chain, *entry);
            chunk.entries[1..=others.len()].copy_from_slice(others);
            chunk.len += others.len() as u32;
        }
    }

    fn append_chunk(&mut self, chain: &mut Chain, entry: Entry) -> &mut Chunk {
        let fresh = if self.free == NIL {
            debug_assert!(self.chunks.len() < self.chunks.capacity(), "the pool is reserved");
            self.chunks.push(Chunk { next: NIL, len: 0, entries: [Entry::default(); _] });
            self.chunks.len() as u32 - 1
        } else {
            let free = self.free;
            self.free = self.chunks[free as usize].next;
            free
        };
        if let Some(last) = self.chunks.get_mut(chain.tail as usize) {
            last.next = fresh;
        } else {
            chain.head = fresh;
        }
        chain.tail = fresh;
        let chunk = &mut self.chunks[fresh as usize];
        chunk.next = NIL;
        chunk.len = 1;
        chunk.entries[0] = entry;
        chunk
    }

    #[inline]
    fn detach_head(&mut self, chain: &mut Chain, batch: &mut Batch) -> bool {
        let Some(chunk) = self.chunks.get_mut(chain.head as usize) else { return false };
        batch.entries = chunk.entries;
        batch.len = (chunk.len as usize).min(CHUNK_ENTRIES);
        let next = core::mem::replace(&mut chunk.next, self.free);
        self.free = core::mem::replace(&mut chain.head, next);
        if next == NIL {
            chain.tail = NIL;
        }
        true
    }
}

/// The limits of the slack, which is a small part of the capacity: the more of it, the less often a
/// shard with few timers is swept.
const SLACK_MIN: u64 = 1_024;
const SLACK_MAX: u64 = 4_096;

/// Fewer entries than this are in the cache anyway: a sweep looks at all of them.
const SHALLOW_ENTRIES_MIN: u64 = 1 << 14;

/// Young entries that a sweep looks at before it judges whether they are worth it.
const SHALLOW_MIN: u32 = 256;

/// Twice the live timers and a constant.
///
/// The sweep begins when the stale entries pass three quarters of the live timers, and each
/// operation that leaves one more behind or takes a timer away pays for a slice of about a chunk,
/// for several when they pass seven eighths. So a pass over everything ends before the stale
/// entries have caught up with the live ones, but for the slots that hold a few entries only: those
/// cost a slice a few, hence the constant.
fn entries_max(wheel_slots: usize, slack: u64, live: u64) -> u64 {
    2 * live + 2 * slack + 2 * wheel_slots as u64
}

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

/// Chunks in a slice of the sweep. While one is under way, one out of so many operations that owe
/// it something pays for a slice: then the misses on several chunks overlap.
pub(crate) const SLICE_CHUNKS: u32 = 4;
const SLICE_ENTRIES: u32 = SLICE_CHUNKS * CHUNK_ENTRIES as u32;

/// Room for a chunk, rounded up so that a remainder is a mask.
const POOL: usize = CHUNK_ENTRIES.next_power_of_two();

const NIL: u32 = u32::MAX;

/// The slots behind those of the wheel.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(crate) enum Side {
    /// Was due when it was scheduled; delivered once the wheel has come as far as that.
    Late,
    /// Was due when it was scheduled, since the last advance: waits for the next one.
    Deferred,
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
    late: LateGroups,
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
            late: LateGroups::new(),
        })
    }

    /// Appends an entry to a slot.
    #[expect(clippy::inline_always, reason = "each schedule comes here, and a call costs a third")]
    #[inline(always)]
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
        self.push_into_another_chunk(slot, entry);
    }

    #[inline(never)]
    fn push_into_another_chunk(&mut self, slot: usize, entry: Entry) {
        self.occupied.set(slot);
        let mut young = self.table[slot].young;
        self.append_chunk(&mut young, entry);
        self.table[slot].young = young;
    }

    #[inline]
    pub(crate) fn push_side(&mut self, side: Side, entry: Entry) {
        self.push(self.side(side), entry);
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

    /// Drops the stale entries of about [`SLICE_CHUNKS`], wherever the sweep has come to; begins a
    /// pass if none is under way. Returns how many were dropped.
    pub(crate) fn sweep_slice<T>(&mut self, slab: &Slab<T>) -> u32 {
        let mut sweep = self.sweep.take().unwrap_or(Sweep {
            slot: usize::MAX,
            deep: self.next_is_deep || self.entries < SHALLOW_ENTRIES_MIN,
            examined: 0,
            dropped: 0,
        });
        // The first slot that is not the wheel's.
        let late = self.side(Side::Late);
        let mut cost = 0;
        let mut dropped = 0;
        while cost < SLICE_ENTRIES {
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
                    if slot == late {
                        self.late.join();
                    }
                }
            }
            let most = SLICE_ENTRIES - cost;
            let (examined, stale) = if sweep.slot < late {
                self.sweep_slot(sweep.slot, most, slab)
            } else {
                self.sweep_side(sweep.slot, most, slab)
            };
            dropped += stale;
            sweep.examined += examined;
            sweep.dropped += stale;
            // A slot where there is little to do counts as a few entries: it costs a miss too.
            cost += examined.max(CHUNK_ENTRIES as u32 / 4);
        }
        self.sweep = Some(sweep);
        self.entries -= u64::from(dropped);
        dropped
    }

    /// Does for a slot that is not the wheel's what [`sweep_slot`](Self::sweep_slot) does.
    #[cold]
    fn sweep_side<T>(&mut self, slot: usize, most: u32, slab: &Slab<T>) -> (u32, u32) {
        if slot == self.side(Side::Late) {
            self.count_swept_late(most, slab);
        }
        let (examined, stale) = self.sweep_slot(slot, most, slab);
        if slot == self.side(Side::Deferred) {
            self.late.drop_deferred(stale);
        }
        (examined, stale)
    }

    /// Passes the young entries of a slot on to the kept ones, without those that are stale, until
    /// `most` or a few more have been looked at. Returns how many were, and how many dropped.
    ///
    /// What costs is that chunks and timers are not in the cache. The processor can wait for many
    /// of them at once as long as there are few instructions in between; so an entry is dropped by
    /// being overwritten, without a branch that would be mispredicted half the time, and what is
    /// kept is stored by the chunk.
    fn sweep_slot<T>(&mut self, slot: usize, most: u32, slab: &Slab<T>) -> (u32, u32) {
        let Slot { mut kept, mut young } = self.table[slot];
        // The last chunk that was kept, as far as it was filled, and what follows it.
        let mut pool = [Entry::default(); 2 * POOL];
        let mut len = 0;
        let mut last = NIL;
        if let Some(chunk) = self.chunks.get(kept.tail as usize) {
            pool[..CHUNK_ENTRIES].copy_from_slice(&chunk.entries);
            len = (chunk.len as usize).min(CHUNK_ENTRIES);
            last = kept.tail;
        }
        let before = len;
        let (mut examined, mut stored) = (0, 0);
        while examined < most as usize
            && let Some(chunk) = self.chunks.get_mut(young.head as usize)
        {
            let held = (chunk.len as usize).min(CHUNK_ENTRIES);
            for entry in &chunk.entries[..held] {
                pool[len % (2 * POOL)] = *entry;
                len += usize::from(slab.is_live(*entry));
            }
            examined += held;
            let next = core::mem::replace(&mut chunk.next, self.free);
            self.free = core::mem::replace(&mut young.head, next);
            if len >= CHUNK_ENTRIES {
                self.store_kept(&mut kept, last, &pool, CHUNK_ENTRIES);
                // It is full, what is left over goes into another.
                last = NIL;
                pool.copy_within(CHUNK_ENTRIES..2 * CHUNK_ENTRIES, 0);
                len -= CHUNK_ENTRIES;
                stored += CHUNK_ENTRIES;
            }
        }
        if len > 0 {
            self.store_kept(&mut kept, last, &pool, len);
        }
        if young.head == NIL {
            young.tail = NIL;
        }
        self.table[slot] = Slot { kept, young };
        if self.table[slot].is_empty() {
            self.occupied.clear(slot);
        }
        let dropped = before + examined - (stored + len);
        (examined as u32, dropped as u32)
    }

    /// Stores the first entries of a pool in the last chunk of a chain, or in another behind it.
    #[inline]
    fn store_kept(&mut self, chain: &mut Chain, last: u32, pool: &[Entry; 2 * POOL], len: usize) {
        let chunk = if last == NIL {
            self.append_chunk(chain, Entry::default())
        } else {
            &mut self.chunks[last as usize]
        };
        chunk.entries.copy_from_slice(&pool[..CHUNK_ENTRIES]);
        chunk.len = len as u32;
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

    /// How many timers may go, or leave an entry behind, before a sweep can be wanted. Each of them
    /// adds an entry at most, and takes one and three quarters of what is allowed.
    pub(crate) fn until_sweep(&self, live: u64) -> u32 {
        let allowed = live + live / 4 * 3 + self.slack;
        (allowed.saturating_sub(self.entries) / 3).clamp(1, u64::from(u32::MAX)) as u32
    }

    /// Whether the stale entries are so near their bound that the sweep must hurry.
    #[inline]
    pub(crate) fn must_hurry(&self, live: u64) -> bool {
        self.entries > live + live / 8 * 7 + self.slack
    }

    /// Calls `visit` with each entry and its slot, in the order of the slots.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(usize, Entry)) {
        for number in 0..self.table.len() {
            self.entries_of(number).for_each(|entry| visit(number, entry));
        }
    }

    /// The entries of one slot, in order.
    pub(crate) fn entries_of(&self, slot: usize) -> impl Iterator<Item = Entry> {
        let Slot { kept, young } = self.table[slot];
        let chunks = [kept, young].into_iter().flat_map(move |chain| {
            let mut next = chain.head;
            core::iter::from_fn(move || {
                let chunk = self.chunks.get(next as usize)?;
                next = chunk.next;
                Some(chunk)
            })
        });
        chunks.flat_map(|chunk| chunk.entries[..chunk.len as usize].iter().copied())
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
        self.check_late();
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
/// The sweep begins when the stale entries pass three quarters of the live timers, and of the
/// operations that leave one more behind or take a timer away one in four pays for a slice of about
/// four chunks, each one when they pass seven eighths. So a pass over everything ends before the
/// stale entries have caught up with the live ones, but for the slots that hold a few entries only:
/// those cost a slice a few, hence the constant.
fn entries_max(wheel_slots: usize, slack: u64, live: u64) -> u64 {
    2 * live + 2 * slack + 2 * wheel_slots as u64
}

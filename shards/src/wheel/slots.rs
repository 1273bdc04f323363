//! Slots as chains of pooled chunks of entries.
//!
//! Why not a list through the timers: the entries of a chunk are independent of each other, so the
//! cache misses on their timers overlap, and a chain is passed on whole by writing one index. What
//! is cancelled or moved stays behind as a stale entry, to be dropped where it is met or by the
//! sweep.
//!
//! Every place where an entry can lie is a slot here: those of the wheel, numbered by the wheel
//! from 0, and a few behind them that the shard and the wheel use for what is under way. So the
//! sweep reaches everything and needs one rule only: *a slot's chain is what the sweep has kept of
//! it, followed by what it has not seen yet*, in order. Whoever takes from a slot takes of the
//! first part first, and whoever passes a slot on puts the two together.
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

/// The entries of one chunk, taken off a chain.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Batch {
    entries: [Entry; CHUNK_ENTRIES],
    len: usize,
}

impl Batch {
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries[..self.len]
    }

    /// Looks all timers of the batch up, one after the other and independently, so that the
    /// processor waits for all of them at once.
    #[inline]
    pub(crate) fn screen<T>(&self, slab: &Slab<T>) -> [Option<u64>; CHUNK_ENTRIES] {
        let mut deadlines = [None; CHUNK_ENTRIES];
        for (deadline, entry) in deadlines.iter_mut().zip(self.entries()) {
            *deadline = slab.probe(*entry);
        }
        deadlines
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
            live.len += usize::from(slab.is_live(*entry));
        }
        live
    }
}

#[derive(Debug)]
struct Sweep {
    slot: usize,
    /// What is kept of `slot`; it comes before what is still in the slot's own chain.
    kept: Chain,
}

#[derive(Debug)]
pub(crate) struct Slots {
    chains: Box<[Chain]>,
    occupied: Bitmap,
    chunks: Vec<Chunk>,
    free: u32,
    entries: u64,
    sweep: Option<Sweep>,
}

impl Slots {
    /// Slots for a wheel of `wheel_slots`, with room for `capacity` timers; `None` if the allocator
    /// refuses.
    pub(crate) fn with_capacity(wheel_slots: usize, capacity: u32) -> Option<Self> {
        let len = wheel_slots + SIDES;
        // Never more entries than this (see `entries_max`), and beside the full chunks one that is
        // not full for each chain, the sweep's included.
        let full = entries_max(wheel_slots, u64::from(capacity)).div_ceil(CHUNK_ENTRIES as u64);
        let mut chunks = Vec::new();
        chunks.try_reserve_exact(full as usize + len + 1).ok()?;
        Some(Self {
            chains: vec![Chain::EMPTY; len].into_boxed_slice(),
            occupied: Bitmap::new(len),
            chunks,
            free: NIL,
            entries: 0,
            sweep: None,
        })
    }

    /// Appends an entry to a slot.
    #[inline]
    pub(crate) fn push(&mut self, slot: usize, entry: Entry) {
        let mut chain = self.chains[slot];
        if chain.is_empty() {
            self.occupied.set(slot);
        }
        self.append(&mut chain, entry);
        self.chains[slot] = chain;
        self.entries += 1;
    }

    #[inline]
    pub(crate) fn push_side(&mut self, side: Side, entry: Entry) {
        self.push(self.side(side), entry);
    }

    /// Takes the first entries off a slot, at most a chunk of them.
    ///
    /// A sweep that is in the middle of the slot stays where it is. Were it to begin anew, a slot
    /// that is worked off in small turns would have its first entries swept again and again and its
    /// last ones never.
    #[inline]
    pub(crate) fn take_batch(&mut self, slot: usize) -> Option<Batch> {
        if let Some(batch) = self.take_kept(slot) {
            return Some(batch);
        }
        let mut chain = self.chains[slot];
        let batch = self.detach_head(&mut chain)?;
        self.chains[slot] = chain;
        if chain.is_empty() {
            self.occupied.clear(slot);
            self.stop_sweeping(slot);
        }
        self.entries -= batch.len as u64;
        Some(batch)
    }

    pub(crate) fn take_batch_side(&mut self, side: Side) -> Option<Batch> {
        self.take_batch(self.side(side))
    }

    /// Moves all entries of slot `from` behind those of slot `to`, in O(1).
    pub(crate) fn splice(&mut self, from: usize, to: usize) {
        self.stop_sweeping(from);
        let moved = core::mem::replace(&mut self.chains[from], Chain::EMPTY);
        self.occupied.clear(from);
        if moved.is_empty() {
            return;
        }
        let target = self.chains[to];
        if target.is_empty() {
            self.chains[to] = moved;
            self.occupied.set(to);
        } else {
            self.chunks[target.tail as usize].next = moved.head;
            self.chains[to].tail = moved.tail;
        }
    }

    /// Drops the stale entries of about a chunk, wherever the sweep has come to. Returns how many;
    /// the sweep is over when [`is_sweeping`](Self::is_sweeping) is false again.
    pub(crate) fn sweep_slice<T>(&mut self, slab: &Slab<T>) -> u32 {
        let mut examined = 0;
        let mut dropped = 0;
        while examined < CHUNK_ENTRIES {
            let Some(mut sweep) = self.sweep.take().or_else(|| self.sweep_from(0)) else { break };
            let mut chain = self.chains[sweep.slot];
            if let Some(batch) = self.detach_head(&mut chain) {
                // A chunk that is hardly filled counts as a few entries: it costs a miss too.
                examined += batch.len.max(CHUNK_ENTRIES / 4);
                let live = batch.live(slab);
                dropped += (batch.len - live.len) as u32;
                self.append_batch(&mut sweep.kept, &live);
            }
            self.chains[sweep.slot] = chain;
            if chain.is_empty() {
                self.chains[sweep.slot] = sweep.kept;
                if sweep.kept.is_empty() {
                    self.occupied.clear(sweep.slot);
                }
                self.sweep = self.sweep_from(sweep.slot + 1);
                if self.sweep.is_none() {
                    break;
                }
            } else {
                self.sweep = Some(sweep);
            }
        }
        self.entries -= u64::from(dropped);
        dropped
    }

    pub(crate) fn side(&self, side: Side) -> usize {
        self.chains.len() - SIDES + side as usize
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
        entries_max(self.chains.len() - SIDES, live)
    }

    /// Whether there are so many stale entries that a sweep must begin.
    ///
    /// There may be fewer entries than timers: the shard holds a batch of them in its hands.
    #[inline]
    pub(crate) fn wants_sweep(&self, live: u64) -> bool {
        self.entries > live + live / 4 * 3 + SWEEP_SLACK
    }

    /// Calls `visit` with each entry and its slot, in the order of the slots' chains.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(usize, Entry)) {
        for slot in 0..self.chains.len() {
            let kept = self.sweep.as_ref().filter(|sweep| sweep.slot == slot);
            for chain in kept.map(|sweep| sweep.kept).into_iter().chain([self.chains[slot]]) {
                let mut next = chain.head;
                while next != NIL {
                    let chunk = &self.chunks[next as usize];
                    for entry in &chunk.entries[..chunk.len as usize] {
                        visit(slot, *entry);
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
        let swept = self.sweep.iter().map(|sweep| (None, sweep.kept));
        let slots = self.chains.iter().enumerate().map(|(slot, chain)| (Some(slot), *chain));
        for (slot, chain) in slots.chain(swept) {
            let mut last = NIL;
            let mut next = chain.head;
            while next != NIL {
                assert!(self.chunks[next as usize].len > 0, "a chunk in use holds something");
                (last, next) = (next, self.chunks[next as usize].next);
                used += 1;
            }
            assert_eq!(last, chain.tail, "the chain of {slot:?} ends at its tail");
            if let Some(slot) = slot {
                let swept =
                    self.sweep.as_ref().is_some_and(|s| s.slot == slot && !s.kept.is_empty());
                let holds = !chain.is_empty() || swept;
                assert_eq!(self.occupied.contains(slot), holds, "the bit of slot {slot} is right");
            }
        }
        let mut next = self.free;
        while next != NIL {
            used += 1;
            assert!(used <= self.chunks.len(), "the pool's free list is a circle");
            next = self.chunks[next as usize].next;
        }
        assert_eq!(used, self.chunks.len(), "every chunk is in a chain or free");
    }

    fn sweep_from(&self, slot: usize) -> Option<Sweep> {
        let slot = self.occupied.first_in(slot, self.chains.len())?;
        Some(Sweep { slot, kept: Chain::EMPTY })
    }

    /// Takes the first entries off what the sweep has kept of the slot that it is in.
    #[inline]
    fn take_kept(&mut self, slot: usize) -> Option<Batch> {
        let mut kept = self.sweep.as_ref().filter(|sweep| sweep.slot == slot)?.kept;
        let batch = self.detach_head(&mut kept)?;
        self.sweep = Some(Sweep { slot, kept });
        self.entries -= batch.len as u64;
        Some(batch)
    }

    /// Puts a slot together again that the sweep is in the middle of, and lets the sweep go on
    /// behind it.
    #[inline]
    fn stop_sweeping(&mut self, slot: usize) {
        if let Some(sweep) = self.sweep.take_if(|sweep| sweep.slot == slot) {
            let rest = self.chains[slot];
            if !sweep.kept.is_empty() {
                self.chains[slot].head = sweep.kept.head;
                self.chunks[sweep.kept.tail as usize].next = rest.head;
                if rest.is_empty() {
                    self.chains[slot].tail = sweep.kept.tail;
                }
            }
            self.sweep = self.sweep_from(slot + 1);
        }
    }

    #[inline]
    fn append(&mut self, chain: &mut Chain, entry: Entry) {
        if let Some(chunk) = self.chunks.get_mut(chain.tail as usize) {
            let len = chunk.len as usize;
            if len < CHUNK_ENTRIES {
                chunk.entries[len] = entry;
                chunk.len += 1;
                return;
            }
        }
        self.append_chunk(chain, entry);
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
        for entry in rest {
            self.append(chain, *entry);
        }
    }

    fn append_chunk(&mut self, chain: &mut Chain, entry: Entry) {
        let fresh = if self.free == NIL {
            debug_assert!(self.chunks.len() < self.chunks.capacity(), "the pool is reserved");
            self.chunks.push(Chunk { next: NIL, len: 0, entries: [Entry::default(); _] });
            self.chunks.len() as u32 - 1
        } else {
            let free = self.free;
            self.free = self.chunks[free as usize].next;
            free
        };
        let chunk = &mut self.chunks[fresh as usize];
        chunk.next = NIL;
        chunk.len = 1;
        chunk.entries[0] = entry;
        if chain.is_empty() {
            chain.head = fresh;
        } else {
            self.chunks[chain.tail as usize].next = fresh;
        }
        chain.tail = fresh;
    }

    #[inline]
    fn detach_head(&mut self, chain: &mut Chain) -> Option<Batch> {
        let index = chain.head;
        let chunk = self.chunks.get_mut(index as usize)?;
        let batch = Batch { entries: chunk.entries, len: chunk.len as usize };
        chain.head = chunk.next;
        if chain.head == NIL {
            chain.tail = NIL;
        }
        chunk.next = self.free;
        self.free = index;
        Some(batch)
    }
}

/// Stale entries that are left alone beside three quarters of the live ones.
const SWEEP_SLACK: u64 = 512;

/// Twice the live timers and a constant.
///
/// The sweep begins when the stale entries pass three quarters of the live timers, and each
/// operation that leaves one more behind or takes a timer away pays for a slice of about a chunk.
/// So a pass ends before the stale entries have caught up with the live ones, but for the slots
/// that hold a few entries only: those cost a slice a few, hence the constant.
fn entries_max(wheel_slots: usize, live: u64) -> u64 {
    2 * live + 2 * SWEEP_SLACK + 2 * wheel_slots as u64
}

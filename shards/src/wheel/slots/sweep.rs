//! The sweep: drops stale entries in slices, so that there are never more entries than twice the
//! pending timers and a constant.
//!
//! The old and the new entries of a slot are the two generations of a generational garbage
//! collector, for the same reason: if timers are cancelled soon after they were scheduled, as the
//! timeouts of requests are, nearly all stale entries are new. A sweep that looked at the old ones
//! each time would find almost none. A sweep that drops too few new entries looks at all entries.
//!
//! A pass over the new entries goes on to its end. A pass over all entries goes around the slots
//! and pauses as soon as there are few stale entries. So each slot waits for as long as possible
//! until it is swept, and most of its entries are stale then.

use super::{CHUNK_ENTRIES, CHUNK_ROOM, Chain, NIL, SIDES, Side, Slot, Slots};
use crate::slab::{Entry, Slab};

/// Chunks in a slice of the sweep. While a sweep is needed, one in so many of the operations that
/// end a timer or leave a stale entry behind sweeps a slice. So the misses on many chunks overlap.
pub(crate) const SLICE_CHUNKS: u32 = 16;
const SLICE_ENTRIES: u32 = SLICE_CHUNKS * CHUNK_ENTRIES as u32;

/// The most chunks whose timers a sweep looks up before it drops the stale entries among theirs.
const LOOKED_UP_CHUNKS: usize = 4;

/// As many entries may be stale as there are live ones, and so many more, besides those of slots
/// with few entries. With few timers a sweep is rare then, and each slot has many stale entries
/// when it is swept.
const SLACK: u64 = 4_096;

/// With fewer entries than this, which fit into the cache, each pass is a full one.
const PARTIAL_ENTRIES_MIN: u64 = 1 << 14;

/// New entries that a pass looks at before it may become a full one.
const NEW_EXAMINED_MIN: u32 = 256;

/// A sweep begins when there are more entries than this.
#[inline]
fn sweep_begin(live: u64) -> u64 {
    live + live / 4 * 3 + SLACK / 8 * 5
}

/// The bound on the entries: twice the live timers plus a constant.
///
/// The sweep begins when the stale entries exceed three quarters of the live timers and a part of
/// the constant. From then on one in [`SLICE_CHUNKS`] of the operations that end a timer or leave a
/// stale entry behind sweeps a slice of about as many chunks. Four times as many of them do when
/// the stale entries exceed seven eighths and a larger part. So a full pass has gone around before
/// the bound, except for slots with only a few entries: each of them counts as a few entries of a
/// slice, hence the slots in the constant.
pub(super) fn entries_max(wheel_slots: usize, live: u64) -> u64 {
    2 * live + SLACK + 2 * wheel_slots as u64
}

/// The state of a pass over all slots, between two slices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sweep {
    /// The slot that the pass has reached; `usize::MAX` before the first one.
    slot: usize,
    /// How many slots behind `slot` a full pass goes on to, over the last slot to the first one.
    /// `None` while the pass looks at new entries only.
    full: Option<usize>,
    /// How many entries the pass has looked at.
    examined: u32,
    /// How many of the examined entries were stale.
    dropped: u32,
}

/// What a slice of the sweep works with, so that a slot with few entries need not write it anew.
struct SweepBuffers {
    /// Whether the entries of some chunks are live.
    is_live: [[bool; CHUNK_ENTRIES]; LOOKED_UP_CHUNKS],
    /// The entries of the last old chunk, followed by the new ones that are live.
    kept: [Entry; 2 * CHUNK_ROOM],
}

impl SweepBuffers {
    const EMPTY: Self = Self {
        is_live: [[false; CHUNK_ENTRIES]; LOOKED_UP_CHUNKS],
        kept: [Entry::EMPTY; 2 * CHUNK_ROOM],
    };
}

impl Slots {
    /// Sweeps the next slice: drops the stale entries among those of about [`SLICE_CHUNKS`] chunks.
    /// Begins a pass if the last one has ended. Returns how many entries were dropped.
    pub(crate) fn sweep_slice<T>(&mut self, slab: &Slab<T>) -> u32 {
        let mut sweep = self.sweep.take().unwrap_or_else(|| self.begin_pass());
        let mut buffers = SweepBuffers::EMPTY;
        let mut cost = 0;
        let mut dropped = 0;
        while cost < SLICE_ENTRIES {
            let is_done = self.table.get(sweep.slot).is_none_or(|slot| slot.new.is_empty());
            if is_done && !self.enter_next_slot(&mut sweep) {
                self.entries -= u64::from(dropped);
                self.next_is_full =
                    sweep.full.is_none() && self.needs_sweep(u64::from(slab.armed()));
                return dropped;
            }
            let examined_max = SLICE_ENTRIES - cost;
            let (examined, stale) = if sweep.slot < self.side(Side::Late) {
                self.sweep_slot(sweep.slot, examined_max, slab, &mut buffers)
            } else {
                self.sweep_side(sweep.slot, examined_max, slab, &mut buffers)
            };
            dropped += stale;
            sweep.examined = sweep.examined.saturating_add(examined);
            sweep.dropped = sweep.dropped.saturating_add(stale);
            // A slot with few entries costs a cache miss too, so it counts as a few entries.
            cost += examined.max(CHUNK_ENTRIES as u32 / 4);
        }
        self.sweep = Some(sweep);
        self.entries -= u64::from(dropped);
        dropped
    }

    /// A pass that has not entered a slot.
    fn begin_pass(&self) -> Sweep {
        let is_full = self.next_is_full || self.entries < PARTIAL_ENTRIES_MIN;
        let full = is_full.then_some(self.table.len());
        Sweep { slot: usize::MAX, full, examined: 0, dropped: 0 }
    }

    /// Goes on to the next occupied slot. False if the pass has ended.
    ///
    /// The pass becomes a full one if it has looked at [`NEW_EXAMINED_MIN`] entries and less than
    /// half of them were stale. It then goes once around all slots, those included that it has
    /// passed.
    fn enter_next_slot(&mut self, sweep: &mut Sweep) -> bool {
        let len = self.table.len();
        let before = sweep.slot;
        let behind = self.occupied.first_in(before.wrapping_add(1), len);
        if let Some(left) = sweep.full {
            let Some(slot) = behind.or_else(|| self.occupied.first_in(0, len)) else {
                return false;
            };
            // `usize::MAX`, before the first slot, counts as -1.
            let slots = slot.wrapping_sub(before);
            let slots = if behind.is_some() { slots } else { slots.wrapping_add(len) };
            if slots > left {
                return false;
            }
            *sweep = Sweep { slot, full: Some(left - slots), ..*sweep };
        } else {
            let Some(slot) = behind else { return false };
            sweep.slot = slot;
            if sweep.examined >= NEW_EXAMINED_MIN && sweep.dropped < sweep.examined / 2 {
                sweep.full = Some(len - 1);
            }
        }
        if sweep.full.is_some() {
            let Slot { old, new } = self.table[sweep.slot];
            self.table[sweep.slot] = Slot { old: Chain::EMPTY, new: self.concat(old, new) };
            if sweep.slot == self.side(Side::Late) {
                self.late.count_all_as_new();
            }
        }
        true
    }

    /// Sweeps a [`Side`] slot with [`sweep_slot`](Self::sweep_slot) and updates the counts of late
    /// entries.
    #[cold]
    fn sweep_side<T>(
        &mut self,
        slot: usize,
        examined_max: u32,
        slab: &Slab<T>,
        buffers: &mut SweepBuffers,
    ) -> (u32, u32) {
        if slot == self.side(Side::Late) {
            self.count_swept_late(examined_max, slab);
        }
        let (examined, stale) = self.sweep_slot(slot, examined_max, slab, buffers);
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
    /// at once if there are few instructions in between, and no store whose address depends on one
    /// of them. So the timers of some chunks are looked up first. Then an entry is dropped by being
    /// overwritten, without a branch that would be mispredicted half the time, and the others are
    /// stored by the chunk.
    fn sweep_slot<T>(
        &mut self,
        slot: usize,
        examined_max: u32,
        slab: &Slab<T>,
        buffers: &mut SweepBuffers,
    ) -> (u32, u32) {
        let Slot { mut old, mut new } = self.table[slot];
        let SweepBuffers { is_live, kept } = buffers;
        let mut len = 0;
        let mut last = NIL;
        if let Some(chunk) = self.chunks.get(old.tail as usize) {
            kept[..CHUNK_ENTRIES].copy_from_slice(&chunk.entries);
            len = (chunk.len as usize).min(CHUNK_ENTRIES);
            last = old.tail;
        }
        let before = len;
        let (mut examined, mut stored) = (0, 0);
        loop {
            let mut looked_up = 0;
            let mut next = new.head;
            while looked_up < LOOKED_UP_CHUNKS && examined < examined_max as usize {
                let Some(chunk) = self.chunks.get(next as usize) else { break };
                let entries = chunk.entries();
                for (entry, is_live) in entries.iter().zip(&mut is_live[looked_up]) {
                    *is_live = slab.is_live(*entry);
                }
                examined += entries.len();
                looked_up += 1;
                next = chunk.next;
            }
            if looked_up == 0 {
                break;
            }
            for is_live in &is_live[..looked_up] {
                let chunk = &mut self.chunks[new.head as usize];
                for (entry, is_live) in chunk.entries().iter().zip(is_live) {
                    kept[len % (2 * CHUNK_ROOM)] = *entry;
                    len += usize::from(*is_live);
                }
                let next = core::mem::replace(&mut chunk.next, self.free);
                self.free = core::mem::replace(&mut new.head, next);
                if len >= CHUNK_ENTRIES {
                    self.store_old(&mut old, last, kept, CHUNK_ENTRIES);
                    // The chunk is full; the rest of the buffer goes into another one.
                    last = NIL;
                    kept.copy_within(CHUNK_ENTRIES..2 * CHUNK_ENTRIES, 0);
                    len -= CHUNK_ENTRIES;
                    stored += CHUNK_ENTRIES;
                }
            }
        }
        if len > 0 {
            self.store_old(&mut old, last, kept, len);
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

    /// Whether the next slice of the sweep is wanted.
    ///
    /// A pass over the new entries goes on to its end, since most of them are stale. A full pass
    /// pauses while there are few stale entries: the longer an entry waits for the sweep, the
    /// likelier it is stale, and the fewer live ones the sweep looks at for each that it drops.
    pub(crate) fn wants_slice(&self, live: u64) -> bool {
        self.sweep.is_some_and(|sweep| sweep.full.is_none()) || self.needs_sweep(live)
    }

    /// Whether there are so many stale entries that a sweep must begin, or go on.
    ///
    /// There may be fewer entries than live timers, since some are in the shard's batch.
    #[inline]
    pub(crate) fn needs_sweep(&self, live: u64) -> bool {
        self.entries > sweep_begin(live)
    }

    /// How many operations that end a timer or leave a stale entry behind can happen before
    /// [`needs_sweep`](Self::needs_sweep) can be true, or [`SLICE_CHUNKS`] if that is more: a sweep
    /// that has begun takes its slices no oftener. Each of them adds at most one entry, or lowers
    /// the number of allowed entries by one and three quarters, in steps of four.
    pub(crate) fn operations_to_sweep(&self, live: u64) -> u32 {
        let more = sweep_begin(live).saturating_sub(self.entries);
        (more / 2).saturating_sub(2).clamp(u64::from(SLICE_CHUNKS), u64::from(u32::MAX)) as u32
    }

    /// Whether the entries are so near their bound that slices must come four times as often.
    #[inline]
    pub(crate) fn is_near_entries_max(&self, live: u64) -> bool {
        self.entries > live + live / 8 * 7 + SLACK / 4 * 3
    }

    /// The bound on [`entries`](Self::entries) with `live` timers.
    pub(crate) fn entries_max(&self, live: u64) -> u64 {
        entries_max(self.table.len() - SIDES, live)
    }
}

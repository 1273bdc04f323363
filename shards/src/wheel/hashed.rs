//! One level of slots, as in Netty's `HashedWheelTimer`: a deadline lies in the slot of its index
//! modulo the number of slots, however many rounds away it is.
//!
//! The scheme is the hashed wheel with unsorted lists of Varghese and Lauck ("Hashed and
//! Hierarchical Timing Wheels", SOSP 1987, scheme 6). Entries have no round counter: an entry that
//! comes up before its deadline stays for a later round. This wheel adds a lower bound on all
//! deadlines to the scheme, computed again in each full round, so that it visits neither empty
//! slots nor empty rounds.
//!
//! Invariants: an entry lies in the slot of its timer's deadline or, after a reset to a later
//! deadline, in a slot that comes up before it. `now` stays on the tick before a slot until the
//! walk through that slot is done.
//!
//! Cost: filing O(1). The wheel looks at a timer once in each round in which any timer is due; the
//! hierarchical wheel avoids this cost. 16 bytes a slot.

use super::Step;
use super::slots::{Batch, Side, Slots};
use crate::counters::Counters;
use crate::slab::{Entry, Slab};

#[derive(Debug)]
pub(crate) struct HashedWheel {
    /// The last tick whose slot has been processed.
    now: u64,
    /// The number of slots, a power of two, minus 1.
    mask: u64,
    /// The slot whose walk the budget interrupted; its tick is `now + 1`. `None` between walks.
    walking: Option<usize>,
    /// No timer in the wheel is due before this tick. `u64::MAX` if no timer was filed.
    earliest: u64,
    /// The tick before the current round.
    round_start: u64,
    /// The earliest deadline that was seen or filed since the current round began.
    round_earliest: u64,
}

impl HashedWheel {
    pub(crate) fn new(bits: u32, now: u64) -> Self {
        Self {
            now,
            mask: (1 << bits) - 1,
            walking: None,
            earliest: u64::MAX,
            round_start: now,
            round_earliest: u64::MAX,
        }
    }

    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    #[inline(never)]
    pub(crate) fn file(&mut self, slots: &mut Slots, entry: Entry, deadline: u64) -> u64 {
        self.lower_earliest(deadline);
        slots.push(self.slot_for(deadline), entry);
        deadline
    }

    #[inline(never)]
    pub(crate) fn step<T>(
        &mut self,
        slots: &mut Slots,
        slab: &Slab<T>,
        limit: u64,
        work: &mut u32,
        counters: &mut Counters,
    ) -> Step {
        loop {
            if let Some(slot) = self.walking {
                if !self.walk(slot, slots, slab, work, counters) {
                    return Step::Exhausted;
                }
            }
            if !slots.side_is_empty(Side::Due) {
                return Step::Due { slot: slots.side(Side::Due) };
            }
            let Some(occupied) = self.next_occupied(slots).filter(|tick| *tick <= limit) else {
                self.now = self.now.max(limit);
                return Step::Reached { next: limit.saturating_add(1) };
            };
            if self.earliest > occupied {
                // Occupied slots are skipped and their deadlines not seen: a new round begins.
                self.begin_round(self.earliest.min(limit + 1) - 1);
            }
            if self.earliest > limit {
                self.now = limit;
                return Step::Reached { next: limit.saturating_add(1) };
            }
            let tick = occupied.max(self.earliest);
            self.now = tick - 1;
            self.walking = Some(self.slot_for(tick));
        }
    }

    /// The tick of the next occupied slot, or the bound on all deadlines if that is later.
    #[inline]
    pub(crate) fn next_tick(&self, slots: &Slots) -> Option<u64> {
        if self.walking.is_some() {
            return Some(self.now + 1);
        }
        if !slots.side_is_empty(Side::Due) {
            return Some(self.now);
        }
        self.next_occupied(slots).map(|tick| tick.max(self.earliest))
    }

    pub(crate) fn visit_slots(&self, slots: &Slots, mut visit: impl FnMut(usize, u64) -> bool) {
        let cursor = self.slot_for(self.now + 1);
        for (from, to) in [(cursor, self.mask as usize + 1), (0, cursor)] {
            let mut from = from;
            while let Some(slot) = slots.first_in(from, to) {
                let ahead = (slot as u64).wrapping_sub(cursor as u64) & self.mask;
                if !visit(slot, self.now + 1 + ahead) {
                    return;
                }
                from = slot + 1;
            }
        }
    }

    pub(crate) fn check_filing(&self, slot: usize, deadline: u64) {
        assert!(
            self.earliest <= deadline,
            "deadline {deadline} is before the bound {} on all of them",
            self.earliest
        );
        let cursor = self.slot_for(self.now + 1) as u64;
        let comes_up = self.now + 1 + ((slot as u64).wrapping_sub(cursor) & self.mask);
        assert!(comes_up <= deadline, "deadline {deadline} comes up too late, at {comes_up}");
    }

    /// Moves the entries of a slot that are due at its tick to [`Side::Due`], and those for a later
    /// round to [`Side::LaterRound`]. Entries of timers that were reset go to the slots for their
    /// deadlines. False if the budget ran out before the end of the slot.
    fn walk<T>(
        &mut self,
        slot: usize,
        slots: &mut Slots,
        slab: &Slab<T>,
        work: &mut u32,
        counters: &mut Counters,
    ) -> bool {
        let tick = self.now + 1;
        let mut batch = Batch::EMPTY;
        while *work > 0 {
            if !slots.take_batch(slot, *work, slab, &mut batch) {
                self.finish_walk(slot, slots);
                return true;
            }
            let (live, examined) = (batch.len(), batch.examined());
            *work = work.saturating_sub(examined);
            counters.swept += u64::from(examined - live);
            for (entry, deadline) in batch.iter() {
                if deadline <= tick {
                    slots.push_side(Side::Due, entry);
                    continue;
                }
                counters.cascaded += 1;
                self.lower_earliest(deadline);
                if self.slot_for(deadline) == slot {
                    slots.push_side(Side::LaterRound, entry);
                } else {
                    slots.push(self.slot_for(deadline), entry);
                }
            }
        }
        false
    }

    fn finish_walk(&mut self, slot: usize, slots: &mut Slots) {
        slots.splice(slots.side(Side::LaterRound), slot);
        self.walking = None;
        self.now += 1;
        if self.now - self.round_start > self.mask {
            self.earliest = self.round_earliest;
            self.begin_round(self.now);
        }
    }

    /// The first tick after `now` whose slot is occupied; `None` if all slots are empty.
    #[inline]
    fn next_occupied(&self, slots: &Slots) -> Option<u64> {
        let cursor = self.slot_for(self.now + 1);
        let len = self.mask as usize + 1;
        let slot = slots.first_in(cursor, len).or_else(|| slots.first_in(0, cursor))?;
        let ahead = (slot as u64).wrapping_sub(cursor as u64) & self.mask;
        Some(self.now + 1 + ahead)
    }

    fn begin_round(&mut self, now: u64) {
        self.round_start = now;
        self.round_earliest = u64::MAX;
    }

    /// Lowers the bounds on all deadlines to include this one.
    #[inline]
    fn lower_earliest(&mut self, deadline: u64) {
        self.earliest = self.earliest.min(deadline);
        self.round_earliest = self.round_earliest.min(deadline);
    }

    #[inline]
    fn slot_for(&self, tick: u64) -> usize {
        (tick & self.mask) as usize
    }
}

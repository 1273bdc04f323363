//! A large first level in the manner of Netty's wheel, with overflow levels above it as in Kafka's.
//!
//! The scheme is the hierarchical wheel of Varghese and Lauck ("Hashed and Hierarchical Timing
//! Wheels", SOSP 1987, scheme 7). The level of a deadline is that of the highest digit in which it
//! differs from `now`, so that the windows of all levels are aligned: an entry lies where it would
//! be filed now, whenever it was filed, and a cascade finds the lower levels empty. That keeps the
//! order within a tick, and makes the first occupied slot of the lowest occupied level the next
//! event without comparing levels.
//!
//! Invariants: on level 0 no entry lies before the digit of `now`, on the others none at or before
//! it, so a search never wraps. All 64 bits have a level: there is no range to be clamped to. `now`
//! stays on the tick before a window until the cascade of that window is done, so that an
//! interrupted cascade cannot be overtaken.
//!
//! Cost: filing O(1); a step O(levels), and each entry cascades at most once a level. 16 bytes
//! a slot, 2,048 slots by default.

use alloc::boxed::Box;

use super::Step;
use super::slots::{Batch, Slots};
use crate::counters::Counters;
use crate::slab::{Entry, Slab};

const TICK_BITS: u32 = u64::BITS;

#[derive(Debug)]
pub(crate) struct HierarchicalWheel {
    now: u64,
    first_bits: u32,
    level_bits: u32,
    /// The level for each highest bit in which a deadline and `now` may differ. It is looked up,
    /// since each schedule asks for it and working it out takes a division.
    level_of_bit: Box<[Level; TICK_BITS as usize]>,
    /// The slot that is being cascaded; its window begins at `now + 1`.
    cascading: Option<usize>,
}

/// The digits of one level, as slots.
#[derive(Clone, Copy, Debug)]
struct Level {
    /// The first slot of the level.
    base: usize,
    /// Bits of a tick below this level's digit.
    shift: u32,
    bits: u32,
    /// As many ones as there are bits.
    mask: u64,
}

impl Level {
    #[inline]
    fn digit(&self, tick: u64) -> usize {
        ((tick >> self.shift) & self.mask) as usize
    }

    /// The first tick of the slot with this digit, in the window that `now` is in.
    #[inline]
    fn start(&self, digit: usize, now: u64) -> u64 {
        let above = now.checked_shr(self.shift + self.bits).unwrap_or(0);
        let above = above.checked_shl(self.shift + self.bits).unwrap_or(0);
        above | ((digit as u64) << self.shift)
    }
}

impl HierarchicalWheel {
    /// A wheel of `2^first_bits` slots and above them levels of `2^level_bits`.
    pub(crate) fn new(first_bits: u32, level_bits: u32, now: u64) -> Self {
        let level_of_bit = core::array::from_fn(|bit| {
            let above = (bit as u32).checked_sub(first_bits);
            level(first_bits, level_bits, above.map_or(0, |above| 1 + above / level_bits))
        });
        Self { now, first_bits, level_bits, level_of_bit: Box::new(level_of_bit), cascading: None }
    }

    /// How many slots the levels have together.
    pub(crate) fn slot_count(first_bits: u32, level_bits: u32) -> usize {
        let levels = (TICK_BITS - first_bits).div_ceil(level_bits) as usize;
        (1 << first_bits) + (levels << level_bits)
    }

    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    #[inline]
    pub(crate) fn file(&mut self, slots: &mut Slots, entry: Entry, deadline: u64) -> u64 {
        let level = self.level_for(deadline, self.now);
        slots.push(level.base + level.digit(deadline), entry);
        deadline >> level.shift << level.shift
    }

    /// Goes on to `tick`, where nothing comes up on the way.
    #[inline]
    pub(crate) fn pass(&mut self, tick: u64) {
        debug_assert!(self.cascading.is_none(), "a cascade comes before what is after it");
        self.now = tick;
    }

    pub(crate) fn step<T>(
        &mut self,
        slots: &mut Slots,
        slab: &Slab<T>,
        limit: u64,
        work: &mut u32,
        counters: &mut Counters,
    ) -> Step {
        loop {
            if let Some(slot) = self.cascading
                && !self.cascade(slot, slots, slab, work, counters)
            {
                return Step::Exhausted;
            }
            match self.first_occupied(slots) {
                Some((slot, start, level)) if start <= limit => {
                    if level == 0 {
                        self.now = start;
                        return Step::Due { slot };
                    }
                    self.now = start - 1;
                    self.cascading = Some(slot);
                }
                later => {
                    self.now = self.now.max(limit);
                    let next = later.map_or(u64::MAX, |(_, start, _)| start);
                    return Step::Reached { next };
                }
            }
        }
    }

    #[inline]
    pub(crate) fn next(&self, slots: &Slots) -> Option<u64> {
        if self.cascading.is_some() {
            return Some(self.now + 1);
        }
        self.first_occupied(slots).map(|(_, start, _)| start)
    }

    pub(crate) fn visit(&self, slots: &Slots, mut visit: impl FnMut(usize, u64) -> bool) {
        if let Some(slot) = self.cascading
            && !visit(slot, self.now + 1)
        {
            return;
        }
        for number in 0.. {
            let level = self.level(number);
            if level.shift >= TICK_BITS {
                return;
            }
            let end = level.base + (1 << level.bits);
            // Below the slot that is being cascaded lies the window that it prepares.
            let is_prepared = self.cascading.is_some_and(|slot| slot >= end);
            let now = if is_prepared { self.now + 1 } else { self.now };
            let mut from = level.base + level.digit(now) + usize::from(number > 0);
            while let Some(slot) = slots.first_in(from, end) {
                let start = level.start(slot - level.base, now);
                if self.cascading != Some(slot) && !visit(slot, start) {
                    return;
                }
                from = slot + 1;
            }
        }
    }

    pub(crate) fn files_in(&self, slot: usize, deadline: u64) -> bool {
        // An interrupted cascade files against the window that it prepares.
        let now = if self.cascading.is_some() { self.now + 1 } else { self.now };
        self.slot(deadline, now) == slot
    }

    pub(crate) fn check_filing(&self, slot: usize, deadline: u64) {
        if self.cascading == Some(slot) {
            return;
        }
        // An interrupted cascade has filed against the window that it prepares.
        let reference = if self.cascading.is_some() { self.now + 1 } else { self.now };
        let expected = self.slot(deadline, reference);
        let not_later = expected == slot || self.start_of(slot, reference) <= deadline;
        assert!(not_later, "deadline {deadline} in slot {slot} at {}: it comes late", self.now);
    }

    /// Files the entries of a slot one level or more below. False if the budget ran out before.
    fn cascade<T>(
        &mut self,
        slot: usize,
        slots: &mut Slots,
        slab: &Slab<T>,
        work: &mut u32,
        counters: &mut Counters,
    ) -> bool {
        let start = self.now + 1;
        let mut batch = Batch::EMPTY;
        while *work > 0 {
            if !slots.take_batch(slot, *work, slab, &mut batch) {
                self.now = start;
                self.cascading = None;
                return true;
            }
            let (live, examined) = (batch.len(), batch.examined());
            *work = work.saturating_sub(examined);
            counters.cascaded += u64::from(live);
            counters.swept += u64::from(examined - live);
            for (entry, deadline) in batch.iter() {
                slots.push(self.slot(deadline, start), entry);
            }
        }
        false
    }

    /// The first occupied slot, the tick at which it begins and its level.
    #[inline]
    fn first_occupied(&self, slots: &Slots) -> Option<(usize, u64, u32)> {
        let mut level = self.level(0);
        let mut from = level.digit(self.now);
        let mut number = 0;
        loop {
            let end = level.base + (1 << level.bits);
            if let Some(slot) = slots.first_in(level.base + from, end) {
                return Some((slot, level.start(slot - level.base, self.now), number));
            }
            number += 1;
            level = self.level(number);
            if level.shift >= TICK_BITS {
                return None;
            }
            from = level.digit(self.now) + 1;
        }
    }

    #[inline]
    fn slot(&self, deadline: u64, now: u64) -> usize {
        let level = self.level_for(deadline, now);
        level.base + level.digit(deadline)
    }

    /// The level on which a deadline is filed at `now`.
    #[inline]
    fn level_for(&self, deadline: u64, now: u64) -> &Level {
        let highest = ((deadline ^ now) | 1).ilog2();
        &self.level_of_bit[highest as usize]
    }

    #[inline]
    fn level(&self, number: u32) -> Level {
        level(self.first_bits, self.level_bits, number)
    }

    fn start_of(&self, slot: usize, now: u64) -> u64 {
        let first = 1 << self.first_bits;
        let number = if slot < first { 0 } else { 1 + ((slot - first) >> self.level_bits) as u32 };
        let level = self.level(number);
        level.start(slot - level.base, now)
    }
}

#[inline]
fn level(first_bits: u32, level_bits: u32, number: u32) -> Level {
    if number == 0 {
        Level { base: 0, shift: 0, bits: first_bits, mask: (1 << first_bits) - 1 }
    } else {
        Level {
            base: (1 << first_bits) + ((number as usize - 1) << level_bits),
            shift: first_bits + (number - 1) * level_bits,
            bits: level_bits,
            mask: (1 << level_bits) - 1,
        }
    }
}

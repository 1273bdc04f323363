//! A large first level as in Netty's wheel, with overflow levels above it as in Kafka's.
//!
//! The scheme is the hierarchical wheel of Varghese and Lauck ("Hashed and Hierarchical Timing
//! Wheels", SOSP 1987, scheme 7). A tick is a number with one digit per level, and the level of a
//! deadline is that of the highest digit in which it differs from `now`. So the windows of all
//! levels are aligned: an entry lies in the slot in which it would be filed now, whenever it was
//! filed, and a cascade finds the lower levels empty. This keeps the order within a tick, and the
//! first occupied slot of the lowest occupied level is the next one to come up, without a
//! comparison of levels.
//!
//! Invariants: on level 0 no entry lies before the digit of `now`, on the other levels none at or
//! before it, so a search never wraps around. All 64 bits have a level, so no deadline is clamped.
//! `now` stays on the tick before a window until the cascade of that window is done. So a timer
//! that is filed for the window meanwhile lies behind the entries of the cascade.
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
    /// The tick that the wheel has reached.
    now: u64,
    /// Bits of the digit of level 0.
    first_bits: u32,
    /// Bits of the digit of each level above level 0.
    level_bits: u32,
    /// The level for each highest bit in which a deadline and `now` may differ. A table, since each
    /// schedule needs the level and computing it takes a division.
    level_of_bit: Box<[Level; TICK_BITS as usize]>,
    /// The slot whose cascade the budget interrupted; its window begins at `now + 1`. `None`
    /// between cascades.
    cascading: Option<usize>,
}

/// One level: the slots that stand for the values of its digit.
#[derive(Clone, Copy, Debug)]
struct Level {
    /// The first slot of the level.
    base: usize,
    /// Bits of a tick below this level's digit.
    shift: u32,
    /// Bits of this level's digit.
    bits: u32,
    /// `2^bits - 1`.
    mask: u64,
    /// The bits of a tick that its slot's first tick has too.
    start_mask: u64,
}

impl Level {
    #[inline]
    fn digit(&self, tick: u64) -> usize {
        ((tick >> self.shift) & self.mask) as usize
    }

    /// The first tick of the slot with this digit, if the digits above it are those of `now`.
    #[inline]
    fn start(&self, digit: usize, now: u64) -> u64 {
        let above = now.checked_shr(self.shift + self.bits).unwrap_or(0);
        let above = above.checked_shl(self.shift + self.bits).unwrap_or(0);
        above | ((digit as u64) << self.shift)
    }
}

impl HierarchicalWheel {
    /// A wheel with a first level of `2^first_bits` slots and levels of `2^level_bits` above it.
    pub(crate) fn new(first_bits: u32, level_bits: u32, now: u64) -> Self {
        let level_of_bit = core::array::from_fn(|bit| {
            let above = (bit as u32).checked_sub(first_bits);
            level(first_bits, level_bits, above.map_or(0, |above| 1 + above / level_bits))
        });
        Self { now, first_bits, level_bits, level_of_bit: Box::new(level_of_bit), cascading: None }
    }

    /// How many slots all levels have together.
    pub(crate) fn slot_count(first_bits: u32, level_bits: u32) -> usize {
        let levels = (TICK_BITS - first_bits).div_ceil(level_bits) as usize;
        (1 << first_bits) + (levels << level_bits)
    }

    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    #[inline(always)]
    pub(crate) fn file(&mut self, slots: &mut Slots, entry: Entry, deadline: u64) -> u64 {
        let level = self.level_for(deadline, self.now);
        let start = deadline & level.start_mask;
        slots.push(level.base + level.digit(deadline), entry);
        start
    }

    /// Sets `now` to `tick`, up to which no entry comes up.
    #[inline]
    pub(crate) fn skip_to(&mut self, tick: u64) {
        debug_assert!(self.cascading.is_none(), "skips to {tick} during a cascade");
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
            if let Some(slot) = self.cascading {
                if !self.cascade(slot, slots, slab, work, counters) {
                    return Step::Exhausted;
                }
            }
            let level_0 = self.first_on_level_0(slots);
            let first = level_0.or_else(|| self.first_above(slots));
            match first {
                Some((slot, start)) if start <= limit => {
                    if level_0.is_some() {
                        self.now = start;
                        return Step::Due { slot };
                    }
                    self.now = start - 1;
                    self.cascading = Some(slot);
                }
                later => {
                    self.now = self.now.max(limit);
                    return Step::Reached { next: later.map_or(u64::MAX, |(_, start)| start) };
                }
            }
        }
    }

    #[inline]
    pub(crate) fn next_tick(&self, slots: &Slots) -> Option<u64> {
        if self.cascading.is_some() {
            return Some(self.now + 1);
        }
        self.first_on_level_0(slots).or_else(|| self.first_above(slots)).map(|(_, start)| start)
    }

    pub(crate) fn visit_slots(&self, slots: &Slots, mut visit: impl FnMut(usize, u64) -> bool) {
        if let Some(slot) = self.cascading {
            if !visit(slot, self.now + 1) {
                return;
            }
        }
        for number in 0.. {
            let level = self.level(number);
            if level.shift >= TICK_BITS {
                return;
            }
            let end = level.base + (1 << level.bits);
            // The levels below an interrupted cascade hold entries of the window at `now + 1`.
            let below_cascade = self.cascading.is_some_and(|slot| slot >= end);
            let now = if below_cascade { self.now + 1 } else { self.now };
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

    /// The last tick of the slot whose first tick is `start`, or in which an interrupted cascade
    /// has reached `start`.
    pub(crate) fn last_tick(&self, slot: usize, start: u64) -> u64 {
        start | ((1 << self.level_of(slot).shift) - 1)
    }

    pub(crate) fn check_filing(&self, slot: usize, deadline: u64) {
        if self.cascading == Some(slot) {
            return;
        }
        // An interrupted cascade has filed relative to the first tick of its window.
        let reference = if self.cascading.is_some() { self.now + 1 } else { self.now };
        let expected = self.slot_for(deadline, reference);
        let not_later = expected == slot || self.start_of(slot, reference) <= deadline;
        assert!(not_later, "deadline {deadline} in slot {slot} at {} comes up late", self.now);
    }

    /// Files the entries of a slot again, at least one level lower. False if the budget ran out
    /// before the end of the slot.
    #[inline(never)]
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
                slots.push(self.slot_for(deadline, start), entry);
            }
        }
        false
    }

    /// The first occupied slot of level 0 and its tick.
    #[inline]
    fn first_on_level_0(&self, slots: &Slots) -> Option<(usize, u64)> {
        let end = 1 << self.first_bits;
        let digit = self.now & (end - 1);
        let slot = slots.first_in(digit as usize, end as usize)?;
        Some((slot, self.now - digit + slot as u64))
    }

    /// The first occupied slot of the levels above level 0 and the tick at which it begins.
    #[inline(never)]
    fn first_above(&self, slots: &Slots) -> Option<(usize, u64)> {
        for number in 1.. {
            let level = self.level(number);
            if level.shift >= TICK_BITS {
                break;
            }
            let from = level.base + level.digit(self.now) + 1;
            if let Some(slot) = slots.first_in(from, level.base + (1 << level.bits)) {
                return Some((slot, level.start(slot - level.base, self.now)));
            }
        }
        None
    }

    #[inline]
    fn slot_for(&self, deadline: u64, now: u64) -> usize {
        let level = self.level_for(deadline, now);
        level.base + level.digit(deadline)
    }

    /// The level on which a deadline is filed when the wheel is at `now`.
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
        let level = self.level_of(slot);
        level.start(slot - level.base, now)
    }

    /// The level of a slot.
    fn level_of(&self, slot: usize) -> Level {
        let first = 1 << self.first_bits;
        let number = if slot < first { 0 } else { 1 + ((slot - first) >> self.level_bits) as u32 };
        self.level(number)
    }
}

#[inline]
fn level(first_bits: u32, level_bits: u32, number: u32) -> Level {
    if number == 0 {
        let mask = (1 << first_bits) - 1;
        Level { base: 0, shift: 0, bits: first_bits, mask, start_mask: u64::MAX }
    } else {
        let shift = first_bits + (number - 1) * level_bits;
        Level {
            base: (1 << first_bits) + ((number as usize - 1) << level_bits),
            shift,
            bits: level_bits,
            mask: (1 << level_bits) - 1,
            // The level after the last one, at which searches end, has no slots.
            start_mask: u64::MAX.checked_shl(shift).unwrap_or(0),
        }
    }
}

//! The search for the timer with the earliest deadline, for a caller that gives up timers for want
//! of room.
//!
//! A slot of the wheel has no order within it, and cancelled timers leave their entries there. So
//! the search keeps an *index*: a heap of the timers whose deadlines are before a bound. It is
//! built from the first occupied slots when a caller first asks, and goes on to the next slots when
//! it has come to its end. From then on a timer that is scheduled before the bound is added. Why
//! not a heap of all timers: a shard whose caller never asks pays one comparison for each new
//! timer, and one that is asked keeps order only among those that come up first.
//!
//! Invariants: the index has each pending timer that is accepted and due before the bound. A timer
//! that was reset to a deadline beyond the bound, and whose entry lies in a slot that the search
//! has passed, is filed again before the search goes on.
//!
//! Cost: 16 bytes for each timer of the index, which has at most twice as many elements as there
//! are pending timers, plus a constant.

use alloc::collections::{BTreeSet, BinaryHeap};
use core::cmp::Reverse;

use super::Shard;
use crate::key::TimerKey;
use crate::slab::Entry;
use crate::wheel::Side;

/// The search goes on to further slots until the index has so many timers.
const INDEXED_MIN: usize = 64;
/// How many more elements than twice the pending timers the index may have.
const INDEX_SLACK: usize = 1 << 10;

#[derive(Debug)]
pub(super) struct Index<T> {
    /// Each accepted timer that is due before this tick is in the index. 0 without an index.
    bound: u64,
    /// The entries, by the deadlines that their timers had when they were added.
    heap: BinaryHeap<Reverse<(u64, Entry)>>,
    accept: fn(&T) -> bool,
}

impl<T> Index<T> {
    pub(super) const EMPTY: Self = Self { bound: 0, heap: BinaryHeap::new(), accept: |_| true };

    /// Whether a timer with this deadline belongs into the index.
    #[inline]
    pub(super) fn covers(&self, deadline: u64) -> bool {
        deadline < self.bound
    }
}

/// The search for the soonest timer.
impl<T> Shard<T> {
    /// The pending timer with the earliest deadline of all whose payload is accepted; `None` if
    /// there is none. Of several with that deadline it is any.
    ///
    /// A caller that evicts cancels the timer and asks again. All calls must pass the same
    /// `accept`: it is called for a timer when the search comes to it, and not again.
    ///
    /// Amortised O(1) entries of the wheel. The search looks at an entry of a slot once, whether
    /// its timer is pending, cancelled or not accepted. It puts the accepted ones into a heap, in
    /// O(1) on average. It looks at an element of the heap once more when no other is sooner, and
    /// drops it if the timer has ended or has another deadline: each of these operations drops one
    /// element. To drop one takes O(log n) comparisons of numbers in one array, where n is the
    /// number of timers that share a slot with the soonest, but at least 64. The search goes on to
    /// the next slots, in O(slots), after 64 timers or more. When most elements of the heap belong
    /// to timers that have ended, the heap is dropped, and the next call builds it again.
    ///
    /// A call that comes to a slot looks at all of its entries. On the hierarchical wheel, a slot
    /// spans a tick for timers within 256 ticks, 256 ticks for those within 65,536, and so on. On
    /// the hashed wheel, the first call looks at all entries.
    /// [`Counters::searched`](crate::Counters::searched) counts what was looked at.
    pub fn soonest(&mut self, accept: fn(&T) -> bool) -> Option<TimerKey> {
        if self.index.bound <= self.now {
            // Time has passed the bound: the index has only timers that are due or have ended.
            self.index = Index { accept, ..Index::EMPTY };
        }
        loop {
            if let Some(entry) = self.first_of_index() {
                return Some(self.slab.key(entry));
            }
            if self.index.bound == u64::MAX {
                return None;
            }
            self.extend_index();
        }
    }

    /// Adds a timer whose deadline the index covers.
    #[cold]
    #[inline(never)]
    pub(super) fn add_to_index(&mut self, entry: Entry, deadline: u64) {
        if self.index.heap.len() >= 2 * self.len() + INDEX_SLACK {
            self.index = Index { accept: self.index.accept, ..Index::EMPTY };
        } else if self.slab.payload(entry.index).is_some_and(self.index.accept) {
            self.index.heap.push(Reverse((deadline, entry)));
        }
    }

    /// The first entry of the index whose timer is pending, after those that are dropped.
    fn first_of_index(&mut self) -> Option<Entry> {
        while let Some(&Reverse((known, entry))) = self.index.heap.peek() {
            self.counters.searched += 1;
            let deadline = self.slab.live_deadline(entry);
            if deadline == Some(known) && self.index.covers(known) {
                return Some(entry);
            }
            self.index.heap.pop();
            match deadline {
                // The timer has ended, or was reset to an earlier deadline, with another entry.
                None => {}
                Some(later) if self.index.covers(later) => {
                    self.index.heap.push(Reverse((later, entry)));
                }
                // Its entry may lie in a slot that the search has passed.
                Some(later) => {
                    let entry = self.slab.refile(entry.index);
                    self.counters.refiled += 1;
                    self.file(entry, later);
                    self.count_towards_sweep();
                }
            }
        }
        None
    }

    /// Adds the timers of the next slots, and raises the bound to the slot behind them.
    fn extend_index(&mut self) {
        let Self { index, slab, slots, wheel, batch, counters, .. } = self;
        let Index { bound, heap, accept } = index;
        let from = core::mem::replace(bound, u64::MAX);
        let mut add = |heap: &mut BinaryHeap<_>, entry: Entry| {
            counters.searched += 1;
            let is_accepted = slab.payload(entry.index).is_some_and(*accept);
            if let Some(deadline) = slab.live_deadline(entry).filter(|_| is_accepted) {
                heap.push(Reverse((deadline, entry)));
            }
        };
        if from == 0 {
            batch.iter().for_each(|(entry, _)| add(heap, entry));
            for side in Side::ALL {
                slots.entries_of(slots.side(side)).for_each(|entry| add(heap, entry));
            }
        }
        // The last tick of the slots that were visited. An interrupted cascade has filed entries of
        // its slot on lower levels, so the windows of these slots lie within that of the first.
        let mut visited = 0;
        wheel.visit_slots(slots, |slot, start| {
            let last = wheel.last_tick(slot, start);
            if last < from {
                return true;
            }
            if heap.len() >= INDEXED_MIN && start > visited {
                *bound = start;
                return false;
            }
            visited = visited.max(last);
            slots.entries_of(slot).for_each(|entry| add(heap, entry));
            true
        });
    }

    /// Checks that the index has each timer that it covers.
    ///
    /// # Panics
    ///
    /// If a timer is missing.
    pub(super) fn check_index(&self) {
        let Index { bound, heap, accept } = &self.index;
        let indexed: BTreeSet<_> = heap.iter().map(|Reverse((known, at))| (*at, *known)).collect();
        let check = |entry: Entry| {
            let Some(deadline) = self.slab.live_deadline(entry) else { return };
            if deadline < *bound && self.slab.payload(entry.index).is_some_and(accept) {
                let found = indexed.range((entry, 0)..=(entry, deadline)).next();
                assert!(found.is_some(), "{entry:?}, due at {deadline}, is not in the index");
            }
        };
        if *bound > self.now {
            self.batch.iter().for_each(|(entry, _)| check(entry));
            self.slots.for_each(|_, entry| check(entry));
        }
    }
}

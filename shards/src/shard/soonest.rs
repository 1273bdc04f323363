//! The search for the timer with the earliest deadline, for a caller that gives up timers for want
//! of room.
//!
//! A slot of the wheel has no order within it, and cancelled timers leave their entries there. So
//! the search keeps an *index*: a heap of the timers whose deadlines are before a bound. It is
//! built from the first occupied slots when a caller first asks, and goes on to the next slots when
//! it has come to its end. From then on a timer that is scheduled before the bound is added. Why not
//! a heap of all timers: a shard whose caller never asks pays one comparison for each new timer,
//! and one that is asked keeps order only among those that come up first.
//!
//! Invariants: the index has each pending timer that is accepted and due before the bound. A timer
//! that was reset to a deadline beyond the bound, and whose entry lies in a slot that the search has
//! passed, is filed again before the search goes on.
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
    /// Amortised O(1) entries of the wheel: the search looks at an entry of a slot once, whether its
    /// timer is pending, cancelled or not accepted, and puts the accepted ones into a heap, in O(1).
    /// It looks at an element of the heap once more when it is first there, and drops it then if the
    /// timer has ended or has got another deadline, which that operation has paid for. Dropping one
    /// takes O(log n) comparisons in the heap, where n is the number of timers that share a slot
    /// with the soonest, but at least 64. Going on to the next slots takes O(slots), once for 64
    /// timers at least. The heap is dropped when most of its elements belong to timers that have
    /// ended, and built again by the next call; the timers that have ended pay for that.
    ///
    /// One call may look at all entries of a slot: on the hierarchical wheel those of timers within
    /// 256 ticks of each other if the soonest is more than 256 ticks away, within 65,536 ticks if it
    /// is more than 65,536 ticks away, and so on. On the hashed wheel it is all entries.
    /// [`Counters::searched`](crate::Counters::searched) counts them.
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

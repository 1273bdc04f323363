//! The search for the timer with the earliest deadline, for a caller that gives up timers for want
//! of room.
//!
//! A slot of the wheel has no order within it, and cancelled timers leave their entries there. So
//! the search keeps an *index*: a heap of the timers whose deadlines are before a bound. It is
//! built from the first occupied slots when a caller first asks, and from the next ones when all of
//! its timers have ended. Of slots with many timers it takes those that are due first, and comes
//! back for the others. A timer that is scheduled before the bound is added. Why not a heap of all
//! timers: a shard whose caller never asks pays one comparison for each new timer. One that is
//! asked keeps order only among those that come up first.
//!
//! Invariants: the index has each pending timer that is accepted and due before the bound. A timer
//! may be reset to a deadline beyond the slot of its entry. It is filed again when the search finds
//! it, since the search does not come back to a slot that it has passed.
//!
//! Cost: 16 bytes for each timer of the index. It is built of at most a sixteenth of the timers, or
//! a few hundred, and of all that are due in one tick. With timers that are scheduled later it has
//! at most twice as many elements as there are pending timers, plus a constant.

use alloc::collections::{BTreeSet, BinaryHeap};
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::Shard;
use crate::key::TimerKey;
use crate::slab::Entry;
use crate::wheel::Side;

/// The search goes on to further slots until the index has so many timers.
const INDEXED_MIN: usize = 64;
/// Of slots with more timers, the index takes those that are due first: this part of all timers, or
/// a few. So a slot is looked at again when as many timers have ended as one in this number of its
/// entries.
const INDEXED_PART: usize = 16;
const INDEXED_FEW: usize = 256;
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

    /// Frees the memory of an index whose timers are all due or have ended.
    #[inline]
    pub(super) fn drop_if_passed(&mut self, now: u64) {
        if self.bound <= now && self.bound > 0 {
            *self = Self::EMPTY;
        }
    }

    /// Whether a timer with this deadline belongs into the index.
    #[inline]
    pub(super) fn covers(&self, deadline: u64) -> bool {
        deadline < self.bound
    }
}

/// The timers with which the index goes on, as far as the search has come.
struct Next {
    found: Vec<(u64, Entry)>,
    /// The timers that are due before this tick are among `found`.
    limit: u64,
    /// When so many are found, most of them are left out again.
    room: usize,
    now: u64,
}

impl Next {
    /// Adds a timer that is due before the limit. Lowers the limit if there are so many that those
    /// to `keep` are few of them.
    fn add(&mut self, deadline: u64, entry: Entry, keep: usize) {
        if deadline >= self.limit {
            return;
        }
        self.found.push((deadline, entry));
        if self.found.len() >= self.room {
            let (_, (last, _), _) = self.found.select_nth_unstable(keep - 1);
            // All timers that are due are before the limit, so none of them is filed again.
            self.limit = (*last).max(self.now) + 1;
            self.found.retain(|(deadline, _)| *deadline < self.limit);
            // More are left only if they are due in the same tick, or have been due.
            self.room = 2 * self.found.len().max(keep);
        }
    }
}

/// The search for the soonest timer.
impl<T> Shard<T> {
    /// The pending timer with the earliest deadline of all whose payload is accepted; `None` if
    /// there is none. Of several with that deadline it is any.
    ///
    /// A caller that evicts cancels the timer and asks again. All calls must pass the same
    /// `accept`, whose answer for a timer must stay the same.
    ///
    /// Amortised O(1) entries of the wheel, whatever was cancelled before. The search looks at the
    /// entries of the slots that come up first, which are at most two for each pending timer and a
    /// constant. It keeps one in 16 timers in a heap, and looks again when these have ended. So an
    /// ended timer pays for some 32 entries. Fewer timers are kept by 256.
    ///
    /// The search looks at an element of the heap once more when no other is sooner, and drops it
    /// if the timer has ended or has another deadline: each of these operations drops one element.
    /// To drop one takes O(log n) comparisons of numbers in one array, where n is the number of
    /// elements. It goes on to the next slots, in O(slots), after 64 timers or more. When most
    /// elements belong to timers that have ended, the heap is dropped, and the next call builds it
    /// again. While the shard is behind, a call after a turn looks at the timers that are due once
    /// more.
    ///
    /// A single call looks at all entries of the slots that it comes to. On the hierarchical wheel,
    /// a slot spans a tick for timers within 256 ticks, 256 ticks for those within 65,536, and so
    /// on. On the hashed wheel it looks at all entries.
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
        } else if self.slab.payload(entry.index()).is_some_and(self.index.accept) {
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
                Some(later) => self.refile(entry, later),
            }
        }
        None
    }

    /// Files a timer again, whose entry lies in a slot of an earlier deadline.
    fn refile(&mut self, entry: Entry, deadline: u64) {
        let entry = self.slab.refile(entry.index());
        self.counters.refiled += 1;
        self.file(entry, deadline);
        self.count_towards_sweep();
    }

    /// Builds the index of the timers that are due next, and raises the bound behind them.
    fn extend_index(&mut self) {
        let keep = (self.len() / INDEXED_PART).max(INDEXED_FEW);
        let Self { index, slab, slots, wheel, batch, counters, now, .. } = self;
        let Index { bound, accept, .. } = index;
        let from = *bound;
        let mut next = Next { found: Vec::new(), limit: u64::MAX, room: 2 * keep, now: *now };
        let mut displaced = Vec::new();
        let mut add = |next: &mut Next, entry: Entry, last: u64| {
            counters.searched += 1;
            let is_accepted = slab.payload(entry.index()).is_some_and(*accept);
            match slab.live_deadline(entry).filter(|_| is_accepted) {
                // A timer that is due keeps its place in the order of delivery.
                Some(deadline) if deadline > last.max(*now) => displaced.push((deadline, entry)),
                Some(deadline) if deadline >= from => next.add(deadline, entry, keep),
                _ => {}
            }
        };
        for (entry, _) in batch.iter() {
            add(&mut next, entry, *now);
        }
        for side in Side::ALL {
            let last = if let Side::LaterRound = side { u64::MAX } else { *now };
            for entry in slots.entries_of(slots.side(side)) {
                add(&mut next, entry, last);
            }
        }
        // The last tick of the slots that were visited. An interrupted cascade has filed entries of
        // its slot on lower levels, so the windows of these slots lie within that of the first.
        let mut visited = *now;
        wheel.visit_slots(slots, |slot, start| {
            let last = wheel.last_tick(slot, start);
            let is_enough = next.found.len() >= INDEXED_MIN && start > visited;
            if last < from {
                return true;
            }
            if is_enough || start >= next.limit {
                next.limit = next.limit.min(start);
                return false;
            }
            visited = visited.max(last);
            for entry in slots.entries_of(slot) {
                add(&mut next, entry, last);
            }
            true
        });
        *bound = next.limit;
        index.heap = next.found.into_iter().map(Reverse).collect();
        for (deadline, entry) in displaced {
            self.refile(entry, deadline);
        }
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
            if deadline < *bound && self.slab.payload(entry.index()).is_some_and(accept) {
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

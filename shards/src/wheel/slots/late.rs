//! Late timers: timers whose deadline had passed when they were scheduled, in groups by the tick at
//! which they were scheduled.
//!
//! A late timer is delivered after all timers that were due when it was scheduled, and before all
//! others. So the shard records the tick of the last advance at that time, and delivers the late
//! timer once the wheel has reached that tick. Why not one such tick for all late timers: a shard
//! that is behind reaches the first of these ticks after many turns, each of which may have added
//! late timers of its own. Why not a tick for each entry: all late timers of a turn have the same
//! one, and the entries of a group follow each other.
//!
//! Invariants: the entries of [`Side::Late`] are those of the groups, in order; the ticks of the
//! groups increase. The first group has entries. The old entries of the slot are those that the
//! groups count as old, so no group before [`LateGroups::first_new`] has new entries.
//!
//! Cost: 16 bytes a group; groups are allocated when a shard is behind by more turns than ever
//! before. Filing a late timer is O(1).

use alloc::collections::VecDeque;

use super::{Batch, Chain, Side, Slot, Slots};
use crate::slab::{Entry, Slab};

/// Groups for which a new shard allocates memory.
const GROUPS_MIN: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Group {
    /// The group is delivered once the wheel has reached this tick.
    after: u64,
    /// Entries in the old part of the slot.
    old: u32,
    /// Entries in the new part of the slot.
    new: u32,
}

impl Group {
    fn len(self) -> u32 {
        self.old + self.new
    }
}

/// The groups of the entries of [`Side::Late`], and the count of those of [`Side::Deferred`].
#[derive(Debug)]
pub(super) struct LateGroups {
    groups: VecDeque<Group>,
    /// The first group that may have new entries.
    first_new: usize,
    /// Entries in [`Side::Deferred`].
    deferred: u32,
}

impl LateGroups {
    pub(super) fn new() -> Self {
        Self { groups: VecDeque::with_capacity(GROUPS_MIN), first_new: 0, deferred: 0 }
    }

    /// Adds new entries to the last group, or to another one behind it.
    fn append(&mut self, after: u64, count: u32) {
        match self.groups.back_mut() {
            Some(last) if last.after == after => last.new += count,
            _ => {
                if self.groups.len() == self.groups.capacity() {
                    self.drop_empty();
                }
                self.groups.push_back(Group { after, old: 0, new: count });
            }
        }
    }

    /// Subtracts `count` entries that were taken off the first group.
    fn take(&mut self, count: u32) {
        if let Some(first) = self.groups.front_mut() {
            let old = count.min(first.old);
            first.old -= old;
            first.new -= count - old;
        }
        self.drop_first_if_empty();
    }

    fn drop_first_if_empty(&mut self) {
        while self.groups.front().is_some_and(|first| first.len() == 0) {
            self.groups.pop_front();
            self.first_new = self.first_new.saturating_sub(1);
        }
    }

    fn drop_empty(&mut self) {
        self.groups.retain(|group| group.len() > 0);
        self.first_new = 0;
    }

    /// Counts all entries as new, after the old part of the slot was joined to the new part.
    pub(super) fn count_all_as_new(&mut self) {
        for group in &mut self.groups {
            group.new += core::mem::take(&mut group.old);
        }
        self.drop_empty();
    }

    /// Subtracts `count` deferred entries that were dropped.
    pub(super) fn drop_deferred(&mut self, count: u32) {
        self.deferred -= count;
    }
}

impl Slots {
    /// Defers a late timer to the next turn.
    #[inline]
    pub(crate) fn defer(&mut self, entry: Entry) {
        self.push_side(Side::Deferred, entry);
        self.late.deferred += 1;
    }

    /// Makes the deferred entries late ones at the beginning of a turn: they are delivered once the
    /// wheel has reached `after`, the tick of the last turn.
    #[inline]
    pub(crate) fn make_deferred_late(&mut self, after: u64) {
        if self.late.deferred > 0 {
            self.append_deferred(after);
        }
    }

    fn append_deferred(&mut self, after: u64) {
        let (from, to) = (self.side(Side::Deferred), self.side(Side::Late));
        let Slot { old, new } = core::mem::replace(&mut self.table[from], Slot::EMPTY);
        self.occupied.clear(from);
        let deferred = self.concat(old, new);
        self.table[to].new = self.concat(self.table[to].new, deferred);
        self.occupied.set(to);
        let count = core::mem::take(&mut self.late.deferred);
        self.late.append(after, count);
    }

    /// The tick that the wheel must reach before the first group of late timers is delivered;
    /// `None` if there is no group.
    #[inline]
    pub(crate) fn late_after(&self) -> Option<u64> {
        self.late.groups.front().map(|group| group.after)
    }

    /// Whether there are entries deferred to the next turn.
    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        self.late.deferred > 0
    }

    /// Whether there are entries of late timers, deferred ones included.
    #[inline]
    pub(crate) fn has_late(&self) -> bool {
        self.late.deferred > 0 || !self.late.groups.is_empty()
    }

    /// Takes entries of the first group, as [`take_batch`](Self::take_batch) takes those of a slot.
    pub(crate) fn take_late<T>(&mut self, examined_max: u32, slab: &Slab<T>, batch: &mut Batch) {
        let group = self.late.groups.front().map_or(0, |first| first.len() as usize);
        let taken =
            self.take_entries(self.side(Side::Late), examined_max as usize, group, slab, batch);
        self.late.take(taken as u32);
    }

    /// Counts the new entries that [`sweep_slot`](Self::sweep_slot) is about to look at as old, and
    /// subtracts those that are stale.
    pub(super) fn count_swept_late<T>(&mut self, examined_max: u32, slab: &Slab<T>) {
        let mut next = self.table[self.side(Side::Late)].new.head;
        let mut examined = 0;
        while examined < examined_max {
            let Some(chunk) = self.chunks.get(next as usize) else { break };
            for entry in chunk.entries() {
                while self.late.groups[self.late.first_new].new == 0 {
                    self.late.first_new += 1;
                }
                let group = &mut self.late.groups[self.late.first_new];
                group.new -= 1;
                group.old += u32::from(slab.is_live(*entry));
            }
            examined += chunk.len;
            next = chunk.next;
        }
        self.late.drop_first_if_empty();
    }

    /// Checks the counts and the order of the groups.
    ///
    /// # Panics
    ///
    /// If one of them is wrong.
    pub(super) fn check_late(&self) {
        let LateGroups { groups, first_new, deferred } = &self.late;
        let held = |chain: Chain| {
            let mut next = chain.head;
            let lens = core::iter::from_fn(|| {
                let chunk = self.chunks.get(next as usize)?;
                next = chunk.next;
                Some(chunk.len)
            });
            lens.sum::<u32>()
        };
        let slot = self.table[self.side(Side::Late)];
        let old: u32 = groups.iter().map(|group| group.old).sum();
        let new: u32 = groups.iter().map(|group| group.new).sum();
        assert_eq!(
            (old, new),
            (held(slot.old), held(slot.new)),
            "the counts of late entries are wrong"
        );
        let deferred_slot = self.table[self.side(Side::Deferred)];
        let count = held(deferred_slot.old) + held(deferred_slot.new);
        assert_eq!(*deferred, count, "the count of deferred entries is wrong");
        assert!(groups.front().is_none_or(|first| first.len() > 0), "the first group is empty");
        assert!(groups.iter().map(|group| group.after).is_sorted(), "groups are out of order");
        let after_new = groups.iter().skip_while(|group| group.new == 0).skip(1);
        assert!(
            after_new.into_iter().all(|group| group.old == 0),
            "an old entry lies behind a new one"
        );
        let before = groups.iter().take(*first_new);
        assert!(
            before.into_iter().all(|group| group.new == 0),
            "a group before the first new one has new entries"
        );
    }
}

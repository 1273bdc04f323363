//! Timers that were due when they were scheduled, in groups by the tick at which that was.
//!
//! A late timer is delivered after everything that was due when it was scheduled, and before
//! everything that was not. So the shard notes the tick that it had been told when the timer was
//! scheduled, and delivers the timer once the wheel has come as far as that tick. Why not one such
//! tick for all late timers: a shard that is behind comes to the first of these ticks after many
//! turns, each of which may have added late timers of its own. Why not a tick beside each entry:
//! all late timers of a turn have the same one, and the entries of a group follow each other.
//!
//! Invariants: the entries of [`Side::Late`] are those of the groups, in order; the ticks of the
//! groups increase; the first group has entries; of the kept part of the slot come the entries that
//! its groups count as kept, so no group before [`LateGroups::swept`] has young ones.
//!
//! Cost: 16 bytes a group, allocated where a shard is behind by more turns than ever before. A
//! timer is late in O(1).

use alloc::collections::VecDeque;

use super::{Batch, Chain, Side, Slot, Slots};
use crate::slab::{Entry, Slab};

/// Groups for which there is room from the beginning.
const GROUPS_MIN: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Group {
    /// The group is delivered once the wheel has come to this tick.
    after: u64,
    /// Entries in the kept part of the slot.
    kept: u32,
    /// Entries in the young part of the slot.
    young: u32,
}

impl Group {
    fn len(self) -> u32 {
        self.kept + self.young
    }
}

/// How the entries of [`Side::Late`] and [`Side::Deferred`] are divided.
#[derive(Debug)]
pub(super) struct LateGroups {
    groups: VecDeque<Group>,
    /// The first group that may have young entries.
    swept: usize,
    /// Entries in [`Side::Deferred`].
    deferred: u32,
}

impl LateGroups {
    pub(super) fn new() -> Self {
        Self { groups: VecDeque::with_capacity(GROUPS_MIN), swept: 0, deferred: 0 }
    }

    /// Appends young entries to the last group, or to another behind it.
    fn append(&mut self, after: u64, count: u32) {
        match self.groups.back_mut() {
            Some(last) if last.after == after => last.young += count,
            _ => {
                if self.groups.len() == self.groups.capacity() {
                    self.drop_empty();
                }
                self.groups.push_back(Group { after, kept: 0, young: count });
            }
        }
    }

    /// So many entries of the first group were taken.
    fn take(&mut self, count: u32) {
        if let Some(first) = self.groups.front_mut() {
            let kept = count.min(first.kept);
            first.kept -= kept;
            first.young -= count - kept;
        }
        self.drop_first_if_empty();
    }

    fn drop_first_if_empty(&mut self) {
        while self.groups.front().is_some_and(|first| first.len() == 0) {
            self.groups.pop_front();
            self.swept = self.swept.saturating_sub(1);
        }
    }

    fn drop_empty(&mut self) {
        self.groups.retain(|group| group.len() > 0);
        self.swept = 0;
    }

    /// The kept part of the slot was joined to the young one.
    pub(super) fn join(&mut self) {
        for group in &mut self.groups {
            group.young += core::mem::take(&mut group.kept);
        }
        self.drop_empty();
    }

    /// So many entries that wait for the next turn were dropped.
    pub(super) fn drop_deferred(&mut self, count: u32) {
        self.deferred -= count;
    }
}

impl Slots {
    /// Files a timer that is due already: it waits for the next turn.
    #[inline]
    pub(crate) fn defer(&mut self, entry: Entry) {
        self.push_side(Side::Deferred, entry);
        self.late.deferred += 1;
    }

    /// A turn begins: what was deferred is delivered once the wheel has come to `after`, the tick
    /// that the shard was told before.
    #[inline]
    pub(crate) fn admit_deferred(&mut self, after: u64) {
        if self.late.deferred > 0 {
            self.admit(after);
        }
    }

    fn admit(&mut self, after: u64) {
        let (from, to) = (self.side(Side::Deferred), self.side(Side::Late));
        let Slot { kept, young } = core::mem::replace(&mut self.table[from], Slot::EMPTY);
        self.occupied.clear(from);
        let deferred = self.join(kept, young);
        self.table[to].young = self.join(self.table[to].young, deferred);
        self.occupied.set(to);
        let count = core::mem::take(&mut self.late.deferred);
        self.late.append(after, count);
    }

    /// The tick to which the wheel must come before the next late timers are delivered.
    #[inline]
    pub(crate) fn late_after(&self) -> Option<u64> {
        self.late.groups.front().map(|group| group.after)
    }

    /// Whether timers wait for the next turn.
    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        self.late.deferred > 0
    }

    /// Whether there are entries of late timers, those that wait for the next turn included.
    #[inline]
    pub(crate) fn has_late(&self) -> bool {
        self.late.deferred > 0 || !self.late.groups.is_empty()
    }

    /// Takes entries of the first group, as [`take_batch`](Self::take_batch) takes those of a slot.
    pub(crate) fn take_late<T>(&mut self, most: u32, slab: &Slab<T>, batch: &mut Batch) {
        let group = self.late.groups.front().map_or(0, |first| first.len() as usize);
        let taken = self.take_entries(self.side(Side::Late), most as usize, group, slab, batch);
        self.late.take(taken as u32);
    }

    /// Counts the young entries that the sweep is about to look at as kept, or as gone if they are
    /// stale.
    pub(super) fn count_swept_late<T>(&mut self, most: u32, slab: &Slab<T>) {
        let mut next = self.table[self.side(Side::Late)].young.head;
        let mut examined = 0;
        while examined < most
            && let Some(chunk) = self.chunks.get(next as usize)
        {
            for entry in &chunk.entries[..chunk.len as usize] {
                while self.late.groups[self.late.swept].young == 0 {
                    self.late.swept += 1;
                }
                let group = &mut self.late.groups[self.late.swept];
                group.young -= 1;
                group.kept += u32::from(slab.is_live(*entry));
            }
            examined += chunk.len;
            next = chunk.next;
        }
        self.late.drop_first_if_empty();
    }

    /// The entries of late timers that wait for no other turn, in order, each with the tick to
    /// which the wheel must come before.
    pub(crate) fn late_entries(&self) -> impl Iterator<Item = (Entry, u64)> {
        let groups = self.late.groups.iter();
        let afters = groups.flat_map(|group| (0..group.len()).map(|_| group.after));
        self.entries_of(self.side(Side::Late)).zip(afters)
    }

    /// Compares the groups with the entries.
    ///
    /// # Panics
    ///
    /// If a count or the order of the groups is wrong.
    pub(super) fn check_late(&self) {
        let LateGroups { groups, swept, deferred } = &self.late;
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
        let kept: u32 = groups.iter().map(|group| group.kept).sum();
        let young: u32 = groups.iter().map(|group| group.young).sum();
        assert_eq!((kept, young), (held(slot.kept), held(slot.young)), "late entries are counted");
        let waiting = self.table[self.side(Side::Deferred)];
        assert_eq!(*deferred, held(waiting.kept) + held(waiting.young), "deferred are counted");
        assert!(groups.front().is_none_or(|first| first.len() > 0), "the first group is empty");
        assert!(groups.iter().map(|group| group.after).is_sorted(), "groups are out of order");
        let after_young = groups.iter().skip_while(|group| group.young == 0).skip(1);
        assert!(after_young.into_iter().all(|group| group.kept == 0), "kept behind young entries");
        let before = groups.iter().take(*swept);
        assert!(before.into_iter().all(|group| group.young == 0), "young before the sweep's group");
    }
}

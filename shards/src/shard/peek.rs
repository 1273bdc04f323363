//! Which timers are pending, without handing them out.

use core::ops::Range;

use super::Shard;
use crate::key::TimerKey;
use crate::slab::Entry;
use crate::wheel::Side;

/// A place in the order of delivery, as far as it is known without moving anything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    deadline: u64,
    /// When the entry is filed anew, behind the others of its new tick; `None` where it lies in the
    /// slot of its deadline.
    refiled: Option<(u64, Stage)>,
}

/// What happens at a tick, in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// The entries of a slot are looked at.
    Walk,
    /// Those that are due are handed out.
    Due,
    /// Late timers are handed out.
    Late,
}

/// The best that a search has come across.
#[derive(Clone, Copy)]
struct Candidate {
    place: Place,
    entry: Entry,
}

/// Queries.
impl<T> Shard<T> {
    /// The timer that is handed out next, if nothing is scheduled, cancelled or moved before: the
    /// first of those with the earliest deadline. `None` if nothing is pending.
    ///
    /// On the hashed wheel, of timers that were moved later onto the same tick, it may name another
    /// than comes first: in which order they are filed anew depends on the turns to come.
    ///
    /// Nothing is moved in the wheel for it, so it looks at all timers that are filed together with
    /// the first: O(levels), and those within 256 ticks of each other where the first is more than
    /// 256 ticks away, those within 65,536 where it is more than that away, and so on; all that are
    /// rounds away on the hashed wheel. Those that are due cost nothing of the kind.
    pub fn peek(&self) -> Option<TimerKey> {
        if self.is_empty() {
            return None;
        }
        let mut ahead = None;
        let now = self.wheel.now();
        for (entry, _) in self.batch.iter() {
            if self.is_due(entry, now, (now, Stage::Walk), &mut ahead) {
                return Some(self.slab.key(entry));
            }
        }
        // The first late timer that stays late, and how far the wheel goes before it.
        let deferred = self.slots.entries_of(self.slots.side(Side::Deferred));
        let deferred = deferred.map(|entry| (entry, self.horizon));
        let rival = self.slots.late_entries().chain(deferred).find(|(entry, after)| {
            let refiled = (*after, Stage::Late);
            self.is_due(*entry, *after, refiled, &mut ahead)
        });
        let limit = rival.map_or(u64::MAX, |(_, after)| after);
        // Of a slot that is being walked: before what is left in it.
        let ripe = self.slots.entries_of(self.slots.side(Side::Ripe));
        let ripe_at = self.wheel.next(&self.slots).unwrap_or(now);
        for entry in ripe {
            self.offer(entry, |deadline| deadline > ripe_at, (ripe_at, Stage::Due), &mut ahead);
        }
        for entry in self.slots.entries_of(self.slots.side(Side::Kept)) {
            // It comes up in the next round, when all others have.
            let displaced = |deadline| !self.wheel.is_walking_slot_of(deadline);
            self.offer(entry, displaced, (u64::MAX, Stage::Walk), &mut ahead);
        }
        self.wheel.visit(&self.slots, |slot, start| {
            if start > ahead.map_or(limit, |best| best.place.deadline.min(limit)) {
                return false;
            }
            let displaced = |deadline| !self.wheel.files_in(slot, deadline);
            for entry in self.slots.entries_of(slot) {
                self.offer(entry, displaced, (start, Stage::Walk), &mut ahead);
            }
            true
        });
        let ahead = ahead.filter(|best| best.place.deadline <= limit).map(|best| best.entry);
        ahead.or(rival.map(|(entry, _)| entry)).map(|entry| self.slab.key(entry))
    }

    /// The first pending timer in a range of slots, for who walks over all of them in slices. A
    /// timer's slot is its key's index, and below [`capacity`](Self::capacity). O(slots).
    pub fn pending_in(&self, slots: Range<u32>) -> Option<TimerKey> {
        self.slab.first_armed_in(slots)
    }

    /// Whether an entry that comes up at `tick` is handed out there. One that is not, as its timer
    /// was moved later, is filed anew and offered as that.
    fn is_due(
        &self,
        entry: Entry,
        tick: u64,
        refiled: (u64, Stage),
        best: &mut Option<Candidate>,
    ) -> bool {
        let Some(deadline) = self.slab.probe(entry) else { return false };
        if deadline > tick {
            self.offer(entry, |_| true, refiled, best);
        }
        deadline <= tick
    }

    /// Takes an entry instead of the best so far, if it comes before that.
    fn offer(
        &self,
        entry: Entry,
        displaced: impl FnOnce(u64) -> bool,
        refiled: (u64, Stage),
        best: &mut Option<Candidate>,
    ) {
        let Some(deadline) = self.slab.probe(entry) else { return };
        let place = Place { deadline, refiled: displaced(deadline).then_some(refiled) };
        if best.is_none_or(|best| place < best.place) {
            *best = Some(Candidate { place, entry });
        }
    }
}

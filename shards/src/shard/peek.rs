//! Queries for pending timers, which do not hand them out.

use super::Shard;
use crate::key::TimerKey;
use crate::slab::Entry;
use crate::wheel::Side;

/// A position in the order of delivery, as far as it is known without changing the wheel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    deadline: u64,
    /// When the entry will be filed again, behind the other entries of its deadline; `None` if it
    /// lies in the slot of its deadline.
    refiled: Option<(u64, Stage)>,
}

/// The steps of a tick, in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// The wheel looks at the entries of a slot.
    Walk,
    /// The shard hands out the timers that are due.
    Due,
    /// The shard hands out late timers.
    Late,
}

/// The first entry in the order of delivery that a search has found so far.
#[derive(Clone, Copy)]
struct Candidate {
    place: Place,
    entry: Entry,
}

/// Queries.
impl<T> Shard<T> {
    /// The timer that the shard hands out next, if no timer is scheduled, cancelled or reset
    /// before: the first of the timers with the earliest deadline. `None` if no timer is pending.
    ///
    /// On the hashed wheel, if several timers were reset to the same later tick, `peek` may name
    /// one of them that is not handed out first: the order in which they are filed again depends on
    /// future turns.
    ///
    /// `peek` does not change the wheel, so it looks at all timers that share a slot with the first
    /// one. With 256 slots a level, it takes O(levels). If the first one is more than 256 ticks
    /// away, it also looks at all timers within 256 ticks of each other. If it is more than 65,536
    /// ticks away, it looks at those within 65,536 ticks, and so on. On the hashed wheel it looks
    /// at all timers that are rounds away. Timers that are due add no such cost.
    pub fn peek(&self) -> Option<TimerKey> {
        if self.is_empty() {
            return None;
        }
        let mut best = None;
        let wheel_now = self.wheel.now();
        for (entry, _) in self.batch.iter() {
            if self.consider_unless_due(entry, wheel_now, (wheel_now, Stage::Walk), &mut best) {
                return Some(self.slab.key(entry));
            }
        }
        // The first late timer that is due, and the tick that the wheel reaches before it.
        let deferred = self.slots.entries_of(self.slots.side(Side::Deferred));
        let deferred = deferred.map(|entry| (entry, self.now));
        let late = self.slots.late_entries().chain(deferred).find(|(entry, after)| {
            let refiled = (*after, Stage::Late);
            self.consider_unless_due(*entry, *after, refiled, &mut best)
        });
        let limit = late.map_or(u64::MAX, |(_, after)| after);
        // Due entries of the slot that the hashed wheel walks come before the rest of the slot.
        let due = self.slots.entries_of(self.slots.side(Side::Due));
        let due_at = self.wheel.next_tick(&self.slots).unwrap_or(wheel_now);
        for entry in due {
            self.consider(entry, |deadline| deadline > due_at, (due_at, Stage::Due), &mut best);
        }
        for entry in self.slots.entries_of(self.slots.side(Side::LaterRound)) {
            // The entry comes up in the next round, after the entries of all other slots.
            let displaced = |deadline| !self.wheel.is_walking_slot_for(deadline);
            self.consider(entry, displaced, (u64::MAX, Stage::Walk), &mut best);
        }
        self.wheel.visit_slots(&self.slots, |slot, start| {
            if start > best.map_or(limit, |best| best.place.deadline.min(limit)) {
                return false;
            }
            let displaced = |deadline| !self.wheel.is_slot_for(slot, deadline);
            for entry in self.slots.entries_of(slot) {
                self.consider(entry, displaced, (start, Stage::Walk), &mut best);
            }
            true
        });
        let best = best.filter(|best| best.place.deadline <= limit).map(|best| best.entry);
        best.or(late.map(|(entry, _)| entry)).map(|entry| self.slab.key(entry))
    }

    /// Returns whether the timer of an entry that comes up at `tick` is due then. If the timer was
    /// reset to a later deadline, considers the entry as one that is filed again at `refiled`.
    fn consider_unless_due(
        &self,
        entry: Entry,
        tick: u64,
        refiled: (u64, Stage),
        best: &mut Option<Candidate>,
    ) -> bool {
        let Some(deadline) = self.slab.live_deadline(entry) else { return false };
        if deadline > tick {
            self.consider(entry, |_| true, refiled, best);
        }
        deadline <= tick
    }

    /// Replaces the best entry so far with this one if this one comes before it and is live.
    fn consider(
        &self,
        entry: Entry,
        displaced: impl FnOnce(u64) -> bool,
        refiled: (u64, Stage),
        best: &mut Option<Candidate>,
    ) {
        let Some(deadline) = self.slab.live_deadline(entry) else { return };
        let place = Place { deadline, refiled: displaced(deadline).then_some(refiled) };
        if best.is_none_or(|best| place < best.place) {
            *best = Some(Candidate { place, entry });
        }
    }
}

//! What tests look at: the invariants of a shard, and its earliest deadline.

use super::Shard;
use crate::tick::Tick;
use crate::wheel::Side;

impl<T> Shard<T> {
    /// The earliest deadline of all pending timers, which [`next_deadline`](Self::next_deadline)
    /// never exceeds. O(entries): for tests.
    pub fn earliest_deadline(&self) -> Option<Tick> {
        let mut earliest = None;
        let mut see = |entry| {
            let deadline = self.slab.live_deadline(entry);
            earliest = earliest.into_iter().chain(deadline).min();
        };
        self.slots.for_each(|_, entry| see(entry));
        self.batch.iter().for_each(|(entry, _)| see(entry));
        earliest.map(Tick::new)
    }

    /// Checks all invariants of the shard. O(capacity + slots + entries): for tests.
    ///
    /// # Panics
    ///
    /// If an invariant does not hold, with a sentence and the values.
    pub fn check_invariants(&self) {
        self.slab.check_invariants();
        self.slots.check_invariants();
        self.check_index();
        assert_eq!(self.counters.pending(), self.len() as u64, "the counters contradict `len`");
        assert!(self.wheel.now() <= self.now, "the wheel has passed the tick of the last advance");
        let first_side = self.slots.side(Side::Late);
        let mut live = 0;
        let mut earliest = None;
        self.slots.for_each(|slot, entry| {
            if let Some(deadline) = self.slab.live_deadline(entry) {
                live += 1;
                earliest = Some(earliest.map_or(deadline, |first: u64| first.min(deadline)));
                if slot < first_side {
                    self.wheel.check_filing(slot, deadline);
                }
            }
        });
        for (entry, _) in self.batch.iter() {
            live += u64::from(self.slab.live_deadline(entry).is_some());
        }
        assert_eq!(live, self.len() as u64, "live entries and pending timers differ in number");
        let (entries, max) = (self.entries() as u64, self.slots.entries_max(live));
        assert!(entries <= max, "{entries} entries for {live} timers: more than {max}");
        if let (Some(earliest), Some(next)) = (earliest, self.next_deadline()) {
            let bound = earliest.max(self.now);
            assert!(next.index() <= bound, "next deadline {next:?}, but a timer is due at {bound}");
        }
        if self.now < self.no_work_before {
            let due = self.slots.has_late() || !self.batch.is_empty();
            assert!(!due, "entries are due before {}", self.no_work_before);
            let next = self.wheel.next_tick(&self.slots).unwrap_or(u64::MAX);
            assert!(self.no_work_before <= next, "{next} is before {}", self.no_work_before);
        }
        assert!(live == 0 || self.next_deadline().is_some(), "{live} pending, no next deadline");
    }
}

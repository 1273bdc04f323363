//! How full the slots of the wheel are, and how much memory a shard has touched: queries for
//! statistics.

use super::Shard;
use crate::tick::Tick;

/// Entries that come up together: those of one slot of the wheel, or those that are due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Occupancy {
    /// The tick before which none of them comes up.
    pub from: Tick,
    /// The last tick for which an entry of the slot can be. On the hashed wheel it is
    /// [`Tick::NEVER`], since a slot holds entries of later rounds too.
    pub to: Tick,
    /// How many entries there are, those of cancelled timers included.
    pub entries: u64,
}

/// Queries for statistics.
impl<T> Shard<T> {
    /// Calls `visit` with the entries that are due and with each occupied slot of the wheel, in the
    /// order of their first ticks. Returns how many of the [`entries`](Self::entries) were counted.
    ///
    /// The call ends early, and leaves the slots that come up last out, once it has looked at
    /// `chunks_max` chunks of 15 entries. If more are due already, it makes one visit, for all
    /// entries together. A timer that was reset to a later deadline counts with
    /// its earlier one until the wheel files it again, and a cancelled timer counts until its entry
    /// is swept.
    ///
    /// O(slots + chunks).
    pub fn occupancy(&self, chunks_max: usize, mut visit: impl FnMut(Occupancy)) -> u64 {
        let mut left = chunks_max;
        let now = Tick::new(self.now);
        let Some(due) = self.slots.count_sides(&mut left) else {
            let entries = self.entries() as u64;
            visit(Occupancy { from: now, to: Tick::NEVER, entries });
            return entries;
        };
        let due = due + u64::from(self.batch.len());
        let mut counted = due;
        if due > 0 {
            visit(Occupancy { from: now, to: now, entries: due });
        }
        self.wheel.visit_slots(&self.slots, |slot, start| {
            let Some(entries) = self.slots.count(slot, &mut left) else { return false };
            let to = self.wheel.last_tick(slot, start);
            visit(Occupancy { from: Tick::new(start), to: Tick::new(to), entries });
            counted += entries;
            true
        });
        counted
    }

    /// The bytes that the shard has written at least once: its slab, its entries and its slots.
    /// The memory for the rest of the capacity is reserved, and the system maps it when it is
    /// written.
    pub fn memory(&self) -> usize {
        self.slab.memory() + self.slots.memory()
    }

    /// Whether the last turn has used up its [`Budget`](crate::Budget), so that timers may be due
    /// that it has not handed out.
    #[inline]
    pub fn is_budget_used_up(&self) -> bool {
        self.expired_left == 0 || self.work_left == 0
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use crate::{Budget, Occupancy, Shard, ShardConfig, Tick, WheelKind};

    fn shard(wheel: WheelKind) -> Shard<u64> {
        Shard::new(ShardConfig { wheel, slots: 256, ..ShardConfig::default() }).unwrap()
    }

    fn occupancy(shard: &Shard<u64>, chunks_max: usize) -> (Vec<Occupancy>, u64) {
        let mut slots = Vec::new();
        let counted = shard.occupancy(chunks_max, |slot| slots.push(slot));
        (slots, counted)
    }

    #[test]
    fn occupancy_covers_every_deadline() {
        for wheel in [WheelKind::Hierarchical, WheelKind::Hashed] {
            let mut shard = shard(wheel);
            let deadlines = [1, 2, 200, 255, 256, 300, 1_000, 65_535, 65_536, 70_000, 1 << 30];
            for deadline in deadlines {
                shard.schedule(Tick::new(deadline), deadline).unwrap();
            }
            let (slots, counted) = occupancy(&shard, usize::MAX);
            assert_eq!(counted, deadlines.len() as u64);
            assert_eq!(slots.iter().map(|slot| slot.entries).sum::<u64>(), counted);
            assert!(slots.is_sorted_by_key(|slot| slot.from), "{slots:?}");
            for deadline in deadlines.map(Tick::new) {
                let covers = |slot: &&Occupancy| slot.from <= deadline && deadline <= slot.to;
                assert!(slots.iter().any(|slot| covers(&slot)), "{wheel:?} {deadline:?}");
            }
        }
    }

    #[test]
    fn occupancy_of_hierarchical_wheel_is_exact_on_the_first_level() {
        let mut shard = shard(WheelKind::Hierarchical);
        for deadline in [7, 7, 9] {
            shard.schedule(Tick::new(deadline), deadline).unwrap();
        }
        let (slots, _) = occupancy(&shard, usize::MAX);
        let slot =
            |tick, entries| Occupancy { from: Tick::new(tick), to: Tick::new(tick), entries };
        assert_eq!(slots, [slot(7, 2), slot(9, 1)]);
    }

    #[test]
    fn occupancy_with_a_bound_leaves_the_last_slots_out() {
        let mut shard = shard(WheelKind::Hierarchical);
        for deadline in 1..=100 {
            shard.schedule(Tick::new(deadline), deadline).unwrap();
        }
        let (slots, counted) = occupancy(&shard, 10);
        assert_eq!((slots.len(), counted), (10, 10));
        assert_eq!(slots.last().unwrap().to, Tick::new(10));
    }

    #[test]
    fn occupancy_counts_entries_that_a_turn_left_behind_as_due() {
        let mut shard = shard(WheelKind::Hierarchical);
        for _ in 0..20 {
            shard.schedule(Tick::new(5), 0).unwrap();
        }
        shard.advance(Tick::new(8), Budget { expired_max: 3, work_max: 1_000 });
        while shard.pop_expired().is_some() {}
        assert!(shard.is_budget_used_up());
        shard.schedule(Tick::new(2), 0).unwrap();
        let (slots, counted) = occupancy(&shard, usize::MAX);
        assert_eq!(counted, 18);
        assert!(slots.iter().all(|slot| slot.from <= Tick::new(8)), "{slots:?}");
    }

    #[test]
    fn memory_grows_with_the_timers_and_not_with_the_capacity() {
        let mut shard = shard(WheelKind::Hierarchical);
        let empty = shard.memory();
        for deadline in 1..=1_000 {
            shard.schedule(Tick::new(deadline), deadline).unwrap();
        }
        let grown = shard.memory() - empty;
        assert!((24_000..400_000).contains(&grown), "{grown}");
    }
}

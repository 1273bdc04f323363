//! The search for the soonest timer: exact, and of bounded work, whatever has ended before.

use corewheel_shard::{Budget, ResetOutcome, ShardConfig, Tick, TimerKey};

use super::{Rig, on_each_wheel};

const COUNT: u64 = 2_000;
/// Ticks so far away that on most wheels all timers share a slot.
const FAR: u64 = 1 << 40;

impl Rig {
    /// Cancels the soonest timer, and returns its deadline.
    fn evict(&mut self) -> Option<u64> {
        let key = self.shard.soonest(|_| true)?;
        let deadline = self.shard.deadline(key).map(Tick::index);
        assert!(self.cancel(key).payload().is_some());
        deadline
    }

    fn searched(&self) -> u64 {
        self.shard.counters().searched
    }
}

#[test]
fn soonest_after_cancels_looks_at_each_entry_a_few_times() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        rig.check_every = 101;
        let keys = rig.schedule_all((0..COUNT).map(|number| FAR + number));
        // The first entries of the slot are those of cancelled timers.
        for key in &keys[..COUNT as usize - 500] {
            assert!(rig.cancel(*key).payload().is_some());
        }
        for left in (0..500).rev() {
            assert_eq!(rig.evict(), Some(FAR + COUNT - 1 - left));
        }
        assert!(rig.searched() <= 8 * COUNT, "{} entries were looked at", rig.searched());
    });
}

#[test]
fn soonest_beside_new_timers_looks_at_a_few_entries_each_time() {
    const ROUNDS: u64 = 10 * COUNT;
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        rig.check_every = 1_001;
        let mut later: Vec<TimerKey> = rig.schedule_all((0..COUNT).map(|number| FAR + number));
        for round in 0..ROUNDS {
            // As in a full cache: a timer is evicted for each new one, and some are cancelled or
            // reset besides.
            let evicted = rig.evict();
            assert!(evicted >= Some(FAR), "{evicted:?}");
            later.push(rig.schedule(FAR + COUNT + round, 0));
            if round.is_multiple_of(3) {
                let at = (round * 31) as usize % later.len();
                let _may_be_over = rig.reset(later[at], FAR + COUNT + 2 * round);
            }
        }
        let searched = rig.searched();
        assert!(searched <= 24 * ROUNDS, "{searched} entries were looked at in {ROUNDS} rounds");
    });
}

#[test]
fn soonest_without_an_accepted_timer_looks_at_each_entry_once() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        rig.schedule_all((0..COUNT).map(|number| FAR + number));
        assert_eq!(rig.shard.soonest(|_| false), None);
        let searched = rig.searched();
        assert_eq!(searched, COUNT);
        for _ in 0..100 {
            assert_eq!(rig.shard.soonest(|_| false), None);
        }
        assert_eq!(rig.searched(), searched, "the search does not begin again");
    });
}

#[test]
fn timer_that_is_scheduled_or_reset_to_be_the_soonest_is_found() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let keys = rig.schedule_all((0..200).map(|number| FAR + number));
        assert_eq!(rig.shard.soonest(|_| true), Some(keys[0]));
        let new = rig.schedule(FAR - 1, 0);
        assert_eq!(rig.shard.soonest(|_| true), Some(new));
        assert_eq!(rig.reset(keys[150], FAR - 2), ResetOutcome::Reset);
        assert_eq!(rig.shard.soonest(|_| true), Some(keys[150]));
    });
}

#[test]
fn timer_that_was_reset_to_a_later_deadline_is_found_there() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let keys = rig.schedule_all((0..100).map(|number| 1_000 + number));
        assert_eq!(rig.shard.soonest(|_| true), Some(keys[0]));
        for (key, later) in keys.iter().zip(FAR..) {
            assert_eq!(rig.reset(*key, later), ResetOutcome::Reset);
        }
        let between = rig.schedule(FAR - 1_000, 0);
        assert_eq!(rig.shard.soonest(|_| true), Some(between));
        assert_eq!(rig.evict(), Some(FAR - 1_000));
        for later in FAR..FAR + 100 {
            assert_eq!(rig.evict(), Some(later));
        }
    });
}

#[test]
fn late_timers_of_a_shard_that_is_behind_are_found_in_order() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        rig.schedule(20, 0);
        rig.schedule(600, 0);
        // The turn has no budget, so the wheel stays where it is.
        rig.advance(1_000, Budget { expired_max: 0, work_max: 0 });
        rig.schedule_all([500; 100]);
        assert_eq!(rig.evict(), Some(20));
        for _ in 0..100 {
            assert_eq!(rig.evict(), Some(500));
        }
        assert_eq!(rig.evict(), Some(600));
        assert_eq!(rig.shard.counters().refiled, 0, "a timer that is due keeps its place");
    });
}

#[test]
fn soonest_looks_at_as_many_entries_a_timer_beside_many_timers_as_beside_few() {
    on_each_wheel(|config| {
        for count in [4_000, 64_000] {
            let mut rig = Rig::new(ShardConfig { capacity: count, ..config });
            rig.check_every = 20_001;
            rig.entries_slack += 4 * u64::from(count);
            rig.schedule_all((0..u64::from(count)).map(|number| FAR + number * 7 % 1_000));
            let mut last = 0;
            for _ in 0..count {
                let evicted = rig.evict().unwrap();
                assert!(last <= evicted, "{evicted} comes after {last}");
                last = evicted;
            }
            let each = rig.searched() / u64::from(count);
            assert!(each <= 40, "{each} entries were looked at for each of {count} timers");
        }
    });
}

#[test]
fn reset_timer_that_is_due_keeps_its_place_in_the_order() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let keys = rig.schedule_all([4, 600]);
        assert_eq!(rig.reset(keys[0], 46), ResetOutcome::Reset);
        rig.advance(1_000, Budget { expired_max: 2, work_max: u32::MAX });
        assert_eq!(rig.shard.soonest(|_| true), Some(keys[0]));
        assert_eq!((rig.pop(), rig.pop()), (Some(0), Some(1)));
    });
}

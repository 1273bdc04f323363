//! Cancel and reset: their outcomes, and what happens to the timer.

use std::rc::Rc;

use corewheel_shard::{Budget, CancelOutcome, ResetOutcome, Shard, Tick};

use super::{Rig, on_each_wheel};

/// Deadlines in the first slots, on the levels above and far beyond them.
const DEADLINES: [u64; 10] = [0, 1, 2, 7, 8, 255, 256, 65_536, 1 << 40, u64::MAX];

#[test]
fn fired_timer_reports_already_fired_until_its_slot_is_used_again() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let key = rig.schedule(5, 0);
        assert_eq!(rig.turn(5), [0]);
        for _ in 0..2 {
            assert_eq!(rig.cancel(key), CancelOutcome::AlreadyFired);
            assert_eq!(rig.reset(key, 9), ResetOutcome::AlreadyFired);
        }
        let next = rig.schedule(8, 1);
        assert_eq!(next.index(), key.index(), "the slot is used again");
        assert_eq!(rig.cancel(key), CancelOutcome::Stale);
        assert_eq!(rig.reset(key, 9), ResetOutcome::Stale);
        assert_eq!(rig.shard.deadline(next), Some(Tick::new(8)), "the next timer is unchanged");
        assert_eq!(rig.turn(8), [1]);
    });
}

#[test]
fn reset_to_any_deadline_fires_once_at_new_deadline() {
    on_each_wheel(|config| {
        for from in DEADLINES {
            for to in DEADLINES {
                let mut rig = Rig::new(config);
                let key = rig.schedule(from, 3);
                assert_eq!(rig.reset(key, to), ResetOutcome::Reset);
                assert_eq!(rig.shard.deadline(key), Some(Tick::new(to)));
                let tick = Tick::new(to).index();
                assert_eq!(rig.turn(tick.saturating_sub(1)).len(), usize::from(to == 0));
                assert_eq!(rig.turn(tick).len(), usize::from(to != 0));
                assert_eq!(rig.turn(u64::MAX), [], "the timer fires once");
            }
        }
    });
}

#[test]
fn payload_is_dropped_once_with_its_timer_or_its_shard() {
    on_each_wheel(|config| {
        let witness = Rc::new(());
        let mut shard = Shard::new(config).expect("the configuration is good");
        let keys: Vec<_> = (0..40)
            .map(|number| shard.schedule(Tick::new(number * 30), Rc::clone(&witness)).unwrap())
            .collect();
        assert_eq!(Rc::strong_count(&witness), 41);
        for key in &keys[20..25] {
            drop(shard.cancel(*key));
        }
        assert_eq!(Rc::strong_count(&witness), 36);
        shard.advance(Tick::new(150), Budget::UNLIMITED);
        while shard.pop_expired().is_some() {}
        assert_eq!(Rc::strong_count(&witness), 30);
        drop(shard.drain().take(3));
        assert_eq!(Rc::strong_count(&witness), 30, "a drain that is not iterated takes no timer");
        assert_eq!(shard.drain().take(3).count(), 3);
        assert_eq!(Rc::strong_count(&witness), 27);
        drop(shard);
        assert_eq!(Rc::strong_count(&witness), 1);
    });
}

//! Commands between two calls of `pop_expired`, as callbacks of a service would make them.

use corewheel_shard::{Budget, CancelOutcome, ResetOutcome, Tick};

use super::{Rig, on_each_wheel};

#[test]
fn timer_scheduled_into_firing_slot_fires_in_next_turn() {
    on_each_wheel(|config| {
        for delay in [0, 1, 4] {
            let mut rig = Rig::new(config);
            rig.schedule(8, 0);
            for now in 8..30 {
                // Each timer that fires is followed by one whose deadline has passed.
                rig.advance(now, Budget::UNLIMITED);
                assert_eq!(rig.pop(), Some(now as u32 - 8));
                rig.schedule(now - delay, now as u32 - 7);
                assert_eq!(rig.pop(), None, "the turn ends");
                assert!(rig.shard.is_behind(), "and the next timer is due at once");
            }
        }
    });
}

#[test]
fn timer_scheduled_within_gap_fires_in_next_turn() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        rig.schedule_all([10, 500]);
        rig.advance(1_000, Budget::UNLIMITED);
        assert_eq!(rig.pop(), Some(0));
        rig.schedule(20, 2);
        rig.schedule(999, 3);
        rig.schedule(1_001, 4);
        assert_eq!(rig.rest(), [1]);
        assert_eq!(rig.turn(1_000), [2, 3]);
        assert_eq!(rig.turn(1_001), [4]);
    });
}

#[test]
fn periodic_timer_fires_once_each_period() {
    on_each_wheel(|config| {
        for period in [1, 3, 8, 9, 256, 257] {
            let mut rig = Rig::new(config);
            rig.schedule(period, 0);
            for round in 1..300 {
                assert_eq!(rig.turn(round * period - 1), []);
                assert_eq!(rig.turn(round * period), [0]);
                rig.schedule((round + 1) * period, 0);
            }
            assert_eq!(rig.shard.len(), 1);
        }
    });
}

#[test]
fn reset_and_cancel_of_fired_timer_report_already_fired() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let keys = rig.schedule_all([4, 4]);
        rig.advance(4, Budget::UNLIMITED);
        assert_eq!(rig.pop(), Some(0));
        assert_eq!(rig.reset(keys[0], 9), ResetOutcome::AlreadyFired);
        assert_eq!(rig.cancel(keys[0]), CancelOutcome::AlreadyFired);
        assert_eq!(rig.rest(), [1]);
        assert_eq!(rig.turn(100), []);
    });
}

#[test]
fn cancelled_periodic_timer_fires_no_more() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let mut key = rig.schedule(5, 0);
        for round in 1..20 {
            assert_eq!(rig.turn(round * 5), [0]);
            assert_eq!(rig.cancel(key), CancelOutcome::AlreadyFired);
            key = rig.schedule((round + 1) * 5, 0);
        }
        assert_eq!(rig.cancel(key).payload(), Some(0));
        assert_eq!(rig.turn(1_000), []);
    });
}

/// Pops the first of these timers, cancels some of the others, and checks that exactly the rest
/// fires.
fn check_cancel(deadlines: &[u64], cancelled: &[usize]) {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let keys = rig.schedule_all(deadlines.iter().copied());
        rig.advance(10_000, Budget::UNLIMITED);
        assert_eq!(rig.pop(), Some(0));
        for number in cancelled {
            let outcome = rig.cancel(keys[*number]);
            let deadline = Tick::new(deadlines[*number]);
            assert_eq!(outcome, CancelOutcome::Cancelled { deadline, payload: *number as u32 });
        }
        let rest: Vec<_> = (1..deadlines.len())
            .filter(|number| !cancelled.contains(number))
            .map(|number| number as u32)
            .collect();
        assert_eq!(rig.rest(), rest);
        assert_eq!(rig.shard.len(), 0);
    });
}

#[test]
fn next_timer_of_slot_cancelled_between_pops_does_not_fire() {
    check_cancel(&[9; 20], &[1]);
}

#[test]
fn timers_in_middle_of_slot_cancelled_between_pops_do_not_fire() {
    check_cancel(&[9; 40], &[10, 14, 15, 16, 20]);
}

#[test]
fn last_timer_of_slot_cancelled_between_pops_does_not_fire() {
    check_cancel(&[9; 20], &[19]);
}

#[test]
fn timers_of_later_slots_cancelled_between_pops_do_not_fire() {
    check_cancel(&[9, 9, 10, 11, 300, 301, 5_000], &[2, 4, 6]);
}

#[test]
fn all_other_timers_cancelled_between_pops_do_not_fire() {
    let all: Vec<_> = (1..50).collect();
    check_cancel(&[9; 50], &all);
    let deadlines: Vec<_> = (0..50).map(|number| 9 + number * 17).collect();
    check_cancel(&deadlines, &all);
}

#[test]
fn due_timers_reset_between_pops_fire_at_new_deadlines() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let keys = rig.schedule_all([5, 5, 5, 50, 60]);
        rig.advance(100, Budget::UNLIMITED);
        assert_eq!(rig.pop(), Some(0));
        assert_eq!(rig.reset(keys[1], 55), ResetOutcome::Reset);
        assert_eq!(rig.reset(keys[2], 101), ResetOutcome::Reset);
        assert_eq!(rig.reset(keys[3], 1), ResetOutcome::Reset);
        assert_eq!(
            rig.rest(),
            [1, 4],
            "a reset to a later tick of the turn fires later in the turn"
        );
        assert_eq!(rig.turn(100), [3], "a reset to a past tick fires in the next turn");
        assert_eq!(rig.turn(101), [2]);
    });
}

#[test]
fn timers_that_reset_each_other_fire_once_each_turn() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let mut keys = rig.schedule_all([5, 6]);
        for now in 100..120 {
            rig.advance(now, Budget::UNLIMITED);
            // Each timer that fires is scheduled again at once and resets the other one.
            let mut fired = 0;
            while let Some(payload) = rig.pop() {
                let payload = payload as usize;
                keys[payload] = rig.schedule(now - 2, payload as u32);
                assert_eq!(rig.reset(keys[1 - payload], now - 1), ResetOutcome::Reset);
                fired += 1;
            }
            assert!(fired <= 2, "{fired} fire in one turn");
            assert!(fired > 0, "no timer fires, but both are due");
        }
    });
}

#[test]
fn drain_between_pops_leaves_no_timer() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        rig.schedule_all([5, 5, 5, 6, 900]);
        rig.advance(6, Budget::UNLIMITED);
        assert_eq!(rig.pop(), Some(0));
        assert_eq!(rig.shard.drain().count(), 4);
        rig.shard.check_invariants();
        assert_eq!(rig.rest(), []);
        rig.schedule(7, 9);
        assert_eq!(rig.turn(7), [9]);
    });
}

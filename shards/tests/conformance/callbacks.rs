//! What may be done between two expired timers: anything.
//!
//! A shard calls nobody back. What a callback would do is done here between two pops.

use corewheel_shard::{Budget, CancelOutcome, ResetOutcome, Tick};

use super::{Rig, on_each_wheel};

#[test]
fn scheduling_into_the_slot_that_fires_waits_for_the_next_turn() {
    on_each_wheel(|config| {
        for delay in [0, 1, 4] {
            let mut rig = Rig::new(config);
            rig.schedule(8, 0);
            for now in 8..30 {
                // Every timer is followed by one that is due already, or was before.
                rig.advance(now, Budget::UNLIMITED);
                assert_eq!(rig.pop(), Some(now as u32 - 8));
                rig.schedule(now - delay, now as u32 - 7);
                assert_eq!(rig.pop(), None, "the turn ends");
                assert!(rig.shard.is_behind(), "and the next one is due at once");
            }
        }
    });
}

#[test]
fn scheduling_within_a_gap_that_is_caught_up_waits_for_the_next_turn() {
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
fn a_periodic_timer_passes_through_every_slot() {
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
fn a_timer_that_has_fired_cannot_move_or_cancel_itself() {
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
fn a_periodic_timer_that_cancels_its_next_round_is_gone() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let mut key = rig.schedule(5, 0);
        for round in 1..20 {
            assert_eq!(rig.turn(round * 5), [0]);
            assert_eq!(rig.cancel(key), CancelOutcome::AlreadyFired);
            key = rig.schedule((round + 1) * 5, 0);
        }
        assert_eq!(rig.cancel(key).task(), Some(0));
        assert_eq!(rig.turn(1_000), []);
    });
}

/// The first of these timers cancels some of the others: those fire no more, the rest do.
fn check_cancel(deadlines: &[u64], victims: &[usize]) {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let keys = rig.schedule_all(deadlines.iter().copied());
        rig.advance(10_000, Budget::UNLIMITED);
        assert_eq!(rig.pop(), Some(0));
        for victim in victims {
            let outcome = rig.cancel(keys[*victim]);
            let deadline = Tick::new(deadlines[*victim]);
            assert_eq!(outcome, CancelOutcome::Cancelled { deadline, task: *victim as u32 });
        }
        let rest: Vec<_> = (1..deadlines.len())
            .filter(|number| !victims.contains(number))
            .map(|number| number as u32)
            .collect();
        assert_eq!(rig.rest(), rest);
        assert_eq!(rig.shard.len(), 0);
    });
}

#[test]
fn a_callback_cancels_the_next_of_its_slot() {
    check_cancel(&[9; 20], &[1]);
}

#[test]
fn a_callback_cancels_the_middle_of_its_slot() {
    check_cancel(&[9; 40], &[10, 14, 15, 16, 20]);
}

#[test]
fn a_callback_cancels_the_last_of_its_slot() {
    check_cancel(&[9; 20], &[19]);
}

#[test]
fn a_callback_cancels_timers_of_later_slots() {
    check_cancel(&[9, 9, 10, 11, 300, 301, 5_000], &[2, 4, 6]);
}

#[test]
fn a_callback_cancels_all_others() {
    let all: Vec<_> = (1..50).collect();
    check_cancel(&[9; 50], &all);
    let deadlines: Vec<_> = (0..50).map(|number| 9 + number * 17).collect();
    check_cancel(&deadlines, &all);
}

#[test]
fn a_callback_moves_what_is_due_after_it() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let keys = rig.schedule_all([5, 5, 5, 50, 60]);
        rig.advance(100, Budget::UNLIMITED);
        assert_eq!(rig.pop(), Some(0));
        assert_eq!(rig.reset(keys[1], 55), ResetOutcome::Moved);
        assert_eq!(rig.reset(keys[2], 101), ResetOutcome::Moved);
        assert_eq!(rig.reset(keys[3], 1), ResetOutcome::Moved);
        assert_eq!(rig.rest(), [1, 4], "moved later within the turn is later in it");
        assert_eq!(rig.turn(100), [3], "moved to the past is due in the next turn");
        assert_eq!(rig.turn(101), [2]);
    });
}

#[test]
fn two_timers_that_push_each_other_ahead_end_with_the_turn() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let mut keys = rig.schedule_all([5, 6]);
        for now in 100..120 {
            rig.advance(now, Budget::UNLIMITED);
            // Each that fires is scheduled again at once and moves the other behind itself.
            let mut fired = 0;
            while let Some(task) = rig.pop() {
                let task = task as usize;
                keys[task] = rig.schedule(now - 2, task as u32);
                assert_eq!(rig.reset(keys[1 - task], now - 1), ResetOutcome::Moved);
                fired += 1;
            }
            assert!(fired <= 2, "{fired} fire in one turn");
            assert!(fired > 0, "nothing fires, and both are due");
        }
    });
}

#[test]
fn draining_between_two_expired_timers_leaves_nothing() {
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

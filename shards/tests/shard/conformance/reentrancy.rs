//! Commands between two calls of `pop_expired`, as callbacks of a service would make them.

use corewheel_shard::{Budget, CancelOutcome, ResetOutcome, Tick};

use super::{Rig, on_each_wheel};

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
        let rest = (1..deadlines.len()).filter(|number| !cancelled.contains(number));
        assert_eq!(rig.rest(), rest.map(|number| number as u32).collect::<Vec<_>>());
        assert_eq!(rig.shard.len(), 0);
    });
}

#[test]
fn timers_cancelled_between_pops_do_not_fire() {
    // Around the end of a chunk.
    for count in [3, 14, 15, 16, 20, 40] {
        check_cancel(&vec![9; count], &[1]);
    }
    check_cancel(&[9; 40], &[10, 14, 15, 16, 20]);
    check_cancel(&[9; 20], &[19]);
    check_cancel(&[9, 9, 10, 11, 300, 301, 5_000], &[2, 4, 6]);
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
        // A reset to a later tick of the turn fires later in the turn.
        assert_eq!(rig.rest(), [1, 4]);
        assert_eq!(rig.turn(100), [3], "a reset to a past tick fires in the next turn");
        assert_eq!(rig.turn(101), [2]);
    });
}

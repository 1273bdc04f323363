//! The order in which timers fire, whatever the budget.

use std::iter;

use corewheel_shard::{Budget, ShardConfig};

use super::{Rig, on_each_wheel};

const BUDGETS: [Budget; 5] = [
    Budget { expired_max: 1, work_max: 1 },
    Budget { expired_max: 1, work_max: u32::MAX },
    Budget { expired_max: u32::MAX, work_max: 1 },
    Budget { expired_max: 7, work_max: 40 },
    Budget::UNLIMITED,
];

/// Schedules timers with these deadlines, with several budgets and lengths of turns. Checks that
/// they fire in the order of their deadlines, and those of one tick in the order of scheduling.
fn check_order(deadlines: &[u64]) {
    let mut expected: Vec<u32> = (0..deadlines.len() as u32).collect();
    expected.sort_by_key(|payload| deadlines[*payload as usize]);
    let last = deadlines.iter().copied().max().unwrap_or(0);
    for budget in BUDGETS {
        for stride in [last, last / 2 + 1, last / 5 + 1] {
            on_each_wheel(|config| {
                let mut rig = Rig::new(config);
                rig.schedule_all(deadlines.iter().copied());
                let mut fired = Vec::new();
                let mut now = 0;
                while now < last {
                    now = last.min(now + stride);
                    fired.extend(rig.turns(now, budget));
                }
                assert_eq!(fired, expected, "with {budget:?} and turns of {stride}");
            });
        }
    }
}

#[test]
fn timers_fire_in_order_of_deadlines_and_of_scheduling() {
    check_order(&[5, 3, 9, 1, 700, 2, 64, 65, 63, 4_000, 256, 255, 257]);
    check_order(&[9; 40]);
    check_order(&[300; 40]);
    // Through cascades, and in several chunks.
    check_order(&[1_030, 1_029, 1_030, 1_030, 1_031, 1_029, 1_030, 1_024, 1_023, 1_030]);
    let chunks: Vec<_> = (0..100).map(|number| 500 + number * 7 % 5).collect();
    check_order(&chunks);
}

#[test]
fn due_timer_reset_to_a_later_tick_comes_behind_the_timers_of_that_tick() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let keys = rig.schedule_all([1; 80]);
        let ahead = [50, 51].map(|payload| rig.schedule(3, payload));
        rig.advance(2, Budget { expired_max: 1, work_max: u32::MAX });
        assert_eq!(rig.rest(), [0]);
        // The timer is filed again when it comes up, behind the timers of its new tick.
        let _outcome = rig.reset(keys[75], 3);
        for (number, key) in keys.iter().enumerate().skip(1) {
            if number != 75 {
                let _outcome = rig.cancel(*key);
            }
        }
        rig.advance(3, Budget::UNLIMITED);
        for expected in [ahead[0], ahead[1], keys[75]] {
            assert_eq!(rig.shard.pop_expired().map(|expired| expired.key), Some(expected));
        }
    });
}

#[test]
fn late_timers_of_several_turns_that_a_sweep_has_joined_fire_in_order() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(ShardConfig { capacity: 5_000, ..config });
        rig.check_every = 1_001;
        rig.schedule_all([1; 20]);
        let mut expected: Vec<_> = (5..20).collect();
        for now in 1..6 {
            rig.advance(now, Budget { expired_max: 1, work_max: u32::MAX });
            assert_eq!(rig.rest(), [now as u32 - 1]);
            for late in [100 + 2 * now as u32, 101 + 2 * now as u32] {
                rig.schedule(1, late);
                expected.push(late);
            }
        }
        // The sweep stops in the slot of the first stale entries. It lies behind the slot of the
        // others in the table, and the late entries, which the sweep comes to next, lie last.
        for deadline in [(1 << 41) - 1, 1 << 20] {
            for key in rig.schedule_all(iter::repeat_n(deadline, 4_000)) {
                assert!(rig.cancel(key).payload().is_some());
            }
        }
        assert_eq!(rig.turn(6), expected);
    });
}

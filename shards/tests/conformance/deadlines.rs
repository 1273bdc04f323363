//! When a timer fires: at its deadline, from wherever the wheel stands.

use corewheel_shard::{Budget, Tick, TickLength};
use std::num::NonZeroU64;

use super::{Rig, levels, on_each_wheel, on_each_wheel_from};

/// Starts at which digits of all levels are about to turn over.
const STARTS: [u64; 9] =
    [0, 1, 255, 256, 65_535, (1 << 33) - 1, 1 << 47, (1 << 63) - 1, u64::MAX - 70_000];

#[test]
fn polled_at_each_tick_every_timer_fires_at_its_own() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        rig.schedule_all(1..600);
        for now in 1..600 {
            assert_eq!(rig.turn(now), [now as u32 - 1]);
        }
    });
}

#[test]
fn every_edge_of_every_level_fires_at_its_own_tick() {
    for start in STARTS {
        on_each_wheel_from(start, |config| {
            let edges = (0..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]);
            let mut deadlines: Vec<u64> = edges
                .filter_map(|edge: u64| start.checked_add(edge))
                .filter(|deadline| *deadline <= Tick::NEVER.index())
                .collect();
            deadlines.sort_unstable();
            let mut rig = Rig::new(config);
            // The latest first, so that what is filed later has to come first.
            rig.schedule_all(deadlines.iter().rev().copied());
            let fired: Vec<_> = rig.run_out().into_iter().map(|(tick, _)| tick).collect();
            assert_eq!(fired, deadlines);
        });
    }
}

#[test]
fn the_first_and_the_last_tick_of_each_level_fire_at_their_own() {
    for start in [0, 5, 255, 70_000] {
        on_each_wheel_from(start, |config| {
            let mut rig = Rig::new(config);
            let aligned = (0..60).map(|bit| ((start >> bit) + 1) << bit);
            let mut deadlines: Vec<_> =
                aligned.flat_map(|first| [first, first - 1]).filter(|tick| *tick > start).collect();
            rig.schedule_all(deadlines.iter().copied());
            deadlines.sort_unstable();
            let fired: Vec<_> = rig.run_out().into_iter().map(|(tick, _)| tick).collect();
            assert_eq!(fired, deadlines);
        });
    }
}

#[test]
fn a_deadline_of_now_or_before_fires_in_the_next_turn() {
    on_each_wheel_from(1_000, |config| {
        for deadline in [1_000, 999, 998, 256, 1, 0] {
            let mut rig = Rig::new(config);
            rig.schedule(deadline, 7);
            assert_eq!(rig.pop(), None, "a turn begins with an advance");
            assert_eq!(rig.shard.next_deadline(), Some(Tick::new(1_000)), "at once");
            assert_eq!(rig.turn(1_000), [7]);
        }
    });
}

#[test]
fn a_timer_fires_once_and_not_again_after_a_wrap() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        rig.schedule(3, 1);
        assert_eq!(rig.turn(3), [1]);
        for now in 4..1_100 {
            assert_eq!(rig.turn(now), []);
        }
    });
}

#[test]
fn a_timer_rounds_away_is_neither_early_nor_lost() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        // All in one slot of the hashed wheel, some rounds apart.
        let slots = u64::from(config.slots);
        rig.schedule_all((1..50).map(|round| 1 + round * slots));
        for round in 1..50 {
            assert_eq!(rig.turn(round * slots), []);
            assert_eq!(rig.turn(1 + round * slots), [round as u32 - 1]);
        }
    });
}

#[test]
fn far_timers_are_neither_early_nor_lost_while_near_ones_come_and_go() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let far = 1 << 20;
        rig.schedule(far, 0);
        rig.schedule(far + 1, 1);
        let mut now = 0;
        while now < far - 10_000 {
            rig.schedule(now + 3, 2);
            assert_eq!(rig.turn(now + 3), [2]);
            now += 9_973;
        }
        assert_eq!(rig.turn(far - 1), []);
        assert_eq!(rig.turn(far), [0]);
        assert_eq!(rig.turn(far + 1), [1]);
    });
}

#[test]
fn an_old_wheel_is_as_good_as_a_new_one() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let last = 1 << 63;
        rig.schedule(last, 0);
        for bit in 2..63 {
            let now = 1 << bit;
            rig.schedule(now, 1);
            rig.schedule(now + 1, 2);
            assert_eq!(rig.turn(now - 1), []);
            assert_eq!(rig.turn(now), [1]);
            assert_eq!(rig.turn(now + 1), [2]);
        }
        assert_eq!(rig.turn(last - 1), []);
        assert_eq!(rig.turn(last), [0]);
        assert_eq!(rig.shard.len(), 0);
    });
}

#[test]
fn the_last_ticks_of_time_are_never() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        rig.schedule_all([u64::MAX, u64::MAX - 1, u64::MAX - 2, u64::MAX - 3]);
        for now in [1, 1 << 20, 1 << 62, 1 << 63, u64::MAX - 4] {
            assert_eq!(rig.turn(now), []);
        }
        assert_eq!(rig.turn(u64::MAX - 3), [3]);
        assert_eq!(rig.turn(u64::MAX), [0, 1, 2], "never is the last tick");
        rig.schedule(u64::MAX, 9);
        assert_eq!(rig.turn(u64::MAX), [9], "at the end of time everything is due");
    });
}

#[test]
fn a_wheel_that_starts_late_counts_from_its_start() {
    for start in STARTS {
        on_each_wheel_from(start, |config| {
            let mut rig = Rig::new(config);
            assert_eq!(rig.shard.now(), Tick::new(start));
            rig.schedule_all([start + 1, start + 300, start + 66_000]);
            assert_eq!(rig.turn(start), []);
            assert_eq!(rig.turn(start + 1), [0]);
            assert_eq!(rig.turn(start + 299), []);
            assert_eq!(rig.turn(start + 65_999), [1]);
            assert_eq!(rig.turn(start + 66_000), [2]);
        });
    }
}

#[test]
fn polled_rarely_everything_due_fires_and_nothing_else() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        rig.schedule_all(1..1_000);
        for now in [7, 8, 300, 301, 767, 768, 1_000] {
            let before = 1_000 - 1 - rig.shard.len() as u32;
            let due: Vec<_> = (before..now.min(999) as u32).collect();
            assert_eq!(rig.turn(now), due);
        }
    });
}

#[test]
fn polled_more_often_than_a_tick_nothing_fires_twice_or_early() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        rig.schedule_all([1, 2, 2, 5]);
        let mut fired = Vec::new();
        for now in [0, 0, 1, 1, 1, 2, 2, 3, 4, 4, 5, 5] {
            fired.extend(rig.turn(now).into_iter().map(|task| (now, task)));
        }
        assert_eq!(fired, [(1, 0), (2, 1), (2, 2), (5, 3)]);
    });
}

#[test]
fn one_leap_over_everything_fires_it_in_order() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        rig.schedule_all((0..63).rev().map(|bit| (1 << bit) + 5));
        let all: Vec<_> = (0..63).rev().collect();
        assert_eq!(rig.turn(u64::MAX), all);
    });
}

#[test]
fn a_clock_that_steps_back_is_taken_to_stand() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        rig.schedule_all([100, 150, 200]);
        assert_eq!(rig.turn(100), [0]);
        for back in [99, 0, 50] {
            assert_eq!(rig.turn(back), []);
            assert_eq!(rig.shard.now(), Tick::new(100));
        }
        rig.schedule(60, 9);
        assert_eq!(rig.turn(0), [9], "what lies before the latest tick is due");
        assert_eq!(rig.turn(150), [1]);
        assert_eq!(rig.turn(1_000), [2]);
    });
}

#[test]
fn a_timer_is_not_early_by_a_fraction_of_a_tick() {
    on_each_wheel(|config| {
        let length = TickLength::from_nanos(NonZeroU64::new(10).expect("it is not zero"));
        let mut rig = Rig::new(config);
        let due_ns: Vec<u64> = (1..60).map(|number| number * 7).collect();
        rig.schedule_all(due_ns.iter().map(|ns| length.ceil(*ns).index()));
        for now_ns in 0..450 {
            for task in rig.turn(length.floor(now_ns).index()) {
                let due = due_ns[task as usize];
                assert!(due <= now_ns, "due at {due} ns, fires at {now_ns} ns");
                assert!(now_ns < due + length.nanos(), "a whole tick late");
            }
        }
        assert_eq!(rig.shard.len(), 0);
    });
}

#[test]
fn the_next_deadline_is_never_late_and_is_reached_in_a_step_a_level() {
    for start in STARTS {
        on_each_wheel_from(start, |config| {
            for bit in 0..63 {
                let Some(deadline) = start.checked_add((1 << bit) + 3) else { continue };
                let mut rig = Rig::new(config);
                rig.schedule(deadline, 0);
                let mut turns = 0;
                while let Some(next) = rig.shard.next_deadline() {
                    assert!(next > rig.shard.now(), "every turn comes nearer");
                    assert!(next <= Tick::new(deadline), "the turn comes too late");
                    rig.advance(next.index(), Budget::default());
                    assert_eq!(rig.pop().is_some(), next.index() == deadline.min(u64::MAX - 2));
                    turns += 1;
                }
                assert!(turns <= levels(config), "{turns} turns for {deadline}");
            }
        });
    }
}

#[test]
fn nothing_pending_means_no_next_deadline() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        assert_eq!(rig.shard.next_deadline(), None);
        let due = rig.schedule(0, 0);
        let near = rig.schedule(3, 1);
        let far = rig.schedule(3_000, 2);
        for key in [due, near, far] {
            assert!(rig.shard.next_deadline().is_some());
            assert!(rig.cancel(key).task().is_some());
        }
        assert_eq!(rig.shard.next_deadline(), None, "cancelled timers wake nobody");
        assert!(!rig.shard.is_behind());
        rig.schedule(4, 3);
        assert_eq!(rig.turn(4), [3]);
        assert_eq!(rig.shard.next_deadline(), None);
    });
}

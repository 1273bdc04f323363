//! A timer fires at its deadline, at whichever tick the wheel is.

use corewheel_shard::{Budget, Tick};

use super::{Rig, levels, on_each_wheel, on_each_wheel_from};

/// Starts at and just before ticks at which digits of several levels change.
const STARTS: [u64; 9] =
    [0, 1, 255, 256, 65_535, (1 << 33) - 1, 1 << 47, (1 << 63) - 1, u64::MAX - 70_000];

/// Schedules timers, and checks that each fires at its tick.
fn check_fire_at_their_ticks(start: u64, mut deadlines: Vec<u64>) {
    deadlines.retain(|deadline| (start + 1..=Tick::NEVER.index()).contains(deadline));
    deadlines.sort_unstable();
    on_each_wheel_from(start, |config| {
        let mut rig = Rig::new(config);
        // The latest deadline first, so that timers that are filed later have to fire earlier.
        rig.schedule_all(deadlines.iter().rev().copied());
        let fired: Vec<_> = rig.run_out().into_iter().map(|(tick, _)| tick).collect();
        assert_eq!(fired, deadlines);
    });
}

#[test]
fn timers_at_edges_of_all_levels_fire_at_their_ticks() {
    for start in STARTS {
        let edges = (0..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        let after_start = edges.filter_map(|edge: u64| start.checked_add(edge));
        check_fire_at_their_ticks(start, after_start.collect());
    }
    for start in [0, 5, 255, 70_000] {
        let aligned = (0..60).map(|bit| ((start >> bit) + 1) << bit);
        check_fire_at_their_ticks(start, aligned.flat_map(|first| [first, first - 1]).collect());
    }
}

#[test]
fn timers_fire_at_their_ticks_late_in_life_of_wheel() {
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
fn deadlines_beyond_last_tick_fire_at_last_tick() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        rig.schedule_all([u64::MAX, u64::MAX - 1, u64::MAX - 2, u64::MAX - 3]);
        for now in [1, 1 << 20, 1 << 62, 1 << 63, u64::MAX - 4] {
            assert_eq!(rig.turn(now), []);
        }
        assert_eq!(rig.turn(u64::MAX - 3), [3]);
        assert_eq!(rig.turn(u64::MAX), [0, 1, 2], "the last tick is `Tick::NEVER`");
        rig.schedule(u64::MAX, 9);
        assert_eq!(rig.turn(u64::MAX), [9], "at the last tick every deadline is due");
    });
}

#[test]
fn next_deadline_is_never_late_and_costs_a_turn_per_level_at_most() {
    for start in STARTS {
        on_each_wheel_from(start, |config| {
            for bit in 0..63 {
                let Some(deadline) = start.checked_add((1 << bit) + 3) else { continue };
                let mut rig = Rig::new(config);
                rig.schedule(deadline, 0);
                let mut turns = 0;
                while let Some(next) = rig.shard.next_deadline() {
                    assert!(next > rig.shard.now(), "every turn advances");
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

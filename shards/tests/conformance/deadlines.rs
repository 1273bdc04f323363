//! A timer fires at its deadline, at whichever tick the wheel is.

use corewheel_shard::{Budget, Tick, TickLength};
use std::num::NonZeroU64;

use super::{Rig, levels, on_each_wheel, on_each_wheel_from};

/// Starts at and just before ticks at which digits of several levels change.
const STARTS: [u64; 9] =
    [0, 1, 255, 256, 65_535, (1 << 33) - 1, 1 << 47, (1 << 63) - 1, u64::MAX - 70_000];

#[test]
fn timers_fire_at_their_ticks_with_a_turn_at_each_tick() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        rig.schedule_all(1..600);
        for now in 1..600 {
            assert_eq!(rig.turn(now), [now as u32 - 1]);
        }
    });
}

#[test]
fn timers_at_edges_of_all_levels_fire_at_their_ticks() {
    for start in STARTS {
        on_each_wheel_from(start, |config| {
            let edges = (0..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]);
            let mut deadlines: Vec<u64> = edges
                .filter_map(|edge: u64| start.checked_add(edge))
                .filter(|deadline| *deadline <= Tick::NEVER.index())
                .collect();
            deadlines.sort_unstable();
            let mut rig = Rig::new(config);
            // The latest deadline first, so that timers that are filed later have to fire earlier.
            rig.schedule_all(deadlines.iter().rev().copied());
            let fired: Vec<_> = rig.run_out().into_iter().map(|(tick, _)| tick).collect();
            assert_eq!(fired, deadlines);
        });
    }
}

#[test]
fn timers_at_first_and_last_tick_of_each_level_fire_at_their_ticks() {
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
fn deadline_of_now_or_earlier_fires_in_next_turn() {
    on_each_wheel_from(1_000, |config| {
        for deadline in [1_000, 999, 998, 256, 1, 0] {
            let mut rig = Rig::new(config);
            rig.schedule(deadline, 7);
            assert_eq!(rig.pop(), None, "a turn begins with an advance");
            assert_eq!(
                rig.shard.next_deadline(),
                Some(Tick::new(1_000)),
                "the timer is due at once"
            );
            assert_eq!(rig.turn(1_000), [7]);
        }
    });
}

#[test]
fn fired_timer_does_not_fire_again_after_wheel_wraps() {
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
fn timers_rounds_away_fire_at_their_ticks() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        // All timers are in one slot of the hashed wheel, one round apart.
        let slots = u64::from(config.slots);
        rig.schedule_all((1..50).map(|round| 1 + round * slots));
        for round in 1..50 {
            assert_eq!(rig.turn(round * slots), []);
            assert_eq!(rig.turn(1 + round * slots), [round as u32 - 1]);
        }
    });
}

#[test]
fn far_timers_fire_at_their_ticks_after_many_near_timers() {
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
fn wheel_with_late_start_fires_timers_at_their_ticks() {
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
fn turns_many_ticks_apart_fire_only_timers_that_are_due() {
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
fn several_turns_at_each_tick_fire_each_timer_once() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        rig.schedule_all([1, 2, 2, 5]);
        let mut fired = Vec::new();
        for now in [0, 0, 1, 1, 1, 2, 2, 3, 4, 4, 5, 5] {
            fired.extend(rig.turn(now).into_iter().map(|payload| (now, payload)));
        }
        assert_eq!(fired, [(1, 0), (2, 1), (2, 2), (5, 3)]);
    });
}

#[test]
fn turn_at_last_tick_fires_all_timers_in_order() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        rig.schedule_all((0..63).rev().map(|bit| (1 << bit) + 5));
        let all: Vec<_> = (0..63).rev().collect();
        assert_eq!(rig.turn(u64::MAX), all);
    });
}

#[test]
fn advance_to_earlier_tick_keeps_now() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        rig.schedule_all([100, 150, 200]);
        assert_eq!(rig.turn(100), [0]);
        for back in [99, 0, 50] {
            assert_eq!(rig.turn(back), []);
            assert_eq!(rig.shard.now(), Tick::new(100));
        }
        rig.schedule(60, 9);
        assert_eq!(rig.turn(0), [9], "a deadline before the latest tick is due");
        assert_eq!(rig.turn(150), [1]);
        assert_eq!(rig.turn(1_000), [2]);
    });
}

#[test]
fn timer_with_deadline_in_nanoseconds_is_not_early() {
    on_each_wheel(|config| {
        let length = TickLength::from_nanos(NonZeroU64::new(10).expect("10 is not zero"));
        let mut rig = Rig::new(config);
        let due_ns: Vec<u64> = (1..60).map(|number| number * 7).collect();
        rig.schedule_all(due_ns.iter().map(|ns| length.ceil(*ns).index()));
        for now_ns in 0..450 {
            for payload in rig.turn(length.floor(now_ns).index()) {
                let due = due_ns[payload as usize];
                assert!(due <= now_ns, "due at {due} ns, fires at {now_ns} ns");
                assert!(now_ns < due + length.nanos(), "a whole tick late");
            }
        }
        assert_eq!(rig.shard.len(), 0);
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

#[test]
fn next_deadline_without_pending_timers_is_none() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        assert_eq!(rig.shard.next_deadline(), None);
        let due = rig.schedule(0, 0);
        let near = rig.schedule(3, 1);
        let far = rig.schedule(3_000, 2);
        for key in [due, near, far] {
            assert!(rig.shard.next_deadline().is_some());
            assert!(rig.cancel(key).payload().is_some());
        }
        assert_eq!(rig.shard.next_deadline(), None, "cancelled timers need no turn");
        assert!(!rig.shard.is_behind());
        rig.schedule(4, 3);
        assert_eq!(rig.turn(4), [3]);
        assert_eq!(rig.shard.next_deadline(), None);
    });
}

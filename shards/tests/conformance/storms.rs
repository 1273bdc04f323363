//! Memory: stale entries stay within their bound whatever is done, and go when it is over.

use corewheel_shard::{Budget, CancelOutcome, ResetOutcome, ShardConfig, Tick, TimerKey};
use fastrand::Rng;

use super::{Rig, on_each_wheel};

const COUNT: u64 = 2_000;

/// The tick at which most of these timers are due.
const DUE: u64 = 1_000;

fn smallest() -> Budget {
    Budget { expired_max: 1, work_max: 1 }
}

/// Schedules timers, lets a storm pass over them, and expects that nothing of it stays.
fn check_storm(mut storm: impl FnMut(&mut Rig, Vec<TimerKey>, &mut Rng)) {
    let storm = std::cell::RefCell::new(&mut storm);
    on_each_wheel(|config| {
        let mut rng = Rng::with_seed(7);
        let mut rig = Rig::new(ShardConfig { capacity: COUNT as u32, ..config });
        rig.check_every = 101;
        let keys = rig.schedule_all((0..COUNT).map(|number| DUE + number % 3));
        (storm.borrow_mut())(&mut rig, keys, &mut rng);
        assert_eq!(rig.shard.len(), 0, "the storm ends all timers");
        rig.shard.check_invariants();
        rig.turn(1 << 21);
        assert_eq!(rig.shard.entries(), 0, "once their time has passed, none is left");
        let counters = rig.shard.counters();
        assert_eq!(counters.pending(), 0);
    });
}

fn cancel_all(rig: &mut Rig, keys: impl IntoIterator<Item = TimerKey>) {
    for key in keys {
        assert!(rig.cancel(key).task().is_some());
    }
}

#[test]
fn nothing_stays_after_cancels_from_the_first_to_the_last() {
    check_storm(|rig, keys, _| cancel_all(rig, keys));
}

#[test]
fn nothing_stays_after_cancels_from_the_last_to_the_first() {
    check_storm(|rig, keys, _| cancel_all(rig, keys.into_iter().rev()));
}

#[test]
fn nothing_stays_after_cancels_in_any_order() {
    check_storm(|rig, mut keys, rng| {
        rng.shuffle(&mut keys);
        cancel_all(rig, keys);
    });
}

#[test]
fn nothing_stays_after_cancels_of_timers_that_are_due_and_not_delivered() {
    check_storm(|rig, mut keys, rng| {
        rng.shuffle(&mut keys);
        rig.advance(DUE + 2, Budget { expired_max: 1, work_max: u32::MAX });
        assert!(rig.pop().is_some());
        keys.retain(|key| rig.shard.deadline(*key).is_some());
        cancel_all(rig, keys);
    });
}

#[test]
fn nothing_stays_after_cancels_of_timers_that_were_due_when_scheduled() {
    check_storm(|rig, keys, _| {
        cancel_all(rig, keys);
        rig.turn(DUE);
        let keys = rig.schedule_all((0..COUNT).map(|number| number % DUE));
        rig.advance(DUE + 1, smallest());
        cancel_all(rig, keys);
    });
}

#[test]
fn nothing_stays_after_cancels_between_the_turns_of_a_cascade() {
    // Each turn takes a chunk off the slot that the sweep is in, before it has come to the end
    // where the stale entries are.
    on_each_wheel(|config| {
        let mut rig = Rig::new(ShardConfig { capacity: 20_000, ..config });
        rig.check_every = 3_001;
        let mut keys = rig.schedule_all(std::iter::repeat_n(DUE, 20_000));
        while !keys.is_empty() {
            rig.advance(DUE - 1, smallest());
            assert_eq!(rig.pop(), None);
            let rest = keys.len() - 100;
            cancel_all(&mut rig, keys.drain(rest..));
        }
        rig.turn(DUE);
        assert_eq!(rig.shard.entries(), 0);
    });
}

/// Cancels timers until the sweep is somewhere amid the others, lets those fire, and expects them
/// in their order. Every so many cancels there is a small turn at `now`.
fn check_survivors(deadline: u64, now: u64, cancels_per_turn: usize) {
    on_each_wheel(|config| {
        for cancels in (1_050..1_550).step_by(45) {
            let mut rng = Rng::with_seed(cancels);
            let mut rig = Rig::new(ShardConfig { capacity: COUNT as u32, ..config });
            rig.check_every = 301;
            let keys = rig.schedule_all([deadline; COUNT as usize]);
            let mut victims = keys.clone();
            rng.shuffle(&mut victims);
            victims.truncate(cancels as usize);
            let mut fired = Vec::new();
            for some in victims.chunks(cancels_per_turn) {
                for key in some {
                    let _ = rig.cancel(*key);
                }
                rig.advance(now, Budget { expired_max: 2, work_max: 1 });
                fired.extend(rig.rest());
            }
            fired.extend(rig.turn(deadline));
            let cancelled = rig.shard.counters().cancelled as usize;
            assert_eq!(fired.len() + cancelled, keys.len(), "each has one outcome");
            assert!(fired.is_sorted(), "timers of one tick are out of order");
        }
    });
}

#[test]
fn survivors_in_a_slot_that_falls_due_amid_the_sweep_keep_their_order() {
    check_survivors(1, 0, 2_000);
    check_survivors(300, 0, 2_000);
}

#[test]
fn survivors_in_a_slot_that_cascades_amid_the_sweep_keep_their_order() {
    check_survivors(DUE, DUE - 1, 30);
}

#[test]
fn survivors_in_a_slot_that_is_delivered_amid_the_sweep_keep_their_order() {
    check_survivors(1, 1, 30);
}

#[test]
fn nothing_stays_after_cancels_between_the_turns_of_a_delivery() {
    check_storm(|rig, mut keys, rng| {
        rng.shuffle(&mut keys);
        while !rig.shard.is_empty() {
            rig.advance(DUE + 2, Budget { expired_max: 3, work_max: 1 });
            rig.rest();
            for _ in 0..20 {
                let _ = keys.pop().map(|key| rig.cancel(key));
            }
        }
    });
}

#[test]
fn nothing_stays_after_resets_to_earlier_ticks() {
    check_storm(|rig, keys, rng| {
        for round in 1..=5 {
            for key in &keys {
                let earlier = DUE - round * 100 + rng.u64(0..50);
                assert_eq!(rig.reset(*key, earlier), ResetOutcome::Moved);
            }
        }
        let fired = rig.run_out();
        assert_eq!(fired.len(), keys.len());
    });
}

#[test]
fn nothing_stays_after_resets_to_and_fro() {
    check_storm(|rig, keys, rng| {
        for _ in 0..8_000 {
            let key = keys[rng.usize(0..keys.len())];
            assert_eq!(rig.reset(key, rng.u64(1..1 << 20)), ResetOutcome::Moved);
        }
        cancel_all(rig, keys);
    });
}

#[test]
fn nothing_stays_after_timers_that_are_scheduled_and_cancelled_over_and_over() {
    check_storm(|rig, keys, rng| {
        cancel_all(rig, keys);
        for _ in 0..6_000 {
            let key = rig.schedule(rng.u64(1..1 << 20), 0);
            assert!(rig.cancel(key).task().is_some());
        }
    });
}

#[test]
fn nothing_stays_after_firing_most_timers_beside_cancelled_ones() {
    check_storm(|rig, keys, _| {
        // Too few cancels for a sweep, until the timers beside them have fired.
        let later = DUE + 500;
        let many = keys.len() * 2 / 5;
        for key in &keys[..many] {
            assert_eq!(rig.reset(*key, later), ResetOutcome::Moved);
        }
        let moved_up = keys[..many].iter().copied();
        for key in moved_up {
            assert_eq!(rig.reset(key, later - 1), ResetOutcome::Moved);
            assert!(rig.cancel(key).task().is_some());
        }
        assert_eq!(rig.turn(DUE + 2).len(), keys.len() - many);
    });
}

#[test]
fn nothing_stays_after_draining() {
    check_storm(|rig, keys, _| {
        let half: Vec<_> = rig.shard.drain().take(keys.len() / 2).collect();
        rig.shard.check_invariants();
        assert_eq!(rig.shard.drain().count(), keys.len() - half.len());
        rig.shard.check_invariants();
        assert_eq!(rig.cancel(keys[0]), CancelOutcome::Stale);
    });
}

#[test]
fn moving_a_timer_later_leaves_nothing_behind() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let keys = rig.schedule_all([100; 50]);
        for later in 101..200 {
            for key in &keys {
                assert_eq!(rig.shard.reset(*key, Tick::new(later)), ResetOutcome::Moved);
            }
        }
        assert_eq!(rig.shard.entries(), 50);
        assert_eq!(rig.turn(199).len(), 50);
    });
}

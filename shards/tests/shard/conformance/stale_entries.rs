//! Stale entries stay within their bound during any load, and are gone after it.

use corewheel_shard::{Budget, CancelOutcome, ResetOutcome, ShardConfig, TimerKey};
use fastrand::Rng;

use super::{Rig, on_each_wheel};

const COUNT: u64 = 4_000;

/// The tick at which most of these timers are due.
const DUE: u64 = 1_000;

fn smallest() -> Budget {
    Budget { expired_max: 1, work_max: 1 }
}

/// Schedules timers, runs `load`, which ends all of them, and checks that no entry stays.
fn check_no_entry_stays(mut load: impl FnMut(&mut Rig, Vec<TimerKey>, &mut Rng)) {
    let load = std::cell::RefCell::new(&mut load);
    on_each_wheel(|config| {
        let mut rng = Rng::with_seed(7);
        let mut rig = Rig::new(ShardConfig { capacity: COUNT as u32, ..config });
        rig.check_every = 201;
        let keys = rig.schedule_all((0..COUNT).map(|number| DUE + number % 3));
        (load.borrow_mut())(&mut rig, keys, &mut rng);
        assert_eq!(rig.shard.len(), 0, "the load ends all timers");
        rig.shard.check_invariants();
        rig.turn(1 << 21);
        assert_eq!(rig.shard.entries(), 0, "entries stay after all deadlines have passed");
        let counters = rig.shard.counters();
        assert_eq!(counters.pending(), 0);
    });
}

fn cancel_all(rig: &mut Rig, keys: impl IntoIterator<Item = TimerKey>) {
    for key in keys {
        assert!(rig.cancel(key).payload().is_some());
    }
}

#[test]
fn no_entry_stays_after_cancels_in_any_order() {
    check_no_entry_stays(|rig, keys, _| cancel_all(rig, keys));
    check_no_entry_stays(|rig, keys, _| cancel_all(rig, keys.into_iter().rev()));
    check_no_entry_stays(|rig, mut keys, rng| {
        rng.shuffle(&mut keys);
        cancel_all(rig, keys);
    });
}

#[test]
fn no_entry_stays_after_cancels_of_due_timers() {
    check_no_entry_stays(|rig, mut keys, rng| {
        rng.shuffle(&mut keys);
        rig.advance(DUE + 2, Budget { expired_max: 1, work_max: u32::MAX });
        assert!(rig.pop().is_some());
        keys.retain(|key| rig.shard.deadline(*key).is_some());
        cancel_all(rig, keys);
    });
}

#[test]
fn no_entry_stays_after_cancels_of_late_timers() {
    check_no_entry_stays(|rig, keys, _| {
        cancel_all(rig, keys);
        rig.turn(DUE);
        let keys = rig.schedule_all((0..COUNT).map(|number| number % DUE));
        rig.advance(DUE + 1, smallest());
        cancel_all(rig, keys);
    });
}

#[test]
fn no_entry_stays_after_cancels_between_turns_of_cascade() {
    // Each turn takes a chunk off the slot that the sweep is in, before the sweep has reached the
    // end of the slot with the stale entries.
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

/// Cancels timers until the sweep is in the middle of a slot, lets the others fire, and checks
/// their order. After every `cancels_per_turn` cancels there is a small turn at `now`.
fn check_order_during_sweep(deadline: u64, now: u64, cancels_per_turn: usize) {
    on_each_wheel(|config| {
        for cancels in (2_100..3_100).step_by(90) {
            let mut rng = Rng::with_seed(cancels);
            let mut rig = Rig::new(ShardConfig { capacity: COUNT as u32, ..config });
            rig.check_every = 601;
            let keys = rig.schedule_all(vec![deadline; COUNT as usize]);
            let mut to_cancel = keys.clone();
            rng.shuffle(&mut to_cancel);
            to_cancel.truncate(cancels as usize);
            let mut fired = Vec::new();
            for some in to_cancel.chunks(cancels_per_turn) {
                for key in some {
                    let _ = rig.cancel(*key);
                }
                rig.advance(now, Budget { expired_max: 2, work_max: 1 });
                fired.extend(rig.rest());
            }
            fired.extend(rig.turn(deadline));
            let ended = fired.len() + rig.shard.counters().cancelled as usize;
            assert_eq!(ended, keys.len(), "each timer either fires or is cancelled");
            assert!(fired.is_sorted(), "timers of one tick are out of order");
        }
    });
}

#[test]
fn timers_in_slot_that_is_swept_keep_their_order() {
    // The slot becomes due, cascades or is delivered meanwhile.
    check_order_during_sweep(1, 0, 4_000);
    check_order_during_sweep(300, 0, 4_000);
    check_order_during_sweep(DUE, DUE - 1, 30);
    check_order_during_sweep(1, 1, 30);
}

#[test]
fn no_entry_stays_after_cancels_between_turns_of_delivery() {
    check_no_entry_stays(|rig, mut keys, rng| {
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
fn no_entry_stays_after_resets_to_earlier_ticks() {
    check_no_entry_stays(|rig, keys, rng| {
        for round in 1..=5 {
            for key in &keys {
                let earlier = DUE - round * 100 + rng.u64(0..50);
                assert_eq!(rig.reset(*key, earlier), ResetOutcome::Reset);
            }
        }
        let fired = rig.run_out();
        assert_eq!(fired.len(), keys.len());
    });
}

#[test]
fn no_entry_stays_after_random_resets() {
    check_no_entry_stays(|rig, keys, rng| {
        for _ in 0..16_000 {
            let key = keys[rng.usize(0..keys.len())];
            assert_eq!(rig.reset(key, rng.u64(1..1 << 20)), ResetOutcome::Reset);
        }
        cancel_all(rig, keys);
    });
}

#[test]
fn no_entry_stays_after_repeated_schedule_and_cancel() {
    check_no_entry_stays(|rig, keys, rng| {
        cancel_all(rig, keys);
        for _ in 0..12_000 {
            let key = rig.schedule(rng.u64(1..1 << 20), 0);
            assert!(rig.cancel(key).payload().is_some());
        }
    });
}

#[test]
fn no_entry_stays_after_most_timers_fire_and_rest_is_cancelled() {
    check_no_entry_stays(|rig, keys, _| {
        // Too few cancels for a sweep until the other timers have fired.
        let later = DUE + 500;
        let many = keys.len() * 2 / 5;
        for key in &keys[..many] {
            assert_eq!(rig.reset(*key, later), ResetOutcome::Reset);
        }
        let reset_earlier = keys[..many].iter().copied();
        for key in reset_earlier {
            assert_eq!(rig.reset(key, later - 1), ResetOutcome::Reset);
            assert!(rig.cancel(key).payload().is_some());
        }
        assert_eq!(rig.turn(DUE + 2).len(), keys.len() - many);
    });
}

#[test]
fn no_entry_stays_after_drain() {
    check_no_entry_stays(|rig, keys, _| {
        let half: Vec<_> = rig.shard.drain().take(keys.len() / 2).collect();
        rig.shard.check_invariants();
        assert_eq!(rig.shard.drain().count(), keys.len() - half.len());
        rig.shard.check_invariants();
        assert_eq!(rig.cancel(keys[0]), CancelOutcome::Stale);
    });
}

#[test]
fn stale_entries_before_many_new_live_ones_are_swept() {
    // The sweep finds so many live entries among the new ones that it looks at the old ones too,
    // from the second slot on. The old stale entries lie in the first slot.
    let config = ShardConfig { capacity: 600_000, ..ShardConfig::default() };
    let (first, second) = (200, 1_000);
    let mut rig = Rig::new(config);
    rig.check_every = 100_003;
    let keys = rig.schedule_all(std::iter::repeat_n(first, 300_000));
    rig.schedule_all(std::iter::repeat_n(second, 100_000));
    for _ in 0..350_000 {
        let key = rig.schedule(second, 0);
        assert!(rig.cancel(key).payload().is_some());
    }
    for (number, key) in keys.into_iter().enumerate() {
        assert!(rig.cancel(key).payload().is_some());
        if number % 3 == 0 {
            rig.schedule(first, 0);
        }
    }
    rig.shard.check_invariants();
}

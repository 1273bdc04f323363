//! Stale entries stay within their bound during any load, and are gone after it.

use corewheel_shard::{Budget, ResetOutcome, ShardConfig, TimerKey};
use fastrand::Rng;

use super::{Rig, on_each_wheel};

const COUNT: u64 = 4_000;

/// The tick at which most of these timers are due.
const DUE: u64 = 1_000;

fn smallest() -> Budget {
    Budget { expired_max: 1, work_max: 1 }
}

fn cancel_all(rig: &mut Rig, keys: impl IntoIterator<Item = TimerKey>) {
    for key in keys {
        assert!(rig.cancel(key).payload().is_some());
    }
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
fn no_entry_stays_after_resets_to_earlier_ticks() {
    on_each_wheel(|config| {
        let mut rng = Rng::with_seed(7);
        let mut rig = Rig::new(ShardConfig { capacity: COUNT as u32, ..config });
        rig.check_every = 201;
        let keys = rig.schedule_all((0..COUNT).map(|number| DUE + number % 3));
        for round in 1..=5 {
            for key in &keys {
                let earlier = DUE - round * 100 + rng.u64(0..50);
                assert_eq!(rig.reset(*key, earlier), ResetOutcome::Reset);
            }
        }
        assert_eq!(rig.run_out().len(), keys.len());
        rig.turn(1 << 21);
        assert_eq!(rig.shard.entries(), 0, "entries stay after all deadlines have passed");
    });
}

#[test]
fn no_entry_stays_after_most_timers_fire_and_rest_is_cancelled() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(ShardConfig { capacity: 6 * COUNT as u32, ..config });
        rig.check_every = 1_001;
        let keys = rig.schedule_all((0..6 * COUNT).map(|number| DUE + number % 3));
        // Too few cancels for a sweep until the other timers have fired.
        let later = DUE + 500;
        let many = keys.len() / 5;
        for key in &keys[..many] {
            assert_eq!(rig.reset(*key, later), ResetOutcome::Reset);
        }
        for key in &keys[..many] {
            assert_eq!(rig.reset(*key, later - 1), ResetOutcome::Reset);
            assert!(rig.cancel(*key).payload().is_some());
        }
        assert_eq!(rig.turn(DUE + 2).len(), keys.len() - many);
        assert_eq!(rig.shard.len(), 0);
        rig.shard.check_invariants();
        rig.turn(1 << 21);
        assert_eq!(rig.shard.entries(), 0, "entries stay after all deadlines have passed");
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

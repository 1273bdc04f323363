//! Granted keys, and cancels and resets that overtake their timers.

use corewheel_shard::{ArmOutcome, CancelOutcome, ResetOutcome, ShardConfig, Tick, TimerKey};
use std::num::NonZeroU32;

use super::{Rig, on_each_wheel, on_each_wheel_from};

fn grant(rig: &mut Rig) -> TimerKey {
    let key = rig.shard.grant().expect("there is room");
    rig.shard.check_invariants();
    key
}

fn arm(rig: &mut Rig, key: TimerKey, deadline: u64, payload: u32) -> ArmOutcome<u32> {
    let outcome = rig.shard.arm(key, Tick::new(deadline), payload);
    rig.shard.check_invariants();
    outcome
}

fn revoke(rig: &mut Rig, key: TimerKey) -> bool {
    let revoked = rig.shard.revoke(key);
    rig.shard.check_invariants();
    revoked
}

#[test]
fn armed_key_fires_and_cancels_as_scheduled_timer() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let keys = [(); 3].map(|()| grant(&mut rig));
        assert_eq!((rig.shard.len(), rig.shard.granted()), (0, 3));
        assert_eq!(rig.shard.next_deadline(), None, "a granted key is not pending");
        for (key, deadline) in keys.into_iter().zip([300, 5, 40]) {
            assert_eq!(arm(&mut rig, key, deadline, deadline as u32), ArmOutcome::Armed);
        }
        assert_eq!((rig.shard.len(), rig.shard.granted()), (3, 0));
        assert_eq!(rig.turn(5), [5]);
        assert_eq!(rig.cancel(keys[2]).payload(), Some(40));
        assert_eq!(rig.turn(300), [300]);
        let counters = rig.shard.counters();
        assert_eq!((counters.scheduled_local, counters.scheduled_remote), (0, 3));
    });
}

#[test]
fn timer_that_arrives_after_its_deadline_fires_in_next_turn() {
    on_each_wheel_from(1_000, |config| {
        let mut rig = Rig::new(config);
        let key = grant(&mut rig);
        assert_eq!(arm(&mut rig, key, 400, 7), ArmOutcome::Armed);
        assert!(rig.shard.is_behind());
        assert_eq!(rig.turn(1_000), [7]);
    });
}

#[test]
fn cancel_that_overtakes_its_timer_makes_arm_return_payload() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let key = grant(&mut rig);
        assert_eq!(rig.cancel(key), CancelOutcome::Overtook);
        assert_eq!(rig.cancel(key), CancelOutcome::Stale, "the second cancel is too late");
        assert_eq!(rig.reset(key, 9), ResetOutcome::Stale, "a reset is too late");
        assert_eq!(arm(&mut rig, key, 5, 7), ArmOutcome::Overtaken(7));
        assert_eq!(rig.cancel(key), CancelOutcome::Stale);
        assert_eq!(rig.turn(100), []);
        let counters = rig.shard.counters();
        assert_eq!((counters.scheduled_remote, counters.cancelled, counters.overtaken), (1, 1, 1));
        assert_eq!((rig.shard.len(), rig.shard.granted()), (0, 0));
    });
}

#[test]
fn reset_that_overtakes_its_timer_sets_its_deadline() {
    on_each_wheel(|config| {
        for (armed, reset) in [(5, 300), (300, 5), (5, 0), (0, 5), (5, u64::MAX)] {
            let mut rig = Rig::new(config);
            let key = grant(&mut rig);
            assert_eq!(rig.reset(key, 77), ResetOutcome::Overtook);
            assert_eq!(rig.reset(key, reset), ResetOutcome::Overtook, "the last reset counts");
            assert_eq!(rig.shard.deadline(key), None);
            assert_eq!(arm(&mut rig, key, armed, 7), ArmOutcome::Armed);
            assert_eq!(rig.shard.deadline(key), Some(Tick::new(reset)));
            assert_eq!(rig.turn(Tick::new(reset).index().saturating_sub(1)).len(), {
                usize::from(reset == 0)
            });
            assert_eq!(rig.turn(reset).len(), usize::from(reset != 0));
        }
    });
}

#[test]
fn cancel_after_reset_that_overtook_makes_arm_return_payload() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let key = grant(&mut rig);
        assert_eq!(rig.reset(key, 77), ResetOutcome::Overtook);
        assert_eq!(rig.cancel(key), CancelOutcome::Overtook);
        assert_eq!(arm(&mut rig, key, 5, 7), ArmOutcome::Overtaken(7));
        assert_eq!(rig.turn(100), []);
    });
}

#[test]
fn armed_key_cannot_be_armed_again() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let key = grant(&mut rig);
        assert_eq!(arm(&mut rig, key, 5, 1), ArmOutcome::Armed);
        assert_eq!(arm(&mut rig, key, 6, 2), ArmOutcome::NotGranted(2));
        assert_eq!(rig.turn(5), [1]);
        assert_eq!(arm(&mut rig, key, 6, 3), ArmOutcome::NotGranted(3));
        assert_eq!(rig.turn(100), []);
    });
}

#[test]
fn revoked_key_is_stale_and_its_slot_is_free() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(ShardConfig { capacity: 1, ..config });
        for cancelled in [false, true] {
            let key = grant(&mut rig);
            if cancelled {
                assert_eq!(rig.cancel(key), CancelOutcome::Overtook);
            }
            assert!(revoke(&mut rig, key));
            assert!(!revoke(&mut rig, key), "a second revoke fails");
            assert_eq!(arm(&mut rig, key, 5, 1), ArmOutcome::NotGranted(1));
            assert_eq!(rig.cancel(key), CancelOutcome::Stale);
            let timer = rig.schedule(5, 2);
            assert!(!revoke(&mut rig, timer), "a timer is not revoked");
            assert_eq!(rig.cancel(timer).payload(), Some(2));
        }
    });
}

#[test]
fn forged_key_is_neither_armed_nor_revoked() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let timer = rig.schedule(5, 0);
        let gone = rig.schedule(5, 1);
        let granted = grant(&mut rig);
        // The slot of the cancelled timer stays vacant, with an even generation.
        assert_eq!(rig.cancel(gone).payload(), Some(1));
        for index in [0, 1, 2, 77, u32::MAX] {
            for generation in [1, 2, 3, 4, 5, u32::MAX] {
                let generation = NonZeroU32::new(generation).expect("the generation is not zero");
                let key = TimerKey::from_parts(index, generation);
                if key == granted {
                    continue;
                }
                assert_eq!(arm(&mut rig, key, 9, 8), ArmOutcome::NotGranted(8), "{key:?}");
                assert!(!revoke(&mut rig, key), "{key:?}");
            }
        }
        assert_eq!((rig.shard.len(), rig.shard.granted()), (1, 1));
        assert_eq!(rig.cancel(timer).payload(), Some(0));
    });
}

#[test]
fn drain_leaves_granted_keys_unchanged() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let key = grant(&mut rig);
        rig.schedule(5, 0);
        assert_eq!(rig.shard.drain().count(), 1);
        assert_eq!(rig.shard.granted(), 1);
        assert_eq!(arm(&mut rig, key, 9, 1), ArmOutcome::Armed);
        assert_eq!(rig.turn(9), [1]);
    });
}

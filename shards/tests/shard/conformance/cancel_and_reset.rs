//! Cancel, reset and granted keys: their outcomes, and what happens to the timer.

use std::num::NonZeroU32;
use std::rc::Rc;

use corewheel_shard::{ArmOutcome, Budget, CancelOutcome, ResetOutcome, Shard, Tick, TimerKey};

use super::{Rig, on_each_wheel};

/// Deadlines in the first slots, on the levels above and far beyond them.
const DEADLINES: [u64; 10] = [0, 1, 2, 7, 8, 255, 256, 65_536, 1 << 40, u64::MAX];

fn cancelled(deadline: u64, payload: u32) -> CancelOutcome<u32> {
    CancelOutcome::Cancelled { deadline: Tick::new(deadline), payload }
}

#[test]
fn cancel_returns_payload_and_timer_never_fires() {
    on_each_wheel(|config| {
        for deadline in DEADLINES {
            let mut rig = Rig::new(config);
            let key = rig.schedule(deadline, 7);
            assert_eq!(rig.shard.deadline(key), Some(Tick::new(deadline)));
            assert_eq!(rig.shard.payload(key), Some(&7));
            assert_eq!(rig.cancel(key), cancelled(deadline, 7));
            assert_eq!((rig.shard.deadline(key), rig.shard.payload(key)), (None, None));
            assert!(!rig.shard.is_behind(), "a cancelled timer needs no turn");
            assert_eq!(rig.turn(u64::MAX), []);
            assert_eq!((rig.shard.len(), rig.shard.entries()), (0, 0));
        }
    });
}

#[test]
fn fired_timer_reports_already_fired_until_its_slot_is_used_again() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let key = rig.schedule(5, 0);
        assert_eq!(rig.turn(5), [0]);
        for _ in 0..2 {
            assert_eq!(rig.cancel(key), CancelOutcome::AlreadyFired);
            assert_eq!(rig.reset(key, 9), ResetOutcome::AlreadyFired);
        }
        let next = rig.schedule(8, 1);
        assert_eq!(next.index(), key.index(), "the slot is used again");
        assert_eq!(rig.cancel(key), CancelOutcome::Stale);
        assert_eq!(rig.reset(key, 9), ResetOutcome::Stale);
        assert_eq!(rig.shard.deadline(next), Some(Tick::new(8)), "the next timer is unchanged");
        assert_eq!(rig.turn(8), [1]);
    });
}

#[test]
fn forged_key_is_stale_and_neither_armed_nor_revoked() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let keys = rig.schedule_all([5, 6, 7]);
        // The slot of the cancelled timer and the revoked key is vacant, with an even generation.
        assert!(rig.cancel(keys[1]).payload().is_some());
        let [granted, spare] = [(); 2].map(|()| rig.shard.grant().expect("there is room"));
        assert!(rig.shard.revoke(spare) && !rig.shard.revoke(spare));
        let real = [keys[0], keys[2], granted];
        for index in [0, 1, 2, 3, 4, 1_000, u32::MAX] {
            for generation in [1, 2, 3, 4, 5, 6, 7, u32::MAX - 1, u32::MAX] {
                let generation = NonZeroU32::new(generation).expect("the generation is not zero");
                let forged = TimerKey::from_parts(index, generation);
                if real.contains(&forged) {
                    continue;
                }
                assert_eq!(rig.cancel(forged), CancelOutcome::Stale, "{forged:?}");
                assert_eq!(rig.reset(forged, 1), ResetOutcome::Stale, "{forged:?}");
                let armed = rig.shard.arm(forged, Tick::new(9), 8);
                assert_eq!(armed, ArmOutcome::NotGranted(8), "{forged:?}");
                assert!(!rig.shard.revoke(forged) && !rig.shard.pass(forged), "{forged:?}");
                assert_eq!((rig.shard.deadline(forged), rig.shard.payload(forged)), (None, None));
            }
        }
        assert_eq!((rig.shard.len(), rig.shard.granted()), (2, 1));
        assert_eq!(rig.turn(7), [0, 2]);
    });
}

#[test]
fn reset_that_overtakes_its_timer_sets_its_deadline() {
    on_each_wheel(|config| {
        for (armed, reset) in [(5, 300), (300, 5), (5, 0), (0, 5), (5, u64::MAX)] {
            let mut rig = Rig::new(config);
            let key = rig.shard.grant().expect("there is room");
            assert_eq!(rig.reset(key, 77), ResetOutcome::Overtook);
            assert_eq!(rig.reset(key, reset), ResetOutcome::Overtook, "the last reset counts");
            assert_eq!(rig.shard.deadline(key), None);
            assert_eq!(rig.shard.arm(key, Tick::new(armed), 7), ArmOutcome::Armed);
            assert_eq!(rig.shard.deadline(key), Some(Tick::new(reset)));
            let before = rig.turn(Tick::new(reset).index().saturating_sub(1));
            assert_eq!(before.len(), usize::from(reset == 0));
            assert_eq!(rig.turn(reset).len(), usize::from(reset != 0));
        }
    });
}

#[test]
fn reset_to_any_deadline_fires_once_at_new_deadline() {
    on_each_wheel(|config| {
        for from in DEADLINES {
            for to in DEADLINES {
                let mut rig = Rig::new(config);
                let key = rig.schedule(from, 3);
                assert_eq!(rig.reset(key, to), ResetOutcome::Reset);
                assert_eq!(rig.shard.deadline(key), Some(Tick::new(to)));
                let tick = Tick::new(to).index();
                assert_eq!(rig.turn(tick.saturating_sub(1)).len(), usize::from(to == 0));
                assert_eq!(rig.turn(tick).len(), usize::from(to != 0));
                assert_eq!(rig.turn(u64::MAX), [], "the timer fires once");
            }
        }
    });
}

#[test]
fn payload_is_dropped_once_with_its_timer_or_its_shard() {
    on_each_wheel(|config| {
        let witness = Rc::new(());
        let mut shard = Shard::new(config).expect("the configuration is good");
        let keys: Vec<_> = (0..40)
            .map(|number| shard.schedule(Tick::new(number * 30), Rc::clone(&witness)).unwrap())
            .collect();
        assert_eq!(Rc::strong_count(&witness), 41);
        for key in &keys[20..25] {
            drop(shard.cancel(*key));
        }
        assert_eq!(Rc::strong_count(&witness), 36);
        shard.advance(Tick::new(150), Budget::UNLIMITED);
        while shard.pop_expired().is_some() {}
        assert_eq!(Rc::strong_count(&witness), 30);
        drop(shard.drain().take(3));
        assert_eq!(Rc::strong_count(&witness), 30, "a drain that is not iterated takes no timer");
        assert_eq!(shard.drain().take(3).count(), 3);
        assert_eq!(Rc::strong_count(&witness), 27);
        drop(shard);
        assert_eq!(Rc::strong_count(&witness), 1);
    });
}

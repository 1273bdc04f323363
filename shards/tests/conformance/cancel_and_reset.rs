//! Cancel and reset: their outcomes, and what happens to the timer.

use std::num::NonZeroU32;
use std::rc::Rc;

use corewheel_shard::{Budget, CancelOutcome, ResetOutcome, Shard, Tick, TimerKey};

use super::{Rig, on_each_wheel, on_each_wheel_from};

/// Deadlines in the first slots, on the levels above and far beyond them.
const DEADLINES: [u64; 9] = [1, 2, 7, 8, 255, 256, 65_536, 1 << 40, u64::MAX];

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
            assert_eq!(rig.turn(u64::MAX), []);
            assert_eq!((rig.shard.len(), rig.shard.entries()), (0, 0));
        }
    });
}

#[test]
fn late_timer_can_be_cancelled_and_reset() {
    on_each_wheel_from(100, |config| {
        let mut rig = Rig::new(config);
        let keys = rig.schedule_all([100, 50, 0, 99]);
        assert_eq!(rig.cancel(keys[1]), cancelled(50, 1));
        assert_eq!(rig.reset(keys[2], 300), ResetOutcome::Reset);
        assert_eq!(rig.reset(keys[3], 98), ResetOutcome::Reset);
        assert_eq!(rig.turn(100), [0, 3]);
        assert_eq!(rig.turn(299), []);
        assert_eq!(rig.turn(300), [2]);
    });
}

#[test]
fn second_cancel_is_stale() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let key = rig.schedule(5, 0);
        assert_eq!(rig.cancel(key), cancelled(5, 0));
        assert_eq!(rig.cancel(key), CancelOutcome::Stale);
        assert_eq!(rig.reset(key, 9), ResetOutcome::Stale);
        assert_eq!(rig.shard.counters().stale, 2);
        assert_eq!(rig.turn(u64::MAX), []);
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
fn stale_key_never_reaches_next_timer_of_its_slot() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let mut stale = Vec::new();
        for life in 0..50 {
            let key = rig.schedule(10 + u64::from(life), life);
            for old in &stale {
                assert_eq!(rig.cancel(*old), CancelOutcome::Stale);
                assert_eq!(rig.reset(*old, 1), ResetOutcome::Stale);
                assert_eq!(rig.shard.payload(*old), None);
            }
            assert_eq!(rig.cancel(key), cancelled(10 + u64::from(life), life));
            stale.push(key);
        }
        stale.dedup();
        assert_eq!(stale.len(), 50, "all keys are different");
    });
}

#[test]
fn forged_key_is_stale() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let keys = rig.schedule_all([5, 6, 7]);
        assert!(rig.cancel(keys[1]).payload().is_some());
        let granted = rig.shard.grant().expect("there is room");
        let spare = rig.shard.grant().expect("there is room");
        assert!(rig.shard.revoke(spare));
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
                assert_eq!(rig.shard.deadline(forged), None);
                assert_eq!(rig.shard.payload(forged), None);
            }
        }
        assert_eq!(rig.turn(7), [0, 2]);
    });
}

#[test]
fn due_timer_can_be_cancelled_and_reset_before_delivery() {
    on_each_wheel(|config| {
        for count in [3_u32, 14, 15, 16, 40] {
            let mut rig = Rig::new(config);
            let keys = rig.schedule_all((0..count).map(|_| 4));
            rig.advance(4, Budget::UNLIMITED);
            assert_eq!(rig.pop(), Some(0));
            let last = count - 1;
            assert_eq!(rig.cancel(keys[1]), cancelled(4, 1));
            assert_eq!(rig.cancel(keys[1]), CancelOutcome::Stale);
            assert_eq!(rig.reset(keys[last as usize], 9), ResetOutcome::Reset);
            let rest: Vec<_> = (2..last).collect();
            assert_eq!(rig.rest(), rest);
            assert_eq!(rig.turn(8), []);
            assert_eq!(rig.turn(9), [last]);
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
                assert_eq!(rig.turn(tick - 1), []);
                assert_eq!(rig.turn(tick), [3]);
                assert_eq!(rig.turn(u64::MAX), [], "the timer fires once");
            }
        }
    });
}

#[test]
fn reset_to_past_deadline_fires_in_next_turn() {
    on_each_wheel_from(100, |config| {
        for to in [100, 99, 0] {
            let mut rig = Rig::new(config);
            let key = rig.schedule(5_000, 3);
            assert_eq!(rig.reset(key, to), ResetOutcome::Reset);
            assert!(rig.shard.is_behind());
            assert_eq!(rig.turn(100), [3]);
        }
    });
}

#[test]
fn many_resets_of_timer_fire_once_at_last_deadline() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let key = rig.schedule(600, 3);
        for to in [700, 650, 10, 90_000, 20, 21, 5, 1_000, 1_000, 900] {
            assert_eq!(rig.reset(key, to), ResetOutcome::Reset);
        }
        assert_eq!(rig.turn(899), []);
        assert_eq!(rig.turn(900), [3]);
        assert_eq!(rig.turn(u64::MAX), []);
        assert_eq!((rig.shard.counters().reset_lazy, rig.shard.counters().reset_relinked), (5, 5));
    });
}

#[test]
fn timer_reset_before_each_deadline_never_fires() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let key = rig.schedule(10, 3);
        for now in 1..2_000 {
            assert_eq!(rig.turn(now), []);
            assert_eq!(rig.reset(key, now + 10), ResetOutcome::Reset);
        }
        assert_eq!(rig.shard.entries(), 1, "a reset to a later tick leaves no stale entry");
        assert_eq!(rig.turn(2_008), []);
        assert_eq!(rig.turn(2_009), [3]);
    });
}

#[test]
fn counters_after_cancels_resets_and_drain_are_exact() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        let keys = rig.schedule_all((1..=40).map(|number| number * 10));
        for key in &keys[..10] {
            assert!(rig.cancel(*key).payload().is_some());
        }
        for key in &keys[10..15] {
            assert_eq!(rig.reset(*key, 1_000), ResetOutcome::Reset);
        }
        for key in &keys[15..22] {
            assert_eq!(rig.reset(*key, 2), ResetOutcome::Reset);
        }
        assert_eq!(rig.turn(300).len(), 7 + 8);
        for key in &keys[..30] {
            let _ = rig.cancel(*key);
        }
        let returned = rig.shard.drain().count() as u64;
        let counters = rig.shard.counters();
        assert_eq!((counters.scheduled_local, counters.scheduled_remote), (40, 0));
        assert_eq!((counters.fired, counters.cancelled, counters.returned), (15, 15, returned));
        assert_eq!((counters.reset_lazy, counters.reset_relinked), (5, 7));
        assert_eq!((counters.stale, counters.refused, counters.overtaken), (25, 0, 0));
        assert_eq!(counters.pending(), 0);
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

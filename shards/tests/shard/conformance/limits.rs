//! The limits of the configuration and of the budget.

use corewheel_shard::{Budget, ConfigError, Shard, ShardConfig, WheelKind};

use super::{Rig, levels, on_each_wheel};

fn check_refused(config: ShardConfig, name: &str) {
    let error = Shard::<u32>::new(config).expect_err("the field is out of its limits");
    let ConfigError::OutOfRange { field, value, min, max } = error else {
        panic!("{error:?} names no field");
    };
    assert_eq!(field, name);
    assert!(value < min || value > max);
    let message = error.to_string();
    assert!(message.contains(name) && message.contains(&value.to_string()), "{message}");
    assert!(message.contains(&max.to_string()), "the message names the maximum: {message}");
}

#[test]
fn config_out_of_limits_is_refused_with_name_of_field() {
    for wheel in [WheelKind::Hierarchical, WheelKind::Hashed] {
        let good = ShardConfig { wheel, capacity: 8, ..ShardConfig::default() };
        for capacity in [0, ShardConfig::CAPACITY_MAX + 1, u32::MAX] {
            check_refused(ShardConfig { capacity, ..good }, "capacity");
        }
        for slots in [0, 1, ShardConfig::SLOTS_MAX + 1, u32::MAX] {
            check_refused(ShardConfig { slots, ..good }, "slots");
        }
        for level_slots in [0, 1, ShardConfig::LEVEL_SLOTS_MAX + 1, u32::MAX] {
            check_refused(ShardConfig { level_slots, ..good }, "level_slots");
        }
        assert!(Shard::<u32>::new(good).is_ok());
        let largest = ShardConfig {
            slots: ShardConfig::SLOTS_MAX,
            level_slots: ShardConfig::LEVEL_SLOTS_MAX,
            ..good
        };
        assert!(Shard::<u32>::new(largest).is_ok());
    }
}

#[test]
fn slots_not_a_power_of_two_are_rounded_up() {
    for wheel in [WheelKind::Hierarchical, WheelKind::Hashed] {
        for (slots, level_slots) in [(3, 3), (5, 7), (100, 33), (257, 2)] {
            let config = ShardConfig { wheel, slots, level_slots, ..ShardConfig::default() };
            let mut rig = Rig::new(ShardConfig { capacity: 1_000, ..config });
            rig.schedule_all((1..900).map(|deadline| deadline * 3));
            let fired = rig.run_out();
            assert!(fired.iter().all(|(tick, payload)| *tick == u64::from(payload + 1) * 3));
            assert_eq!(fired.len(), 899);
        }
    }
}

#[test]
fn turn_after_long_gap_needs_small_budget() {
    for gap in [1 << 20, 1 << 40, 1 << 62] {
        on_each_wheel(|config| {
            let mut rig = Rig::new(config);
            rig.schedule_all([1, 2, gap - 1, gap, gap + 1]);
            // The wheel looks at each of the four timers that are due once a level.
            let work_max = 4 * (levels(config) + 3) as u32;
            rig.advance(gap, Budget { expired_max: u32::MAX, work_max });
            assert_eq!(rig.rest(), [0, 1, 2, 3]);
            assert!(!rig.shard.is_behind());
            assert_eq!(rig.turn(gap + 1), [4]);
        });
    }
}

#[test]
fn turn_of_empty_wheel_after_long_gap_needs_no_budget() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        for now in [1 << 20, 1 << 40, 1 << 63] {
            rig.advance(now, Budget { expired_max: 1, work_max: 1 });
            assert_eq!(rig.pop(), None);
            assert!(!rig.shard.is_behind());
            rig.schedule(now + 1, 0);
            assert_eq!(rig.turn(now + 1), [0]);
        }
    });
}

#[test]
fn turn_does_no_more_than_its_budget() {
    on_each_wheel(|config| {
        let mut rig = Rig::new(config);
        rig.schedule_all((0..400).map(|number| 2_000 + number / 100));
        for (expired_max, work_max) in [(3, 1_000), (1_000, 3), (1, 1), (20, 20), (1, 1_000)] {
            let before = *rig.shard.counters();
            rig.advance(2_003, Budget { expired_max, work_max });
            rig.rest();
            let after = rig.shard.counters();
            let fired = after.fired - before.fired;
            let work = fired + after.cascaded - before.cascaded + after.swept - before.swept;
            assert!(fired <= u64::from(expired_max));
            // Up to a chunk more than the budget, and the rest of the batch of the last turn.
            assert!(work <= u64::from(work_max) + 14 + 64, "{work} entries for {work_max}");
        }
    });
}

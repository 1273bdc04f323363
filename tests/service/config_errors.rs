//! Refused settings: each error names the field and the value, and says which values are possible
//! and what to do.

use corewheel::ConfigError;

use super::*;

/// Checks that an error names this field and this value, a limit and a remedy.
#[track_caller]
fn check(error: &ConfigError, field: &str, value: &str) {
    assert_eq!(error.field(), field, "{error}");
    let message = error.to_string();
    let rest = message.strip_prefix(&format!("{field} is {value}, but "));
    let (limit, remedy) = rest.and_then(|rest| rest.split_once("; ")).expect(&message);
    assert!(limit.len() > 8 && remedy.len() > 8, "{message}");
}

#[test]
fn setting_of_a_container_out_of_range_is_refused_with_field_value_and_remedy() {
    let lab = Lab::<()>::new(builder(1));
    let timers = lab.timers();
    let refused = |min, max| ScaledTimeouts::<u8>::new(timers, min, max, |_, _| {}).unwrap_err();
    check(&refused(Duration::ZERO, Duration::ZERO), "max", "0ns");
    check(&refused(ms(6), ms(5)), "min", "6ms");
    check(&Scale::new(f64::NAN).unwrap_err(), "scale", "NaN");
    check(&Scale::new(1.5).unwrap_err(), "scale", "1.5");
    check(&Scale::new(-0.5).unwrap_err(), "scale", "-0.5");
    check(&timers.interval(Duration::ZERO).unwrap_err(), "period", "0ns");
    check(&timers.handle().interval_at(timers.now(), Duration::ZERO).unwrap_err(), "period", "0ns");
    check(&timers.handle().fixed_delay(Duration::ZERO).unwrap_err(), "delay", "0ns");
    check(&Repeat::at_fixed_rate(Duration::ZERO).unwrap_err(), "period", "0ns");
    check(&Repeat::with_fixed_delay(Duration::ZERO).unwrap_err(), "delay", "0ns");
}

#[test]
fn builder_refuses_settings_out_of_range_and_accepts_extreme_ones() {
    fn start(
        change: impl FnOnce(TimerServiceBuilder) -> TimerServiceBuilder,
    ) -> Option<ConfigError> {
        let started = change(TimerService::builder().shards(1)).start_attached_with::<()>();
        started.err().map(|error| match error {
            StartError::Config(error) => error,
            other => panic!("{other}"),
        })
    }
    let refused =
        |field: &str, value: &str, change: fn(TimerServiceBuilder) -> TimerServiceBuilder| {
            check(&start(change).expect(field), field, value);
        };
    refused("shards", "0", |builder| builder.shards(0));
    refused("shards", "1025", |builder| builder.shards(1_025));
    refused("tick", "0ns", |builder| builder.tick(Duration::ZERO));
    refused("tick", "2s", |builder| builder.tick(Duration::from_secs(2)));
    refused("slots", "1", |builder| builder.slots(1));
    refused("slots", "4294967295", |builder| builder.slots(u32::MAX));
    refused("capacity", "0", |builder| builder.capacity(0));
    refused("capacity", "4294967295", |builder| builder.capacity(u32::MAX));
    refused("lane_capacity", "0", |builder| builder.lane_capacity(0));
    refused("lane_capacity", &usize::MAX.to_string(), |b| b.lane_capacity(usize::MAX));
    refused("lateness_bound", "0ns", |builder| builder.lateness_bound(Duration::ZERO));
    refused("overrun", "0ns", |builder| builder.overrun(Duration::ZERO));
    refused("name", "\"\"", |builder| builder.name(""));
    refused("class", "\"\"", |builder| builder.class(TimerClass::new("")));
    refused("budget.expired_max", "0", |builder| {
        builder.budget(TurnBudget { expired_max: 0, ..TurnBudget::default() })
    });
    assert!(start(|builder| builder.lateness_bound(Duration::MAX)).is_none());
    assert!(start(|builder| builder.overrun(Duration::MAX)).is_none());
    let budget = TurnBudget { time_max: Some(Duration::MAX), ..TurnBudget::default() };
    assert!(start(move |builder| builder.budget(budget)).is_none());
}

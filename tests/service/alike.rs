//! What all parts have in common: the same questions have the same answers, and what cannot be is
//! refused in the same words.

use std::rc::Rc;
use std::time::Duration;

use corewheel::{
    Completion, ConfigError, DelayQueue, KeyedTimers, OperationFn, Purgatory, Repeat, Scale,
    ScaledTimeouts, TimerClass, TimerService, TimerServiceBuilder, TurnBudget, Watch,
};

use crate::support::{FAR, Lab, OTHER, SHARD, builder, check_law, ms};

/// The error names the field and the value, says what is possible, and what to do.
#[track_caller]
fn check(error: &ConfigError, field: &str, value: &str) {
    assert_eq!(error.field(), field, "{error}");
    let message = error.to_string();
    let rest = message.strip_prefix(&format!("{field} is {value}, but "));
    let (limit, remedy) = rest.and_then(|rest| rest.split_once("; ")).expect(&message);
    assert!(limit.len() > 8 && remedy.len() > 8, "{message}");
}

#[test]
fn every_part_tells_when_something_is_due_and_how_long_that_is() {
    let mut lab = Lab::<u32>::new(builder(2));
    let timers = lab.timers().clone();
    let now = timers.now();
    let timer = timers.schedule(ms(5), 1).unwrap();
    let queue = DelayQueue::new(&timers);
    let value = queue.insert("a", ms(5)).unwrap();
    let keyed = KeyedTimers::<_, _, (), u32>::new(&timers, |_, _| {});
    let _new = keyed.schedule("b", ms(5), ()).unwrap();
    let scaled = ScaledTimeouts::new(&timers, ms(1), ms(5), |(), _| {}).unwrap();
    let timeout = scaled.start(()).unwrap();
    let due = [
        timers.deadline(timer),
        queue.deadline(value),
        keyed.deadline("b"),
        scaled.deadline(timeout),
    ];
    assert_eq!(due, [Some(now + ms(5)); 4]);
    let remaining = || {
        [
            timers.remaining(timer),
            queue.remaining(value),
            keyed.remaining("b"),
            scaled.remaining(timeout),
        ]
    };
    assert_eq!(remaining(), [Some(ms(5)); 4]);
    lab.clock.advance(ms(2));
    assert_eq!(remaining(), [Some(ms(3)); 4]);
    lab.clock.advance(ms(20));
    assert_eq!(remaining(), [Some(Duration::ZERO); 4], "due, and not delivered yet");
    lab.settle();
    assert!(queue.try_next().is_some());
    assert_eq!(remaining(), [None; 4]);
    assert_eq!((timers.deadline(timer), queue.deadline(value)), (None, None));

    // A timer of another shard is not looked for here.
    let elsewhere = lab.client().schedule_on(OTHER, FAR, 2).unwrap();
    assert_eq!(timers.deadline(elsewhere), None);
    let cancelled = timers.schedule(FAR, 3).unwrap();
    assert!(timers.cancel(cancelled).won());
    assert_eq!(timers.remaining(cancelled), None);
    let never = timers.schedule(Duration::MAX, 4).unwrap();
    assert!(timers.remaining(never) > Some(FAR));
}

#[test]
fn every_part_can_be_cleared_and_drops_what_it_held() {
    let lab = Lab::<()>::new(builder(1));
    let timers = lab.timers();
    let held = Rc::new(());
    let queue = DelayQueue::new(timers);
    queue.insert(Rc::clone(&held), FAR).unwrap();
    let keyed = KeyedTimers::<u8, Rc<()>, (), ()>::new(timers, |_, _| {});
    let _new = keyed.schedule(1, FAR, Rc::clone(&held)).unwrap();
    let scaled = ScaledTimeouts::new(timers, ms(1), FAR, |_: Rc<()>, _| {}).unwrap();
    scaled.start(Rc::clone(&held)).unwrap();
    let purgatory = Purgatory::new(timers);
    let kept = Rc::clone(&held);
    let operation = OperationFn::new(|| false, move |_: Completion| drop(kept));
    let watch = purgatory.try_complete_else_watch(operation, FAR, [1]).unwrap();
    assert!(matches!(watch, Watch::Watched(_)));
    assert_eq!(Rc::strong_count(&held), 5);
    assert_eq!((queue.len(), keyed.len(), scaled.len(), purgatory.len()), (1, 1, 1, 1));

    queue.clear();
    keyed.clear();
    scaled.clear();
    purgatory.clear();
    assert_eq!(Rc::strong_count(&held), 1);
    assert!(queue.is_empty() && keyed.is_empty() && scaled.is_empty() && purgatory.is_empty());
    assert_eq!(purgatory.stats().cancelled, 1);
    check_law(&lab.counts());
}

#[test]
fn a_capacity_is_refused_everywhere_in_the_same_words() {
    let lab = Lab::<()>::new(builder(1));
    let timers = lab.timers();
    for capacity in [0, (1 << 30) + 1, u32::MAX] {
        let value = capacity.to_string();
        let queue = DelayQueue::<u8, ()>::with_capacity(timers, capacity);
        check(&queue.unwrap_err(), "capacity", &value);
        let keyed = KeyedTimers::<u8, u8, (), ()>::with_capacity(timers, capacity, |_, _| {});
        check(&keyed.unwrap_err(), "capacity", &value);
        let scaled =
            ScaledTimeouts::<u8, ()>::with_capacity(timers, ms(1), FAR, capacity, |_, _| {});
        check(&scaled.unwrap_err(), "capacity", &value);
        let few = Purgatory::builder().operations_max(capacity);
        check(&few.build::<u8, OperationFn, ()>(timers).unwrap_err(), "operations_max", &value);
        let few = Purgatory::builder().watches_max(capacity);
        check(&few.build::<u8, OperationFn, ()>(timers).unwrap_err(), "watches_max", &value);
    }
    let queue = DelayQueue::<u8, ()>::with_capacity(timers, 2).unwrap();
    let keyed = KeyedTimers::<u8, u8, (), ()>::with_capacity(timers, 2, |_, _| {}).unwrap();
    let scaled = ScaledTimeouts::<u8, ()>::with_capacity(timers, ms(1), FAR, 2, |_, _| {}).unwrap();
    assert_eq!((queue.capacity(), keyed.capacity(), scaled.capacity()), (2, 2, 2));
}

#[test]
fn what_makes_no_sense_is_refused_by_field_and_value_with_a_remedy() {
    let lab = Lab::<()>::new(builder(1));
    let timers = lab.timers();
    let refused =
        |min, max| ScaledTimeouts::<u8, ()>::new(timers, min, max, |_, _| {}).unwrap_err();
    check(&refused(Duration::ZERO, Duration::ZERO), "max", "0ns");
    check(&refused(ms(6), ms(5)), "min", "6ms");
    check(&Scale::new(f64::NAN).unwrap_err(), "scale", "NaN");
    check(&Scale::new(1.5).unwrap_err(), "scale", "1.5");
    check(&Scale::new(-0.5).unwrap_err(), "scale", "-0.5");
    check(&timers.interval(Duration::ZERO).unwrap_err(), "period", "0ns");
    check(&timers.interval_at(timers.now(), Duration::ZERO).unwrap_err(), "period", "0ns");
    check(&timers.fixed_delay(Duration::ZERO).unwrap_err(), "delay", "0ns");
    check(&Repeat::at_fixed_rate(Duration::ZERO).unwrap_err(), "period", "0ns");
    check(&Repeat::with_fixed_delay(Duration::ZERO).unwrap_err(), "delay", "0ns");
}

#[test]
fn a_builder_refuses_what_makes_no_sense_and_takes_what_is_only_extreme() {
    fn start(
        change: impl FnOnce(TimerServiceBuilder) -> TimerServiceBuilder,
    ) -> Option<ConfigError> {
        let started = change(TimerService::builder().shards(1)).start_attached::<()>();
        started.err().map(|error| match error {
            corewheel::StartError::Config(error) => error,
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
    assert!(start(|builder| builder.spin(Duration::MAX)).is_none());
    let budget = TurnBudget { time_max: Some(Duration::MAX), ..TurnBudget::default() };
    assert!(start(move |builder| builder.budget(budget)).is_none());
}

#[test]
fn what_does_not_fit_means_never_and_panics_nowhere() {
    let mut lab = Lab::<u32>::new(builder(1));
    let timers = lab.timers().clone();
    let client = lab.client();
    let never = Duration::MAX;
    timers.schedule(never, 1).unwrap();
    client.schedule_on(SHARD, never, 2).unwrap();
    timers.schedule_many([(never, 3), (never, 4)]).unwrap();
    let deadline = timers.deadline_with_slack(never, never);
    timers.schedule_to(timers.later(deadline, never), 5).unwrap();
    let queue = DelayQueue::<_, u32>::new(&timers);
    queue.insert("never", never).unwrap();
    let scaled = ScaledTimeouts::new(&timers, never, never, |(), _| {}).unwrap();
    scaled.start(()).unwrap();
    let repeat = Repeat::at_fixed_rate(never).unwrap().first_in(never).slack(never);
    let periodic = timers.repeat(repeat, |_| {}).unwrap();
    lab.advance(Duration::from_hours(100 * 365 * 24));
    assert!(lab.fired().is_empty() && queue.try_next().is_none());
    assert_eq!((scaled.len(), periodic.runs()), (1, 0));
    check_law(&lab.counts());
}

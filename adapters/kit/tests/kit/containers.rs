//! What containers of timers have in common: `due`, `remaining`, durations that are too long, and
//! the class that their timers count for.

use std::time::Duration;

use corewheel::class::TimerClass;
use corewheel::settings::Scale;
use corewheel::stats::ClassStats;
use corewheel_kit::keyed::KeyedTimers;
use corewheel_kit::purgatory::Purgatory;
use corewheel_kit::queue::DelayQueue;
use corewheel_kit::repeat::Repeat;
use corewheel_kit::scaled::ScaledTimeouts;

use corewheel_test_support::operation_fn::OperationFn;
use corewheel_test_support::{FAR, Lab, OTHER, SHARD, builder, check_law, ms};

#[test]
fn due_of_every_container_is_the_deadline_until_the_timer_is_delivered() {
    let mut lab = Lab::<u32>::new(builder(2));
    let timers = lab.timers().clone();
    let now = timers.now();
    let timer = timers.schedule(ms(5), 1).unwrap();
    let queue = DelayQueue::new(&timers);
    let value = queue.insert("a", ms(5)).unwrap();
    let keyed = KeyedTimers::new(&timers, |_, _| {});
    let _new = keyed.insert("b", (), ms(5)).unwrap();
    let due = || [timers.due(timer), queue.due(value), keyed.due("b")];
    let remaining = || timers.remaining(timer);
    assert_eq!((due(), remaining()), ([Some(now + ms(5)); 3], Some(ms(5))));
    lab.clock.advance(ms(2));
    assert_eq!(remaining(), Some(ms(3)));
    lab.clock.advance(ms(20));
    assert_eq!(remaining(), Some(Duration::ZERO), "the timers are due and not yet delivered");
    assert_eq!(due(), [Some(now + ms(5)); 3]);
    lab.settle();
    assert!(queue.try_next().is_some());
    assert_eq!((due(), remaining()), ([None; 3], None));

    // `due` does not look for timers of other shards.
    let elsewhere = lab.client().on(OTHER).schedule(FAR, 2).unwrap();
    assert_eq!(timers.due(elsewhere), None);
    let cancelled = timers.schedule(FAR, 3).unwrap();
    assert!(timers.cancel(cancelled).won());
    assert_eq!(timers.remaining(cancelled), None);
    let never = timers.schedule(Duration::MAX, 4).unwrap();
    assert!(timers.remaining(never) > Some(FAR));
}

#[test]
fn duration_that_is_too_long_means_never_in_every_container() {
    never_ends(Lab::new(builder(1)), false);
    never_ends(Lab::at_windows(builder(1)), true);
}

/// `has_centuries` if a clock can show the time in two centuries.
fn never_ends(mut lab: Lab<u32>, has_centuries: bool) {
    let timers = lab.timers().clone();
    let client = lab.client();
    let never = Duration::MAX;
    timers.schedule(never, 1).unwrap();
    client.on(SHARD).schedule(never, 2).unwrap();
    let deadline = client.deadline_with_slack(never, never);
    timers.schedule(deadline, 5).unwrap();
    let queue = DelayQueue::new(&timers);
    let century = Duration::from_hours(100 * 365 * 24);
    let value = queue.insert("never", never).unwrap();
    let scaled = ScaledTimeouts::new(&timers, never, never, |(), _| {}).unwrap();
    scaled.start(()).unwrap();
    let shrinks = ScaledTimeouts::new(&timers, ms(10), never, |(), _| {}).unwrap();
    shrinks.start(()).unwrap();
    let purgatory = Purgatory::new(&timers);
    let operation = OperationFn::new(|| false, |_| panic!("never"));
    assert!(purgatory.try_complete_else_watch(operation, never, ["k"]).is_ok());
    let repeat = Repeat::at_fixed_rate(never).unwrap().first(never);
    repeat.begin(&timers, |_| panic!("never")).unwrap();
    if has_centuries {
        queue.insert("late", century).unwrap();
        assert!(queue.due(value).unwrap() >= lab.clock.now() + century);
        lab.advance(century);
        assert_eq!(queue.try_next().map(|expired| expired.value), Some("late"));
        assert!(queue.reset(value, never));
    }
    lab.advance(century);
    assert!(lab.fired().is_empty() && queue.try_next().is_none());
    if has_centuries {
        assert!(queue.reset(value, Duration::ZERO) && queue.try_next().is_some());
    }
    assert_eq!((scaled.len(), shrinks.len(), purgatory.drain().len()), (1, 1, 1));
    timers.set_scale(Scale::ZERO);
    lab.settle();
    assert_eq!((scaled.len(), shrinks.len(), lab.counts().panicked), (1, 0, 0));
    check_law(&lab.counts());
}

#[test]
fn timers_of_containers_count_for_the_class_of_their_view() {
    const LEASE: TimerClass = TimerClass::new("lease");
    for is_keyed in [true, false] {
        let mut lab = Lab::<()>::new(builder(1).capacity(4).class(LEASE));
        let view = lab.timers().of_class(LEASE).unwrap();
        let plain = KeyedTimers::<u32, ()>::new(lab.timers(), |_, _| {});
        assert!(plain.insert(0, (), FAR).is_ok());
        let leases = KeyedTimers::<u32, ()>::new(&view, |_, _| {});
        let fetches = Purgatory::<u32, OperationFn>::new(&view);
        let put = |key, delay| {
            let op = OperationFn::new(|| false, |_| {});
            if is_keyed {
                leases.insert(key, (), delay).is_ok()
            } else {
                fetches.try_complete_else_watch(op, delay, [key]).is_ok()
            }
        };
        assert!((1..4).all(|key| put(key, ms(u64::from(key)))));
        assert!(!put(4, ms(5)), "the shard has no room");
        if is_keyed {
            assert!(put(3, ms(4)), "an insert of a known key is a reset");
            assert!(leases.remove(&1).is_some());
        } else {
            assert_eq!(fetches.cancel_for_key(&1).len(), 1);
        }
        lab.advance(ms(2));
        let class = |lab: &Lab<()>| lab.service.stats().shards[0].classes[0];
        let ClassStats { pending, scheduled, fired, cancelled, refused, oldest, .. } = class(&lab);
        assert_eq!([pending, scheduled, fired, cancelled, refused], [1, 3, 1, 1, 1], "{is_keyed}");
        assert_eq!(oldest, Some(ms(2)));
        drop((leases, fetches));
        lab.settle();
        assert_eq!((class(&lab).pending, class(&lab).cancelled), (0, 2));
        check_law(&lab.counts());
    }
}

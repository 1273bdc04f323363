//! What containers of timers have in common: `due`, `remaining`, durations that are too long, and
//! handlers that are called for their own timers alone.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use corewheel::settings::Scale;
use corewheel_kit::keyed::{Expired, KeyedTimers};
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
fn handler_of_an_owner_beyond_65_536_others_is_called_for_its_timers() {
    const OWNERS: u32 = (1 << 16) + 8;
    let mut lab: Lab<()> = Lab::new(builder(1));
    let expired = Rc::new(RefCell::new(Vec::new()));
    let owner = |own: u32| {
        let expired = Rc::clone(&expired);
        let note = move |one: Expired<(), u32>, _: &_| expired.borrow_mut().push((own, one.key));
        KeyedTimers::<u32, ()>::new(lab.timers(), note)
    };
    let mut all: Vec<_> = (0..OWNERS).map(owner).collect();
    for number in [0, 1, (1 << 16) - 1, 1 << 16, OWNERS - 2, OWNERS - 1] {
        let own = &all[number as usize];
        assert!(own.insert(number, (), ms(5)).is_ok() && own.insert(number + 1, (), ms(9)).is_ok());
    }
    assert!(all[OWNERS as usize - 1].remove(&OWNERS).is_some());
    drop(all.remove(OWNERS as usize - 2));
    drop(all.remove(1));
    lab.advance(ms(5));
    let called = [0, (1 << 16) - 1, 1 << 16, OWNERS - 1].map(|number| (number, number));
    assert_eq!(*expired.borrow(), called);
    drop(all);
    assert_eq!(lab.timers().len(), 0);
    check_law(&lab.counts());
}

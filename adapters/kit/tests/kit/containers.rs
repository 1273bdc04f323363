//! What containers of timers have in common: `due`, `remaining`, and durations that are too long.

use std::time::Duration;

use corewheel_kit::keyed::KeyedTimers;
use corewheel_kit::queue::DelayQueue;
use corewheel_kit::repeat::Repeat;
use corewheel_kit::scaled::ScaledTimeouts;

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
    let mut lab = Lab::<u32>::new(builder(1));
    let timers = lab.timers().clone();
    let client = lab.client();
    let never = Duration::MAX;
    timers.schedule(never, 1).unwrap();
    client.on(SHARD).schedule(never, 2).unwrap();
    let deadline = client.deadline_with_slack(never, never);
    timers.schedule(deadline, 5).unwrap();
    let queue = DelayQueue::new(&timers);
    queue.insert("never", never).unwrap();
    let scaled = ScaledTimeouts::new(&timers, never, never, |(), _| {}).unwrap();
    scaled.start(()).unwrap();
    let repeat = Repeat::at_fixed_rate(never).unwrap().first(never);
    repeat.begin(&timers, |_| panic!("never")).unwrap();
    lab.advance(Duration::from_hours(100 * 365 * 24));
    assert!(lab.fired().is_empty() && queue.try_next().is_none());
    assert_eq!((scaled.len(), lab.counts().panicked), (1, 0));
    check_law(&lab.counts());
}

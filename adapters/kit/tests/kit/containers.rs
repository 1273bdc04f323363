//! The methods that containers of timers have in common: `due`, `remaining` and `clear`, and
//! durations that are too long.

use std::rc::Rc;
use std::time::Duration;

use corewheel_kit::TimersExt;
use corewheel_kit::repeat::Repeat;

use crate::operation_fn::{Completion, OperationFn};
use crate::support::{FAR, Lab, OTHER, SHARD, builder, check_law, ms};

#[test]
fn due_and_remaining_of_every_container_follow_the_clock() {
    let mut lab = Lab::<u32>::new(builder(2));
    let timers = lab.timers().clone();
    let now = timers.now();
    let timer = timers.schedule(ms(5), 1).unwrap();
    let queue = timers.delay_queue();
    let value = queue.insert("a", ms(5)).unwrap();
    let keyed = timers.keyed(|_, _| {});
    let _new = keyed.insert("b", (), ms(5)).unwrap();
    let scaled = timers.scaled(ms(1), ms(5), |(), _| {}).unwrap();
    let timeout = scaled.start(()).unwrap();
    let due = [timers.due(timer), queue.due(value), keyed.due("b")];
    assert_eq!(due, [Some(now + ms(5)); 3]);
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
    assert_eq!(remaining(), [Some(Duration::ZERO); 4], "the timers are due and not yet delivered");
    lab.settle();
    assert!(queue.try_next().is_some());
    assert_eq!(remaining(), [None; 4]);
    assert_eq!((timers.due(timer), queue.due(value)), (None, None));

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
fn clear_of_every_container_drops_its_values() {
    let lab = Lab::<()>::new(builder(1));
    let timers = lab.timers();
    let held = Rc::new(());
    let queue = timers.delay_queue();
    queue.insert(Rc::clone(&held), FAR).unwrap();
    let keyed = timers.keyed::<u8, Rc<()>>(|_, _| {});
    let _new = keyed.insert(1, Rc::clone(&held), FAR).unwrap();
    let scaled = timers.scaled(ms(1), FAR, |_: Rc<()>, _| {}).unwrap();
    scaled.start(Rc::clone(&held)).unwrap();
    let purgatory = timers.purgatory();
    let kept = Rc::clone(&held);
    let operation = OperationFn::new(|| false, move |_: Completion| drop(kept));
    let watch = purgatory.try_complete_else_watch(operation, FAR, [1]).unwrap();
    assert!(watch.is_some());
    assert_eq!(Rc::strong_count(&held), 5);
    assert_eq!((queue.len(), keyed.len(), scaled.len(), purgatory.len()), (1, 1, 1, 1));

    queue.clear();
    keyed.clear();
    drop(scaled.drain());
    purgatory.clear();
    assert_eq!(Rc::strong_count(&held), 1);
    assert!(queue.is_empty() && keyed.is_empty() && scaled.is_empty() && purgatory.is_empty());
    assert_eq!(purgatory.stats().cancelled, 1);
    check_law(&lab.counts());
}

#[test]
fn duration_that_is_too_long_means_never_in_every_container() {
    let mut lab = Lab::<u32>::new(builder(1));
    let timers = lab.timers().clone();
    let client = lab.client();
    let never = Duration::MAX;
    timers.schedule(never, 1).unwrap();
    client.on(SHARD).schedule(never, 2).unwrap();
    let deadline = timers.deadline_with_slack(never, never);
    timers.schedule(deadline, 5).unwrap();
    let queue = timers.delay_queue();
    queue.insert("never", never).unwrap();
    let scaled = timers.scaled(never, never, |(), _| {}).unwrap();
    scaled.start(()).unwrap();
    let repeat = Repeat::at_fixed_rate(never).unwrap().first(never);
    timers.repeat(repeat, |_| panic!("never")).unwrap();
    lab.advance(Duration::from_hours(100 * 365 * 24));
    assert!(lab.fired().is_empty() && queue.try_next().is_none());
    assert_eq!((scaled.len(), lab.counts().panicked), (1, 0));
    check_law(&lab.counts());
}

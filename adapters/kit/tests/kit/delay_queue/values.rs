//! Values that are inserted, reset, removed and taken without waiting.

use corewheel::{Refused, ShutdownPolicy};
use corewheel_kit::queue::DelayQueue;

use super::{due, lab, poll, queue};
use corewheel_test_support::{Alarm, FAR, Lab, builder, check_law, ms};

#[test]
fn late_inserts_of_two_ticks_expire_before_values_of_the_next_tick() {
    let lab = lab();
    let queue = queue(&lab);
    let epoch = lab.clock.now();
    // More values than one advance of the queue looks at.
    (0..3_000).for_each(|value| assert!(queue.insert(value, ms(1)).is_ok()));
    queue.insert(6_000, ms(2)).unwrap();
    lab.clock.advance(ms(1));
    let mut taken = Vec::new();
    for late in [5_000, 5_001] {
        taken.extend((0..700).map(|_| queue.try_next().unwrap().value));
        queue.insert(late, epoch + ms(1)).unwrap();
    }
    lab.clock.advance(ms(1));
    while !queue.is_empty() {
        taken.extend(queue.try_next().map(|expired| expired.value));
    }
    assert!(taken.iter().take(3_000).copied().eq(0..3_000), "values of one tick are in order");
    assert_eq!(taken[3_000..], [5_000, 5_001, 6_000]);
}

#[test]
fn insert_without_room_returns_the_value_and_changes_nothing() {
    let mut lab = Lab::<()>::new(builder(1).capacity(2));
    let queue = DelayQueue::new(lab.timers());
    let a = queue.insert("a", ms(1)).unwrap();
    queue.insert("b", ms(2)).unwrap();
    assert_eq!(queue.insert("c", ms(1)), Err(Refused::Full("c")));
    assert_eq!(queue.remove(a).unwrap().value, "a");
    queue.insert("d", ms(3)).unwrap();
    let message = queue.insert("e", ms(1)).unwrap_err().to_string();
    assert!(message.contains("capacity"), "{message}");
    // The shard is full, and a queue needs no timer of it.
    while lab.timers().schedule(FAR, ()).is_ok() {}
    lab.advance(ms(2));
    assert_eq!(due(&queue), ["b"]);
    queue.insert("g", ms(1)).unwrap();
    let (alarm, waker) = Alarm::new();
    let mut next = Box::pin(queue.next());
    assert!(poll(next.as_mut(), &waker).is_none());
    lab.advance(ms(1));
    assert_eq!(alarm.count(), 1, "the task is woken while the shard is full");
    assert_eq!(poll(next.as_mut(), &waker).unwrap().unwrap().value, "d");
    let report = lab.end(ShutdownPolicy::Drop);
    check_law(&report.shards[0].counts);
    assert_eq!(queue.insert("h", ms(1)), Err(Refused::Closed("h")));
    assert_eq!(Refused::Closed("h").into_value(), "h");
}

#[test]
fn drain_expired_stops_at_its_maximum_and_drain_takes_all() {
    let mut lab = lab();
    let queue = queue(&lab);
    (0..10).for_each(|n| assert!(queue.insert(n, ms(1 + n / 5)).is_ok()));
    let mut buffer = Vec::new();
    assert_eq!(queue.drain_expired_into(&mut buffer, 100), 0);
    for (ticks, max, drained) in [(1, 3, 3), (0, 3, 2), (1, 0, 0), (0, 2, 2)] {
        lab.advance(ms(ticks));
        assert_eq!(queue.drain_expired_into(&mut buffer, max), drained);
    }
    assert!(buffer.into_iter().map(|expired| expired.value).eq(0..7));
    queue.insert(10, ms(1)).unwrap();
    let mut drained = queue.drain();
    assert!(drained.is_sorted_by_key(|expired| expired.deadline));
    drained.sort_by_key(|expired| expired.value);
    assert!(drained.into_iter().map(|expired| expired.value).eq(7..11), "due or not");
    queue.insert(11, FAR).unwrap();
    assert_eq!(queue.drain().len(), 1);
    assert_eq!((queue.len(), queue.peek(), queue.drain().len()), (0, None, 0));
}

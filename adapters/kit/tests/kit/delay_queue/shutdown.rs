//! Queues whose shard is shut down, or ends without a shutdown.

use std::pin::pin;

use corewheel::{Refused, ShutdownPolicy};
use corewheel_kit::queue::DelayQueue;

use super::{lab, poll, scene};
use corewheel_test_support::{FAR, POLICIES, check_law, look, ms};

#[test]
fn shutdown_wakes_tasks_and_keeps_values() {
    for policy in POLICIES {
        let (mut lab, queue, alarm, waker) = scene();
        let empty = super::queue::<u8>(&lab);
        queue.insert("due", ms(5)).unwrap();
        let key = queue.insert("far", FAR).unwrap();
        let mut next = Box::pin(queue.next());
        let (mut recv, mut idle) = (Box::pin(queue.recv()), Box::pin(empty.recv()));
        assert!(poll(next.as_mut(), &waker).is_none());
        assert!(poll(recv.as_mut(), &waker).is_none());
        assert!(poll(idle.as_mut(), &waker).is_none());
        lab.clock.advance(ms(5));
        let report = lab.end(policy);
        check_law(&report.shards[0].counts);
        assert!(alarm.count() >= 3, "{policy:?}: all tasks are woken");
        assert_eq!(poll(next.as_mut(), &waker).unwrap().unwrap().value, "due", "{policy:?}");
        assert_eq!(poll(recv.as_mut(), &waker), Some(None), "{policy:?}");
        assert_eq!(poll(idle.as_mut(), &waker), Some(None), "{policy:?}");
        assert!(look(&mut pin!(queue.next())).unwrap().is_none(), "{policy:?}");
        assert!(queue.reset(key, ms(5)), "{policy:?}");
        assert_eq!(queue.remove(key).unwrap().value, "far", "{policy:?}");
    }
}

#[test]
fn death_of_the_shard_wakes_tasks_and_keeps_values() {
    let (mut lab, queue, alarm, waker) = scene();
    let (mut next, mut recv) = (Box::pin(queue.next()), Box::pin(queue.recv()));
    queue.insert(1, FAR).unwrap();
    assert!(poll(next.as_mut(), &waker).is_none());
    assert!(poll(recv.as_mut(), &waker).is_none());
    drop(lab.shards.remove(0));
    assert!(alarm.count() >= 2);
    assert!(poll(next.as_mut(), &waker).unwrap().is_none());
    assert_eq!(poll(recv.as_mut(), &waker), Some(None));
    assert_eq!(queue.insert(2, ms(1)), Err(Refused::Closed(2)));
    assert_eq!(queue.drain().len(), 1);
}

#[test]
fn queue_on_an_ended_shard_refuses_and_does_not_wait() {
    let mut lab = lab();
    let timers = lab.timers().clone();
    drop(lab.end(ShutdownPolicy::Drop));
    let queue: DelayQueue<u32> = DelayQueue::new(&timers);
    assert_eq!(queue.insert(1, ms(1)), Err(Refused::Closed(1)));
    assert_eq!(look(&mut pin!(queue.recv())), Some(None));
    assert!(look(&mut pin!(queue.next())).unwrap().is_none());
    assert!(queue.is_empty());
}

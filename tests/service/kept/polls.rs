//! Closures that wait for an event of a kept value.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use corewheel::{Refused, Reply, ReplyError, ShutdownPolicy};
use corewheel_kit::TimersExt;
use corewheel_kit::queue::DelayQueue;

use super::{count, kept};
use crate::support::{Alarm, Guard, Lab, builder, check_law, look, ms, poll};

/// Waits for the next value of a queue.
fn next(queue: &corewheel::kept::Kept<DelayQueue<u32>>) -> Reply<u32> {
    let next = |queue: &DelayQueue<u32>, cx: &mut Context<'_>| {
        queue.poll_recv(cx).map(|due| due.expect("the shard is open").value)
    };
    queue.try_poll_fn(next).unwrap()
}

#[test]
fn closure_is_polled_when_its_queue_has_a_value_and_not_between() {
    let mut lab = Lab::new(builder(1));
    let queue = kept(&mut lab, TimersExt::delay_queue::<u32>);
    let mut first = next(&queue);
    lab.settle();
    drop(queue.try_run(|queue| queue.insert(7, ms(5)).is_ok()).unwrap());
    lab.settle();
    lab.advance(ms(4));
    assert!(look(&mut first).is_none(), "the value is not due");
    lab.advance(ms(1));
    assert_eq!(look(&mut first), Some(Ok(7)));
    // A value that is due already is taken at once.
    drop(queue.try_run(|queue| queue.insert(8, ms(0)).is_ok()).unwrap());
    let mut second = next(&queue);
    lab.settle();
    assert_eq!(look(&mut second), Some(Ok(8)));
    check_law(&lab.counts());
}

#[test]
fn closure_is_woken_by_another_thread_and_once_for_many_wake_ups() {
    let mut lab = Lab::new(builder(1));
    let kept = kept(&mut lab, |_| RefCell::new(None::<Waker>));
    let polls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&polls);
    let mut reply = kept
        .try_poll_fn(move |known, cx| {
            *known.borrow_mut() = Some(cx.waker().clone());
            let polled = counted.fetch_add(1, Ordering::SeqCst);
            if polled == 2 { Poll::Ready("third poll") } else { Poll::Pending }
        })
        .unwrap();
    lab.settle();
    for round in 1..=2 {
        assert_eq!(count(&polls), round);
        let mut waker = kept.try_run(|known| known.borrow().clone()).unwrap();
        lab.settle();
        let waker = look(&mut waker).unwrap().unwrap().unwrap();
        let wake = move || (0..100).for_each(|_| waker.wake_by_ref());
        std::thread::spawn(wake).join().unwrap();
        lab.settle();
    }
    assert_eq!(count(&polls), 3);
    assert_eq!(look(&mut reply), Some(Ok("third poll")));
}

#[test]
fn closure_that_wakes_itself_is_polled_again_and_leaves_time_for_timers() {
    let mut lab = Lab::new(builder(1));
    let kept = kept(&mut lab, |_| ());
    let mut reply: Reply<()> = kept
        .try_poll_fn(|(), cx| {
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .unwrap();
    lab.timers().schedule(ms(1), 1).unwrap();
    lab.clock.advance(ms(1));
    let _more = [lab.turn(), lab.turn()];
    assert_eq!(lab.fired(), [(1, 1)]);
    assert!(look(&mut reply).is_none());
    drop(kept);
    lab.settle();
    assert_eq!(look(&mut reply), Some(Err(ReplyError::Closed)), "the value is gone");
}

#[test]
fn closure_that_waits_takes_room_until_it_is_ready() {
    let mut lab = Lab::new(builder(1).lane_capacity(1));
    let queue = kept(&mut lab, TimersExt::delay_queue::<u32>);
    let (guard, dropped) = Guard::new();
    let empty = queue.try_poll_fn(move |queue, cx| {
        let _captured = &guard;
        queue.poll_expired(cx)
    });
    assert!(matches!(queue.try_run(DelayQueue::len), Err(Refused::Busy(_))));
    lab.settle();
    assert!(look(&mut empty.unwrap()).unwrap().unwrap().is_none(), "the queue is empty");
    assert_eq!(count(&dropped), 1);
    let waiting = next(&queue);
    lab.settle();
    assert!(queue.try_run(DelayQueue::len).is_err(), "the closure is not ready");
    drop((waiting, queue));
    lab.settle();
    check_law(&lab.counts());
}

#[test]
fn poll_fn_waits_for_room_and_returns_the_result() {
    let mut lab = Lab::new(builder(1).lane_capacity(1));
    let queue = kept(&mut lab, TimersExt::delay_queue::<u32>);
    let mut taken = queue.try_run(|queue| queue.insert(7, ms(5)).is_ok()).unwrap();
    let (alarm, waker) = Alarm::new();
    let mut next = Box::pin(queue.poll_fn(DelayQueue::poll_recv));
    assert!(poll(&mut next, &waker).is_pending(), "there is no room");
    let (guard, dropped) = Guard::new();
    let captured = move |_: &DelayQueue<u32>, _: &mut Context<'_>| {
        let _captured = &guard;
        Poll::Ready(())
    };
    let mut never_sent = Box::pin(queue.poll_fn(captured));
    assert!(poll(&mut never_sent, &waker).is_pending());
    drop(never_sent);
    assert_eq!(count(&dropped), 1, "the closure is dropped with its future");
    lab.settle();
    assert_eq!((look(&mut taken), alarm.count()), (Some(Ok(true)), 1));
    assert!(poll(&mut next, &waker).is_pending(), "it is sent now, and takes the room");
    assert!(queue.try_run(DelayQueue::len).is_err());
    lab.settle();
    lab.advance(ms(5));
    assert_eq!(alarm.count(), 2);
    let Poll::Ready(Ok(Some(due))) = poll(&mut next, &waker) else { panic!("the value is due") };
    assert_eq!(due.value, 7);
    check_law(&lab.counts());
}

#[test]
fn future_of_poll_fn_keeps_the_value_and_ends_the_polls_when_it_is_dropped() {
    let mut lab = Lab::new(builder(1));
    let queue = kept(&mut lab, TimersExt::delay_queue::<u32>);
    drop(queue.try_run(|queue| queue.insert(7, ms(5)).is_ok()).unwrap());
    let mut next = Box::pin(queue.poll_fn(DelayQueue::poll_recv));
    assert!(look(&mut next).is_none());
    drop(queue);
    lab.settle();
    lab.advance(ms(5));
    assert!(look(&mut next).is_some_and(|due| due.unwrap().unwrap().value == 7));

    let queue = kept(&mut lab, TimersExt::delay_queue::<u32>);
    let mut waits = Box::pin(queue.poll_fn(DelayQueue::poll_recv));
    assert!(look(&mut waits).is_none());
    lab.settle();
    drop(waits);
    drop(queue.try_run(|queue| queue.insert(8, ms(5)).is_ok()).unwrap());
    lab.settle();
    lab.advance(ms(5));
    let mut left = queue.try_run(DelayQueue::len).unwrap();
    lab.settle();
    assert_eq!(look(&mut left), Some(Ok(1)), "the value was taken for a future that is gone");
}

#[test]
fn room_of_a_future_of_poll_fn_that_is_dropped_is_free_after_a_turn() {
    let mut lab = Lab::new(builder(1).lane_capacity(2));
    let queue = kept(&mut lab, TimersExt::delay_queue::<u32>);
    // The second one replaces the waker of the first in the queue, so the queue wakes neither.
    for _ in 0..10 {
        for is_sent in [true, false] {
            let [mut first, mut second] =
                [(); 2].map(|()| Box::pin(queue.poll_fn(DelayQueue::poll_recv)));
            assert!(look(&mut first).is_none() && look(&mut second).is_none());
            if is_sent {
                lab.settle();
            }
            drop((first, second));
            lab.settle();
        }
    }
    assert!(queue.try_run(|queue| queue.insert(7, ms(5)).is_ok()).is_ok());
}

#[test]
fn future_that_waits_for_room_is_woken_though_closures_keep_most_of_it() {
    let mut lab = Lab::new(builder(1).lane_capacity(3));
    let queue = kept(&mut lab, TimersExt::delay_queue::<u32>);
    let mut waiting = [(); 2].map(|()| Box::pin(queue.poll_fn(DelayQueue::poll_recv)));
    assert!(waiting.iter_mut().all(|one| look(one).is_none()));
    lab.settle();
    let taken = queue.try_run(DelayQueue::len).unwrap();
    let (dropped, dropped_waker) = Alarm::new();
    let (alarm, waker) = Alarm::new();
    let mut first = Box::pin(queue.run(DelayQueue::len));
    let mut second = Box::pin(queue.run(|queue| queue.insert(7, ms(5)).is_ok()));
    assert!(poll(&mut first, &dropped_waker).is_pending());
    assert!(poll(&mut second, &waker).is_pending());
    lab.settle();
    assert_eq!((dropped.count(), alarm.count()), (1, 0), "there is room for one");
    // It does not take the room.
    drop(first);
    assert_eq!(alarm.count(), 1);
    assert!(poll(&mut second, &waker).is_pending(), "it is sent");
    lab.settle();
    assert_eq!(poll(&mut second, &waker), Poll::Ready(Ok(true)));
    drop(taken);
}

#[test]
fn futures_of_poll_fn_are_closed_with_their_shard() {
    let mut lab = Lab::new(builder(1).lane_capacity(1));
    let queue = kept(&mut lab, TimersExt::delay_queue::<u32>);
    let [mut polls, mut waits, mut unpolled] =
        [(); 3].map(|()| Box::pin(queue.poll_fn(|queue, cx| queue.poll_recv(cx).map(|_| ()))));
    assert!(look(&mut polls).is_none());
    let (alarm, waker) = Alarm::new();
    assert!(poll(&mut waits, &waker).is_pending());
    lab.settle();
    lab.end(ShutdownPolicy::Drop);
    assert_eq!(look(&mut polls), Some(Err(ReplyError::Closed)));
    assert_eq!(alarm.count(), 1, "the closure that had the room is gone");
    assert_eq!(look(&mut waits), Some(Err(ReplyError::Closed)));
    assert_eq!(look(&mut unpolled), Some(Err(ReplyError::Closed)));
}

#[test]
fn closure_whose_reply_is_dropped_takes_nothing() {
    let mut lab = Lab::new(builder(1));
    let queue = kept(&mut lab, TimersExt::delay_queue::<u32>);
    let waiting = next(&queue);
    lab.settle();
    drop(waiting);
    let insert = queue.try_run(|queue| queue.insert(7, ms(1)).is_ok()).unwrap();
    lab.settle();
    lab.advance(ms(1));
    let mut left = queue.try_run(DelayQueue::len).unwrap();
    lab.settle();
    assert_eq!(look(&mut left), Some(Ok(1)), "the value was taken for a caller that has gone");
    let mut reader = next(&queue);
    lab.settle();
    assert_eq!(look(&mut reader), Some(Ok(7)));
    drop(insert);
}

#[test]
fn panicking_closure_replies_and_is_dropped() {
    let mut lab = Lab::new(builder(1));
    let kept = kept(&mut lab, |_| ());
    let (guard, dropped) = Guard::new();
    let mut reply: Reply<()> = kept
        .try_poll_fn(move |(), _| {
            let _captured = &guard;
            panic!("on purpose")
        })
        .unwrap();
    lab.settle();
    assert_eq!(look(&mut reply), Some(Err(ReplyError::Panicked)));
    assert_eq!((count(&dropped), lab.counts().panicked), (1, 1));
}

#[test]
fn waiting_closure_is_closed_with_its_shard() {
    for policy in [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop] {
        let mut lab = Lab::new(builder(1));
        let queue = kept(&mut lab, TimersExt::delay_queue::<u32>);
        let mut waiting = next(&queue);
        lab.settle();
        lab.end(policy);
        assert_eq!(look(&mut waiting), Some(Err(ReplyError::Closed)), "{policy:?}");
        let refused = queue.try_poll_fn(DelayQueue::poll_expired);
        assert!(matches!(refused, Err(Refused::Closed(_))));
    }
}

//! Queues that are dropped, and wakers and values that use the queue meanwhile.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::Context;
use std::time::Duration;

use corewheel::ShutdownPolicy;
use corewheel_kit::queue::DelayQueue;
use futures_core::Stream;

use super::{lab, poll, queue, scene};
use corewheel_test_support::{FAR, Guard, Lab, check_law, ms, waker_of};

#[test]
fn drop_at_every_await_point_releases_values_timer_and_wakers() {
    for polls in 0..3 {
        let (mut lab, queue, alarm, waker) = scene();
        let (guard, dropped) = Guard::new();
        queue.insert(guard.clone(), ms(5)).unwrap();
        queue.insert(guard, FAR).unwrap();
        let mut task = Box::pin(async move {
            let first = queue.next().await;
            queue.next().await;
            drop(first);
        });
        for _ in 0..polls {
            assert!(poll(task.as_mut(), &waker).is_none());
            lab.advance(ms(5));
        }
        drop(task);
        assert_eq!(dropped.load(std::sync::atomic::Ordering::SeqCst), 2, "after {polls} polls");
        assert_eq!(lab.timers().len(), 0, "after {polls} polls");
        drop(waker);
        assert_eq!(std::sync::Arc::strong_count(&alarm), 1, "after {polls} polls");
        lab.advance(FAR);
        check_law(&lab.counts());
    }
}

thread_local! {
    static SHARED: RefCell<Weak<DelayQueue<u32>>> = const { RefCell::new(Weak::new()) };
    static KEPT: RefCell<Option<Rc<DelayQueue<u32>>>> = const { RefCell::new(None) };
    static WOKEN: Cell<u32> = const { Cell::new(0) };
}

/// Uses the queue in every way, and then drops it.
fn meddle() {
    WOKEN.set(WOKEN.get() + 1);
    if let Some(queue) = SHARED.with_borrow(Weak::upgrade) {
        let key = queue.insert(7, Duration::ZERO).unwrap();
        assert!(queue.reset(key, ms(1)));
        assert_eq!(queue.remove(key).unwrap().value, 7);
        queue.try_next();
        queue.peek();
        drop(queue.drain());
    }
    KEPT.take();
}

#[test]
fn waker_may_use_the_queue_and_drop_it() {
    type Trigger = fn(&mut Lab<()>);
    let triggers: [Trigger; 3] = [
        |lab| lab.advance(ms(5)),
        |_| {
            // The queue becomes empty, which wakes the task.
            let queue = SHARED.with_borrow(Weak::upgrade).unwrap();
            assert!(queue.remove(queue.peek().unwrap()).is_some());
        },
        |lab| drop(lab.end(ShutdownPolicy::Drop)),
    ];
    for (number, trigger) in triggers.into_iter().enumerate() {
        let mut lab = lab();
        let mut queue = Rc::new(queue::<u32>(&lab));
        let waker = waker_of(meddle);
        queue.insert(1, ms(5)).unwrap();
        let stream = Pin::new(Rc::get_mut(&mut queue).unwrap());
        assert!(stream.poll_next(&mut Context::from_waker(&waker)).is_pending());
        SHARED.set(Rc::downgrade(&queue));
        WOKEN.set(0);
        KEPT.set(Some(queue));
        if number == 2 {
            // A closed shard accepts no value.
            SHARED.set(Weak::new());
        }
        trigger(&mut lab);
        assert!(WOKEN.get() >= 1, "trigger {number}");
        assert!(KEPT.with_borrow(Option::is_none), "the waker has dropped its queue");
        assert!(SHARED.with_borrow(Weak::upgrade).is_none(), "no reference is left");
    }
}

/// A value whose `Drop` uses the queue that held it.
struct Nosy;

thread_local! {
    static NOSY: RefCell<Weak<DelayQueue<Nosy>>> = const { RefCell::new(Weak::new()) };
}

impl Drop for Nosy {
    fn drop(&mut self) {
        WOKEN.set(WOKEN.get() + 1);
        if let Some(queue) = NOSY.with_borrow(Weak::upgrade) {
            assert!(queue.insert(Nosy, Duration::ZERO).is_ok() || queue.len() > 3);
            std::mem::forget(queue.try_next());
            queue.peek();
        }
    }
}

#[test]
fn drop_of_a_value_may_use_the_queue() {
    let lab = lab();
    let queue = Rc::new(queue(&lab));
    NOSY.set(Rc::downgrade(&queue));
    WOKEN.set(0);
    let key = queue.insert(Nosy, ms(1)).unwrap();
    drop(queue.remove(key));
    (0..3).for_each(|_| assert!(queue.insert(Nosy, ms(1)).is_ok()));
    drop(queue.drain());
    assert_eq!(WOKEN.get(), 4);
    queue.insert(Nosy, ms(1)).unwrap();
    drop(queue);
    assert_eq!((WOKEN.get(), lab.timers().len()), (5, 0));
}

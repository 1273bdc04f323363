//! Values that count for the class of the view that made their queue.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use corewheel::class::TimerClass;
use corewheel::stats::ClassStats;
use corewheel::{Refused, ShutdownPolicy};
use corewheel_kit::TimersExt;
use corewheel_kit::queue::DelayQueue;

use crate::support::{FAR, Lab, SHARD, builder, check_law, ms};

const RETRY: TimerClass = TimerClass::new("retry");

fn lab() -> Lab<()> {
    Lab::new(builder(1).class(RETRY))
}

fn queue<V>(lab: &Lab<()>, capacity: u32) -> DelayQueue<V> {
    let timers = lab.timers().of_class(RETRY).unwrap();
    timers.delay_queue_with_capacity(capacity).unwrap()
}

fn stats(lab: &Lab<()>) -> ClassStats {
    lab.service.stats().shards[usize::from(SHARD.number())].classes[0]
}

/// Scheduled, fired, cancelled, returned, refused. Checks the law of a class.
#[track_caller]
fn counted(counts: ClassStats) -> [u64; 5] {
    let ClassStats { pending, scheduled, fired, cancelled, returned, refused, .. } = counts;
    assert_eq!(pending, scheduled - fired - cancelled - returned, "{counts:?}");
    [scheduled, fired, cancelled, returned, refused]
}

#[track_caller]
fn check(lab: &mut Lab<()>, expected: [u64; 5]) {
    lab.settle();
    assert_eq!(counted(stats(lab)), expected);
    check_law(&lab.counts());
}

#[test]
fn values_count_for_the_class_of_the_view() {
    let mut lab = lab();
    let queue = queue(&lab, 8);
    let keys: Vec<_> = (0..8).map(|n| queue.insert(n, ms(1 + n / 5)).unwrap()).collect();
    assert_eq!(queue.insert(9, ms(1)), Err(Refused::Full(9)));
    check(&mut lab, [8, 0, 0, 0, 1]);
    assert!(queue.remove(keys[0]).is_some());
    assert!(queue.remove(keys[0]).is_none());
    assert!(queue.reset(keys[1], ms(2)));
    lab.advance(ms(1));
    check(&mut lab, [8, 0, 1, 0, 1]);
    assert!(queue.try_next().is_some());
    let mut buffer = Vec::new();
    assert_eq!(queue.drain_expired_into(&mut buffer, 9), 2);
    check(&mut lab, [8, 3, 1, 0, 1]);
    assert_eq!(queue.drain().len(), 4);
    check(&mut lab, [8, 3, 5, 0, 1]);
    queue.insert(0, FAR).unwrap();
    queue.insert(1, FAR).unwrap();
    drop(queue);
    check(&mut lab, [10, 3, 7, 0, 1]);
    let ClassStats { late, overrun, oldest, .. } = stats(&lab);
    assert_eq!((late, overrun, oldest), (0, 0, None), "values have none of these");
}

#[test]
fn values_have_an_age_and_are_counted_by_what_was_left() {
    let mut lab = lab();
    let (queue, other) = (queue(&lab, 8), queue(&lab, 8));
    let first = queue.insert(1, ms(100)).unwrap();
    lab.advance(ms(5));
    let second = queue.insert(2, ms(40)).unwrap();
    lab.advance(ms(15));
    assert!(queue.reset(first, ms(180)), "a reset changes no age");
    let third = other.insert(3, FAR).unwrap();
    assert_eq!(stats(&lab).oldest, Some(ms(20)));
    lab.advance(ms(25));
    assert_eq!(queue.try_next().map(|due| due.key), Some(second));
    assert_eq!(stats(&lab).oldest, Some(ms(45)));
    lab.advance(ms(5));
    assert!(queue.remove(first).is_some());
    check(&mut lab, [3, 1, 1, 0, 0]);
    assert_eq!(stats(&lab).oldest, Some(ms(30)), "that of the other queue");
    // A timer of the class is younger.
    lab.timers().of_class(RETRY).unwrap().schedule(FAR, ()).unwrap();
    lab.settle();
    assert_eq!(stats(&lab).oldest, Some(ms(30)));
    assert!(other.remove(third).is_some());
    lab.settle();
    assert_eq!(stats(&lab).oldest, Some(ms(0)));
    let late = queue.insert(4, ms(10)).unwrap();
    queue.insert(5, ms(10)).unwrap();
    lab.advance(ms(30));
    assert!(queue.remove(late).is_some(), "it was due and not taken");
    assert_eq!(queue.drain().len(), 1);
    lab.settle();
    assert_eq!(stats(&lab).cancelled, 4);
    drop((queue, other));
    assert_eq!(stats(&lab).oldest, Some(ms(30)), "that of the timer");
}

#[test]
fn value_that_is_taken_after_the_shard_has_ended_has_no_age() {
    let mut lab = lab();
    let queue = queue(&lab, 8);
    queue.insert(1, ms(5)).unwrap();
    queue.insert(2, ms(6)).unwrap();
    lab.clock.advance(ms(10));
    let ended = lab.service.begin_shutdown(ShutdownPolicy::Drop).unwrap();
    lab.settle();
    drop(ended);
    assert_eq!(stats(&lab).oldest, None);
    assert!(queue.try_next().is_some());
    assert_eq!(stats(&lab).oldest, None);
}

#[test]
fn values_of_a_queue_without_class_count_for_no_class() {
    let mut lab = lab();
    let queue: DelayQueue<u8> = lab.timers().delay_queue();
    queue.insert(1, ms(1)).unwrap();
    lab.advance(ms(1));
    assert!(queue.try_next().is_some());
    check(&mut lab, [0; 5]);
}

#[test]
fn counts_are_published_while_the_driver_sleeps() {
    let mut lab = lab();
    let queue = queue(&lab, 8);
    queue.insert(0, ms(5)).unwrap();
    let turn = lab.turn();
    let _slept = lab.shards[0].prepare_to_sleep(turn, Waker::noop());
    // An insert whose deadline is later than the first does not wake the driver.
    let key = queue.insert(1, FAR).unwrap();
    assert_eq!(counted(stats(&lab)), [2, 0, 0, 0, 0]);
    assert!(queue.remove(key).is_some());
    assert_eq!(counted(stats(&lab)), [2, 0, 1, 0, 0]);
}

#[test]
fn insert_that_finds_no_timer_counts_as_refused() {
    let mut lab = Lab::<()>::new(builder(1).capacity(4).class(RETRY));
    let queue = queue(&lab, 8);
    while lab.timers().schedule(FAR, ()).is_ok() {}
    assert_eq!(queue.insert(1, ms(1)), Err(Refused::Full(1)));
    check(&mut lab, [0, 0, 0, 0, 1]);
}

#[test]
fn values_left_at_shutdown_count_as_returned() {
    for policy in [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop] {
        let mut lab = lab();
        let queue = queue(&lab, 8);
        let key = queue.insert(1, FAR).unwrap();
        queue.insert(2, ms(1)).unwrap();
        queue.insert(3, ms(1)).unwrap();
        lab.advance(ms(1));
        assert!(queue.try_next().is_some());
        let report = lab.end(policy);
        assert_eq!(counted(report.classes[0]), [3, 1, 0, 2, 0], "{policy:?}");
        // Each value has its outcome, so taking it changes no count.
        assert!(queue.try_next().is_some() && queue.remove(key).is_some());
        drop(queue);
        assert_eq!(counted(stats(&lab)), [3, 1, 0, 2, 0], "{policy:?}");
    }
}

type Sleeping = (Lab<()>, Rc<DelayQueue<u8>>);

thread_local! {
    static EAGER: RefCell<Option<Sleeping>> = const { RefCell::new(None) };
}

/// The waker of a driver that takes its turns and the queue's values as soon as it is woken.
struct Eager;

impl Wake for Eager {
    fn wake(self: Arc<Self>) {
        let Some((mut lab, queue)) = EAGER.take() else { return };
        lab.settle();
        assert_eq!(queue.try_next().map(|expired| expired.value), Some(7));
        EAGER.set(Some((lab, queue)));
    }
}

#[test]
fn value_that_is_taken_before_its_insert_returns_is_counted_in_order() {
    let mut lab = lab();
    let queue = Rc::new(queue(&lab, 8));
    assert!(queue.insert(0, FAR).is_ok());
    assert!(queue.poll_expired(&mut Context::from_waker(Waker::noop())).is_pending());
    let turn = lab.turn();
    let _slept = lab.shards[0].prepare_to_sleep(turn, &Waker::from(Arc::new(Eager)));
    EAGER.set(Some((lab, Rc::clone(&queue))));
    queue.insert(7, Duration::ZERO).unwrap();
    let (mut lab, _) = EAGER.take().unwrap();
    check(&mut lab, [2, 1, 0, 0, 0]);
}

//! Values that come out of a queue when their time has come.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use corewheel::{Closed, DelayKey, DelayQueue, Fired, InsertError, ShutdownPolicy, Timers, Turn};
use futures_core::Stream;

use crate::support::{
    Alarm, FAR, Guard, Host, Lab, PATIENCE, Running, SHARD, block_on, builder, check_law, look, ms,
    ticks_of, wait_until,
};

type Queue<V> = DelayQueue<V, ()>;

fn lab() -> Lab<()> {
    Lab::new(builder(1))
}

fn queue<V>(lab: &Lab<()>) -> Queue<V> {
    DelayQueue::new(lab.timers())
}

/// All that is due.
fn due<V>(queue: &Queue<V>) -> Vec<V> {
    std::iter::from_fn(|| queue.try_next()).map(|expired| expired.value).collect()
}

fn poll<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(waker)) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

#[test]
fn values_come_by_their_deadlines_never_early_and_in_order_within_a_tick() {
    let lab = lab();
    let queue = queue(&lab);
    for (value, delay) in [("c", 7), ("a", 5), ("d", 7), ("b", 5), ("e", 100_000)] {
        queue.insert(value, ms(delay)).unwrap();
    }
    assert_eq!((queue.len(), due(&queue)), (5, vec![]));
    lab.clock.advance(Duration::from_nanos(4_999_999));
    assert_eq!(due(&queue), [""; 0]);
    lab.clock.advance(Duration::from_nanos(1));
    assert_eq!(due(&queue), ["a", "b"]);
    lab.clock.advance(ms(10));
    let first = queue.try_next().unwrap();
    assert_eq!((first.value, *first.get_ref()), ("c", "c"));
    assert_eq!(lab.clock.now() - first.deadline, ms(8), "it says when it was due");
    assert_eq!(due(&queue), ["d"]);
    lab.clock.advance(FAR);
    assert_eq!(due(&queue), ["e"]);
    assert!(queue.is_empty());
}

#[test]
fn what_had_passed_when_it_was_put_in_comes_at_once_after_what_was_due_before() {
    let lab = lab();
    let queue = queue(&lab);
    let epoch = lab.clock.now();
    queue.insert("now", Duration::ZERO).unwrap();
    assert_eq!(due(&queue), ["now"]);
    queue.insert("a", ms(5)).unwrap();
    queue.insert("b", ms(5)).unwrap();
    lab.clock.advance(ms(5));
    assert_eq!(queue.try_next().unwrap().value, "a");
    queue.insert_at("past", epoch).unwrap();
    queue.insert_at("past too", epoch + ms(1)).unwrap();
    assert_eq!(due(&queue), ["b", "past", "past too"]);
}

#[test]
fn late_values_of_two_turns_come_before_the_value_of_the_next_tick() {
    let lab = lab();
    let queue = queue(&lab);
    let epoch = lab.clock.now();
    // More than one turn of the queue looks at.
    for value in 0..3_000 {
        queue.insert(value, ms(1)).unwrap();
    }
    queue.insert(6_000, ms(2)).unwrap();
    lab.clock.advance(ms(1));
    let mut taken = Vec::new();
    for late in [5_000, 5_001] {
        taken.extend((0..700).map(|_| queue.try_next().unwrap().value));
        queue.insert_at(late, epoch + ms(1)).unwrap();
    }
    lab.clock.advance(ms(1));
    while !queue.is_empty() {
        let named = queue.peek();
        let Some(expired) = queue.try_next() else { continue };
        assert_eq!(named, Some(expired.key()));
        taken.push(expired.value);
    }
    assert!(taken.iter().take(3_000).copied().eq(0..3_000), "values of one tick are in order");
    assert_eq!(taken[3_000..], [5_000, 5_001, 6_000]);
}

#[test]
fn a_key_whose_value_is_gone_names_nothing_and_nothing_panics() {
    let lab = lab();
    let (queue, other) = (queue(&lab), queue::<u32>(&lab));
    let taken = queue.insert(1, ms(1)).unwrap();
    let removed = queue.insert(2, ms(1)).unwrap();
    let expired = queue.remove(removed).unwrap();
    assert_eq!((expired.key(), expired.deadline(), expired.into_inner()), {
        (removed, lab.clock.now() + ms(1), 2)
    });
    lab.clock.advance(ms(1));
    assert_eq!(due(&queue), [1]);
    // In both places there is somebody else now.
    let keys = [queue.insert(3, FAR).unwrap(), queue.insert(4, FAR).unwrap()];
    for key in [taken, removed] {
        assert_eq!((queue.remove(key), queue.try_remove(key)), (None, None));
        assert!(!queue.reset(key, ms(1)) && !queue.reset_at(key, lab.clock.now()));
        assert_eq!((queue.deadline(key), other.deadline(key)), (None, None));
    }
    assert_eq!(keys.map(|key| queue.try_remove(key).unwrap().value), [3, 4]);
}

#[test]
fn a_delay_that_does_not_fit_means_never_and_does_not_panic() {
    let lab = lab();
    let queue = queue(&lab);
    let never = queue.insert("never", Duration::MAX).unwrap();
    let century = Duration::from_hours(24 * 365 * 100);
    let late = queue.insert("late", century).unwrap();
    assert!(queue.deadline(never).unwrap() >= lab.clock.now() + century);
    lab.clock.advance(century);
    assert_eq!(due(&queue), ["late"]);
    assert!(!queue.reset(late, Duration::MAX));
    assert!(queue.reset(never, Duration::MAX));
    lab.clock.advance(century);
    assert_eq!(due(&queue), [""; 0]);
    assert!(queue.reset(never, Duration::ZERO));
    assert_eq!(due(&queue), ["never"]);
}

#[test]
fn what_is_due_and_not_taken_can_be_removed_and_moved() {
    let mut lab = lab();
    let queue = queue(&lab);
    let keys = ["a", "b", "c", "d"].map(|value| queue.insert(value, ms(3)).unwrap());
    lab.advance(ms(10));
    assert_eq!(queue.try_next().unwrap().value, "a");
    assert_eq!(queue.peek(), Some(keys[1]));
    assert_eq!(queue.remove(keys[1]).unwrap().value, "b");
    assert!(queue.reset(keys[2], ms(5)));
    assert_eq!(queue.peek(), Some(keys[3]));
    assert_eq!(due(&queue), ["d"]);
    assert_eq!(queue.peek(), Some(keys[2]));
    assert_eq!(queue.deadline(keys[2]), Some(lab.clock.now() + ms(5)));
    lab.advance(ms(5));
    assert_eq!(due(&queue), ["c"]);
}

#[test]
fn what_does_not_fit_comes_back_and_leaves_nothing_behind() {
    let mut lab = Lab::<()>::new(builder(1).capacity(64));
    let queue = DelayQueue::with_capacity(lab.timers(), 2).unwrap();
    assert_eq!((queue.capacity(), queue.len()), (2, 0));
    let a = queue.insert("a", ms(1)).unwrap();
    queue.insert("b", ms(2)).unwrap();
    assert_eq!(queue.insert("c", ms(1)), Err(InsertError::Full("c")));
    assert_eq!(queue.remove(a).unwrap().value, "a");
    queue.insert("d", ms(3)).unwrap();
    let message = queue.insert("e", ms(1)).unwrap_err().to_string();
    assert!(message.contains("capacity"), "{message}");
    // A queue that has values has its timer, one that has none may get none.
    let other = DelayQueue::new(lab.timers());
    let timers = lab.timers().clone();
    while timers.schedule(FAR, ()).is_ok() {}
    assert_eq!(other.insert("f", ms(1)), Err(InsertError::Full("f")));
    assert!(other.is_empty() && other.peek().is_none());
    lab.advance(ms(2));
    assert_eq!(due(&queue), ["b"]);
    queue.insert("g", ms(1)).unwrap();
    let (alarm, waker) = Alarm::new();
    {
        let mut next = pin!(queue.next());
        assert!(poll(next.as_mut(), &waker).is_none());
        lab.advance(ms(1));
        assert_eq!(alarm.count(), 1, "its timer was kept though the shard is full");
        assert_eq!(poll(next.as_mut(), &waker).unwrap().unwrap().value, "d");
    }
    let report = lab.end(ShutdownPolicy::Drop);
    check_law(&report.counts);
    assert_eq!(queue.insert("h", ms(1)), Err(InsertError::Closed("h")));
    assert_eq!(InsertError::Closed("h").into_value(), "h");
}

#[test]
fn a_capacity_that_makes_no_sense_is_refused_by_its_name() {
    let lab = lab();
    for capacity in [0, (1 << 30) + 1, u32::MAX] {
        let error = Queue::<u8>::with_capacity(lab.timers(), capacity).unwrap_err();
        assert_eq!(error.field(), "capacity");
        let message = error.to_string();
        assert!(message.contains(&capacity.to_string()), "{message}");
        assert!(message.contains("between 1 and"), "{message}");
    }
}

#[test]
fn a_capacity_for_which_there_is_no_memory_is_refused() {
    let lab = lab();
    let error = Queue::<[u64; 1 << 20]>::with_capacity(lab.timers(), 1 << 30).unwrap_err();
    assert_eq!(error.field(), "capacity");
    assert!(error.to_string().contains("memory"), "{error}");
}

#[test]
fn all_values_share_one_timer_that_is_moved_for_an_earlier_one_only() {
    let mut lab = lab();
    let queue = queue(&lab);
    let mut next = Box::pin(queue.wait());
    let (alarm, waker) = Alarm::new();
    assert!(poll(next.as_mut(), &waker).is_none());
    assert_eq!(lab.timers().len(), 0, "a queue without values takes none");
    let keys: Vec<_> = (0..1_000).map(|n| queue.insert(n, ms(100 + n)).unwrap()).collect();
    let timer = |lab: &mut Lab<()>| {
        lab.settle();
        let counts = lab.counts();
        (counts.pending, counts.scheduled_local, counts.reset_relinked + counts.reset_lazy)
    };
    assert_eq!(timer(&mut lab), (1, 1, 0));
    assert!(queue.reset(keys[700], ms(50)));
    assert!(queue.reset(keys[700], ms(60)));
    assert_eq!(timer(&mut lab), (1, 1, 1));
    assert!(queue.remove(keys[700]).is_some());
    lab.advance(ms(99));
    assert!(poll(next.as_mut(), &waker).is_none());
    lab.advance(ms(1));
    assert_eq!(poll(next.as_mut(), &waker).unwrap().unwrap().value, 0);
    assert!(alarm.count() <= 3, "woken {} times", alarm.count());
    drop(next);
    // Nobody waits any more: it need not ring.
    let fired = lab.counts().fired;
    lab.advance(FAR);
    assert!(lab.counts().fired <= fired + 1);
    assert_eq!(due(&queue).len(), 998);
    drop(queue);
    assert_eq!(lab.timers().len(), 0);
}

#[test]
fn a_task_is_woken_when_a_value_is_due_and_not_by_those_that_are_put_in() {
    let mut lab = lab();
    let queue = queue(&lab);
    let (alarm, waker) = Alarm::new();
    queue.insert("late", ms(200)).unwrap();
    let mut next = pin!(queue.next());
    assert!(poll(next.as_mut(), &waker).is_none());
    queue.insert("soon", ms(20)).unwrap();
    queue.insert("later", FAR).unwrap();
    lab.advance(ms(19));
    assert_eq!(alarm.count(), 0);
    lab.advance(ms(1));
    assert_eq!(alarm.count(), 1);
    assert_eq!(poll(next.as_mut(), &waker).unwrap().unwrap().value, "soon");
    // One that is due at once.
    let mut next = pin!(queue.next());
    assert!(poll(next.as_mut(), &waker).is_none());
    queue.insert("now", Duration::ZERO).unwrap();
    lab.settle();
    assert_eq!(alarm.count(), 2);
    assert_eq!(poll(next.as_mut(), &waker).unwrap().unwrap().value, "now");
}

#[test]
fn next_ends_when_the_queue_is_empty_and_wait_goes_on() {
    let mut lab = lab();
    let queue = queue(&lab);
    assert!(look(&mut pin!(queue.next())).unwrap().is_none());
    let (alarm, waker) = Alarm::new();
    let key = queue.insert(1, FAR).unwrap();
    let (mut next, mut wait) = (pin!(queue.next()), pin!(queue.wait()));
    assert!(poll(next.as_mut(), &waker).is_none());
    assert!(poll(wait.as_mut(), &waker).is_none());
    assert_eq!(queue.remove(key).unwrap().value, 1);
    assert!(alarm.count() >= 1, "who waits is told that nothing will come");
    assert!(poll(next.as_mut(), &waker).unwrap().is_none());
    assert!(poll(wait.as_mut(), &waker).is_none());
    queue.insert(2, ms(3)).unwrap();
    lab.advance(ms(3));
    assert_eq!(poll(wait.as_mut(), &waker).unwrap().unwrap().value, 2);
}

#[test]
fn it_is_a_stream_that_goes_on_after_its_end() {
    let mut lab = lab();
    let mut queue = queue(&lab);
    let (alarm, waker) = Alarm::new();
    let mut context = Context::from_waker(&waker);
    let mut next = |queue: &mut Queue<u32>| Pin::new(queue).poll_next(&mut context);
    assert_eq!(next(&mut queue), Poll::Ready(None));
    queue.insert(1, ms(2)).unwrap();
    queue.insert(2, ms(2)).unwrap();
    assert_eq!(next(&mut queue), Poll::Pending);
    lab.advance(ms(2));
    assert_eq!(alarm.count(), 1);
    for value in [1, 2] {
        let Poll::Ready(Some(expired)) = next(&mut queue) else { panic!("it is due") };
        assert_eq!(expired.value, value);
    }
    assert_eq!(next(&mut queue), Poll::Ready(None));
    let mut shared = &queue;
    let mut context = Context::from_waker(&waker);
    assert_eq!(Pin::new(&mut shared).poll_next(&mut context), Poll::Ready(None));
}

#[test]
fn several_tasks_share_what_is_due() {
    let mut lab = lab();
    let queue = queue(&lab);
    let alarms: Vec<_> = (0..3).map(|_| Alarm::new()).collect();
    let mut tasks: Vec<_> = alarms.iter().map(|_| Box::pin(queue.next())).collect();
    for value in [1, 2, 3] {
        queue.insert(value, ms(5 * value)).unwrap();
    }
    for (task, (_, waker)) in tasks.iter_mut().zip(&alarms) {
        assert!(poll(task.as_mut(), waker).is_none());
    }
    // One that gives up leaves what is due to the others.
    lab.advance(ms(5));
    assert!(alarms.iter().all(|(alarm, _)| alarm.count() == 1));
    drop(tasks.remove(0));
    assert_eq!(poll(tasks[0].as_mut(), &alarms[1].1).unwrap().unwrap().value, 1);
    assert!(poll(tasks[1].as_mut(), &alarms[2].1).is_none());
    lab.advance(ms(5));
    assert_eq!(alarms[2].0.count(), 2, "who has looked in vain is woken again");
    assert_eq!(poll(tasks[1].as_mut(), &alarms[2].1).unwrap().unwrap().value, 2);
    drop(tasks);
    assert_eq!(due(&queue), [0; 0]);
    assert_eq!(queue.len(), 1);
}

#[test]
fn dropping_it_releases_values_timer_and_wakers_at_every_await_point() {
    for polls in 0..3 {
        let mut lab = lab();
        let (guard, dropped) = Guard::new();
        let (alarm, waker) = Alarm::new();
        let queue = queue(&lab);
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

#[test]
fn a_task_that_gives_up_waiting_is_forgotten() {
    let mut lab = lab();
    let queue = queue::<u32>(&lab);
    queue.insert(1, FAR).unwrap();
    let (alarm, waker) = Alarm::new();
    for _ in 0..100 {
        let mut next = Box::pin(queue.next());
        assert!(poll(next.as_mut(), &waker).is_none());
    }
    lab.advance(FAR);
    assert_eq!(alarm.count(), 0);
    assert_eq!(due(&queue), [1]);
}

#[test]
fn draining_stops_at_what_was_asked_for_and_clearing_takes_all() {
    let mut lab = lab();
    let queue = queue(&lab);
    for n in 0..10 {
        queue.insert(n, ms(1 + n / 5)).unwrap();
    }
    let mut buffer = Vec::new();
    assert_eq!(queue.drain_expired_into(&mut buffer, 100), 0);
    lab.advance(ms(1));
    assert_eq!(queue.drain_expired_into(&mut buffer, 3), 3);
    assert_eq!(queue.drain_expired_into(&mut buffer, 3), 2);
    lab.advance(ms(1));
    assert_eq!(queue.drain_expired_into(&mut buffer, 0), 0);
    assert_eq!(queue.drain_expired_into(&mut buffer, 2), 2);
    let values = |buffer: &[corewheel::Expired<u64>]| -> Vec<_> {
        buffer.iter().map(|expired| expired.value).collect()
    };
    assert_eq!(values(&buffer), [0, 1, 2, 3, 4, 5, 6]);
    queue.insert(10, ms(1)).unwrap();
    let drained = queue.drain();
    assert!(drained.is_sorted_by_key(|expired| expired.deadline));
    let mut values = values(&drained);
    values.sort_unstable();
    assert_eq!(values, [7, 8, 9, 10], "due or not");
    queue.insert(11, FAR).unwrap();
    queue.clear();
    assert_eq!((queue.len(), queue.peek(), queue.drain().len()), (0, None, 0));
}

#[test]
fn a_task_that_is_always_behind_lets_others_have_their_turn() {
    let lab = lab();
    let queue = queue(&lab);
    for n in 0..1_200 {
        queue.insert(n, Duration::ZERO).unwrap();
    }
    let (alarm, waker) = Alarm::new();
    let mut task = pin!(async {
        for n in 0..1_200 {
            assert_eq!(queue.next().await.unwrap().value, n);
        }
    });
    assert!(poll(task.as_mut(), &waker).is_none());
    assert_eq!((queue.len(), alarm.count()), (688, 1), "and it is woken at once");
    assert!(poll(task.as_mut(), &waker).is_none());
    assert!(poll(task.as_mut(), &waker).is_some());
}

#[test]
fn a_long_way_through_the_wheel_is_gone_in_several_polls() {
    const COUNT: u64 = 20_000;
    let mut lab = lab();
    let queue = queue(&lab);
    // They are filed together, and have to be sorted before the first of them can be taken.
    for n in 0..COUNT {
        queue.insert(n, Duration::from_mins(5) + ms(n % 50)).unwrap();
    }
    lab.clock.advance(Duration::from_mins(6));
    let (alarm, waker) = Alarm::new();
    let mut next = Box::pin(queue.next());
    let mut polls = 1;
    while poll(next.as_mut(), &waker).is_none() {
        assert_eq!(alarm.count(), polls, "it goes on without being asked to");
        polls += 1;
    }
    assert!(polls > 5, "{polls}");
    assert_eq!(due(&queue).len() as u64, COUNT - 1);
    lab.settle();
}

#[test]
fn at_the_end_tasks_are_told_and_values_stay() {
    for policy in [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop] {
        let mut lab = lab();
        let (queue, empty) = (queue(&lab), queue::<u8>(&lab));
        queue.insert("due", ms(5)).unwrap();
        let key = queue.insert("far", FAR).unwrap();
        let (alarm, waker) = Alarm::new();
        let mut next = Box::pin(queue.next());
        let (mut wait, mut idle) = (Box::pin(queue.wait()), Box::pin(empty.wait()));
        assert!(poll(next.as_mut(), &waker).is_none());
        assert!(poll(wait.as_mut(), &waker).is_none());
        assert!(poll(idle.as_mut(), &waker).is_none());
        lab.clock.advance(ms(5));
        let report = lab.end(policy);
        check_law(&report.counts);
        assert!(alarm.count() >= 3, "{policy:?}: all of them are told");
        assert_eq!(poll(next.as_mut(), &waker).unwrap().unwrap().value, "due", "{policy:?}");
        assert_eq!(poll(wait.as_mut(), &waker), Some(Err(Closed)), "{policy:?}");
        assert_eq!(poll(idle.as_mut(), &waker), Some(Err(Closed)), "{policy:?}");
        assert!(look(&mut pin!(queue.next())).unwrap().is_none(), "{policy:?}");
        assert!(queue.reset(key, ms(5)), "{policy:?}");
        assert_eq!(queue.remove(key).unwrap().value, "far", "{policy:?}");
    }
}

thread_local! {
    static SHARED: RefCell<Weak<Queue<u32>>> = const { RefCell::new(Weak::new()) };
    static KEPT: RefCell<Option<Rc<Queue<u32>>>> = const { RefCell::new(None) };
    static WOKEN: Cell<u32> = const { Cell::new(0) };
}

/// A waker that uses the queue in all ways when it is woken, and then drops it.
struct Meddler;

impl std::task::Wake for Meddler {
    fn wake(self: std::sync::Arc<Self>) {
        WOKEN.set(WOKEN.get() + 1);
        if let Some(queue) = SHARED.with_borrow(Weak::upgrade) {
            let key = queue.insert(7, Duration::ZERO).unwrap();
            assert!(queue.reset(key, ms(1)));
            assert_eq!(queue.remove(key).unwrap().value, 7);
            queue.try_next();
            queue.peek();
            queue.clear();
        }
        KEPT.take();
    }
}

#[test]
fn a_waker_may_use_the_queue_and_drop_it() {
    type Trigger = fn(&mut Lab<()>);
    let triggers: [Trigger; 3] = [
        |lab| lab.advance(ms(5)),
        |_| {
            // Emptied: who waits is told.
            let queue = SHARED.with_borrow(Weak::upgrade).unwrap();
            let key = queue.peek().unwrap();
            assert!(queue.remove(key).is_some());
        },
        |lab| drop(lab.end(ShutdownPolicy::Drop)),
    ];
    for (number, trigger) in triggers.into_iter().enumerate() {
        let mut lab = lab();
        let queue = Rc::new(queue::<u32>(&lab));
        let waker = Waker::from(std::sync::Arc::new(Meddler));
        SHARED.set(Rc::downgrade(&queue));
        queue.insert(1, ms(5)).unwrap();
        assert!(queue.poll_expired(&mut Context::from_waker(&waker)).is_pending());
        WOKEN.set(0);
        KEPT.set(Some(queue));
        if number == 2 {
            // A shard that is closed takes nothing in.
            SHARED.set(Weak::new());
        }
        trigger(&mut lab);
        assert!(WOKEN.get() >= 1, "trigger {number}");
        assert!(KEPT.with_borrow(Option::is_none), "it is dropped");
        assert!(SHARED.with_borrow(Weak::upgrade).is_none(), "and nothing keeps it");
    }
}

thread_local! {
    static SLEEPING: RefCell<Option<Lab<()>>> = const { RefCell::new(None) };
}

/// The waker of a loop that takes its turns as soon as it is woken.
struct Eager;

impl std::task::Wake for Eager {
    fn wake(self: std::sync::Arc<Self>) {
        let Some(mut lab) = SLEEPING.take() else { return };
        lab.settle();
        SLEEPING.set(Some(lab));
        WOKEN.set(WOKEN.get() + 1);
    }
}

/// Turns until there is nothing more to do, then sleep.
fn fall_asleep(eager: &Waker) {
    let mut lab = SLEEPING.take().unwrap();
    lab.settle();
    let turn = lab.turn();
    let _ = lab.shards[0].prepare_to_sleep(turn, eager);
    SLEEPING.set(Some(lab));
}

#[test]
fn a_driver_that_takes_its_turn_as_soon_as_it_is_woken_loses_no_wake() {
    let lab = lab();
    let (queue, clock) = (queue(&lab), lab.clock.clone());
    SLEEPING.set(Some(lab));
    WOKEN.set(0);
    let eager = Waker::from(std::sync::Arc::new(Eager));
    let (alarm, waker) = Alarm::new();
    let mut wait = Box::pin(queue.wait());
    assert!(poll(wait.as_mut(), &waker).is_none());
    fall_asleep(&eager);
    // It rings before this returns.
    queue.insert(1, Duration::ZERO).unwrap();
    assert_eq!((alarm.count(), WOKEN.get()), (1, 1));
    assert_eq!(poll(wait.as_mut(), &waker).unwrap().unwrap().value, 1);
    for value in 2..5 {
        let mut wait = Box::pin(queue.wait());
        assert!(poll(wait.as_mut(), &waker).is_none());
        fall_asleep(&eager);
        let key = queue.insert(value, ms(5)).unwrap();
        if value == 4 {
            queue.reset(key, ms(1));
        }
        clock.advance(ms(5));
        fall_asleep(&eager);
        assert_eq!(alarm.count(), value, "who waits is told");
        assert_eq!(poll(wait.as_mut(), &waker).unwrap().unwrap().value, value);
    }
    SLEEPING.take();
}

#[test]
fn who_waits_is_told_of_the_death_of_the_shard() {
    let mut lab = lab();
    let queue = queue(&lab);
    let (alarm, waker) = Alarm::new();
    let (mut next, mut wait) = (Box::pin(queue.next()), Box::pin(queue.wait()));
    queue.insert(1, FAR).unwrap();
    assert!(poll(next.as_mut(), &waker).is_none());
    assert!(poll(wait.as_mut(), &waker).is_none());
    drop(lab.shards.remove(0));
    assert!(alarm.count() >= 2);
    assert!(poll(next.as_mut(), &waker).unwrap().is_none());
    assert_eq!(poll(wait.as_mut(), &waker), Some(Err(Closed)));
    assert_eq!(queue.insert(2, ms(1)), Err(InsertError::Closed(2)));
    assert_eq!(queue.drain().len(), 1);
}

/// A value whose drop uses the queue that it was in.
struct Nosy;

thread_local! {
    static NOSY: RefCell<Weak<Queue<Nosy>>> = const { RefCell::new(Weak::new()) };
}

impl Drop for Nosy {
    fn drop(&mut self) {
        WOKEN.set(WOKEN.get() + 1);
        if let Some(queue) = NOSY.with_borrow(Weak::upgrade) {
            assert!(queue.insert_at(Nosy, queue.timers().now()).is_ok() || queue.len() > 3);
            std::mem::forget(queue.try_next());
            queue.peek();
        }
    }
}

#[test]
fn values_are_dropped_while_nothing_is_borrowed() {
    let lab = lab();
    let queue = Rc::new(queue(&lab));
    NOSY.set(Rc::downgrade(&queue));
    WOKEN.set(0);
    let key = queue.insert(Nosy, ms(1)).unwrap();
    drop(queue.remove(key));
    for _ in 0..3 {
        queue.insert(Nosy, ms(1)).unwrap();
    }
    queue.clear();
    assert_eq!(WOKEN.get(), 4);
    queue.insert(Nosy, ms(1)).unwrap();
    drop(queue);
    assert_eq!((WOKEN.get(), lab.timers().len()), (5, 0));
}

#[test]
fn a_queue_that_is_emptied_leaves_the_shard_alone() {
    let mut lab = lab();
    let queue = queue(&lab);
    for _ in 0..100 {
        let key = queue.insert((), ms(5)).unwrap();
        assert!(queue.remove(key).is_some());
    }
    lab.advance(FAR);
    lab.advance(FAR);
    let turn = lab.turn();
    assert!(matches!(turn, Turn::Idle | Turn::Next(_)));
    assert!(lab.counts().scheduled_local <= 1, "one timer for all of them");
}

/// One value as the model sees it.
struct Known {
    key: DelayKey,
    value: u32,
    deadline: u64,
    /// Tick, whether it was due when it came, and the how-manieth it is.
    place: (u64, bool, u32),
    /// Was due when it came, since the queue last looked at the clock.
    waits: bool,
    /// Moved later, so that its place within its tick is not told.
    moved: bool,
}

/// A plain list of what is in the queue.
#[derive(Default)]
struct Model {
    known: Vec<Known>,
    /// When the queue last looked at the clock.
    horizon: u64,
    serial: u32,
}

impl Model {
    fn insert(&mut self, key: DelayKey, value: u32, deadline: u64) {
        self.serial += 1;
        let waits = deadline <= self.horizon;
        let place = (deadline.max(self.horizon), waits, self.serial);
        self.known.push(Known { key, value, deadline, place, waits, moved: false });
    }

    fn remove(&mut self, number: usize) -> Known {
        self.known.remove(number)
    }

    fn reset(&mut self, number: usize, deadline: u64) {
        let known = &mut self.known[number];
        if deadline < known.deadline {
            let known = self.remove(number);
            return self.insert(known.key, known.value, deadline);
        }
        known.moved |= deadline > known.deadline;
        known.deadline = deadline;
        if deadline > known.place.0 {
            (known.place.0, known.place.1) = (deadline, false);
            known.waits = false;
        }
    }

    /// The first tick, among those that have come or among all, unless that is of no use.
    fn first(&self, takes: impl Fn(&Known) -> bool) -> Option<(u64, bool)> {
        let takes = |known: &&Known| takes(known);
        self.known.iter().filter(takes).map(|known| (known.place.0, known.place.1)).min()
    }

    /// Whether a value may be the next one.
    fn is_next(&self, key: DelayKey) -> bool {
        let Some(next) = self.known.iter().find(|known| known.key == key) else { return false };
        let first = self.first(|_| true);
        first == Some((next.place.0, next.place.1))
            && (next.moved
                || !self.known.iter().any(|known| known.place < next.place && !known.moved))
    }

    /// Whether anything is due; the queue looks at the clock if nothing was by its last look.
    fn look(&mut self, now: u64) -> bool {
        let horizon = self.horizon;
        if self.first(|known| known.place.0 <= horizon && !known.waits).is_some() {
            return true;
        }
        if self.known.is_empty() {
            return false;
        }
        self.horizon = now;
        for known in &mut self.known {
            known.waits = false;
        }
        self.first(|known| known.place.0 <= now).is_some()
    }
}

#[test]
fn any_history_is_that_of_a_plain_list() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut lab = lab();
        let queue: Queue<u32> = DelayQueue::with_capacity(lab.timers(), 40).unwrap();
        let mut model = Model::default();
        let epoch = lab.clock.now();
        let (alarm, waker) = Alarm::new();
        let is_patient = rng.bool();
        for step in 0..400 {
            let at = format!("seed {seed}, step {step}");
            let now = ticks_of(lab.timers());
            let pick = rng.usize(..model.known.len().max(1));
            let delay = match rng.u32(..8) {
                0 => 0,
                1 => rng.u64(..100_000),
                2..5 => rng.u64(..8),
                _ => rng.u64(..600),
            };
            match rng.u32(..12) {
                0..4 => match queue.insert(step, ms(delay)) {
                    Ok(key) => model.insert(key, step, now + delay),
                    Err(error) => {
                        assert_eq!((error, model.known.len()), (InsertError::Full(step), 40));
                    }
                },
                4 if !model.known.is_empty() => {
                    let known = model.remove(pick);
                    let expired = queue.remove(known.key).unwrap();
                    assert_eq!(expired.value, known.value, "{at}");
                    let due = epoch + ms(known.deadline);
                    assert_eq!(expired.deadline, due, "{at}");
                    assert!(queue.remove(known.key).is_none() && !queue.reset(known.key, FAR));
                }
                5 | 6 if !model.known.is_empty() => {
                    let ago = if rng.u32(..4) == 0 { rng.u64(..20) } else { 0 };
                    let to = (now + delay).saturating_sub(ago);
                    let moment = epoch + ms(to);
                    assert!(queue.reset_at(model.known[pick].key, moment), "{at}");
                    model.reset(pick, to);
                }
                7 | 8 => {
                    let is_due = model.look(now);
                    let expired = if is_patient {
                        let mut context = Context::from_waker(&waker);
                        match queue.poll_expired(&mut context) {
                            Poll::Ready(None) => {
                                assert!(model.known.is_empty(), "{at}");
                                None
                            }
                            Poll::Ready(expired) => expired,
                            Poll::Pending => None,
                        }
                    } else {
                        queue.try_next()
                    };
                    assert_eq!(expired.is_some(), is_due, "{at}");
                    if let Some(expired) = expired {
                        assert!(model.is_next(expired.key), "{at}: {expired:?} is out of order");
                        let same = |known: &Known| known.key == expired.key;
                        let known = model.remove(model.known.iter().position(same).unwrap());
                        assert!(known.deadline <= now, "{at}: it is early");
                        assert_eq!(expired.value, known.value, "{at}");
                    }
                }
                9 if rng.u32(..20) == 0 => {
                    assert_eq!(queue.drain().len(), model.known.len(), "{at}");
                    model.known.clear();
                }
                _ => {
                    let by = [1, 1, 2, 30, 300][rng.usize(..5)];
                    let waiting = alarm.count();
                    lab.advance(ms(by));
                    // Who waits is woken when something is due, if not before.
                    if is_patient && waiting == alarm.count() {
                        let mut context = Context::from_waker(&waker);
                        let asked = queue.poll_expired(&mut context);
                        let looked = model.look(ticks_of(lab.timers()));
                        if let Poll::Ready(Some(expired)) = asked {
                            assert!(looked && model.is_next(expired.key), "{at}");
                            model.known.retain(|known| known.key != expired.key);
                        } else {
                            assert!(!looked, "{at}");
                        }
                    }
                }
            }
            assert_eq!(queue.len(), model.known.len(), "{at}");
            match queue.peek() {
                Some(key) => assert!(model.is_next(key), "{at}: {key:?} is not the next"),
                None => assert!(model.known.is_empty(), "{at}"),
            }
            for known in &model.known {
                let deadline = Some(epoch + ms(known.deadline));
                assert_eq!(queue.deadline(known.key), deadline, "{at}");
            }
            assert!(lab.timers().len() <= 1, "{at}: one timer for all");
        }
        check_law(&lab.counts());
    }
}

/// A task waits on a queue while values are put in and taken out, and is woken for each that is
/// due.
#[test]
fn no_wake_is_lost_in_any_history() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut lab = lab();
        let queue = queue::<u64>(&lab);
        let (alarm, waker) = Alarm::new();
        let mut wait = Box::pin(queue.wait());
        let mut keys = Vec::new();
        let mut polled = 0;
        assert!(poll(wait.as_mut(), &waker).is_none());
        for step in 0..300 {
            match rng.u32(..5) {
                0 | 1 => keys.push(queue.insert(step, ms(rng.u64(..700))).unwrap()),
                2 if !keys.is_empty() => drop(queue.remove(keys[rng.usize(..keys.len())])),
                3 if !keys.is_empty() => {
                    queue.reset(keys[rng.usize(..keys.len())], ms(rng.u64(..700)));
                }
                _ => lab.advance(ms(rng.u64(..40))),
            }
            lab.settle();
            // As an executor does: only who was woken is polled.
            while alarm.count() > polled {
                polled = alarm.count();
                if poll(wait.as_mut(), &waker).is_some() {
                    wait = Box::pin(queue.wait());
                    polled = 0;
                    if poll(wait.as_mut(), &waker).is_some() {
                        wait = Box::pin(queue.wait());
                        continue;
                    }
                    polled = alarm.count();
                }
            }
            let first = queue.peek().map(|key| queue.deadline(key).unwrap());
            let overdue = first.is_some_and(|first| first <= lab.clock.now());
            assert!(!overdue, "seed {seed}, step {step}: something is due and nobody was woken");
        }
    }
}

#[test]
fn values_are_awaited_on_every_executor() {
    for host in Host::executors() {
        let running = Running::start(host, builder(1), |_| |_: Fired<()>, _: &_| {});
        let start = running.service.now();
        let taken = running.service.spawn_on(SHARD, |timers| async move {
            let queue = Rc::new(DelayQueue::new(&timers));
            for (value, delay) in [(3, 30), (1, 10), (9, 3_600_000), (2, 20)] {
                queue.insert(value, ms(delay)).unwrap();
            }
            // Another task's part is played by a callback.
            let shared = Rc::clone(&queue);
            let put = move |_: &Timers<()>| {
                shared.insert(4, Duration::ZERO).unwrap();
                shared.insert(5, ms(40)).unwrap();
            };
            timers.schedule_fn(ms(1), put).unwrap();
            let mut taken = Vec::new();
            while taken.len() < 5 {
                let expired = queue.next().await.unwrap();
                assert!(expired.deadline <= timers.now(), "it is early");
                taken.push(expired.value);
            }
            assert_eq!((queue.len(), timers.len()), (1, 1));
            (taken, timers.now())
        });
        let (mut taken, end) = block_on(taken.unwrap()).unwrap();
        // The callback may have come late.
        assert!(taken.contains(&4), "{host:?}");
        taken.retain(|value| *value != 4);
        assert_eq!(taken, [1, 2, 3, 5], "{host:?}");
        assert!(end >= start + ms(40), "{host:?}: it is early");
        wait_until("no timer is left", || running.service.stats().shards[0].counts.pending == 0);
        // One that waits is told of the end.
        let (sender, ended) = mpsc::channel();
        let waits = running.service.spawn_on(SHARD, |timers| async move {
            let queue = DelayQueue::<u8, ()>::new(&timers);
            queue.insert(1, FAR).unwrap();
            timers.schedule_fn(ms(1), move |_| sender.send(()).unwrap()).unwrap();
            queue.wait().await
        });
        ended.recv_timeout(PATIENCE).unwrap();
        let waits = waits.unwrap();
        running.service.shutdown(ShutdownPolicy::Drop).unwrap();
        let end = block_on(waits);
        assert!(matches!(end, Ok(Err(Closed)) | Err(Closed)), "{host:?}");
        running.stop();
    }
}

#[test]
fn values_are_taken_by_callbacks_where_there_is_no_executor() {
    for host in Host::all() {
        let running = Running::start(host, builder(1), |_| |_: Fired<()>, _: &_| {});
        let client = running.client();
        let (sender, taken) = mpsc::channel();
        let fill = move |timers: &Timers<()>| {
            let queue = DelayQueue::new(timers);
            for n in 0..3 {
                queue.insert(n, ms(10)).unwrap();
            }
            let take = move |_: &Timers<()>| {
                let mut buffer = Vec::new();
                assert_eq!(queue.drain_expired_into(&mut buffer, 10), 3);
                for expired in buffer {
                    sender.send(expired.value).unwrap();
                }
            };
            timers.schedule_fn(ms(20), take).unwrap();
        };
        client.schedule_fn_on(SHARD, Duration::ZERO, fill).unwrap();
        for n in 0..3 {
            assert_eq!(taken.recv_timeout(PATIENCE), Ok(n), "{host:?}");
        }
        let report = running.end(ShutdownPolicy::Drop);
        check_law(&report.shards[0].counts);
        assert_eq!(report.shards[0].counts.panicked, 0, "{host:?}");
    }
}

#[test]
fn a_waker_that_panics_costs_no_value_and_no_wake() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: std::sync::Arc<Self>) {
            panic!("it panics");
        }
    }
    let mut lab = lab();
    let queue = queue(&lab);
    let bad = Waker::from(std::sync::Arc::new(Panics));
    let (alarm, waker) = Alarm::new();
    let key = queue.insert(1, ms(5)).unwrap();
    let (mut first, mut second) = (Box::pin(queue.next()), Box::pin(queue.next()));
    assert!(poll(first.as_mut(), &bad).is_none());
    assert!(poll(second.as_mut(), &waker).is_none());
    lab.advance(ms(5));
    assert_eq!((alarm.count(), lab.counts().panicked), (1, 1));
    assert!(poll(first.as_mut(), &bad).is_some());
    // And where it is the method of another that wakes it.
    queue.insert(2, FAR).unwrap();
    let mut first = Box::pin(queue.next());
    assert!(poll(first.as_mut(), &bad).is_none());
    assert!(poll(second.as_mut(), &waker).is_none());
    let key_of_two = queue.peek().unwrap();
    assert!(queue.remove(key).is_none());
    assert_eq!(queue.remove(key_of_two).unwrap().value, 2);
    assert_eq!(alarm.count(), 2);
    lab.settle();
    assert_eq!(lab.counts().panicked, 2);
    assert!(poll(second.as_mut(), &waker).unwrap().is_none());
}

#[test]
fn a_queue_for_a_shard_that_has_ended_refuses_and_keeps_nobody_waiting() {
    let mut lab = lab();
    let timers = lab.timers().clone();
    drop(lab.end(ShutdownPolicy::Drop));
    let queue: Queue<u32> = DelayQueue::new(&timers);
    assert_eq!(queue.insert(1, ms(1)), Err(InsertError::Closed(1)));
    assert_eq!(look(&mut pin!(queue.wait())), Some(Err(Closed)));
    assert!(look(&mut pin!(queue.next())).unwrap().is_none());
    assert!(queue.is_empty());
}

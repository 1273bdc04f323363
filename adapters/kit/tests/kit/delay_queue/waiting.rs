//! Tasks that wait for a value.

use std::pin::pin;
use std::task::Waker;
use std::time::Duration;

use corewheel::attach::Turn;
use corewheel_kit::queue::DelayQueue;

use super::{due, lab, poll, queue, scene};
use corewheel_test_support::{Alarm, Eager, FAR, Lab, builder, look, ms, next, waker_of};

#[test]
fn values_take_no_timer_and_one_turn_for_their_first_deadline() {
    let mut lab = Lab::at_windows(builder(1));
    let queue = queue(&lab);
    let mut recv = Box::pin(queue.recv());
    let (alarm, waker) = Alarm::new();
    assert!(poll(recv.as_mut(), &waker).is_none());
    assert_eq!(lab.turn(), Turn::Idle, "an empty queue asks for no turn");
    let keys: Vec<_> = (0..1_000).map(|n| queue.insert(n, ms(100 + n)).unwrap()).collect();
    assert_eq!(lab.turn(), next(100));
    assert!(queue.reset(keys[700], ms(50)));
    assert!(queue.reset(keys[700], ms(60)));
    assert_eq!(lab.turn(), next(50), "a reset to later asks for nothing");
    assert!(queue.remove(keys[700]).is_some());
    lab.advance(ms(99));
    assert!(poll(recv.as_mut(), &waker).is_none());
    lab.advance(ms(1));
    assert_eq!(poll(recv.as_mut(), &waker).unwrap().unwrap().value, 0);
    assert!(alarm.count() <= 3, "woken {} times", alarm.count());
    drop(recv);
    lab.advance(FAR);
    assert_eq!(lab.turn(), Turn::Idle, "values that are due and not taken ask for no turn");
    assert_eq!(due(&queue).len(), 998);
    let counts = lab.counts();
    assert_eq!((counts.scheduled_local, counts.fired), (0, 0));
}

#[test]
fn task_is_woken_when_a_value_is_due_and_not_by_inserts() {
    let mut lab = Lab::at_windows(builder(1));
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
    // A value that is due at once.
    let mut next = pin!(queue.next());
    assert!(poll(next.as_mut(), &waker).is_none());
    queue.insert("now", Duration::ZERO).unwrap();
    lab.settle();
    assert_eq!(alarm.count(), 2);
    assert_eq!(poll(next.as_mut(), &waker).unwrap().unwrap().value, "now");
}

#[test]
fn next_ends_on_an_empty_queue_and_recv_waits() {
    let (mut lab, queue, alarm, waker) = scene();
    assert!(look(&mut pin!(queue.next())).unwrap().is_none());
    let key = queue.insert(1, FAR).unwrap();
    let (mut next, mut recv) = (pin!(queue.next()), pin!(queue.recv()));
    assert!(poll(next.as_mut(), &waker).is_none());
    assert!(poll(recv.as_mut(), &waker).is_none());
    assert_eq!(queue.remove(key).unwrap().value, 1);
    assert!(alarm.count() >= 1, "the tasks look again");
    assert!(poll(next.as_mut(), &waker).unwrap().is_none());
    assert!(poll(recv.as_mut(), &waker).is_none());
    queue.insert(2, ms(3)).unwrap();
    lab.advance(ms(3));
    assert_eq!(poll(recv.as_mut(), &waker).unwrap().unwrap().value, 2);
}

#[test]
fn task_is_woken_by_its_last_waker_however_the_queue_becomes_empty() {
    type Empty = fn(&DelayQueue<u32>) -> usize;
    let ways: [Empty; 3] = [
        |queue| queue.drain().len(),
        |queue| usize::from(queue.try_next().is_some()),
        |queue| queue.drain_expired_into(&mut Vec::new(), 9),
    ];
    for (number, empty) in ways.into_iter().enumerate() {
        let (lab, queue, alarm, last) = scene();
        queue.insert(1, ms(5)).unwrap();
        let (former, first) = Alarm::new();
        let mut next = pin!(queue.next());
        for waker in [&first, &last] {
            assert!(poll(next.as_mut(), waker).is_none());
        }
        // The shard takes no turn.
        lab.clock.advance(ms(5));
        assert_eq!(empty(&queue), 1, "way {number}");
        assert_eq!((former.count(), alarm.count()), (0, 1), "way {number}");
        assert!(poll(next.as_mut(), &last).unwrap().is_none());
    }
}

#[test]
fn waiting_tasks_share_the_values_that_are_due() {
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
    // A task that gives up leaves the value to the other tasks.
    lab.advance(ms(5));
    assert!(alarms.iter().all(|(alarm, _)| alarm.count() == 1));
    drop(tasks.remove(0));
    assert_eq!(poll(tasks[0].as_mut(), &alarms[1].1).unwrap().unwrap().value, 1);
    assert!(poll(tasks[1].as_mut(), &alarms[2].1).is_none());
    lab.advance(ms(5));
    assert_eq!(alarms[2].0.count(), 2, "a task that found no value is woken again");
    assert_eq!(poll(tasks[1].as_mut(), &alarms[2].1).unwrap().unwrap().value, 2);
    drop(tasks);
    assert_eq!(due(&queue), [0; 0]);
    assert_eq!(queue.len(), 1);
}

#[test]
fn dropped_future_is_not_woken() {
    let (mut lab, queue, alarm, waker) = scene::<u32>();
    queue.insert(1, FAR).unwrap();
    for _ in 0..100 {
        let mut next = Box::pin(queue.next());
        assert!(poll(next.as_mut(), &waker).is_none());
    }
    lab.advance(FAR);
    assert_eq!(alarm.count(), 0);
    assert_eq!(due(&queue), [1]);
}

#[test]
fn task_that_is_always_behind_yields_after_512_values() {
    let (_lab, queue, alarm, waker) = scene();
    (0..1_200).for_each(|n| assert!(queue.insert(n, Duration::ZERO).is_ok()));
    let mut task = pin!(async {
        for n in 0..1_200 {
            assert_eq!(queue.next().await.unwrap().value, n);
        }
    });
    assert!(poll(task.as_mut(), &waker).is_none());
    assert_eq!((queue.len(), alarm.count()), (688, 1), "the task is woken at once");
    assert!(poll(task.as_mut(), &waker).is_none());
    assert!(poll(task.as_mut(), &waker).is_some());
    // The 176 values of the last poll are in no row with those that come after a wait.
    assert!(look(&mut pin!(queue.recv())).is_none());
    (0..512).for_each(|n| assert!(queue.insert(n, Duration::ZERO).is_ok()));
    let row = pin!(async {
        while !queue.is_empty() {
            queue.next().await.unwrap();
        }
    });
    assert!(poll(row, &waker).is_some(), "a wait begins the count anew");
}

#[test]
fn long_advance_is_spread_over_several_polls() {
    const COUNT: u64 = 20_000;
    let (mut lab, queue, alarm, waker) = scene();
    // The values share a slot, which is sorted before the first value can be taken.
    (0..COUNT).for_each(|n| assert!(queue.insert(n, Duration::from_mins(5) + ms(n % 50)).is_ok()));
    lab.clock.advance(Duration::from_mins(6));
    let mut next = Box::pin(queue.next());
    let mut polls = 1;
    while poll(next.as_mut(), &waker).is_none() {
        assert_eq!(alarm.count(), polls, "the task is woken to go on");
        polls += 1;
    }
    assert!(polls > 5, "{polls}");
    assert_eq!(due(&queue).len() as u64, COUNT - 1);
    lab.settle();
}

#[test]
fn driver_that_turns_as_soon_as_it_is_woken_loses_no_wake() {
    let (lab, queue, alarm, waker) = scene();
    let clock = lab.clock.clone();
    let mut recv = Box::pin(queue.recv());
    assert!(poll(recv.as_mut(), &waker).is_none());
    let eager = Eager::fall_asleep(lab);
    // The alarm rings before the insert returns.
    queue.insert(1, Duration::ZERO).unwrap();
    assert_eq!(alarm.count(), 1);
    assert_eq!(poll(recv.as_mut(), &waker).unwrap().unwrap().value, 1);
    for value in 2..5 {
        let mut recv = Box::pin(queue.recv());
        assert!(poll(recv.as_mut(), &waker).is_none());
        eager.fall_asleep_again();
        let key = queue.insert(value, ms(5)).unwrap();
        if value == 4 {
            queue.reset(key, ms(1));
        }
        clock.advance(ms(5));
        eager.fall_asleep_again();
        assert_eq!(alarm.count(), value, "the task is woken");
        assert_eq!(poll(recv.as_mut(), &waker).unwrap().unwrap().value, value);
    }
}

#[test]
fn waker_that_panics_loses_no_value_and_no_wake() {
    let (mut lab, queue, alarm, waker) = scene();
    let bad = waker_of(|| panic!("a waker panics"));
    let key = queue.insert(1, ms(5)).unwrap();
    let (mut first, mut second) = (Box::pin(queue.next()), Box::pin(queue.next()));
    assert!(poll(first.as_mut(), &bad).is_none());
    assert!(poll(second.as_mut(), &waker).is_none());
    lab.advance(ms(5));
    assert_eq!((alarm.count(), lab.counts().panicked), (1, 1));
    assert!(poll(first.as_mut(), &bad).is_some());
    // A waker that is woken by a method of the queue.
    queue.insert(2, FAR).unwrap();
    let mut first = Box::pin(queue.next());
    assert!(poll(first.as_mut(), &bad).is_none());
    assert!(poll(second.as_mut(), &waker).is_none());
    assert!(queue.remove(key).is_none());
    assert_eq!(queue.remove(queue.peek().unwrap()).unwrap().value, 2);
    assert_eq!(alarm.count(), 2);
    lab.settle();
    assert_eq!(lab.counts().panicked, 2);
    assert!(poll(second.as_mut(), &waker).unwrap().is_none());
}

#[test]
fn own_loop_that_only_looks_is_woken_for_each_deadline() {
    let (mut lab, queue, ..) = scene::<u32>();
    for (value, delay) in [(2, 50), (3, 90), (1, 20)] {
        queue.insert(value, ms(delay)).unwrap();
    }
    let (start, mut taken) = (lab.clock.now(), Vec::new());
    while taken.len() < 3 {
        let turn = lab.turn();
        if let Some(value) = queue.try_next() {
            taken.push((value.value, lab.clock.now() - start));
            continue;
        }
        match lab.shards[0].prepare_to_sleep(turn, Waker::noop()) {
            Turn::More => {}
            Turn::Next(at) => lab.clock.advance(at - lab.clock.now()),
            other => panic!("the loop would sleep for ever: {other:?}"),
        }
    }
    assert_eq!(taken, [(1, ms(20)), (2, ms(50)), (3, ms(90))]);
}

#[test]
fn queue_whose_values_never_become_due_leaves_the_loop_idle() {
    let (mut lab, queue, ..) = scene::<u32>();
    queue.insert(1, Duration::MAX).unwrap();
    lab.timers().schedule(Duration::MAX, ()).unwrap();
    assert_eq!(lab.fall_asleep(Waker::noop()), Turn::Idle);
}

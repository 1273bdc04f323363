//! Ticks for futures: when they are due, and which are missed.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use corewheel::attach::Turn;
use corewheel::interval::{Interval, MissedTickBehavior};
use corewheel::{Fired, RefusedKind, ShutdownPolicy, Timers};

use corewheel_test_support::{Host, Lab, PATIENCE, Running, SHARD, builder, ms};

/// Runs a task that waits for ticks, at the milliseconds of `looks`. Returns when each tick was due
/// and when the task saw it, and how many were missed.
fn seen(behavior: MissedTickBehavior, period: u64, looks: &[u64]) -> (Vec<(u64, u64)>, u64) {
    let mut lab = Lab::<u8>::new(builder(1));
    let start = lab.clock.now();
    let mut interval = lab.timers().interval(ms(period)).unwrap();
    interval.set_missed_tick_behavior(behavior);
    let missed = Rc::new(Cell::new(0));
    let ticks = Rc::new(RefCell::new(Vec::new()));
    let (told, noted, clock) = (Rc::clone(&missed), Rc::clone(&ticks), lab.clock.clone());
    let since = move |at: Instant| at.duration_since(start).as_millis() as u64;
    let mut task = pin!(async move {
        loop {
            let due = interval.tick().await.unwrap();
            noted.borrow_mut().push((since(due), since(clock.now())));
            told.set(interval.missed());
        }
    });
    let mut now = 0;
    for look in looks {
        lab.advance(ms(look - now));
        now = *look;
        // As often as there are ticks to see at once.
        for _ in 0..20 {
            assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            lab.settle();
        }
    }
    let ticks = ticks.borrow().clone();
    (ticks, missed.get())
}

#[test]
fn ticks_on_time_are_a_period_apart_and_none_is_missed() {
    for behavior in [MissedTickBehavior::Burst, MissedTickBehavior::Delay, MissedTickBehavior::Skip]
    {
        let looks: Vec<_> = (0..=50).collect();
        let (ticks, missed) = seen(behavior, 10, &looks);
        let expected: Vec<_> = (0..=50).step_by(10).map(|at| (at, at)).collect();
        assert_eq!((ticks, missed), (expected, 0), "{behavior:?}");
    }
}

#[test]
fn late_ticks_come_as_their_behavior_says() {
    use MissedTickBehavior::{Burst, Delay, Skip};
    /// The looks, when each tick was due and seen, and how many were missed.
    type Case = (MissedTickBehavior, &'static [u64], &'static [(u64, u64)], u64);
    const CASES: [Case; 4] = [
        (Burst, &[0, 35, 40, 50], &[(0, 0), (10, 35), (20, 35), (30, 35), (40, 40), (50, 50)], 0),
        (Delay, &[0, 35, 40, 45, 50, 55], &[(0, 0), (10, 35), (45, 45), (55, 55)], 2),
        // The tick of 100 is the fourth after that of 60.
        (Skip, &[0, 35, 40, 45, 50, 100], &[(0, 0), (10, 35), (40, 40), (50, 50), (60, 100)], 6),
        // Late by less than a period.
        (Delay, &[0, 19, 20, 30], &[(0, 0), (10, 19), (20, 20), (30, 30)], 0),
    ];
    for (behavior, looks, ticks, missed) in CASES {
        assert_eq!(seen(behavior, 10, looks), (ticks.to_vec(), missed), "{behavior:?} {looks:?}");
    }
}

#[test]
fn period_of_a_fraction_of_ticks_does_not_drift() {
    let mut lab = Lab::<u8>::new(builder(1));
    let start = lab.clock.now();
    let period = Duration::from_micros(3_300);
    let mut interval = lab.timers().interval(period).unwrap();
    let dues = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&dues);
    let mut task = pin!(async move {
        loop {
            let due = interval.tick().await.unwrap();
            noted.borrow_mut().push(due);
        }
    });
    for _ in 0..3_300 {
        assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        lab.advance(ms(1));
    }
    let dues = dues.borrow();
    assert!(dues.len() >= 999);
    for (n, due) in (0..).zip(dues.iter()) {
        assert_eq!(*due, start + period * n);
    }
}

#[test]
fn fixed_delay_begins_when_the_next_tick_is_awaited() {
    let mut lab = Lab::<u8>::new(builder(1));
    let start = lab.clock.now();
    let mut interval = lab.timers().handle().fixed_delay(ms(10)).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    assert!(interval.poll_tick(&mut context).is_pending());
    for due in [10, 27, 44] {
        lab.clock.advance(start + ms(due) - lab.clock.now());
        lab.settle();
        let tick = interval.poll_tick(&mut context).map(Result::unwrap);
        assert_eq!(tick, Poll::Ready(start + ms(due)));
        // The work at a tick.
        lab.advance(ms(7));
        assert!(interval.poll_tick(&mut context).is_pending());
    }
    assert_eq!(interval.missed(), 0);
}

#[test]
fn reset_and_reset_at_restart_the_grid() {
    let mut lab = Lab::<u8>::new(builder(1));
    let start = lab.clock.now();
    let mut interval = lab.timers().handle().interval_at(start + ms(50), ms(20)).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut due_at = |interval: &mut Interval, due: u64| {
        assert!(interval.poll_tick(&mut context).is_pending());
        lab.clock.advance(start + ms(due - 1) - lab.clock.now());
        lab.settle();
        assert!(interval.poll_tick(&mut context).is_pending(), "not before {due}");
        lab.advance(ms(1));
        let tick = interval.poll_tick(&mut context).map(Result::unwrap);
        assert_eq!(tick, Poll::Ready(start + ms(due)));
    };
    due_at(&mut interval, 50);
    interval.reset();
    due_at(&mut interval, 70);
    interval.reset_at(ms(5));
    due_at(&mut interval, 75);
    interval.reset_at(start + ms(200));
    due_at(&mut interval, 200);
    due_at(&mut interval, 220);
    interval.reset_at(Duration::ZERO);
    assert_eq!(interval.poll_tick(&mut context), Poll::Ready(Ok(start + ms(220))));
    assert!(interval.poll_tick(&mut context).is_pending());
    interval.reset_at(lab.timers().deadline(ms(6)));
    lab.advance(ms(6));
    assert_eq!(interval.poll_tick(&mut context), Poll::Ready(Ok(start + ms(226))));
    // An instant that has passed is the beginning of the grid all the same.
    interval.reset_at(start + ms(170));
    for due in [170, 190, 210] {
        assert_eq!(interval.poll_tick(&mut context), Poll::Ready(Ok(start + ms(due))));
    }
    assert!(interval.poll_tick(&mut context).is_pending(), "the next is due at 230");
    lab.advance(ms(4));
    assert_eq!(interval.poll_tick(&mut context), Poll::Ready(Ok(start + ms(230))));
}

#[test]
fn period_of_zero_is_refused_and_longest_period_is_accepted() {
    let mut lab = Lab::<u8>::new(builder(1));
    let timers = lab.timers().clone();
    let error = timers.interval(Duration::ZERO).unwrap_err();
    assert!(error.field() == "period" && error.to_string().contains("0ns"), "{error}");
    assert_eq!(timers.handle().fixed_delay(Duration::ZERO).unwrap_err().field(), "delay");
    let mut context = Context::from_waker(Waker::noop());
    let mut interval = timers.interval(Duration::MAX).unwrap();
    assert!(interval.poll_tick(&mut context).is_ready());
    lab.advance(ms(1));
    assert!(interval.poll_tick(&mut context).is_pending());
    let mut delay = timers.handle().fixed_delay(Duration::MAX).unwrap();
    assert!(delay.poll_tick(&mut context).is_pending());
}

#[test]
fn interval_that_begins_before_the_epoch_keeps_the_grid_of_its_first_tick() {
    let lab = Lab::<u8>::new(builder(1));
    let first = lab.clock.now().checked_sub(ms(7)).unwrap();
    let mut interval = lab.timers().handle().interval_at(first, ms(5)).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    for due in [first, first + ms(5)] {
        assert_eq!(interval.poll_tick(&mut context), Poll::Ready(Ok(due)));
    }
    assert!(interval.poll_tick(&mut context).is_pending());
}

#[test]
fn reset_of_a_fixed_delay_forgets_the_tick_before() {
    let mut lab = Lab::<u8>::new(builder(1));
    let start = lab.clock.now();
    let mut interval = lab.timers().handle().fixed_delay(ms(10)).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    lab.advance(ms(10));
    assert!(interval.poll_tick(&mut context).is_ready());
    interval.reset_at(ms(3));
    lab.advance(ms(3));
    assert_eq!(interval.poll_tick(&mut context), Poll::Ready(Ok(start + ms(13))));
    interval.reset();
    lab.advance(ms(9));
    assert!(interval.poll_tick(&mut context).is_pending());
    lab.advance(ms(1));
    assert_eq!(interval.poll_tick(&mut context), Poll::Ready(Ok(start + ms(23))));
}

#[test]
fn loop_that_sleeps_until_planned_instants_wakes_at_each() {
    let mut lab = Lab::<u8>::new(builder(1));
    let (start, timers, clock) = (lab.clock.now(), lab.timers().clone(), lab.clock.clone());
    let mut task = pin!(async move {
        // A backoff: 10, 30, 70.
        let (mut due, mut wait, mut seen) = (start + ms(10), ms(10), Vec::new());
        while wait <= ms(40) {
            timers.sleep(due).await.unwrap();
            assert_eq!(due, clock.now());
            seen.push(due);
            wait *= 2;
            due += wait;
        }
        seen
    });
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..100 {
        if let Poll::Ready(seen) = task.as_mut().poll(&mut context) {
            assert_eq!(seen, [start + ms(10), start + ms(30), start + ms(70)]);
            assert_eq!(lab.timers().len(), 0);
            return;
        }
        lab.advance(ms(1));
    }
    panic!("the loop is not over");
}

#[test]
fn dropped_interval_frees_its_timer() {
    let mut lab = Lab::<u8>::new(builder(1));
    let mut interval = lab.timers().interval(ms(10)).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    assert!(interval.poll_tick(&mut context).is_ready());
    assert_eq!(lab.timers().len(), 0, "it takes a timer when there is something to wait for");
    assert!(interval.poll_tick(&mut context).is_pending());
    assert_eq!(lab.timers().len(), 1);
    drop(interval);
    assert_eq!(lab.timers().len(), 0);
    assert_ne!(lab.turn(), Turn::More);
}

#[test]
fn ticks_come_on_every_executor_and_end_with_the_shard() {
    for host in Host::executors() {
        let handler = |_| |_: Fired<u8>, _: &Timers<u8>| {};
        let running = Running::start(host, builder(1), handler);
        let ticks = running.service.spawn_on(SHARD, |timers| async move {
            let start = timers.now();
            let mut interval = timers.interval(ms(3)).unwrap();
            for n in 0..5 {
                let due = interval.tick().await.unwrap();
                assert!(timers.now() >= due, "early");
                assert!(due >= start + ms(3) * n);
            }
        });
        assert_eq!(ticks.unwrap().wait(), Ok(()), "{host:?}");
        let waiting = running.service.spawn_on(SHARD, |timers| async move {
            let mut interval = timers.handle().interval_at(PATIENCE, PATIENCE).unwrap();
            assert_eq!(interval.tick().await, Err(RefusedKind::Closed));
        });
        let waiting = waiting.unwrap();
        let _ = running.end(ShutdownPolicy::Drop);
        // The future has seen it, or was dropped with its executor.
        let _ = waiting.wait();
    }
}

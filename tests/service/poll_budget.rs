//! The poll budget: tasks that never have to wait return to their executor, and wake the driver.

use std::cell::Cell;
use std::future::{Future, ready};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use corewheel::attach::Turn;
use corewheel::conn::Raced;
use corewheel::{ConnLimits, ConnTimers, ShutdownPolicy, TimeoutError, Timers};

use corewheel_test_support::{Alarm, FAR, Host, Lab, PATIENCE, Running, SHARD, builder, ms};

/// The most results in a row without a return to the executor.
const READY_MAX: usize = 8;
/// One result in this many reads the clock.
const POLLS_PER_CLOCK_READ: usize = 16;

fn lab() -> Lab<u8> {
    Lab::new(builder(1))
}

fn connection(timers: &Timers<u8>) -> ConnTimers {
    timers.connection(ConnLimits::default()).unwrap()
}

/// Awaits a hundred values that are ready at once, and counts the returns to the executor.
fn check_returns<F: Future>(mut ask: impl FnMut() -> F, is_value: impl Fn(F::Output) -> bool) {
    let (alarm, waker) = Alarm::new();
    let mut cx = Context::from_waker(&waker);
    let mut in_a_row = 0;
    for number in 0..100 {
        let mut asked = pin!(ask());
        let first = asked.as_mut().poll(&mut cx);
        let value = match first {
            Poll::Ready(value) => {
                in_a_row += 1;
                value
            }
            Poll::Pending => {
                assert_eq!(in_a_row, READY_MAX, "value {number}");
                in_a_row = 0;
                match asked.as_mut().poll(&mut cx) {
                    Poll::Ready(value) => value,
                    Poll::Pending => panic!("value {number} is pending twice"),
                }
            }
        };
        assert!(is_value(value), "value {number}");
        assert!(in_a_row <= READY_MAX, "value {number}");
    }
    assert_eq!(alarm.count(), 100 / (READY_MAX + 1), "each return wakes the task once");
}

#[test]
fn race_of_ready_values_returns_to_the_executor() {
    let lab = lab();
    let conn = connection(lab.timers());
    check_returns(|| conn.race(ready(7)), |value| value == Raced::Done(7));
}

#[test]
fn timeout_of_ready_values_returns_to_the_executor() {
    let lab = lab();
    let timers = lab.timers().clone();
    check_returns(|| timers.timeout(FAR, ready(7)), |value| matches!(value, Ok(7)));
}

#[test]
fn consumed_budget_returns_to_the_executor() {
    let lab = lab();
    let timers = lab.timers().clone();
    check_returns(|| timers.consume_budget(), |()| true);
}

#[test]
fn race_that_waits_renews_the_budget() {
    let lab = lab();
    let conn = connection(lab.timers());
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..10 {
        for _ in 1..READY_MAX {
            assert_eq!(pin!(conn.race(ready(7))).poll(&mut cx), Poll::Ready(Raced::Done(7)));
        }
        assert!(pin!(conn.race(std::future::pending::<u8>())).poll(&mut cx).is_pending());
    }
}

/// Checks that 16 polls wake a sleeping shard after its time has come, and not before.
fn check_wakes(mut poll: impl FnMut(&Timers<u8>)) {
    let mut lab = lab();
    let _timer = lab.timers().schedule(ms(5), 1).unwrap();
    let (alarm, waker) = Alarm::new();
    let turn = lab.shards[0].turn();
    let sleep = lab.shards[0].prepare_to_sleep(turn, &waker);
    assert!(matches!(sleep, Turn::Next(_)), "{sleep:?}");
    let timers = lab.timers().clone();
    let mut polls = |count| (0..count).for_each(|_| poll(&timers));
    lab.clock.advance(ms(4));
    polls(5 * POLLS_PER_CLOCK_READ);
    assert_eq!(alarm.count(), 0, "its time has not come");
    lab.clock.advance(ms(1));
    polls(POLLS_PER_CLOCK_READ);
    assert_eq!(alarm.count(), 1, "its time has come");
    polls(5 * POLLS_PER_CLOCK_READ);
    assert_eq!(alarm.count(), 1, "the driver is awake already");
}

#[test]
fn race_wakes_the_driver_when_its_time_has_come() {
    let mut conn = None;
    check_wakes(|timers| {
        let conn = conn.get_or_insert_with(|| connection(timers));
        let _ = pin!(conn.race(ready(7))).poll(&mut Context::from_waker(Waker::noop()));
    });
}

#[test]
fn poll_for_events_wakes_the_driver_when_its_time_has_come() {
    let mut conn = None;
    check_wakes(|timers| {
        let conn = conn.get_or_insert_with(|| connection(timers));
        assert!(conn.poll_next(&mut Context::from_waker(Waker::noop())).is_pending());
    });
}

#[test]
fn timeout_wakes_the_driver_when_its_time_has_come() {
    check_wakes(|timers| {
        let limited = timers.timeout(FAR, ready(7));
        let _ = pin!(limited).poll(&mut Context::from_waker(Waker::noop()));
    });
}

#[test]
fn consumed_budget_wakes_the_driver_when_its_time_has_come() {
    check_wakes(|timers| {
        let _ = pin!(timers.consume_budget()).poll(&mut Context::from_waker(Waker::noop()));
    });
}

/// The method that a task calls for values that are always ready.
#[derive(Clone, Copy, Debug)]
enum Busy {
    Race,
    Timeout,
    ConsumeBudget,
}

/// Returns whether a timer fires while a task of its shard always has a ready value.
async fn fires(timers: Timers<u8>, busy: Busy) -> bool {
    let conn = connection(&timers);
    let fired = Rc::new(Cell::new(false));
    let note = Rc::clone(&fired);
    timers.schedule_fn(ms(5), move |_| note.set(true)).unwrap();
    let begin = timers.now();
    while !fired.get() && timers.now() - begin < PATIENCE {
        match busy {
            Busy::Race => assert_eq!(conn.race(ready(7)).await, Raced::Done(7)),
            Busy::Timeout => {
                let value: Result<_, TimeoutError> = timers.timeout(FAR, ready(7)).await;
                assert_eq!(value.unwrap(), 7);
            }
            Busy::ConsumeBudget => timers.consume_budget().await,
        }
    }
    fired.get()
}

#[test]
fn timer_fires_while_a_task_of_its_shard_is_always_ready() {
    for host in Host::executors() {
        for busy in [Busy::Race, Busy::Timeout, Busy::ConsumeBudget] {
            let running = Running::start(host, builder(1), |_| |_: _, _: &_| {});
            let spawned = running.service.spawn_on(SHARD, move |timers| fires(timers, busy));
            assert!(spawned.unwrap().wait().unwrap(), "{host:?}, {busy:?}: the timer never fires");
            running.end(ShutdownPolicy::Drop);
        }
    }
}

/// Takes all that tokio lets a task do in a poll.
#[cfg(feature = "tokio")]
fn use_up_budget(cx: &mut Context<'_>) {
    while tokio::task::coop::has_budget_remaining() {
        let _ = pin!(tokio::task::coop::consume_budget()).poll(cx);
    }
}

#[cfg(feature = "tokio")]
#[test]
fn event_is_not_taken_in_a_poll_that_has_used_up_the_budget_of_tokio() {
    let mut lab = lab();
    let limits = ConnLimits::default().read_idle(ms(10));
    let conn = lab.timers().connection(limits).unwrap();
    lab.advance(ms(20));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let polls = Cell::new(0);
    let next = |always: bool| {
        let conn = conn.clone();
        let polls = &polls;
        polls.set(0);
        async move {
            let mut next = pin!(conn.next());
            std::future::poll_fn(|cx| {
                polls.set(polls.get() + 1);
                if always || polls.get() < 3 {
                    use_up_budget(cx);
                }
                next.as_mut().poll(cx)
            })
            .await
        }
    };
    assert!(runtime.block_on(next(false)).is_some());
    assert_eq!(polls.get(), 3, "a read could have done more in the first two polls");
    lab.advance(ms(20));
    assert!(runtime.block_on(next(true)).is_some());
    assert_eq!(polls.get(), 251, "the event is not held back for ever");
}

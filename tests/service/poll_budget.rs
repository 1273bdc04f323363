//! The poll budget: tasks that never have to wait return to their executor, and wake the driver.

use super::*;

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

/// What a task asks for that is always ready.
#[derive(Clone, Copy, Debug)]
enum Busy {
    Race,
    Timeout,
    ConsumeBudget,
}

impl Busy {
    const ALL: [Self; 3] = [Self::Race, Self::Timeout, Self::ConsumeBudget];

    async fn ask(self, timers: &Timers<u8>, conn: &ConnTimers) {
        match self {
            Self::Race => assert_eq!(conn.race(ready(7)).await, Raced::Done(7)),
            Self::Timeout => assert_eq!(timers.timeout(FAR, ready(7)).await, Ok(7)),
            Self::ConsumeBudget => timers.consume_budget().await,
        }
    }
}

#[test]
fn values_that_are_always_ready_return_to_the_executor() {
    for busy in Busy::ALL {
        let lab = lab();
        let conn = connection(lab.timers());
        let (alarm, waker) = Alarm::new();
        let mut in_a_row = 0;
        for number in 0..100 {
            let mut asked = pin!(busy.ask(lab.timers(), &conn));
            if poll_with(asked.as_mut(), &waker).is_ready() {
                in_a_row += 1;
            } else {
                assert_eq!(in_a_row, READY_MAX, "{busy:?} {number}");
                in_a_row = 0;
                let again = poll_with(asked.as_mut(), &waker);
                assert!(again.is_ready(), "{busy:?} {number} is pending twice");
            }
            assert!(in_a_row <= READY_MAX, "{busy:?} {number}");
        }
        let returns = 100 / (READY_MAX + 1);
        assert_eq!(alarm.count(), returns, "{busy:?}: each return wakes the task once");
    }
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
        assert!(pin!(conn.race(pending::<u8>())).poll(&mut cx).is_pending());
    }
}

/// 16 polls wake a sleeping shard after its time has come, and not before.
#[test]
fn task_that_is_always_ready_wakes_the_driver_when_its_time_has_come() {
    // A poll for events is counted, too.
    for busy in Busy::ALL.map(Some).into_iter().chain([None]) {
        let mut lab = lab();
        let conn = connection(lab.timers());
        let _timer = lab.timers().schedule(ms(5), 1).unwrap();
        let (alarm, waker) = Alarm::new();
        let turn = lab.turn();
        let sleep = lab.shards[0].prepare_to_sleep(turn, &waker);
        assert!(matches!(sleep, Turn::Next(_)), "{sleep:?}");
        for (passes, polls, woken) in [(4, 5, 0), (1, 1, 1), (0, 5, 1)] {
            lab.clock.advance(ms(passes));
            for _ in 0..polls * POLLS_PER_CLOCK_READ {
                let cx = &mut Context::from_waker(Waker::noop());
                match busy {
                    Some(busy) => _ = pin!(busy.ask(lab.timers(), &conn)).poll(cx),
                    None => assert!(conn.poll_next(cx).is_pending()),
                }
            }
            assert_eq!(alarm.count(), woken, "{busy:?} after {passes} ms more");
        }
    }
}

/// Returns whether a timer fires while a task of its shard always has a ready value.
async fn fires(timers: Timers<u8>, busy: Busy) -> bool {
    let conn = connection(&timers);
    let fired = Rc::new(Cell::new(false));
    let note = Rc::clone(&fired);
    timers.schedule_fn(ms(5), move |_| note.set(true)).unwrap();
    let begin = timers.now();
    while !fired.get() && timers.now() - begin < PATIENCE {
        busy.ask(&timers, &conn).await;
    }
    fired.get()
}

#[test]
fn timer_fires_while_a_task_of_its_shard_is_always_ready() {
    for host in Host::executors() {
        for busy in Busy::ALL {
            let running = Running::<u8>::idle(host, builder(1));
            let spawned = running.service.spawn_on(SHARD, move |timers| fires(timers, busy));
            assert!(spawned.unwrap().wait().unwrap(), "{host:?}, {busy:?}: the timer never fires");
        }
    }
}

/// Takes all that tokio lets a task do in a poll.
fn use_up_budget(cx: &mut Context<'_>) {
    while tokio::task::coop::has_budget_remaining() {
        let _ = pin!(tokio::task::coop::consume_budget()).poll(cx);
    }
}

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
            poll_fn(|cx| {
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

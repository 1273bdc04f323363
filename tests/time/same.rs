//! Tests that are compiled for `tokio::time` and for `corewheel::time`, from this one source.

use std::error::Error;
use std::future::{Ready, pending, poll_fn, ready};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tokio::runtime::Builder;
use tokio::task::{JoinSet, yield_now};

use super::time::error::Elapsed;
use super::time::{
    Duration, Instant, Interval, MissedTickBehavior, Sleep, Timeout, interval, interval_at, sleep,
    sleep_until, timeout, timeout_at,
};
use crate::{FAR, check_not_early, look, ms, on_each_runtime, within_patience};

const YEAR: Duration = Duration::from_hours(24 * 365);

/// Asserts that an instant is `after` a moment between two others.
#[track_caller]
fn check_between(instant: Instant, [begin, end]: [Instant; 2], after: Duration) {
    assert!(instant >= begin + after && instant <= end + after, "{begin:?} {instant:?} {end:?}");
}

/// A moment that lies this long in the past.
fn past(before: Duration) -> Instant {
    Instant::now().checked_sub(before).expect("the machine has run for longer")
}

#[test]
fn types_and_methods_have_the_signatures_of_tokio() {
    fn is_any_threads<X: Send + Sync + 'static>() {}
    fn is_future_of_any_thread<F: Future + Send + Sync + 'static>(_: F) {}
    fn is_error<X: Error + Eq + Send + Sync + 'static>() {}
    is_any_threads::<Sleep>();
    is_any_threads::<Interval>();
    is_any_threads::<Timeout<Ready<u8>>>();
    is_error::<Elapsed>();
    // Others are called by the tests below, for both modules.
    let _: fn(Pin<&mut Sleep>, Instant) = Sleep::reset;
    let _: fn(&mut Interval, &mut Context<'_>) -> Poll<Instant> = Interval::poll_tick;
    is_future_of_any_thread(async { interval(ms(1)).tick().await });
    assert_eq!(MissedTickBehavior::default(), MissedTickBehavior::Burst);
}

#[test]
fn sleep_is_done_at_its_deadline_and_not_before() {
    on_each_runtime(|| async {
        for time in [Duration::ZERO, Duration::from_micros(1), ms(1), Duration::from_micros(3_700)]
        {
            let begin = Instant::now();
            let slept = sleep(time);
            check_between(slept.deadline(), [begin, Instant::now()], time);
            let deadline = slept.deadline();
            let () = slept.await;
            check_not_early(deadline);
            let deadline = Instant::now() + time;
            let until = sleep_until(deadline);
            assert_eq!(until.deadline(), deadline);
            until.await;
            check_not_early(deadline);
        }
        sleep_until(past(ms(20))).await;
    });
}

#[test]
fn sleeps_of_many_tasks_are_done_and_none_is_early() {
    on_each_runtime(|| async {
        let mut tasks = JoinSet::new();
        for number in 0..5_000 {
            tasks.spawn(async move {
                let deadline = Instant::now() + ms(number % 40);
                sleep_until(deadline).await;
                check_not_early(deadline);
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    });
}

#[test]
fn sleep_is_elapsed_once_its_deadline_has_come() {
    on_each_runtime(|| async {
        let mut slept = pin!(sleep(FAR));
        assert!(!slept.is_elapsed());
        assert!(look(slept.as_mut()).await.is_pending());
        assert!(!slept.is_elapsed());
        let deadline = Instant::now() + ms(5);
        slept.as_mut().reset(deadline);
        // Not polled meanwhile.
        while !slept.is_elapsed() {
            yield_now().await;
        }
        check_not_early(deadline);
        assert!(look(slept.as_mut()).await.is_ready(), "it is elapsed and not done");
        assert!(slept.is_elapsed());
        assert_eq!(slept.deadline(), deadline);

        slept.as_mut().reset(Instant::now() + FAR);
        assert!(!slept.is_elapsed());

        // Neither polled nor reset.
        let unpolled = sleep_until(past(ms(20)));
        assert!(!unpolled.is_elapsed());
        let mut unpolled = pin!(sleep(FAR));
        unpolled.as_mut().reset(past(ms(20)));
        while !unpolled.is_elapsed() {
            yield_now().await;
        }
    });
}

#[test]
fn sleep_that_is_reset_waits_for_the_new_deadline() {
    on_each_runtime(|| async {
        let mut slept = pin!(sleep(FAR));
        assert!(look(slept.as_mut()).await.is_pending());
        let earlier = Instant::now() + ms(2);
        slept.as_mut().reset(earlier);
        slept.as_mut().await;
        check_not_early(earlier);

        slept.as_mut().reset(Instant::now() + ms(2));
        let _ = look(slept.as_mut()).await;
        let later = Instant::now() + ms(20);
        slept.as_mut().reset(later);
        assert_eq!(slept.deadline(), later);
        slept.as_mut().await;
        check_not_early(later);
        assert!(slept.is_elapsed());
        slept.as_mut().reset(past(ms(20)));
        slept.await;
    });
}

#[test]
fn sleep_in_a_select_loop_is_reset_by_each_event() {
    on_each_runtime(|| async {
        let mut idle = pin!(sleep(FAR));
        let mut heartbeat = interval(ms(2));
        let (mut events, mut until) = (0, Instant::now());
        loop {
            tokio::select! {
                () = &mut idle, if !idle.is_elapsed() => break,
                _ = heartbeat.tick(), if events < 10 => {
                    events += 1;
                    until = Instant::now() + if events < 10 { FAR } else { ms(10) };
                    idle.as_mut().reset(until);
                }
                else => break,
            }
        }
        assert_eq!(events, 10);
        check_not_early(until);
    });
}

#[allow(clippy::async_yields_async, reason = "each task gives the sleep to the next")]
#[test]
fn sleep_goes_from_task_to_task_and_wakes_the_last() {
    on_each_runtime(|| async {
        let deadline = Instant::now() + ms(10);
        let mut slept = Box::pin(sleep_until(deadline));
        for _ in 0..4 {
            let task = tokio::spawn(async move {
                let _ = look(slept.as_mut()).await;
                yield_now().await;
                slept
            });
            slept = task.await.unwrap();
        }
        tokio::spawn(slept).await.unwrap();
        check_not_early(deadline);
    });
}

#[test]
fn sleep_that_another_task_resets_wakes_the_task_that_polled_it() {
    on_each_runtime(|| async {
        let slept = Arc::new(Mutex::new(Box::pin(sleep(FAR))));
        let polled = Arc::new(AtomicUsize::new(0));
        let (of_task, count) = (Arc::clone(&slept), Arc::clone(&polled));
        let task = tokio::spawn(poll_fn(move |cx| {
            let polled = of_task.lock().unwrap().as_mut().poll(cx);
            count.fetch_add(1, Ordering::Relaxed);
            polled
        }));
        while polled.load(Ordering::Relaxed) == 0 {
            yield_now().await;
        }
        let deadline = Instant::now() + ms(5);
        slept.lock().unwrap().as_mut().reset(deadline);
        task.await.unwrap();
        check_not_early(deadline);
    });
}

/// A value that takes a while.
async fn slow() -> u8 {
    sleep(ms(2)).await;
    7
}

#[test]
fn timeout_gives_the_value_or_elapsed() {
    on_each_runtime(|| async {
        assert_eq!(timeout(FAR, async { 7 }).await, Ok(7));
        // A value that is ready wins, whatever the time.
        assert_eq!(timeout(Duration::ZERO, ready(7)).await, Ok(7));
        assert_eq!(timeout(FAR, slow()).await, Ok(7));

        let begin = Instant::now();
        let elapsed: Elapsed = timeout(ms(5), pending::<u8>()).await.unwrap_err();
        check_not_early(begin + ms(5));
        assert_eq!(elapsed.to_string(), "deadline has elapsed");
        assert_eq!(io::Error::from(elapsed).kind(), io::ErrorKind::TimedOut);

        let begin = Instant::now();
        assert!(timeout_at(begin + ms(5), pending::<u8>()).await.is_err());
        check_not_early(begin + ms(5));

        let mut unused = timeout(FAR, ready(7));
        assert_eq!(unused.get_ref().clone().into_inner(), 7);
        *unused.get_mut() = ready(8);
        assert_eq!(unused.into_inner().await, 8);
    });
}

#[test]
fn timeout_in_the_past_polls_the_future_first() {
    on_each_runtime(|| async {
        assert_eq!(timeout_at(past(ms(20)), ready(7)).await, Ok(7));
        let mut polls = 0;
        let counts = poll_fn(|_| -> Poll<()> {
            polls += 1;
            Poll::Pending
        });
        assert!(timeout_at(past(ms(20)), counts).await.is_err());
        assert_eq!(polls, 1);
    });
}

#[test]
fn durations_that_do_not_fit_are_far_and_do_not_panic() {
    on_each_runtime(|| async {
        let begin = Instant::now();
        let mut slept = pin!(sleep(Duration::MAX));
        assert!(slept.deadline() >= begin + 29 * YEAR);
        assert!(look(slept.as_mut()).await.is_pending());
        assert!(!slept.is_elapsed());
        assert_eq!(timeout(Duration::MAX, slow()).await, Ok(7));
        let mut never = pin!(timeout(Duration::MAX, pending::<()>()));
        assert!(look(never.as_mut()).await.is_pending());

        let mut ticks = interval(Duration::MAX);
        assert!(ticks.period() >= 29 * YEAR);
        ticks.tick().await;
        assert!(look(pin!(ticks.tick())).await.is_pending());
        ticks.reset();
        ticks.reset_after(Duration::MAX);
        assert!(look(pin!(ticks.tick())).await.is_pending());
    });
}

#[test]
fn interval_ticks_at_once_and_then_by_its_period() {
    on_each_runtime(|| async {
        let begin = Instant::now();
        let mut ticks = interval(ms(3));
        let made = [begin, Instant::now()];
        let first = ticks.tick().await;
        check_between(first, made, Duration::ZERO);
        for count in 1..8 {
            let due = ticks.tick().await;
            assert_eq!(due, first + ms(3) * count);
            check_not_early(due);
        }
        let start = Instant::now() + ms(7);
        let mut ticks = interval_at(start, ms(2));
        assert_eq!((ticks.tick().await, ticks.tick().await), (start, start + ms(2)));
        check_not_early(start + ms(2));
    });
}

#[test]
fn tick_that_is_dropped_while_it_waits_is_not_lost() {
    on_each_runtime(|| async {
        let start = Instant::now() + ms(10);
        let mut ticks = interval_at(start, ms(10));
        for _ in 0..4 {
            if let Poll::Ready(due) = look(pin!(ticks.tick())).await {
                assert_eq!(due, start);
                return;
            }
            sleep(ms(1)).await;
        }
        assert_eq!(ticks.tick().await, start);
    });
}

#[test]
fn interval_with_a_period_of_zero_panics() {
    on_each_runtime(|| async {
        let zero: [fn() -> Interval; 2] =
            [|| interval(Duration::ZERO), || interval_at(Instant::now(), Duration::ZERO)];
        for make in zero {
            let panic = catch_unwind(AssertUnwindSafe(make)).unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&"`period` must be non-zero."));
        }
    });
}

/// Checks that a task lets another task of its thread run before it ends, though it never waits.
fn check_yields<F: Future<Output = ()>>(never_waits: impl FnOnce() -> F + Send + 'static) {
    within_patience(move || {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let has_run = Arc::new(AtomicBool::new(false));
            let flag = Arc::clone(&has_run);
            tokio::spawn(async move { flag.store(true, Ordering::Relaxed) });
            never_waits().await;
            assert!(has_run.load(Ordering::Relaxed));
        });
    });
}

#[test]
fn task_that_never_waits_lets_other_tasks_run() {
    check_yields(|| async {
        let mut ticks = interval_at(past(ms(1_000)), ms(1));
        for _ in 0..1_000 {
            ticks.tick().await;
        }
    });
    check_yields(|| async {
        let deadline = past(ms(20));
        for _ in 0..1_000 {
            assert!(timeout_at(deadline, pending::<()>()).await.is_err());
            sleep_until(deadline).await;
        }
    });
    check_yields(|| async {
        let deadline = past(ms(20));
        for _ in 0..1_000 {
            assert!(timeout_at(deadline, pending::<()>()).await.is_err());
        }
    });
}

#[test]
fn timeout_of_a_future_that_uses_up_the_budget_elapses() {
    on_each_runtime(|| async {
        let greedy = async {
            loop {
                tokio::task::consume_budget().await;
            }
        };
        let begin = Instant::now();
        assert!(timeout(ms(5), greedy).await.is_err());
        check_not_early(begin + ms(5));
    });
}

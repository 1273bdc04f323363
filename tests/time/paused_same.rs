//! Tests by a clock that is paused, advanced and resumed, compiled for `tokio::time` and for
//! `corewheel::time` from this one source.

use std::future::{pending, ready};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use tokio::task::{JoinSet, yield_now};

use super::time::{
    Duration, Instant, Interval, MissedTickBehavior, advance, interval, interval_at, pause, resume,
    sleep, sleep_until, timeout, timeout_at,
};
use crate::{FAR, look, ms};

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn sleeps_end_at_their_deadlines_by_the_paused_clock() {
    let (begin, std) = (Instant::now(), std::time::Instant::now());
    for count in 1..=58 {
        sleep(seconds(1)).await;
        assert_eq!(begin.elapsed(), seconds(count));
    }
    sleep_until(begin + FAR).await;
    assert_eq!(Instant::now(), begin + FAR);
    assert!(std.elapsed() < FAR, "the clock of the system has not moved with it");
    sleep(Duration::ZERO).await;
    sleep_until(begin).await;
    assert_eq!(begin.elapsed(), FAR);
}

#[tokio::test(start_paused = true)]
async fn advance_wakes_the_sleeps_that_are_due_and_no_others() {
    let tasks: Vec<_> = (1..=5).map(|number| tokio::spawn(sleep(FAR * number))).collect();
    yield_now().await;
    let ended = || tasks.iter().filter(|task| task.is_finished()).count();
    assert_eq!(ended(), 0);
    for number in 1..=5 {
        advance(FAR.saturating_sub(ms(1))).await;
        yield_now().await;
        assert_eq!(ended(), number - 1);
        advance(ms(1)).await;
        yield_now().await;
        assert_eq!(ended(), number);
    }
}

#[tokio::test]
async fn sleep_that_began_before_the_pause_ends_after_an_advance() {
    let slept = tokio::spawn(sleep(FAR));
    let late = tokio::spawn(timeout(FAR, pending::<()>()));
    let ticks = tokio::spawn(async {
        let mut ticks = interval(FAR);
        (ticks.tick().await, ticks.tick().await)
    });
    yield_now().await;
    pause();
    let begin = Instant::now();
    advance(FAR + ms(1)).await;
    assert_eq!(begin.elapsed(), FAR + ms(1));
    slept.await.unwrap();
    assert!(late.await.unwrap().is_err());
    let (first, second) = ticks.await.unwrap();
    assert_eq!(second - first, FAR);
    // No task had to wait for another timer.
    assert!(begin.elapsed() < FAR + ms(3));
}

#[tokio::test(start_paused = true)]
async fn clock_that_is_resumed_goes_on_from_the_time_that_it_showed() {
    let begin = Instant::now();
    advance(FAR).await;
    let mut before = pin!(sleep(ms(20)));
    assert!(look(before.as_mut()).await.is_pending());
    resume();
    let resumed = Instant::now();
    assert!(resumed >= begin + FAR);
    sleep(ms(5)).await;
    assert!(resumed.elapsed() >= ms(5));
    assert!(timeout(ms(5), pending::<()>()).await.is_err());
    before.await;
    assert!(Instant::now() >= begin + FAR + ms(20));
    assert!(begin.elapsed() < 2 * FAR, "a resumed clock does not advance itself");
    pause();
    let paused = Instant::now();
    sleep(FAR).await;
    assert!(paused.elapsed() >= FAR);
}

#[tokio::test(start_paused = true)]
async fn timeouts_end_at_their_deadlines_and_the_innermost_first() {
    let begin = Instant::now();
    assert_eq!(timeout(FAR, async { 7 }).await, Ok(7));
    assert_eq!(timeout(Duration::ZERO, ready(7)).await, Ok(7));
    assert_eq!(begin.elapsed(), Duration::ZERO);
    let answer = async {
        sleep(seconds(2)).await;
        7
    };
    assert_eq!(timeout(seconds(3), answer).await, Ok(7));
    assert_eq!(begin.elapsed(), seconds(2));
    let inner = timeout(seconds(5), timeout(seconds(4), timeout(seconds(6), pending::<()>())));
    assert!(inner.await.unwrap().is_err());
    assert_eq!(begin.elapsed(), seconds(6));
    assert!(timeout_at(begin + seconds(9), sleep(FAR)).await.is_err());
    assert_eq!(begin.elapsed(), seconds(9));
    assert!(timeout_at(begin, sleep(FAR)).await.is_err());
    assert_eq!(timeout(Duration::MAX, async { sleep(FAR).await }).await, Ok(()));
    assert_eq!(begin.elapsed(), seconds(9) + FAR);
}

#[tokio::test(start_paused = true)]
async fn single_poll_of_an_expired_timeout_says_whether_its_future_is_ready() {
    let mut late = pin!(timeout(seconds(1), pending::<()>()));
    let mut in_time = pin!(timeout(seconds(1), ready(7)));
    assert!(look(late.as_mut()).await.is_pending());
    advance(seconds(2)).await;
    assert!(matches!(look(late.as_mut()).await, Poll::Ready(Err(_))));
    assert_eq!(look(in_time.as_mut()).await, Poll::Ready(Ok(7)));
    let mut is_over = pin!(timeout(Duration::ZERO, pending::<()>()));
    assert!(matches!(look(is_over.as_mut()).await, Poll::Ready(Err(_))));
}

#[tokio::test(start_paused = true)]
async fn sleep_that_is_reset_ends_at_the_new_deadline() {
    let begin = Instant::now();
    let mut slept = pin!(sleep(FAR));
    assert!(look(slept.as_mut()).await.is_pending());
    slept.as_mut().reset(begin + seconds(1));
    slept.as_mut().await;
    assert_eq!(begin.elapsed(), seconds(1));
    assert!(slept.is_elapsed());

    slept.as_mut().reset(begin + seconds(2));
    assert!(!slept.is_elapsed());
    slept.as_mut().reset(begin + FAR);
    assert_eq!(slept.deadline(), begin + FAR);
    // A sleep that was reset has a timer, also if no task has polled it since.
    sleep(2 * FAR).await;
    assert!(slept.is_elapsed());
    slept.as_mut().await;
    assert_eq!(begin.elapsed(), seconds(1) + 2 * FAR);

    let mut unpolled = pin!(sleep(seconds(1)));
    advance(seconds(2)).await;
    assert!(!unpolled.is_elapsed());
    unpolled.as_mut().await;
    assert!(unpolled.is_elapsed());
    assert_eq!(begin.elapsed(), seconds(3) + 2 * FAR);
}

#[tokio::test(start_paused = true)]
async fn interval_ticks_by_the_paused_clock() {
    let begin = Instant::now();
    let mut ticks = interval(seconds(10));
    for count in 0..6 {
        assert_eq!(ticks.tick().await, begin + seconds(10) * count);
        assert_eq!(begin.elapsed(), seconds(10) * count);
    }
    let mut ticks = interval_at(begin + FAR, ms(7));
    assert_eq!(ticks.tick().await, begin + FAR);
    assert_eq!(ticks.tick().await, begin + FAR + ms(7));
}

#[tokio::test(start_paused = true)]
async fn ticks_that_an_advance_misses_come_as_their_behavior_says() {
    use MissedTickBehavior::{Burst, Delay, Skip};
    for (behavior, late_ms, expected) in [
        (Burst, 25_000, [20_000, 30_000, 40_000]),
        (Delay, 25_000, [45_000, 55_000, 65_000]),
        (Skip, 25_000, [40_000, 50_000, 60_000]),
        // A tick that is 5 ms late is not missed.
        (Delay, 5, [20_000, 30_000, 40_000]),
        (Delay, 6, [20_006, 30_006, 40_006]),
    ] {
        let begin = Instant::now();
        let mut ticks = interval(seconds(10));
        assert_eq!((ticks.missed_tick_behavior(), ticks.period()), (Burst, seconds(10)));
        ticks.set_missed_tick_behavior(behavior);
        assert_eq!(ticks.missed_tick_behavior(), behavior);
        ticks.tick().await;
        advance(seconds(10) + ms(late_ms)).await;
        // The tick that was missed comes, and is told its own time.
        assert_eq!(ticks.tick().await, begin + seconds(10));
        for after in expected {
            assert_eq!(ticks.tick().await, begin + ms(after), "{behavior:?}, {late_ms} ms late");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn interval_that_is_reset_ticks_at_the_new_time() {
    type Reset = fn(&mut Interval);
    let resets: [(Reset, Duration); 4] = [
        (Interval::reset, FAR),
        (Interval::reset_immediately, Duration::ZERO),
        (|ticks| ticks.reset_after(ms(3)), ms(3)),
        (|ticks| ticks.reset_at(Instant::now() + seconds(5)), seconds(5)),
    ];
    let mut ticks = interval(FAR);
    ticks.tick().await;
    for (reset, after) in resets {
        advance(seconds(1)).await;
        assert!(look(pin!(ticks.tick())).await.is_pending());
        let due = Instant::now() + after;
        reset(&mut ticks);
        assert_eq!((ticks.tick().await, Instant::now()), (due, due));
        assert_eq!(ticks.tick().await, due + FAR);
    }
}

#[tokio::test(start_paused = true)]
async fn tasks_end_in_the_order_of_their_deadlines() {
    let begin = Instant::now();
    let ended = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for number in 0..200 {
        let (after, ended) = (seconds(number * 77 % 200), Arc::clone(&ended));
        tasks.spawn(async move {
            sleep(after).await;
            assert_eq!(begin.elapsed(), after);
            ended.lock().unwrap().push(after);
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    assert!(ended.lock().unwrap().is_sorted());
    assert_eq!(begin.elapsed(), seconds(199));
}

#[tokio::test(start_paused = true)]
async fn sleep_is_ready_again_after_its_end_until_it_is_reset() {
    let mut slept = pin!(sleep(seconds(3)));
    assert_eq!(look(slept.as_mut()).await, Poll::Pending);
    advance(seconds(3)).await;
    assert_eq!(look(slept.as_mut()).await, Poll::Ready(()));
    assert_eq!(look(slept.as_mut()).await, Poll::Ready(()));
    slept.as_mut().reset(Instant::now() + seconds(1));
    assert_eq!(look(slept.as_mut()).await, Poll::Pending);
}

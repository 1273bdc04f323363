//! `corewheel::time` beside `tokio::time` while tokio's clock is paused, and where a runtime has no
//! such clock.

use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::thread;

use corewheel::time::{self, Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{LocalSet, spawn_blocking, spawn_local};

use crate::{FAR, block_on, look, ms, within_patience};

/// A current-thread runtime with timers.
fn current_thread(is_paused: bool) -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(is_paused).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn timeout_ends_a_longer_sleep_of_tokio_and_the_other_way_round() {
    let begin = Instant::now();
    let ours = time::timeout(ms(100), tokio::time::sleep(FAR)).await;
    assert!(ours.is_err(), "the timeout has let a longer sleep of tokio end");
    assert_eq!(begin.elapsed(), ms(100));
    let tokios = tokio::time::timeout(ms(100), time::sleep(FAR)).await;
    assert!(tokios.is_err(), "tokio's timeout has let a longer sleep end");
    assert_eq!(begin.elapsed(), ms(200));

    assert_eq!(time::timeout(FAR, tokio::time::sleep(ms(100))).await, Ok(()));
    assert!(tokio::time::timeout(FAR, time::sleep(ms(100))).await.is_ok());
    assert!(time::timeout_at(begin + ms(500), tokio::time::sleep(FAR)).await.is_err());
    assert_eq!(begin.elapsed(), ms(500));
}

#[tokio::test(start_paused = true)]
async fn sleeps_of_both_modules_end_in_the_order_of_their_deadlines() {
    let (mut ours_ended, mut tokios_ended) = (Vec::new(), Vec::new());
    let mut ticks = time::interval(ms(300));
    let mut tokios = tokio::time::interval_at(Instant::now() + ms(100), ms(200));
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(1) {
        tokio::select! {
            _ = ticks.tick() => ours_ended.push(begin.elapsed().as_millis()),
            _ = tokios.tick() => tokios_ended.push(begin.elapsed().as_millis()),
        }
    }
    assert_eq!(ours_ended, [0, 300, 600, 900]);
    assert_eq!(tokios_ended, [100, 300, 500, 700, 900, 1_100]);
}

#[test]
fn multi_thread_runtime_has_the_time_of_the_system() {
    within_patience(|| {
        // Tokio reads the clock of each runtime once a test of the process has paused one.
        current_thread(true).block_on(async { time::advance(FAR).await });
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        let task = runtime.spawn(async {
            let before = std::time::Instant::now();
            let now = Instant::now().into_std();
            assert!(before <= now && now <= std::time::Instant::now());
            time::sleep(ms(3)).await;
            assert!(before.elapsed() >= ms(3));
            assert!(time::timeout(ms(3), pending::<()>()).await.is_err());
            assert!(before.elapsed() >= ms(6));
        });
        runtime.block_on(task).unwrap();
    });
}

#[tokio::test(start_paused = true)]
async fn local_tasks_follow_the_paused_clock() {
    let begin = Instant::now();
    let waits = async { time::timeout(ms(100), spawn_local(time::sleep(FAR))).await };
    assert!(LocalSet::new().run_until(waits).await.is_err());
    assert_eq!(begin.elapsed(), ms(100));
}

#[test]
fn sleep_that_is_made_without_a_runtime_follows_the_clock_of_its_poll() {
    let slept = time::sleep(FAR);
    let deadline = slept.deadline();
    current_thread(true).block_on(async {
        slept.await;
        assert!(Instant::now() >= deadline);
    });
    assert!(std::time::Instant::now() < deadline.into_std());
}

#[test]
fn sleep_that_outlives_its_runtime_ends_in_another_one_or_in_none() {
    within_patience(|| {
        for is_paused in [false, true] {
            let runtime = current_thread(is_paused);
            let mut slept = [ms(40), FAR].map(|after| Box::pin(time::sleep(after)));
            runtime.block_on(async {
                for slept in &mut slept {
                    assert!(look(slept.as_mut()).await.is_pending());
                }
            });
            drop(runtime);
            let [soon, far] = slept;
            let deadline = soon.deadline();
            block_on(soon);
            assert!(Instant::now() >= deadline);
            current_thread(true).block_on(far);
        }
    });
}

#[tokio::test(start_paused = true)]
async fn reset_on_another_thread_wakes_the_task_of_a_paused_runtime() {
    let begin = Instant::now();
    let mut slept = Box::pin(time::sleep(2 * FAR));
    assert!(look(slept.as_mut()).await.is_pending());
    let reset = move || {
        slept.as_mut().reset(begin + FAR);
        slept
    };
    let reset = spawn_blocking(move || thread::spawn(reset).join().unwrap());
    reset.await.unwrap().await;
    assert_eq!(begin.elapsed(), FAR);
}

#[test]
fn sleep_in_a_paused_runtime_without_timers_panics_as_that_of_tokio() {
    let runtime = Builder::new_current_thread().start_paused(true).build().unwrap();
    let poll = |sleep: Pin<&mut dyn Future<Output = ()>>| {
        let polled = catch_unwind(AssertUnwindSafe(|| {
            runtime.block_on(async { look(sleep).await.is_ready() })
        }));
        polled.unwrap_err().downcast_ref::<String>().cloned()
    };
    let expected = poll(pin!(async { tokio::time::sleep(FAR).await }));
    assert!(expected.as_ref().is_some_and(|text| text.contains("enable_time")), "{expected:?}");
    assert_eq!(poll(pin!(time::sleep(FAR))), expected);
    assert_eq!(poll(pin!(async { time::sleep(FAR).await })), expected);
}

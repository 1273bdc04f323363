//! Sleeps for which the service has no timer: a shard is full, or the service has ended.

use std::future::{pending, ready};
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use corewheel::fallback::InfallibleSleep;
use corewheel::time::{self, Instant, Sleep};
use corewheel::{ShutdownPolicy, TimerService};
use corewheel_test_support::child::in_own_process;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::own_process::refuse_threads;
use crate::{Alarm, FAR, block_on, check_not_early, ms, poll, wait_until};

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).build().unwrap()
}

/// Sets a service whose only shard has room for one timer.
fn set_small_service() -> TimerService {
    let service = TimerService::beside_runtime().shards(1).capacity(1).start().unwrap();
    time::set_service(&service).unwrap();
    service
}

/// Sets such a service, beside a sleep that holds its only slot.
fn full_service() -> (TimerService, Sleep) {
    let service = set_small_service();
    loop {
        let before = InfallibleSleep::fallback_count();
        let mut sleep = time::sleep(FAR);
        // Until the lane to the shard is open, the sleep waits. It may be refused once.
        while InfallibleSleep::fallback_count() == before {
            assert!(poll(&mut sleep, Waker::noop()).is_pending());
            thread::sleep(ms(1));
            if service.stats().shards[0].counts.pending > 0 {
                return (service, sleep);
            }
        }
    }
}

/// A sleep that the fallback thread keeps, with a far deadline.
fn kept(waker: &Waker) -> Sleep {
    let before = InfallibleSleep::fallback_count();
    let mut sleep = time::sleep(FAR);
    poll_until_kept(&mut sleep, before + 1);
    assert!(poll(&mut sleep, waker).is_pending());
    assert_eq!(InfallibleSleep::fallback_count(), before + 1);
    sleep
}

/// Polls a sleep until its shard, which is asked for room first, has refused it.
fn poll_until_kept(sleep: &mut Sleep, count: u64) {
    wait_until(|| {
        assert!(poll(sleep, Waker::noop()).is_pending());
        InfallibleSleep::fallback_count() == count
    });
}

/// Resets a sleep to a near deadline, which it returns.
fn reset_to_near(sleep: &mut Sleep) -> Instant {
    let deadline = Instant::now() + ms(5);
    Pin::new(sleep).reset(deadline);
    deadline
}

async fn sleep_not_early(time: Duration) {
    let sleep = time::sleep(time);
    let deadline = sleep.deadline();
    sleep.await;
    check_not_early(deadline);
}

/// Sleeps, timeouts and ticks of many tasks.
fn spawn_all(tasks: &mut JoinSet<()>, runtime: &Runtime) {
    for number in 0..200 {
        let time = ms(number % 60);
        tasks.spawn_on(sleep_not_early(time), runtime.handle());
        let elapses = async move {
            let deadline = Instant::now() + time;
            assert!(time::timeout_at(deadline, pending::<()>()).await.is_err());
            check_not_early(deadline);
            assert_eq!(time::timeout(FAR, ready(7)).await, Ok(7));
            let value = time::timeout(FAR, sleep_not_early(ms(1))).await;
            assert_eq!(value, Ok(()));
        };
        tasks.spawn_on(elapses, runtime.handle());
        let ticks = async move {
            let mut interval = time::interval(ms(5));
            let first = interval.tick().await;
            for count in 1..5 {
                let due = interval.tick().await;
                assert_eq!(due, first + ms(5) * count);
                check_not_early(due);
            }
        };
        tasks.spawn_on(ticks, runtime.handle());
    }
}

fn wait_for_all(mut tasks: JoinSet<()>, runtime: &Runtime) {
    runtime.block_on(async {
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    });
}

#[test]
fn full_shard_keeps_every_deadline() {
    in_own_process("fallback::full_shard_keeps_every_deadline", || {
        let service = set_small_service();
        let (runtime, mut tasks) = (multi_thread(), JoinSet::new());
        spawn_all(&mut tasks, &runtime);
        wait_for_all(tasks, &runtime);
        let count = InfallibleSleep::fallback_count();
        assert!(count > 0);
        wait_until(|| service.stats().shards[0].counts.refused >= count);
    });
}

#[test]
fn kept_sleep_is_reset_and_wakes_its_last_waker() {
    in_own_process("fallback::kept_sleep_is_reset_and_wakes_its_last_waker", || {
        let (_service, slot) = full_service();
        let before = InfallibleSleep::fallback_count();
        let (first, first_waker) = Alarm::new();
        let (last, last_waker) = Alarm::new();
        let mut sleep = kept(&first_waker);
        assert!(poll(&mut sleep, &last_waker).is_pending());
        drop(first_waker);
        assert_eq!(Arc::strong_count(&first), 1, "a waker that was replaced is held");

        // To earlier, to later and to earlier, without a poll.
        Pin::new(&mut sleep).reset(Instant::now() + FAR / 2);
        Pin::new(&mut sleep).reset(Instant::now() + FAR);
        assert!(!sleep.is_elapsed());
        let deadline = reset_to_near(&mut sleep);
        last.wait();
        check_not_early(deadline);
        assert!(sleep.is_elapsed());
        assert!(poll(&mut sleep, &last_waker).is_ready());
        assert!(poll(&mut sleep, &last_waker).is_ready());
        assert_eq!((first.count(), last.count()), (0, 1));
        assert_eq!(InfallibleSleep::fallback_count(), before + 1);

        // After its end it asks the shard, and is kept again.
        Pin::new(&mut sleep).reset(Instant::now() + FAR);
        assert!(!sleep.is_elapsed());
        poll_until_kept(&mut sleep, before + 2);
        assert!(poll(&mut sleep, &last_waker).is_pending());
        let deadline = reset_to_near(&mut sleep);
        block_on(sleep);
        check_not_early(deadline);
        drop(slot);
    });
}

#[test]
fn kept_sleep_that_is_dropped_releases_its_waker() {
    in_own_process("fallback::kept_sleep_that_is_dropped_releases_its_waker", || {
        let (_service, slot) = full_service();
        let (alarm, waker) = Alarm::new();
        let (dropped, mut remains) = (kept(&waker), kept(&waker));
        assert_eq!(Arc::strong_count(&alarm), 4);
        drop(dropped);
        assert_eq!(Arc::strong_count(&alarm), 3);
        let deadline = reset_to_near(&mut remains);
        alarm.wait();
        check_not_early(deadline);
        assert_eq!(alarm.count(), 1);
        drop((remains, slot));
    });
}

#[test]
fn kept_sleep_that_is_reset_asks_the_shard_at_its_next_poll() {
    in_own_process("fallback::kept_sleep_that_is_reset_asks_the_shard_at_its_next_poll", || {
        let (service, slot) = full_service();
        let (alarm, waker) = Alarm::new();
        let mut sleep = kept(&waker);
        let counts = || service.stats().shards[0].counts;
        // While the shard is full, the thread keeps the sleep, and does not count it again.
        let before = (InfallibleSleep::fallback_count(), counts().refused);
        wait_until(|| {
            Pin::new(&mut sleep).reset(Instant::now() + FAR);
            assert!(poll(&mut sleep, &waker).is_pending());
            counts().refused > before.1
        });
        assert_eq!(InfallibleSleep::fallback_count(), before.0);
        drop(slot);
        let before = counts().scheduled_remote;
        wait_until(|| {
            Pin::new(&mut sleep).reset(Instant::now() + FAR);
            assert!(poll(&mut sleep, &waker).is_pending());
            counts().scheduled_remote > before
        });
        let deadline = reset_to_near(&mut sleep);
        alarm.wait();
        block_on(sleep);
        check_not_early(deadline);
    });
}

#[test]
fn waker_that_panics_does_not_end_the_fallback_thread() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("expected");
        }
    }
    in_own_process("fallback::waker_that_panics_does_not_end_the_fallback_thread", || {
        let (_service, slot) = full_service();
        let mut panics = kept(&Waker::from(Arc::new(Panics)));
        let (alarm, waker) = Alarm::new();
        let mut later = kept(&waker);
        reset_to_near(&mut panics);
        wait_until(|| panics.is_elapsed());
        reset_to_near(&mut later);
        alarm.wait();
        drop((panics, later, slot));
    });
}

#[test]
fn service_that_ends_leaves_every_deadline_kept() {
    in_own_process("fallback::service_that_ends_leaves_every_deadline_kept", || {
        let service = TimerService::beside_runtime().shards(1).start().unwrap();
        time::set_service(&service).unwrap();
        let (runtime, mut tasks) = (multi_thread(), JoinSet::new());
        spawn_all(&mut tasks, &runtime);
        let (alarm, waker) = Alarm::new();
        let mut waits = time::sleep(FAR);
        wait_until(|| {
            assert!(poll(&mut waits, &waker).is_pending());
            service.stats().shards[0].counts.scheduled_remote > 10
        });
        assert_eq!(InfallibleSleep::fallback_count(), 0);
        let before = alarm.count();
        service.shutdown(ShutdownPolicy::Drop).unwrap();
        wait_until(|| alarm.count() > before);
        assert!(poll(&mut waits, &waker).is_pending());
        assert!(InfallibleSleep::fallback_count() > 0);
        let deadline = reset_to_near(&mut waits);
        block_on(waits);
        check_not_early(deadline);
        // On threads that know the service, and on threads that do not.
        spawn_all(&mut tasks, &runtime);
        let fresh = multi_thread();
        spawn_all(&mut tasks, &fresh);
        wait_for_all(tasks, &runtime);
    });
}

#[test]
fn sleep_without_a_timer_and_a_thread_is_polled_until_its_deadline() {
    const NAME: &str = "fallback::sleep_without_a_timer_and_a_thread_is_polled_until_its_deadline";
    in_own_process(NAME, || {
        let service = set_small_service();
        service.shutdown(ShutdownPolicy::Drop).unwrap();
        let (may_sleep, sleeps) = mpsc::channel();
        let other = thread::spawn(move || {
            sleeps.recv().unwrap();
            wait_until(|| {
                block_on(sleep_not_early(ms(5)));
                InfallibleSleep::fallback_count() > 0
            });
        });
        refuse_threads();
        block_on(sleep_not_early(ms(10)));
        assert_eq!(InfallibleSleep::fallback_count(), 0);
        let (alarm, waker) = Alarm::new();
        let mut sleep = time::sleep(FAR);
        assert!(poll(&mut sleep, &waker).is_pending());
        assert_eq!(alarm.count(), 1, "the task is not woken to try again");
        drop(waker);
        assert_eq!(Arc::strong_count(&alarm), 1);
        // A thread that can start others starts the fallback thread.
        may_sleep.send(()).unwrap();
        other.join().unwrap();
    });
}

//! `corewheel::time` where tokio has no counterpart: without a runtime.

use std::cell::RefCell;
use std::future::pending;
use std::pin::{Pin, pin};
use std::sync::mpsc;
use std::task::Waker;
use std::thread;

use corewheel::fallback::InfallibleSleep;
use corewheel::time::{self, Instant, MissedTickBehavior};
use corewheel_test_support::child::in_own_process;
use tokio::runtime::Builder;

use crate::{FAR, block_on, check_not_early, look, ms, poll, within_patience};

async fn check_sleeps_timeouts_and_ticks() {
    let begin = Instant::now();
    time::sleep(ms(3)).await;
    check_not_early(begin + ms(3));
    let mut sleep = pin!(time::sleep(FAR));
    assert!(look(sleep.as_mut()).await.is_pending());
    let deadline = Instant::now() + ms(3);
    sleep.as_mut().reset(deadline);
    sleep.await;
    check_not_early(deadline);
    assert!(time::timeout(ms(3), pending::<()>()).await.is_err());
    check_not_early(deadline + ms(3));
    assert_eq!(time::timeout(FAR, async { 7 }).await, Ok(7));
    let mut ticks = time::interval(ms(2));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let first = ticks.tick().await;
    assert!(ticks.tick().await >= first + ms(2));
}

#[test]
fn sleeps_timeouts_and_ticks_work_without_a_runtime_and_on_one_without_timers() {
    within_patience(|| {
        block_on(check_sleeps_timeouts_and_ticks());
        Builder::new_current_thread().build().unwrap().block_on(check_sleeps_timeouts_and_ticks());
    });
}

#[test]
fn sleep_of_a_handle_takes_an_instant_of_the_standard_library() {
    let begin = Instant::now();
    assert_eq!(block_on(time::handle().sleep(begin.into_std() + ms(3))), Ok(()));
    check_not_early(begin + ms(3));
}

/// Runs a function when its thread ends.
struct AtTheEnd(Box<dyn FnMut()>);

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        self.0();
    }
}

thread_local! {
    static LAST: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
}

#[test]
fn sleep_that_is_reset_while_its_thread_ends_keeps_its_deadline_and_its_timer() {
    const NAME: &str =
        "beyond::sleep_that_is_reset_while_its_thread_ends_keeps_its_deadline_and_its_timer";
    in_own_process(NAME, || {
        let (sender, was_done) = mpsc::channel();
        let thread = thread::spawn(move || {
            // Its destructor is registered first, and so runs after that of the thread's table of
            // services.
            LAST.with(|last| assert!(last.borrow().is_none()));
            let mut sleep = time::sleep(FAR);
            assert!(poll(&mut sleep, Waker::noop()).is_pending());
            LAST.set(Some(AtTheEnd(Box::new(move || {
                Pin::new(&mut sleep).reset(Instant::now() + ms(5));
                block_on(&mut sleep);
                sender.send((sleep.deadline(), Instant::now())).unwrap();
            }))));
        });
        let (deadline, done) = was_done.recv().unwrap();
        thread.join().unwrap();
        assert!(done >= deadline, "{:?} early", deadline - done);
        assert_eq!(InfallibleSleep::fallback_count(), 0, "the service is there");
    });
}

/// When the clock of the default service began.
fn epoch_of_service() -> Instant {
    let long_ago = std::time::Instant::now().checked_sub(FAR).unwrap();
    // A time before is rounded up to it.
    time::handle().sleep(long_ago).deadline().unwrap().into()
}

#[test]
fn first_sleep_of_a_process_counts_from_when_its_service_is_there() {
    const NAME: &str = "beyond::first_sleep_of_a_process_counts_from_when_its_service_is_there";
    in_own_process(NAME, || {
        let sleep = time::sleep(ms(2));
        assert!(sleep.deadline() >= epoch_of_service() + ms(2));
        block_on(sleep);
    });
}

#[test]
fn first_interval_of_a_process_counts_from_when_its_service_is_there() {
    const NAME: &str = "beyond::first_interval_of_a_process_counts_from_when_its_service_is_there";
    in_own_process(NAME, || {
        let mut ticks = time::interval(ms(10));
        let first = block_on(ticks.tick());
        assert!(first >= epoch_of_service());
        for count in 1..4 {
            let due = block_on(ticks.tick());
            assert_eq!(due, first + ms(10) * count);
            check_not_early(due);
        }
    });
}

#[test]
fn sleep_that_is_made_while_its_thread_ends_keeps_its_deadline() {
    let (sender, made) = mpsc::channel();
    let thread = thread::spawn(move || {
        // Its destructor is registered first, and so runs after that of the thread's table of
        // services.
        LAST.set(Some(AtTheEnd(Box::new(move || sender.send(time::sleep(ms(5))).unwrap()))));
        block_on(time::sleep(ms(1)));
    });
    let sleep = made.recv().unwrap();
    thread.join().unwrap();
    let deadline = sleep.deadline();
    block_on(sleep);
    check_not_early(deadline);
}

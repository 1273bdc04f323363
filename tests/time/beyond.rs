//! `corewheel::time` where tokio has no counterpart: without a runtime.

use std::cell::RefCell;
use std::future::pending;
use std::pin::{Pin, pin};
use std::sync::mpsc::{self, Sender};
use std::task::Waker;
use std::thread;

use corewheel::fallback::InfallibleSleep;
use corewheel::time::{self, Instant, MissedTickBehavior, Sleep};
use tokio::runtime::Builder;

use crate::own_process::in_own_process;
use crate::{FAR, block_on, look, ms, poll_with, within_patience};

#[test]
fn sleeps_timeouts_and_ticks_work_without_a_runtime() {
    within_patience(|| {
        let begin = Instant::now();
        block_on(time::sleep(ms(3)));
        assert!(begin.elapsed() >= ms(3));
        block_on(async {
            let mut sleep = pin!(time::sleep(FAR));
            assert!(look(sleep.as_mut()).await.is_pending());
            let deadline = Instant::now() + ms(3);
            sleep.as_mut().reset(deadline);
            sleep.await;
            assert!(Instant::now() >= deadline);
            assert!(time::timeout(ms(3), pending::<()>()).await.is_err());
            assert_eq!(time::timeout(FAR, async { 7 }).await, Ok(7));
            let mut ticks = time::interval(ms(2));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let first = ticks.tick().await;
            assert!(ticks.tick().await >= first + ms(2));
        });
    });
}

#[test]
fn sleeps_work_on_a_runtime_without_timers() {
    within_patience(|| {
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let begin = Instant::now();
            time::sleep(ms(3)).await;
            assert!(begin.elapsed() >= ms(3));
            assert!(time::timeout(ms(3), pending::<()>()).await.is_err());
            assert!(begin.elapsed() >= ms(6));
        });
    });
}

#[test]
fn sleep_of_a_handle_takes_an_instant_of_the_standard_library() {
    let begin = Instant::now();
    within_patience(move || {
        assert_eq!(block_on(time::handle().sleep(begin.into_std() + ms(3))), Ok(()));
        assert!(begin.elapsed() >= ms(3));
    });
}

/// Resets a sleep to a near deadline when its thread ends, and waits for it.
struct ResetsAtTheEnd(Sleep, Sender<(Instant, Instant)>);

impl Drop for ResetsAtTheEnd {
    fn drop(&mut self) {
        let Self(sleep, told) = self;
        Pin::new(&mut *sleep).reset(Instant::now() + ms(5));
        block_on(&mut *sleep);
        told.send((sleep.deadline(), Instant::now())).unwrap();
    }
}

#[test]
fn sleep_that_is_reset_while_its_thread_ends_keeps_its_deadline_and_its_timer() {
    thread_local! {
        static LAST: RefCell<Option<ResetsAtTheEnd>> = const { RefCell::new(None) };
    }
    const NAME: &str =
        "beyond::sleep_that_is_reset_while_its_thread_ends_keeps_its_deadline_and_its_timer";
    in_own_process(NAME, || {
        let (sender, was_done) = mpsc::channel();
        let thread = thread::spawn(move || {
            // Its destructor is registered first, and so runs after that of the thread's table of
            // services.
            LAST.with(|last| assert!(last.borrow().is_none()));
            let mut sleep = time::sleep(FAR);
            assert!(poll_with(Pin::new(&mut sleep), Waker::noop()).is_pending());
            LAST.set(Some(ResetsAtTheEnd(sleep, sender)));
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
            assert!(Instant::now() >= due);
        }
    });
}

/// Makes a sleep when its thread ends, and sends it to the test.
struct SleepsAtTheEnd(Sender<Sleep>);

impl Drop for SleepsAtTheEnd {
    fn drop(&mut self) {
        self.0.send(time::sleep(ms(5))).unwrap();
    }
}

#[test]
fn sleep_that_is_made_while_its_thread_ends_keeps_its_deadline() {
    thread_local! {
        static LAST: RefCell<Option<SleepsAtTheEnd>> = const { RefCell::new(None) };
    }
    within_patience(|| {
        let (sender, made) = mpsc::channel();
        let thread = thread::spawn(move || {
            // Its destructor is registered first, and so runs after that of the thread's table of
            // services.
            LAST.set(Some(SleepsAtTheEnd(sender)));
            block_on(time::sleep(ms(1)));
        });
        let sleep = made.recv().unwrap();
        thread.join().unwrap();
        let deadline = sleep.deadline();
        block_on(sleep);
        assert!(Instant::now() >= deadline);
    });
}

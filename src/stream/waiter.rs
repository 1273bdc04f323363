//! A task that waits for an event of the connection's timers, and looks when one may have come.

use std::task::Waker;

use crate::link::sync::{AtomicBool, MaybeWaker, Ordering};

pub(super) struct Waiter {
    task: MaybeWaker,
    /// The connection's timer may have expired since the task last looked.
    is_woken: AtomicBool,
}

impl Waiter {
    pub(super) fn new() -> Self {
        // The connection may be closed from the beginning.
        Self { task: MaybeWaker::new(), is_woken: AtomicBool::new(true) }
    }

    /// The connection's timer has expired, or the stream has ended.
    pub(super) fn wake(&self) {
        // Relaxed: the flag carries no data. A task is registered before it looks, so it sees the
        // flag, or is woken.
        self.is_woken.store(true, Ordering::Relaxed);
        self.task.wake();
    }

    /// Registers the task that waits. True if the timer may have expired.
    pub(super) fn register(&self, waker: &Waker) -> bool {
        self.task.register(waker);
        // Relaxed: see `wake`. The task looks after this, so that a store between these two is not
        // lost.
        let is_woken = self.is_woken.load(Ordering::Relaxed);
        if is_woken {
            self.is_woken.store(false, Ordering::Relaxed);
        }
        is_woken
    }

    /// The next task that waits looks, whether the timer expires or not.
    pub(super) fn look_again(&self) {
        // Relaxed: see `wake`.
        self.is_woken.store(true, Ordering::Relaxed);
    }
}

#[cfg(all(test, corewheel_loom))]
mod loom_tests {
    use std::sync::{Arc, OnceLock};
    use std::task::Wake;

    use loom::thread;

    use super::*;
    use crate::link::loom_tests::check;

    struct Alarm(OnceLock<()>);

    impl Wake for Alarm {
        fn wake(self: Arc<Self>) {
            let _ = self.0.set(());
        }
    }

    #[test]
    fn task_that_waits_sees_that_the_timer_has_expired_or_is_woken() {
        check(|| {
            let waiter = Arc::new(Waiter::new());
            // The connection may be closed from the beginning; it is not.
            assert!(waiter.register(Waker::noop()));
            let timer = Arc::clone(&waiter);
            let thread = thread::spawn(move || timer.wake());
            let alarm = Arc::new(Alarm(OnceLock::new()));
            let is_seen = waiter.register(&Waker::from(Arc::clone(&alarm)));
            thread.join().unwrap();
            assert!(is_seen || alarm.0.get().is_some(), "the task waits for ever");
        });
    }
}

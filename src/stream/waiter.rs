//! A task that waits for an event of the connection's timers, and looks when one may have come.

use std::mem;
use std::sync::PoisonError;
use std::task::Waker;

use crate::link::sync::{AtomicBool, Mutex, MutexGuard, Ordering};

/// The waker of a task that waits for a flag. A task that polls again registers its waker only if
/// it is another one, or if the task was woken since.
///
/// Why not `atomic-waker`: a registration and a wake-up at the same time leave its cell empty, and
/// the task does not learn that it has to register again.
///
/// Invariants: no code of a waker runs under the lock. Relaxed suffices for the flag, which carries
/// no other data: a task that registers before the waker is taken is woken, and one that registers
/// after that sees the flag.
#[derive(Default)]
pub(super) struct TaskWaker(Mutex<Option<Waker>>);

impl TaskWaker {
    fn lock(&self) -> MutexGuard<'_, Option<Waker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn replace(&self, waker: Option<Waker>) -> Option<Waker> {
        mem::replace(&mut *self.lock(), waker)
    }

    /// Whether the task that is registered has this waker.
    pub(super) fn is_of(&self, waker: &Waker) -> bool {
        is_same(self.lock().as_ref(), waker)
    }

    /// Registers a task that does not see the flag. `registered` is the waker that it has
    /// registered last; `None` when it has seen the flag since.
    #[inline]
    pub(super) fn register_once(&self, registered: &mut Option<Waker>, waker: &Waker) {
        if !is_same(registered.as_ref(), waker) {
            // Most tasks wait with the waker that they had before.
            if !self.is_of(waker) {
                drop(self.replace(Some(waker.clone())));
            }
            *registered = Some(waker.clone());
        }
    }

    /// Raises the flag and wakes the task. The flag is raised again after the waker was taken, so
    /// that a task that has lowered it in between registers again.
    pub(super) fn wake(&self, raise: impl Fn()) {
        raise();
        let waker = self.replace(None);
        raise();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

fn is_same(registered: Option<&Waker>, waker: &Waker) -> bool {
    registered.is_some_and(|last| last.will_wake(waker))
}

pub(super) struct Waiter {
    task: TaskWaker,
    /// The connection's timer may have expired since the task last looked.
    is_woken: AtomicBool,
}

impl Waiter {
    pub(super) fn new() -> Self {
        // The connection may be closed from the beginning.
        Self { task: TaskWaker::default(), is_woken: AtomicBool::new(true) }
    }

    /// The connection's timer has expired, or the stream has ended.
    pub(super) fn wake(&self) {
        self.task.wake(|| self.look_again());
    }

    /// Registers the task that waits, unless it has registered this waker last and was not woken
    /// since. True if the timer may have expired.
    #[inline]
    pub(super) fn register_once(&self, registered: &mut Option<Waker>, waker: &Waker) -> bool {
        let was_woken = self.is_woken();
        if was_woken {
            // The flag is lowered first: a wake-up that takes this waker raises it again.
            self.is_woken.store(false, Ordering::Relaxed);
            *registered = None;
        }
        self.task.register_once(registered, waker);
        was_woken || self.is_woken()
    }

    fn is_woken(&self) -> bool {
        // Relaxed: see `TaskWaker`.
        self.is_woken.load(Ordering::Relaxed)
    }

    /// The next task that waits looks, whether the timer expires or not.
    pub(super) fn look_again(&self) {
        // Relaxed: see `TaskWaker`.
        self.is_woken.store(true, Ordering::Relaxed);
    }
}

#[cfg(all(test, corewheel_loom))]
pub(super) mod loom_tests {
    use std::sync::Arc;

    use corewheel_test_support::Alarm;
    use loom::thread;

    use super::*;
    use crate::link::loom_tests::check;

    #[test]
    fn task_that_has_registered_before_is_woken_for_each_expiry() {
        check(|| {
            let waiter = Arc::new(Waiter::new());
            let mut registered = None;
            let (alarm, waker) = Alarm::new();
            assert!(waiter.register_once(&mut registered, &waker));
            let timer = Arc::clone(&waiter);
            let thread = thread::spawn(move || timer.wake());
            // The task polls, for whatever reason.
            let is_seen = (0..2).any(|_| waiter.register_once(&mut registered, &waker));
            thread.join().unwrap();
            let is_woken = alarm.count() > 0;
            assert!(is_seen || is_woken, "the task waits for ever");
            if is_woken {
                waiter.register_once(&mut registered, &waker);
            }
            assert!(waiter.task.replace(None).is_some(), "no later expiry wakes the task");
        });
    }

    #[test]
    fn task_that_waits_sees_that_the_timer_has_expired_or_is_woken() {
        check(|| {
            let waiter = Arc::new(Waiter::new());
            // The connection may be closed from the beginning; it is not.
            assert!(waiter.register_once(&mut None, Waker::noop()));
            let timer = Arc::clone(&waiter);
            let thread = thread::spawn(move || timer.wake());
            let (alarm, waker) = Alarm::new();
            let is_seen = waiter.register_once(&mut None, &waker);
            thread.join().unwrap();
            assert!(is_seen || alarm.count() > 0, "the task waits for ever");
        });
    }
}

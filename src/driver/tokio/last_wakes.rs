//! The waker of a driver in a `LocalSet`, for threads that end.
//!
//! A `LocalSet` looks at a thread-local of tokio when it wakes a task, and panics where that is
//! destroyed already: in the destructor of an older thread-local. The task counts as woken then and
//! never runs again, and with it a shard and all its timers. So a thread that ends has another
//! thread wake the driver.
//!
//! Invariant: [`Lives`] is destroyed before the thread-local of tokio, since a thread destroys the
//! youngest first.
//!
//! Cost: a look at a thread-local for each wake-up, and a thread for each by a thread that ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(target_os = "linux")]
use std::task::{Context, Poll};
use std::task::{Wake, Waker};
use std::thread;

use tokio::task::LocalSet;

use crate::values::contain::attempt;

/// A thread has one until its thread-locals are destroyed.
struct Lives;

impl Lives {
    /// Has tokio make its thread-local first.
    fn after_tokio() -> Self {
        drop(LocalSet::new().enter());
        Self
    }
}

impl Drop for Lives {
    // With a destructor the thread-local is destroyed at a moment of its own.
    fn drop(&mut self) {}
}

thread_local! {
    static LIVES: Lives = Lives::after_tokio();
}

/// Whether the thread-local of tokio may be destroyed. If this is the first look of a thread that
/// ends, only a panic of tokio tells that.
fn thread_ends() -> bool {
    !attempt(|| LIVES.try_with(|_| ()).is_ok()).unwrap_or(false)
}

/// Wakes the task of a driver from any thread.
struct FromAnyThread {
    driver: Waker,
    /// Whether it has woken the task, and the driver has not asked since. Relaxed: the flag carries
    /// no other data, and is raised before the task is woken.
    has_woken: AtomicBool,
}

impl Wake for FromAnyThread {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.has_woken.store(true, Ordering::Relaxed);
        if !thread_ends() {
            return self.driver.wake_by_ref();
        }
        let driver = self.driver.clone();
        let wakes = thread::Builder::new().name("corewheel-wake".into());
        if let Err(error) = wakes.spawn(move || driver.wake()) {
            tracing::error!(
                name: "driver-not-woken",
                target: "corewheel::driver",
                %error,
                "a thread that ends cannot wake a shard in a `LocalSet`: the system refuses the \
                 thread that would do it; raise the limit of threads"
            );
        }
    }
}

/// The waker of a driver's task, made anew when the task's own has changed.
#[derive(Default)]
pub(super) struct LastWakes(Option<(Arc<FromAnyThread>, Waker)>);

impl LastWakes {
    /// A waker that wakes what `task` wakes, from any thread.
    pub(super) fn of(&mut self, task: &Waker) -> &Waker {
        // A waker that the task is polled with may have another table of functions than its clones,
        // which `will_wake` takes for a difference.
        let driver = task.clone();
        self.0.take_if(|(known, _)| !known.driver.will_wake(&driver));
        let make = || {
            let wakes = FromAnyThread { driver, has_woken: AtomicBool::new(true) };
            let wakes = Arc::new(wakes);
            (Arc::clone(&wakes), Waker::from(wakes))
        };
        &self.0.get_or_insert_with(make).1
    }

    /// Polls what wakes the task by the waker that [`of`](Self::of) has returned last, unless it
    /// was pending and has not woken since.
    #[cfg(target_os = "linux")]
    pub(super) fn poll(&self, poll: impl FnOnce(&mut Context<'_>) -> Poll<()>) -> Poll<()> {
        let Some((known, waker)) = &self.0 else { return Poll::Pending };
        if !known.has_woken.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        // Lowered first: what wakes the task from here on raises it again.
        known.has_woken.store(false, Ordering::Relaxed);
        let polled = poll(&mut Context::from_waker(waker));
        if polled.is_ready() {
            known.has_woken.store(true, Ordering::Relaxed);
        }
        polled
    }
}

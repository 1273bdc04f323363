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
struct FromAnyThread(Waker);

impl Wake for FromAnyThread {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !thread_ends() {
            return self.0.wake_by_ref();
        }
        let driver = self.0.clone();
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
pub(super) struct LastWakes(Option<(Waker, Waker)>);

impl LastWakes {
    /// A waker that wakes what `task` wakes, from any thread.
    pub(super) fn of(&mut self, task: &Waker) -> &Waker {
        if !self.0.as_ref().is_some_and(|(known, _)| known.will_wake(task)) {
            self.0 = None;
        }
        let make = || (task.clone(), Waker::from(Arc::new(FromAnyThread(task.clone()))));
        &self.0.get_or_insert_with(make).1
    }
}

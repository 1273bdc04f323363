//! Wakes an executor again that may sleep with tasks that are ready to run.
//!
//! Glommio goes to sleep when it has run no task, also where its preempt timer has gone off before
//! the first of them. For that, the thread must lose its cpu between two steps of glommio for the
//! period of that timer. A container with a quota of cpu time does that to it. The executor then
//! sleeps until something else wakes it. Glommio has mended that (pull request 53 of
//! `glommio/glommio`), and no release has it. This file goes when one does.
//!
//! So each wake-up of a driver, and of a future that was spawned from outside, leaves a mark. A
//! thread of the process wakes the driver of a marked executor a second later, and once a second
//! until it runs. Then a task behind all that are ready removes the mark: the executor may go to
//! sleep once more between the driver and what was woken.
//!
//! Not woken again: the first task of an executor, before there is a driver, and a task that was
//! spawned by glommio itself, unless something else of its executor was woken.
//!
//! Why not by a timer in each executor: one that has nothing to do would wake once a second. It
//! could not be set when it is needed, either, as no task runs then.
//!
//! Cost: a load for each wake-up. In a second in which an executor was woken, it is woken once
//! more, and so is the thread. A second in which nothing is woken costs nothing.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

/// How long an executor has to run what was woken, before it is woken again.
const PATIENCE: Duration = Duration::from_secs(1);

const NO: u8 = 0;
/// A task was woken.
const WOKEN: u8 = 1;
/// The driver was woken again, and has not run since.
const AGAIN: u8 = 2;
/// The driver has run, and what was ready before may not have.
const RUNS: u8 = 3;

/// The mark of an executor.
///
/// Relaxed: [`Watch::is_asked`] hands it to the thread.
#[derive(Default)]
pub(crate) struct Mark {
    state: AtomicU8,
    /// The waker of the driver's task. None before its first sleep.
    driver: OnceLock<Waker>,
}

impl Mark {
    /// A waker that wakes a task of the executor, and leaves the mark.
    pub(crate) fn waker(self: &Arc<Self>, task: &Waker) -> Waker {
        Waker::from(Arc::new(Marking { mark: Arc::clone(self), task: task.clone() }))
    }

    /// After a task was woken.
    fn leave(&self) {
        if self.state.load(Ordering::Relaxed) != WOKEN {
            self.state.store(WOKEN, Ordering::Relaxed);
            WATCH.ask();
        }
    }

    /// The driver runs, as the task of this waker. True if it was woken again: then the caller
    /// spawns a task that [removes](Self::remove) the mark, behind all tasks that are ready.
    pub(crate) fn driver_runs(&self, driver: &Waker) -> bool {
        if self.driver.get().is_none() {
            let _is_first = self.driver.set(driver.clone());
        }
        self.state.load(Ordering::Relaxed) == AGAIN && self.replace(AGAIN, RUNS)
    }

    /// What was ready when the driver ran has run.
    pub(crate) fn remove(&self) {
        self.replace(RUNS, NO);
    }

    /// False if a mark was left in between, which stays.
    fn replace(&self, before: u8, after: u8) -> bool {
        let relaxed = Ordering::Relaxed;
        self.state.compare_exchange(before, after, relaxed, relaxed).is_ok()
    }

    fn is_left(&self) -> bool {
        self.state.load(Ordering::Relaxed) != NO
    }

    fn wake_driver(&self) {
        self.state.store(AGAIN, Ordering::Relaxed);
        if let Some(driver) = self.driver.get() {
            driver.wake_by_ref();
        }
    }
}

/// The waker of a task, with the mark of its executor.
struct Marking {
    mark: Arc<Mark>,
    task: Waker,
}

impl Wake for Marking {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.task.wake_by_ref();
        self.mark.leave();
    }
}

/// The mark of an executor that has a driver.
pub(crate) struct Watched(Arc<Mark>);

impl Watched {
    /// Without a thread, no executor is woken again.
    pub(crate) fn new() -> Self {
        let mark = Arc::new(Mark::default());
        let mut watched = WATCH.lock();
        watched.marks.push(Arc::clone(&mark));
        if watched.thread.is_none() {
            let named = thread::Builder::new().name("corewheel-again".to_owned());
            match named.spawn(|| WATCH.run()) {
                Ok(thread) => watched.thread = Some(thread.thread().clone()),
                Err(error) => tracing::warn!(
                    name: "not-woken-again",
                    target: "corewheel::glommio",
                    %error, "an executor that loses its cpu at the wrong moment may sleep for long"
                ),
            }
        }
        Self(mark)
    }
}

impl Deref for Watched {
    type Target = Arc<Mark>;

    fn deref(&self) -> &Arc<Mark> {
        &self.0
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut watched = WATCH.lock();
        watched.marks.retain(|mark| !Arc::ptr_eq(mark, &self.0));
        if watched.marks.is_empty() {
            watched.unpark();
        }
    }
}

/// What the thread looks at.
struct Watch {
    /// An executor was marked.
    is_asked: AtomicBool,
    watched: Mutex<All>,
}

struct All {
    marks: Vec<Arc<Mark>>,
    /// It parks while no executor is marked, and ends with the last driver.
    thread: Option<Thread>,
}

impl All {
    fn unpark(&self) {
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }
}

static WATCH: Watch = Watch {
    is_asked: AtomicBool::new(false),
    watched: Mutex::new(All { marks: Vec::new(), thread: None }),
};

impl Watch {
    fn lock(&self) -> MutexGuard<'_, All> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self) {
        // Release: pairs with the swap in `look`, which is followed by a look at the mark.
        if !self.is_asked.swap(true, Ordering::AcqRel) {
            self.lock().unpark();
        }
    }

    fn run(&self) {
        loop {
            while !self.is_asked.load(Ordering::Relaxed) {
                if self.is_over() {
                    return;
                }
                thread::park();
            }
            // An executor may be woken again too early, which does no harm.
            thread::park_timeout(PATIENCE);
            if self.is_over() {
                return;
            }
            self.look();
        }
    }

    fn is_over(&self) -> bool {
        let mut watched = self.lock();
        let is_over = watched.marks.is_empty();
        if is_over {
            watched.thread = None;
        }
        is_over
    }

    fn look(&self) {
        // Acquire: pairs with the swap in `ask`.
        self.is_asked.swap(false, Ordering::AcqRel);
        let mut left = self.lock().marks.clone();
        left.retain(|mark| mark.is_left());
        if !left.is_empty() {
            // In a second from now, without an `unpark`, which would end that second.
            self.is_asked.swap(true, Ordering::AcqRel);
        }
        for mark in left {
            mark.wake_driver();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_of_a_driver_that_was_woken_again_stays_until_what_was_ready_has_run() {
        let mark = Mark::default();
        mark.leave();
        assert!(!mark.driver_runs(Waker::noop()), "it was not woken again");
        assert!(mark.is_left());
        mark.wake_driver();
        assert!(mark.driver_runs(Waker::noop()));
        assert!(mark.is_left(), "the executor may sleep before what was ready runs");
        mark.remove();
        assert!(!mark.is_left());
    }

    #[test]
    fn mark_that_is_left_while_the_driver_runs_stays() {
        let mark = Mark::default();
        mark.leave();
        mark.wake_driver();
        assert!(mark.driver_runs(Waker::noop()));
        mark.leave();
        mark.remove();
        assert!(mark.is_left());
    }
}

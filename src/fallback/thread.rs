//! Deadlines of sleeps for which the service has no timer: one thread keeps them in an ordered map.
//!
//! Why not a poll of the sleep again and again: it takes a processor. Why not the timers of the
//! task's tokio runtime: there may be no runtime, or one without timers.
//!
//! The thread goes by the system's clock, whatever the clock of the service is.
//!
//! Invariants: an entry belongs to one sleep, which takes it out when it is dropped. No code of the
//! user runs while the map is locked.
//!
//! Cost: O(log n) and a lock for each sleep that is kept; no thread before the first of them, and a
//! thread that sleeps from then on.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::Instant;

use crate::values::contain;
use crate::values::ids::{LastServices, ServiceId};
use crate::values::refused::RefusedKind;

/// The deadline of a kept sleep, and its number.
type Key = (Instant, u64);

struct State {
    wakers: BTreeMap<Key, Waker>,
    /// How many sleeps were kept so far; the number of the next.
    count: u64,
    thread: Thread,
    /// The last services for which it was logged that they are gone.
    gone: LastServices,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Thread {
    NotStarted,
    /// The system has refused the thread, and that was logged.
    Refused,
    Runs,
}

static STATE: Mutex<State> = Mutex::new(State {
    wakers: BTreeMap::new(),
    count: 0,
    thread: Thread::NotStarted,
    gone: LastServices::new(),
});
/// The first deadline of the map has become earlier.
static IS_EARLIER: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Puts a waker into the map, and wakes the thread if it is due first.
    fn insert(&mut self, key: Key, waker: Waker) {
        if self.wakers.first_key_value().is_none_or(|(first, _)| key < *first) {
            IS_EARLIER.notify_one();
        }
        self.wakers.insert(key, waker);
    }
}

/// See [`InfallibleSleep::fallback_count`](super::InfallibleSleep::fallback_count).
pub(super) fn fallback_count() -> u64 {
    lock().count
}

/// The entry of a sleep, which is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Kept {
    key: Key,
    /// Whether the deadline was changed after the last poll of the sleep.
    pub(super) is_reset: bool,
}

impl Kept {
    /// Keeps a deadline that a service has refused, and wakes the waker then. `Err` with the waker
    /// if the system refuses the thread.
    pub(super) fn new(
        deadline: Instant,
        waker: Waker,
        service: ServiceId,
        refused: RefusedKind,
    ) -> Result<Self, Waker> {
        let mut state = lock();
        let before = state.thread;
        if before != Thread::Runs {
            let spawned = thread::Builder::new().name("timer-fallback".to_owned()).spawn(run);
            state.thread = if spawned.is_ok() { Thread::Runs } else { Thread::Refused };
        }
        let after = state.thread;
        let is_gone = refused == RefusedKind::Closed && state.gone.note(service);
        let kept = if after == Thread::Runs {
            let key = (deadline, state.count);
            state.count += 1;
            state.insert(key, waker);
            Ok(Self { key, is_reset: false })
        } else {
            Err(waker)
        };
        drop(state);
        if is_gone {
            log_gone(refused);
        }
        // One line for both is enough.
        if before != after && !(is_gone && after == Thread::Runs) {
            log(after, refused);
        }
        kept
    }

    /// Replaces the waker. `false` if the deadline has come and the waker was woken.
    pub(super) fn set_waker(&self, waker: Waker) -> bool {
        let mut state = lock();
        let Some(known) = state.wakers.get_mut(&self.key) else { return false };
        let unused = std::mem::replace(known, waker);
        drop(state);
        drop(unused);
        true
    }

    /// Changes the deadline. `false` if the former deadline has come and the waker was woken.
    pub(super) fn reset(&mut self, deadline: Instant) -> bool {
        let mut state = lock();
        let Some(waker) = state.wakers.remove(&self.key) else { return false };
        self.key.0 = deadline;
        self.is_reset = true;
        state.insert(self.key, waker);
        true
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let unused = lock().wakers.remove(&self.key);
        // The map is not locked any more.
        drop(unused);
    }
}

#[cold]
fn log_gone(refused: RefusedKind) {
    tracing::warn!(
        name: "service-gone",
        target: "corewheel::fallback",
        %refused,
        "the timer service of a sleep is gone; a thread keeps the deadlines of all its sleeps"
    );
}

#[cold]
fn log(thread: Thread, refused: RefusedKind) {
    if thread == Thread::Runs {
        tracing::warn!(
            name: "no-timer",
            target: "corewheel::fallback",
            %refused, "a shard has no timer for a sleep; a thread keeps the deadline"
        );
    } else {
        tracing::error!(
            name: "no-thread",
            target: "corewheel::fallback",
            %refused,
            "there is no timer and no thread for a sleep; its task is polled until the deadline"
        );
    }
}

/// Wakes each waker at its deadline.
fn run() {
    let mut state = lock();
    loop {
        let Some(first) = state.wakers.first_entry() else {
            state = IS_EARLIER.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let wait = first.key().0.saturating_duration_since(crate::clock::now());
        if wait.is_zero() {
            let waker = first.remove();
            drop(state);
            contain::each([waker], Waker::wake);
            state = lock();
        } else {
            let waited = IS_EARLIER.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

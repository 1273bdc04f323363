//! The wakers of futures that wait for room in a lane, or for a value that is kept on a shard,
//! oldest first, under a lock.
//!
//! ```text
//! thread                                owner, about to sleep
//! ------                                ---------------------
//! lock, append, is_some := true         sleeps_until := t
//! fence(SeqCst)                    ╲ ╱  fence(SeqCst)
//! read sleeps_until                ╱ ╲  read is_some
//! later? wake the owner                 true? another turn
//! ```
//!
//! So a waker is registered as a request is pushed, see [`super::wake_up`]: either the owner finds
//! it, or the thread finds that the owner sleeps. The closing of a lane treats it as a push too,
//! see [`super::lane`]: either the thread sees that the lane is closed, or the owner takes the
//! waker. In each turn the owner wakes as many futures as the thread has keys. An owner that holds
//! the others until the next tick has its next turn then, so a waker that comes meanwhile needs no
//! turn before.
//!
//! Why not one waker for a lane: a thread may be that of many tasks, each of which waits by itself.
//!
//! Cost: a turn loads the flag, which changes only when a future waits.

use core::task::Waker;
use std::collections::VecDeque;
use std::sync::PoisonError;

use super::sync::{AtomicBool, Mutex, Ordering};

/// The wakers of futures that wait for room.
pub(crate) struct Waiters {
    wakers: Mutex<VecDeque<Waker>>,
    /// Whether `wakers` is not empty. Written under the lock. It orders nothing, since the wakers
    /// are read under the lock.
    is_some: AtomicBool,
}

impl Waiters {
    pub(crate) fn new() -> Self {
        Self { wakers: Mutex::new(VecDeque::new()), is_some: AtomicBool::new(false) }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_some.load(Ordering::Relaxed)
    }

    /// The thread's column up to the fence. The thread must wake the owner next, as for a request.
    /// Returns a waker that is registered already, to be dropped with nothing borrowed.
    pub(crate) fn register(&self, waker: Waker) -> Option<Waker> {
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_some.store(true, Ordering::Relaxed);
        // A future that is polled again and again registers once.
        if wakers.back().is_some_and(|last| last.will_wake(&waker)) {
            return Some(waker);
        }
        wakers.push_back(waker);
        None
    }

    /// Takes the oldest wakers out, at most `max`. The caller must wake them, with nothing
    /// borrowed.
    #[cold]
    pub(crate) fn take(&self, max: usize) -> Vec<Waker> {
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        let count = wakers.len().min(max);
        let taken = wakers.drain(..count).collect();
        self.is_some.store(!wakers.is_empty(), Ordering::Relaxed);
        taken
    }
}

//! Where a lane's client leaves what does not fit into the ring: in order, behind a lock.
//!
//! ```text
//! client                                owner
//! ------                                -----
//! is it empty? onto the ring            is it empty? no:
//! else, or if the ring is full:           drain the ring
//!   lock, append, is_some := true         is the ring empty?
//!                                           lock, is_some := false, take
//! ```
//!
//! What is in the ring while something is here is older than it, as the client pushes nothing onto
//! the ring until the owner has come. So the owner takes what is here once it has found the ring
//! empty, by a look that comes after it has looked here.
//!
//! Neither side sleeps over it, nor is it lost when the lane closes: an append is a push, see
//! [`super::wake_up`] and [`super::lane`]. Apart, so that it can be model-checked with them.
//!
//! Cost: one load of a line that changes only when the ring has been full; the rest is rare.

use std::collections::VecDeque;
use std::sync::PoisonError;

use super::sync::{AtomicBool, Mutex, Ordering};

/// Requests that did not fit into the ring, oldest first.
#[derive(Debug)]
pub(crate) struct Overflow<R> {
    requests: Mutex<VecDeque<R>>,
    /// Written under the lock: set by the client, cleared by the owner.
    is_some: AtomicBool,
}

impl<R> Overflow<R> {
    pub(crate) fn new() -> Self {
        Self { requests: Mutex::new(VecDeque::new()), is_some: AtomicBool::new(false) }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // Acquire: pairs with the store in `append`, so that the owner that finds an overflow finds
        // all that was pushed into the ring before it.
        !self.is_some.load(Ordering::Acquire)
    }

    #[cold]
    pub(crate) fn append(&self, requests: impl IntoIterator<Item = R>) {
        let mut waiting = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.extend(requests);
        // Release: pairs with the load in `is_empty`.
        self.is_some.store(true, Ordering::Release);
    }

    #[cold]
    pub(crate) fn take(&self) -> VecDeque<R> {
        let mut waiting = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        // Relaxed: the client learns that the ring is free again, and nothing else.
        self.is_some.store(false, Ordering::Relaxed);
        std::mem::take(&mut *waiting)
    }
}

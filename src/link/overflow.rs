//! The queue beside a lane's ring: requests that did not fit into the ring, in order, under a lock.
//!
//! ```text
//! client                                owner
//! ------                                -----
//! overflow empty? push onto the ring    overflow empty? no:
//! else, or if the ring is full:           receive from the ring
//!   lock, append, is_some := true         is the ring empty?
//!                                           lock, is_some := false, take
//! ```
//!
//! While the overflow holds requests, the requests in the ring are older, because the client pushes
//! nothing onto the ring until the owner has taken the overflow. So the owner checks the overflow
//! first, then finds the ring empty, and only then takes the overflow.
//!
//! The wake-up protocol and the closing of a lane treat an append as a push, see [`super::wake_up`]
//! and [`super::lane`]. The overflow is a module of its own so that it can be model-checked with
//! these two.
//!
//! Cost: a request loads one cache line that changes only after the ring has been full.

use std::collections::VecDeque;
use std::sync::PoisonError;

use super::sync::{AtomicBool, Mutex, Ordering};

/// Requests that did not fit into the ring, oldest first.
#[derive(Debug)]
pub(crate) struct Overflow<R> {
    requests: Mutex<VecDeque<R>>,
    /// Whether `requests` is not empty. The client sets it and the owner clears it, both under the
    /// lock.
    is_some: AtomicBool,
}

impl<R> Overflow<R> {
    pub(crate) fn new() -> Self {
        Self { requests: Mutex::new(VecDeque::new()), is_some: AtomicBool::new(false) }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // Acquire: pairs with the store in `append`, so that an owner that finds an overflow also
        // finds all requests that were pushed onto the ring before it.
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
        // Relaxed: the client learns only that it may push onto the ring again.
        self.is_some.store(false, Ordering::Relaxed);
        std::mem::take(&mut *waiting)
    }
}

//! The queue beside a lane's ring: requests that did not fit into the ring, in order, under a lock;
//! and with them the larger ring that is to replace the ring.
//!
//! ```text
//! thread                                owner
//! ------                                -----
//! overflow empty? push onto the ring    overflow empty? no:
//! else, or if the ring is full:           receive from the ring
//!   lock, append, is_some := true         is the ring empty?
//!   drop the old ring's producer            lock, is_some := false, take
//! ```
//!
//! While the overflow holds requests, the requests in the ring are older, because the thread pushes
//! nothing onto a ring until the owner has taken the overflow. So the owner checks the overflow
//! first, then finds the ring empty, and only then takes the overflow, and the larger ring if there
//! is one. The larger ring is empty until then.
//!
//! A thread that makes a larger ring drops the producer of the old ring, which then looks as if the
//! thread were gone. It drops it after it has appended, so an owner that finds the old ring
//! abandoned finds the overflow.
//!
//! The wake-up protocol and the closing of a lane treat an append as a push, see [`super::wake_up`]
//! and [`super::lane`]. The overflow is a module of its own so that it can be model-checked with
//! these two.
//!
//! Cost: a request loads one cache line that changes only after the ring has been full.

use std::collections::VecDeque;
use std::sync::PoisonError;

use super::sync::{AtomicBool, Mutex, Ordering};

/// Requests `R` that did not fit into the ring, and the owner's end `E` of the next ring.
pub(crate) struct Overflow<R, E> {
    waiting: Mutex<Waiting<R, E>>,
    /// Whether requests wait. The thread sets it and the owner clears it, both under the lock.
    is_some: AtomicBool,
}

/// The contents of an overflow.
pub(crate) struct Waiting<R, E> {
    /// Oldest first.
    pub(crate) requests: VecDeque<R>,
    /// The owner's end of the ring that the thread uses from now on. `None` if the ring is not
    /// replaced.
    pub(crate) ring: Option<E>,
}

impl<R, E> Waiting<R, E> {
    fn new() -> Self {
        Self { requests: VecDeque::new(), ring: None }
    }
}

impl<R, E> Overflow<R, E> {
    pub(crate) fn new() -> Self {
        Self { waiting: Mutex::new(Waiting::new()), is_some: AtomicBool::new(false) }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // Acquire: pairs with the store in `append`, so that an owner that finds an overflow also
        // finds all requests that were pushed onto the ring before it.
        !self.is_some.load(Ordering::Acquire)
    }

    /// How many requests wait here.
    pub(crate) fn len(&self) -> usize {
        if self.is_empty() {
            return 0;
        }
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).requests.len()
    }

    /// Appends a request, and the ring that replaces the present one if there is one.
    #[cold]
    pub(crate) fn append(&self, request: R, ring: Option<E>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.requests.push_back(request);
        if ring.is_some() {
            waiting.ring = ring;
        }
        // Release: pairs with the load in `is_empty`. So a sender that pushes without a fence
        // between two requests keeps their order, too.
        self.is_some.store(true, Ordering::Release);
    }

    #[cold]
    pub(crate) fn take(&self) -> Waiting<R, E> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // Relaxed: the thread learns only that it may push onto its ring again.
        self.is_some.store(false, Ordering::Relaxed);
        std::mem::replace(&mut *waiting, Waiting::new())
    }
}

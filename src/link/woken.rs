//! The flag of a task that any thread can wake: set by its wakers, taken by its owner before it
//! handles them.
//!
//! Why not a plain store by the wakers: of two wakers that come one after the other, the owner
//! would read the word of the second only, and might not see the event of the first. The swap of
//! the second waker passes on what the first one has released.

use super::sync::{AtomicBool, Ordering};

/// Whether a task was woken since its owner last handled that.
#[derive(Debug)]
pub(crate) struct WokenFlag(AtomicBool);

impl WokenFlag {
    pub(crate) fn new(is_set: bool) -> Self {
        Self(AtomicBool::new(is_set))
    }

    /// Called by a waker after its event. True if the flag was not set: one of several wakers
    /// between two calls of [`take`](Self::take) gets true.
    pub(crate) fn set(&self) -> bool {
        // Release: pairs with the swap in `take`, so that the owner sees the event.
        !self.0.swap(true, Ordering::Release)
    }

    /// Clears the flag and returns whether it was set. The owner calls it before it looks for
    /// events, and then sees those of all wakers that have set the flag. A waker that comes later
    /// sets it again.
    pub(crate) fn take(&self) -> bool {
        // Acquire: pairs with the swap in `set`.
        self.0.swap(false, Ordering::Acquire)
    }

    /// Whether the flag is set. Relaxed: the owner looks for no event before it takes the flag.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

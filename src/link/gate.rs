//! The flag that closes a lane, and the place where the owner leaves its end of a closed lane.
//!
//! [`super::lane`] describes the protocol. This module holds the part of it that both sides share,
//! so that it can be model-checked together with the wake-up protocol.

use std::sync::PoisonError;

use super::sync::{AtomicBool, Mutex, Ordering, fence};

#[derive(Debug)]
pub(crate) struct Gate<E> {
    closed: AtomicBool,
    /// The owner's end. `None` until the owner has received for the last time, and while the thread
    /// takes requests back.
    handed_back: Mutex<Option<E>>,
}

impl<E> Gate<E> {
    pub(crate) fn new() -> Self {
        Self { closed: AtomicBool::new(false), handed_back: Mutex::new(None) }
    }

    /// The thread's column, after the push and the fence in `Doorbell::wake_for`.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// The owner's column up to the fence. The owner must receive from the lane next.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        // Pairs with the fence in `Doorbell::wake_for`.
        fence(Ordering::SeqCst);
    }

    /// Leaves the owner's end to the thread, after the owner has received for the last time.
    pub(crate) fn hand_back(&self, end: E) {
        *self.handed_back.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
    }

    /// Takes the owner's end; `None` if the owner has not handed it back yet.
    pub(crate) fn take(&self) -> Option<E> {
        self.handed_back.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

//! Whether a lane is open, and where its owner's end goes when it is closed.
//!
//! The protocol stands in [`super::lane`]; this is the part of it that both sides share, apart so
//! that it can be model-checked with the bell.

use std::sync::PoisonError;

use super::sync::{AtomicBool, Mutex, Ordering, fence};

#[derive(Debug)]
pub(crate) struct Gate<E> {
    closed: AtomicBool,
    /// The owner's end, once it has drained it for the last time.
    handed_back: Mutex<Option<E>>,
}

impl<E> Gate<E> {
    pub(crate) fn new() -> Self {
        Self { closed: AtomicBool::new(false), handed_back: Mutex::new(None) }
    }

    /// The sender's column, after the push and the bell's fence.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// The owner's column up to the fence; it drains the lane next.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        // Pairs with the fence in `Doorbell::ring_for`.
        fence(Ordering::SeqCst);
    }

    /// The owner has drained the lane.
    pub(crate) fn hand_back(&self, end: E) {
        *self.handed_back.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
    }

    /// The owner's end, if it has been handed back.
    pub(crate) fn take(&self) -> Option<E> {
        self.handed_back.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

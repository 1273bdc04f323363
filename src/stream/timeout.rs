//! Timeouts of the owner's futures, each by a sleep of its own.
//!
//! Why not one timer for all timeouts of a connection: a sleep that ends young takes no request to
//! a shard, and less than the bookkeeping of a shared timer.
//!
//! Invariants: a timeout is over when its future was polled after the [proof](super::proof).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::control::Shared;
use super::proof::Proof;
use crate::face::handle::sleep::Sleep;
use crate::pass;
use crate::values::error::TimeoutError;
use crate::values::refused::RefusedKind;

/// A timeout that waits.
pub(super) struct Timeout<'a> {
    shared: &'a Arc<Shared>,
    sleep: Sleep,
    /// `None` until the deadline has passed.
    proof: Option<Box<Proof>>,
}

impl<'a> Timeout<'a> {
    /// A timeout until a deadline, in nanoseconds of the service.
    pub(super) fn new(shared: &'a Arc<Shared>, due: u64) -> Self {
        Self { shared, sleep: Sleep::new(shared.handle, due), proof: None }
    }

    /// Whether a future that is polled next is polled after the proof.
    #[inline]
    pub(super) fn is_proven(&self) -> bool {
        self.proof.as_ref().is_some_and(|proof| proof.is_over())
    }

    /// Ready when the time is up, or when there is no timer. The future is pending, and was polled
    /// after [`is_proven`](Self::is_proven) has returned `was_proven`.
    pub(super) fn poll(&mut self, was_proven: bool, cx: &mut Context<'_>) -> Poll<TimeoutError> {
        if self.shared.is_dropped() {
            return Poll::Ready(TimeoutError::NoTimer(RefusedKind::Closed));
        }
        if let Err(refused) = ready!(Pin::new(&mut self.sleep).poll(cx)) {
            return Poll::Ready(TimeoutError::NoTimer(refused));
        }
        if !self.sleep.is_manual() || pass::is_simulated() {
            let new = || Box::new(Proof::new(Arc::clone(self.shared)));
            ready!(self.proof.get_or_insert_with(new).decide(was_proven, cx));
        }
        Poll::Ready(TimeoutError::Elapsed)
    }
}

//! Timeouts of the owner's futures, each by a sleep of its own.
//!
//! Why not one timer for all timeouts of a connection: a sleep that ends young takes no request to
//! a shard, and less than the bookkeeping of a shared timer.
//!
//! Invariants: a timeout is over when its future was polled after the [proof](super::proof).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::control::Shared;
use super::proof::Proof;
use crate::face::handle::sleep::Sleep;
use crate::pass;
use crate::values::error::TimeoutError;
use crate::values::refused::RefusedKind;

pin_project! {
    /// A future that has time until a deadline.
    pub(super) struct Timeout<'a, F> {
        #[pin]
        future: F,
        shared: &'a Arc<Shared>,
        sleep: Sleep,
        // `None` until the deadline has passed.
        proof: Option<Box<Proof>>,
    }
}

impl<'a, F> Timeout<'a, F> {
    /// `due` is in nanoseconds of the service.
    pub(super) fn new(shared: &'a Arc<Shared>, due: u64, future: F) -> Self {
        Self { future, shared, sleep: Sleep::new(shared.handle, due), proof: None }
    }
}

impl<F: Future> Future for Timeout<'_, F> {
    type Output = Result<F::Output, TimeoutError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let was_proven = this.proof.as_ref().is_some_and(|proof| proof.is_over());
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        if this.shared.is_dropped() {
            return Poll::Ready(Err(TimeoutError::NoTimer(RefusedKind::Closed)));
        }
        if let Err(refused) = ready!(Pin::new(&mut *this.sleep).poll(cx)) {
            return Poll::Ready(Err(TimeoutError::NoTimer(refused)));
        }
        if !this.sleep.is_manual() || pass::is_simulated() {
            let new = || Box::new(Proof::new(Arc::clone(this.shared), this.sleep.due()));
            ready!(this.proof.get_or_insert_with(new).decide(was_proven, cx));
        }
        Poll::Ready(Err(TimeoutError::Elapsed))
    }
}

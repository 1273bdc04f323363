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
use crate::pass::{Limit, Pass, is_simulated};
use crate::values::refused::RefusedKind;

/// A deadline of a future that may wait for bytes of a stream.
pub(super) struct Deadline<'a> {
    shared: &'a Arc<Shared>,
    sleep: Sleep,
    /// `None` until the deadline has passed.
    proof: Option<Box<Proof>>,
}

impl<'a> Deadline<'a> {
    /// `due` is in nanoseconds of the service.
    pub(super) fn new(shared: &'a Arc<Shared>, due: u64) -> Self {
        Self { shared, sleep: Sleep::new(shared.handle, due), proof: None }
    }
}

impl Limit for Deadline<'_> {
    fn poll_late(
        &mut self,
        pass: &mut Pass,
        _looks: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), RefusedKind>> {
        if self.shared.is_dropped() {
            return Poll::Ready(Err(RefusedKind::Closed));
        }
        ready!(Pin::new(&mut self.sleep).poll(cx))?;
        if !self.sleep.is_manual() || is_simulated() {
            let new = || Box::new(Proof::new(Arc::clone(self.shared), self.sleep.due()));
            ready!(self.proof.get_or_insert_with(new).poll(pass, cx));
        }
        Poll::Ready(Ok(()))
    }
}

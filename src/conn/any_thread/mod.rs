//! Connection timers for tasks that go from thread to thread.
//!
//! All deadlines of a connection lie on the caller's side, beside its stamps, and one
//! [`Sleep`](crate::Sleep) serves them all. So nothing of the connection is bound to a thread.
//!
//! Why not connection timers on a shard, reached by requests over a lane: a request for each packet
//! costs more than all that a deadline does, and the shard would have to wake the task for each
//! deadline.
//!
//! Invariants: a touch takes no lock and wakes no task.

mod inner;
mod share;
#[cfg(all(test, feature = "sim", feature = "tokio", unix))]
mod tests;

use std::sync::Arc;

use self::inner::Inner;
use super::limits::ConnLimits;
use super::side::{Sealed, Side};
use super::timers::ConnTimers;
use crate::face::handle::Handle;
use crate::values::refused::RefusedKind;

impl<T: 'static> Handle<T> {
    /// The deadlines of a connection that begins now, for tasks on any thread. Nothing is sent
    /// before the first poll for events, and that is where a refusal shows.
    pub fn connection(self, limits: ConnLimits) -> ConnTimers<Handle> {
        ConnTimers::new(Inner::new(self.untyped(), limits))
    }
}

impl Side for Handle {
    type Polled<V> = Result<V, RefusedKind>;
}

impl Sealed for Handle {
    type Conn = Arc<Inner>;

    fn polled<V>(result: Result<V, RefusedKind>) -> Result<V, RefusedKind> {
        result
    }
}

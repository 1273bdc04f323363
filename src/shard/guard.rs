//! A guard that ends a shard whose driver ends without a shutdown.

use std::rc::Rc;

use super::Core;
use super::payload::Payload;
use crate::values::shutdown::ShutdownPolicy;
use crate::values::state::ShardState;

/// Makes sure that a shard whose driver ends without a shutdown is known to be dead: when the guard
/// is dropped, the lanes are closed and callers that wait for a reply are told. Without effect on a
/// shard that has ended already.
pub(crate) struct DeadOnDrop<P: Payload>(Rc<Core<P>>);

impl<P: Payload> DeadOnDrop<P> {
    pub(crate) fn new(core: Rc<Core<P>>) -> Self {
        Self(core)
    }
}

impl<P: Payload> Drop for DeadOnDrop<P> {
    fn drop(&mut self) {
        if self.0.close(ShardState::Dead) {
            let report = self.0.clear_out(ShutdownPolicy::Drop, true);
            let lost = report.counts.returned;
            let shard = self.0.id().number();
            tracing::error!(shard, lost, "a shard ended without a shutdown");
        }
    }
}

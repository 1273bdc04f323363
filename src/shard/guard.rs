//! The dead-on-drop guard, which ends a shard whose driver ends without a shutdown.

use std::rc::Rc;

use super::core::Core;
use crate::values::shutdown::ShutdownPolicy;
use crate::values::state::ShardState;

/// Marks a shard whose driver ends without a shutdown as dead. When the guard is dropped, it closes
/// the lanes, and callers that wait for a reply get an error. The guard has no effect on a shard
/// that has ended already.
pub(crate) struct DeadOnDrop<T: 'static>(Rc<Core<T>>);

impl<T: 'static> DeadOnDrop<T> {
    pub(crate) fn new(core: Rc<Core<T>>) -> Self {
        Self(core)
    }
}

impl<T: 'static> Drop for DeadOnDrop<T> {
    fn drop(&mut self) {
        if self.0.close(ShardState::Dead) {
            let report = self.0.clear_out(ShutdownPolicy::Drop, true);
            let lost = report.stats.counts.dropped;
            let shard = self.0.id().number();
            tracing::error!(
                name: "shard-ended",
                target: "corewheel::shard",
                shard, lost, "a shard ended without a shutdown"
            );
        }
    }
}

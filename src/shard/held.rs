//! Whether a simulation keeps requests in the lanes of a shard, as if they were still on the way.

use std::cell::Cell;

/// Whether the turns of a shard leave requests in their lanes.
#[derive(Default)]
pub(super) struct HeldLanes(Cell<bool>);

impl HeldLanes {
    #[inline]
    pub(super) fn get(&self) -> bool {
        self.0.get()
    }

    /// Returns what it was before.
    pub(super) fn replace(&self, holds: bool) -> bool {
        self.0.replace(holds)
    }
}

//! The checks of a simulation's shards.
//!
//! The checks compare the state of the code with itself: what one part has filed with what another
//! one counts, and what waits with when the driver wakes. So they share all of its rules, and find
//! no rule that is wrong: a deadline that is filed too late is one that the shard sleeps until.
//! That is why a test has a model of its own beside them.

use super::{Shard, Simulation};

/// Checks.
impl<T: Send + 'static> Simulation<T> {
    /// Checks all shards: see the [module](super).
    ///
    /// # Panics
    ///
    /// If a check fails, with a sentence and the values.
    pub fn check(&self) {
        self.shards.iter().for_each(|shard| self.check_shard(shard));
    }

    pub(super) fn check_shard(&self, shard: &Shard<T>) {
        let core = shard.timers.core();
        core.check_invariants();
        if !self.executor.is_woken(shard.thread) && !self.executor.is_stalled(shard.thread) {
            core.check_asleep();
        }
    }
}

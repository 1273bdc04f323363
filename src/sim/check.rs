//! The checks of a simulation's shards, and the record of a run.
//!
//! The checks compare the state of the code with itself: what one part has filed with what another
//! one counts, and what waits with when the driver wakes. So they share all of its rules, and find
//! no rule that is wrong: a deadline that is filed too late is one that the shard sleeps until.
//! That is why a test has a model of its own beside them.

use std::fmt::Write as _;

use super::executor::Stepped;
use super::{Shard, Simulation};

/// Checks, and the record of a run.
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

    /// Records from now on which task runs when, and what the shards have counted.
    pub fn record(&mut self) {
        self.trace.get_or_insert_default();
    }

    /// The record since [`record`](Self::record), a line for each step. Two runs of one seed have
    /// the same record.
    pub fn recorded(&self) -> &str {
        self.trace.as_deref().unwrap_or_default()
    }

    pub(super) fn note(&mut self, stepped: Stepped) {
        let Some(trace) = &mut self.trace else { return };
        let now = self.executor.nanos();
        let written = match stepped {
            Stepped::Ran(task, thread) => {
                let counts = self.shards.iter().find(|shard| shard.thread == thread);
                let counts = counts.map(|shard| shard.timers.core().describe());
                writeln!(trace, "{now} task {task}{}", counts.unwrap_or_default())
            }
            Stepped::Waited => writeln!(trace, "{now}"),
            Stepped::Resting => Ok(()),
        };
        written.expect("a string takes every text");
    }
}

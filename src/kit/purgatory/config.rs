//! How large a purgatory may become, what it refuses, and what it has counted.

use std::fmt;
use std::hash::Hash;

use serde::Serialize;

use super::{Operation, Purgatory};
use crate::face::timers::Timers;
use crate::values::capacity::{CAPACITY, CAPACITY_MAX, check};
use crate::values::error::{CLOSED, ConfigError, refusal};

/// The limits of a purgatory; made by [`Purgatory::builder`].
#[must_use = "a builder does nothing until it builds"]
#[derive(Clone, Debug)]
pub struct PurgatoryBuilder {
    operations_max: u32,
    watches_max: Option<u32>,
}

/// How many watches an operation has on average, where nobody says so.
const WATCHES_EACH: u32 = 4;

impl PurgatoryBuilder {
    pub(super) fn new() -> Self {
        Self { operations_max: CAPACITY, watches_max: None }
    }

    /// The most operations that wait at once, 1 to 2³⁰; 2¹⁶ by default. Memory for them is reserved
    /// when the purgatory is built and touched as it comes into use.
    pub fn operations_max(mut self, count: u32) -> Self {
        self.operations_max = count;
        self
    }

    /// The most keys that they watch, all operations together, 1 to 2³⁰; four for each operation by
    /// default.
    pub fn watches_max(mut self, count: u32) -> Self {
        self.watches_max = Some(count);
        self
    }

    /// A purgatory on the shard of `timers`.
    ///
    /// # Errors
    ///
    /// A limit that is out of its range, or for which there is no memory.
    pub fn build<K, Op, T>(self, timers: &Timers<T>) -> Result<Purgatory<K, Op, T>, ConfigError>
    where
        K: Hash + Eq + 'static,
        Op: Operation,
        T: Send + 'static,
    {
        let operations_max = check("operations_max", self.operations_max)?;
        let watches_max = self
            .watches_max
            .unwrap_or_else(|| self.operations_max.saturating_mul(WATCHES_EACH).min(CAPACITY_MAX));
        let watches_max = check("watches_max", watches_max)?;
        Purgatory::with_limits(timers, operations_max, watches_max)
    }
}

/// What became of an operation that was to be completed or watched.
#[must_use = "it says whether the operation is done, and how to cancel it if not"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watch {
    /// It was complete at once.
    Completed,
    /// It waits for an event or for its deadline.
    Watched(OperationId),
}

/// Names one operation of one purgatory. Harmless for ever: once the operation is done it names
/// nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId {
    pub(super) serial: u64,
    pub(super) index: u32,
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operation {}", self.serial)
    }
}

/// An operation was not complete and could not be watched; it comes back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WatchError<Op> {
    /// The purgatory holds as many operations or watches as it may, or its shard as many timers.
    Full(Op),
    /// The shard is shut down.
    Closed(Op),
}

impl<Op> WatchError<Op> {
    /// The operation.
    pub fn into_operation(self) -> Op {
        match self {
            Self::Full(operation) | Self::Closed(operation) => operation,
        }
    }
}

refusal!(
    WatchError: "there is no room for another operation; raise operations_max, watches_max or the \
                 shard's capacity, or shed load",
    CLOSED
);

/// What a purgatory holds and has counted.
///
/// `accepted = delayed + completed + expired + cancelled`, always, but for the operations that are
/// running as it is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct PurgatoryStats {
    /// Operations that wait now.
    pub delayed: u64,
    /// Watches in all lists now: an operation counts once for each key.
    pub watched: u64,
    /// Keys that are watched now.
    pub keys: u64,
    /// Operations that were complete as they came, and never waited.
    pub completed_at_once: u64,
    /// Operations that were taken in.
    pub accepted: u64,
    /// Of those: completed by an event.
    pub completed: u64,
    /// Of those: given up at their deadline.
    pub expired: u64,
    /// Of those: cancelled and handed back.
    pub cancelled: u64,
    /// Operations that came back to the caller for want of room, or at the end.
    pub refused: u64,
}

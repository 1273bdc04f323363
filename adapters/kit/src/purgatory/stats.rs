//! The gauges and counters of a purgatory, and the names of its operations.

use std::fmt;

/// Names one operation of one purgatory. Once the operation has ended, the id names nothing, and
/// using it does no harm.
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

/// What a purgatory holds and has counted; read by [`Purgatory::stats`](super::Purgatory::stats).
///
/// `accepted = delayed + completed + expired + cancelled`, except for operations whose methods are
/// running while the statistics are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PurgatoryStats {
    /// Operations that wait now.
    pub delayed: u64,
    /// Watches in all lists now: an operation counts once for each of its keys.
    pub watched: u64,
    /// Keys that are watched now.
    pub keys: u64,
    /// Operations that were complete when they came, and never waited.
    pub completed_at_once: u64,
    /// Operations that were not complete when they came, and waited.
    pub accepted: u64,
    /// Accepted operations that were completed by an event.
    pub completed: u64,
    /// Accepted operations that reached their deadline.
    pub expired: u64,
    /// Accepted operations that were cancelled and returned.
    pub cancelled: u64,
    /// Operations that were refused: there was no room, or the shard was closed.
    pub refused: u64,
}

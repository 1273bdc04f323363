//! The gauges and counters of a purgatory.

/// What a purgatory holds and has counted; read by [`Purgatory::stats`](super::Purgatory::stats).
///
/// `accepted = delayed + completed + expired + cancelled`, except for operations whose methods are
/// running while the statistics are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
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

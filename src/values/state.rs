//! The state of a shard.

/// Whether a shard accepts timers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum ShardState {
    /// Not attached to an executor or a loop yet.
    Waiting,
    /// Driven, and accepting timers.
    Running,
    /// Shut down.
    Closed,
    /// Its thread or executor ended without a shutdown.
    Dead,
}

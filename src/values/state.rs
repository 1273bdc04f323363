//! What state a shard is in.

use serde::Serialize;

/// Whether a shard takes timers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ShardState {
    /// Not attached to an executor yet.
    Waiting,
    /// At work.
    Running,
    /// Shut down.
    Closed,
    /// Its thread or executor ended without a shutdown.
    Dead,
}

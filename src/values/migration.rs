//! What becomes of timers that are to live on another shard.

use std::collections::BTreeMap;
use std::fmt;

use corewheel_shard::TimerKey;

use super::handle::{ShardId, TimerHandle};

/// The handles of timers that have left a shard, by their keys there. A map that grows without ever
/// being copied.
pub(crate) type NewHandles = BTreeMap<TimerKey, TimerHandle>;

/// Why a timer was not moved. It stays where it is, with its deadline and its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MoveError {
    /// This shard, where it was to go, has no room for it or has not yet made room for more from
    /// here. Try again after a moment.
    Full(ShardId),
    /// This shard is closed, dead or was never there.
    Closed(ShardId),
    /// The handle names no timer that is pending here: it has fired, was cancelled, or is still
    /// under way from its sender.
    NotPending,
    /// The timer lives on this shard, and was not asked for there. Use
    /// [`Client::move_to`](crate::Client::move_to).
    Elsewhere(ShardId),
    /// The handle belongs to another service.
    Foreign,
    /// It is a callback that stays on its core, scheduled with
    /// [`Timers::schedule_fn`](crate::Timers::schedule_fn) or by what is built on it. One that may
    /// travel is scheduled with [`Client::schedule_fn_on`](crate::Client::schedule_fn_on).
    LocalCallback,
    /// A future of its core waits for it.
    Sleep,
    /// It is the deadlines of a connection, which go with it: see
    /// [`ConnTimers::pack`](crate::ConnTimers::pack).
    Connection,
}

impl fmt::Display for MoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(shard) => {
                write!(f, "{shard:?} has no room for the timer; raise its capacity or try again")
            }
            Self::Closed(shard) => write!(f, "{shard:?} is shut down or dead"),
            Self::NotPending => f.write_str("the handle names no pending timer"),
            Self::Elsewhere(shard) => {
                write!(f, "the timer lives on {shard:?}; move it with a client")
            }
            Self::Foreign => f.write_str("the handle belongs to another service"),
            Self::LocalCallback => f.write_str(
                "a callback of its own core cannot travel; schedule it with Client::schedule_fn_on",
            ),
            Self::Sleep => f.write_str("a future of its own core waits for the timer"),
            Self::Connection => f.write_str(
                "a connection's deadlines go with the connection; take them along with \
                 ConnTimers::pack",
            ),
        }
    }
}

impl std::error::Error for MoveError {}

/// Why a shard is not drained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DrainError {
    /// There is no shard to move the timers to.
    NowhereToGo,
    /// The shard is among those that its own timers are to be moved to.
    IntoItself(ShardId),
    /// The shard is being drained; ask again when that is done.
    AlreadyDraining(ShardId),
}

impl fmt::Display for DrainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NowhereToGo => f.write_str("into is empty, but a drain needs a shard to fill"),
            Self::IntoItself(shard) => {
                write!(f, "into contains {shard:?}, but that is to be drained; leave it out")
            }
            Self::AlreadyDraining(shard) => {
                write!(f, "{shard:?} is being drained; wait for the answer and ask again")
            }
        }
    }
}

impl std::error::Error for DrainError {}

/// What a drain has come to; made by [`Client::drain_shard`](crate::Client::drain_shard).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DrainReport {
    /// The shard that was drained.
    pub shard: ShardId,
    /// Timers that live on other shards now.
    pub moved: u64,
    /// Callbacks that stay on their core, and those of what is built on them. They fire there.
    pub callbacks: u64,
    /// Timers that futures of the core wait for. They fire there.
    pub sleeps: u64,
    /// Connections' deadlines. They stay until their connection takes them along, with
    /// [`ConnTimers::pack`](crate::ConnTimers::pack).
    pub connections: u64,
    /// Timers for which no other shard had room for a second, or was open. They fire there.
    pub refused: u64,
}

impl DrainReport {
    pub(crate) fn new(shard: ShardId) -> Self {
        Self { shard, moved: 0, callbacks: 0, sleeps: 0, connections: 0, refused: 0 }
    }

    /// How many timers were left where they are.
    pub fn stayed(&self) -> u64 {
        self.callbacks + self.sleeps + self.connections + self.refused
    }
}

//! Where the timer of a future lies.

use crate::link::thread_timers::{Name, ThreadTimersId};
use crate::values::ids::ShardId;

/// Names the timers of a thread among those of all shards of a service, in one word: their
/// generation, their number and that of their shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ThreadTimersName(u64);

impl ThreadTimersName {
    /// No thread timers have it: generations count from 1.
    pub(crate) const NONE: Self = Self(0);

    pub(super) fn new(
        shard: ShardId,
        ThreadTimersId { index, generation }: ThreadTimersId,
    ) -> Self {
        Self(u64::from(generation) << 32 | u64::from(index) << 16 | u64::from(shard.number()))
    }

    /// No thread timers, of a shard.
    pub(super) fn none_of(shard: ShardId) -> Self {
        Self::new(shard, ThreadTimersId { index: 0, generation: 0 })
    }

    pub(super) fn shard(self) -> ShardId {
        ShardId::new(self.0 as u16)
    }

    pub(super) fn id(self) -> ThreadTimersId {
        ThreadTimersId { index: (self.0 >> 16) as u16, generation: (self.0 >> 32) as u32 }
    }
}

/// Where a timer lies: that of one thread with this name.
///
/// Why not fields for all numbers: written one by one and read together, they would wait for the
/// processor's store buffer at each arming.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) thread_timers: ThreadTimersName,
    pub(crate) timer: Name,
}

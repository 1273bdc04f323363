//! The name of a timer within its service.

use std::fmt;

use corewheel_shard::TimerKey;

/// One shard of a service: its number, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId(u16);

impl ShardId {
    /// The most shards a service can have.
    pub const COUNT_MAX: usize = 1 << 10;

    /// The shard with this number. Where a service has no such shard, its methods answer as for a
    /// shard that is closed.
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn number(self) -> u16 {
        self.0
    }

    #[inline]
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Debug for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard {}", self.0)
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names one timer, from any thread. It does not own it: a handle that is dropped leaves the timer
/// running.
///
/// 12 bytes, and so is `Option<TimerHandle>`. A handle whose timer has fired or was cancelled is
/// harmless and answered as stale, for ever: see [`TimerKey`] for when a generation ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TimerHandle {
    shard: ShardId,
    key: TimerKey,
}

impl TimerHandle {
    /// The handle of a key of this shard.
    #[inline]
    pub const fn new(shard: ShardId, key: TimerKey) -> Self {
        Self { shard, key }
    }

    /// The shard that owns the timer.
    #[inline]
    pub const fn shard(self) -> ShardId {
        self.shard
    }

    /// What the shard knows it by.
    #[inline]
    pub const fn key(self) -> TimerKey {
        self.key
    }
}

impl fmt::Debug for TimerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:?}", self.shard, self.key)
    }
}

const _: () = assert!(size_of::<TimerHandle>() == 12 && size_of::<Option<TimerHandle>>() == 12);

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    #[test]
    fn a_handle_shows_shard_slot_and_generation() {
        let key = TimerKey::from_parts(417, NonZeroU32::new(9).unwrap());
        assert_eq!(format!("{:?}", TimerHandle::new(ShardId::new(2), key)), "2:417v9");
    }
}

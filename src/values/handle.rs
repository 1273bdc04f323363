//! The name of a timer within its service.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use corewheel_shard::TimerKey;
use serde::{Serialize, Serializer};

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

impl Serialize for ShardId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(self.number())
    }
}

/// Bits of a shard's number, and of a service's.
const SHARD_BITS: u32 = ShardId::COUNT_MAX.ilog2();
const SERVICE_BITS: u32 = u32::BITS - SHARD_BITS;
const _: () = assert!(ShardId::COUNT_MAX == 1 << SHARD_BITS);

/// One service of this process, by a number below 2²².
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct ServiceId(u32);

impl ServiceId {
    /// The number of a service that starts. The numbers begin anew after 2²² services.
    pub(crate) fn next() -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        Self(STARTED.fetch_add(1, Ordering::Relaxed) & ((1 << SERVICE_BITS) - 1))
    }

    /// One of its shards.
    #[inline]
    pub(crate) const fn home(self, shard: ShardId) -> Home {
        debug_assert!((shard.0 as usize) < ShardId::COUNT_MAX, "a service has no such shard");
        Home(self.0 << SHARD_BITS | shard.0 as u32 & (ShardId::COUNT_MAX as u32 - 1))
    }
}

/// One shard of one service: what a handle carries beside the key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Home(u32);

impl Home {
    #[inline]
    pub(crate) const fn shard(self) -> ShardId {
        ShardId(self.0 as u16 & (ShardId::COUNT_MAX as u16 - 1))
    }

    #[inline]
    pub(crate) const fn service(self) -> ServiceId {
        ServiceId(self.0 >> SHARD_BITS)
    }

    /// The handle of a key of this shard.
    #[inline]
    pub(crate) const fn handle(self, key: TimerKey) -> TimerHandle {
        TimerHandle { home: self, key }
    }
}

/// Names one timer, from any thread. It does not own it: a handle that is dropped leaves the timer
/// running.
///
/// A handle belongs to the service that made it. Other services of the process answer it with
/// `Foreign` and do nothing. Only a service makes handles: safe code cannot construct one, whatever
/// it knows of their parts.
///
/// ```compile_fail,E0599
/// use corewheel::{ShardId, TimerHandle, TimerKey};
/// use std::num::NonZeroU32;
///
/// let key = TimerKey::from_parts(0, NonZeroU32::MIN);
/// let forged = TimerHandle::new(ShardId::new(0), key);
/// ```
///
/// 12 bytes, and so is `Option<TimerHandle>`. A handle whose timer has fired or was cancelled is
/// harmless and answered as stale, for ever: see [`TimerKey`] for when a generation ends.
///
/// A process tells 4,194,304 services apart. The service that starts after as many others has the
/// same number again; it takes a handle of the first one for its own, and answers it as stale
/// unless a timer of its own has the same shard, slot and generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TimerHandle {
    home: Home,
    key: TimerKey,
}

impl TimerHandle {
    /// The shard that owns the timer.
    #[inline]
    pub const fn shard(self) -> ShardId {
        self.home.shard()
    }

    /// What the shard knows it by.
    #[inline]
    pub const fn key(self) -> TimerKey {
        self.key
    }

    #[inline]
    pub(crate) const fn home(self) -> Home {
        self.home
    }

    #[inline]
    pub(crate) fn is_of(self, service: ServiceId) -> bool {
        self.home.service() == service
    }
}

impl fmt::Debug for TimerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:?}", self.shard(), self.key)
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
        let handle = ServiceId::next().home(ShardId::new(2)).handle(key);
        assert_eq!(format!("{handle:?}"), "2:417v9");
    }

    #[test]
    fn handle_of_last_shard_and_last_service_keeps_both_numbers() {
        let key = TimerKey::from_parts(u32::MAX, NonZeroU32::MAX);
        let (service, shard) = (ServiceId((1 << 22) - 1), ShardId::new(1_023));
        let handle = service.home(shard).handle(key);
        assert_eq!((handle.home().service(), handle.shard(), handle.key()), (service, shard, key));
        assert!(handle.is_of(service) && !handle.is_of(ServiceId(0)));
    }
}

//! The id of a timer, and the numbers of shards and services that it contains.

use std::fmt;

use corewheel_shard::TimerKey;
use crossbeam_utils::atomic::AtomicCell;

/// The number of a shard within its service, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ShardId(u16);

impl ShardId {
    /// The most shards a service can have.
    pub const COUNT_MAX: usize = 1 << 10;

    /// The shard with this number. If a service has no such shard, its methods return an error.
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// The number of the shard.
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

/// The bits of a shard's number in a [`Home`]; the rest is the number of the service.
const SHARD_BITS: u32 = ShardId::COUNT_MAX.ilog2();
const SERVICE_BITS: u32 = u32::BITS - SHARD_BITS;
const _: () = assert!(ShardId::COUNT_MAX == 1 << SHARD_BITS);

/// The number of a service within this process, below 2²².
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct ServiceId(u32);

impl ServiceId {
    /// The number of the next service that starts. After 2²² services the numbers begin again at 0.
    pub(crate) fn next() -> Self {
        static STARTED: AtomicCell<u32> = AtomicCell::new(0);
        Self(STARTED.fetch_add(1) & ((1 << SERVICE_BITS) - 1))
    }

    /// A shard of this service.
    #[inline]
    pub(crate) const fn home(self, shard: ShardId) -> Home {
        debug_assert!((shard.0 as usize) < ShardId::COUNT_MAX, "a service has no such shard");
        Home(self.0 << SHARD_BITS | shard.0 as u32 & (ShardId::COUNT_MAX as u32 - 1))
    }
}

/// The last services that were noted, up to a count. Why not an ordered set: it takes longer to
/// compile, and both lists are for errors.
pub(crate) struct LastServices(Vec<ServiceId>);

impl LastServices {
    const MAX: usize = 1_024;

    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Notes a service. Returns whether it was not in the list.
    pub(crate) fn note(&mut self, service: ServiceId) -> bool {
        if self.contains(service) {
            return false;
        }
        if self.0.len() == Self::MAX {
            self.0.remove(0);
        }
        self.0.push(service);
        true
    }

    pub(crate) fn contains(&self, service: ServiceId) -> bool {
        self.0.contains(&service)
    }
}

/// The service and the shard of a timer. An id consists of these and the key.
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

    /// The id of the timer that has this key on this shard.
    #[inline]
    pub(crate) const fn timer(self, key: TimerKey) -> TimerId {
        TimerId { home: self, key }
    }
}

/// The name of one timer, valid on every thread. An id does not own its timer: the timer goes on
/// when the id is dropped.
///
/// An id belongs to the service that made it. Other services of the process return `Foreign` for
/// it and do nothing. Only a service makes ids.
///
/// An id has 12 bytes, and so has `Option<TimerId>`. An id whose timer has fired or was
/// cancelled is stale for ever: commands with it do nothing and say so. A slot of a shard that has
/// held 2³¹ timers is retired, so that no id ever names another timer.
///
/// A process distinguishes 4,194,304 services. A service that starts after that many others has
/// the number of the first service again. It takes ids of the first service for its own, and
/// reports them as stale unless a timer of its own has the same shard, slot and generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TimerId {
    home: Home,
    key: TimerKey,
}

impl TimerId {
    /// The shard that owns the timer.
    #[inline]
    pub const fn shard(self) -> ShardId {
        self.home.shard()
    }

    /// The key of the timer on its shard.
    #[inline]
    pub(crate) const fn key(self) -> TimerKey {
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

impl fmt::Debug for TimerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:?}", self.shard(), self.key)
    }
}

const _: () = assert!(size_of::<TimerId>() == 12 && size_of::<Option<TimerId>>() == 12);

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    #[test]
    fn id_shows_shard_slot_and_generation() {
        let key = TimerKey::from_parts(417, NonZeroU32::new(9).unwrap());
        let id = ServiceId::next().home(ShardId::new(2)).timer(key);
        assert_eq!(format!("{id:?}"), "2:417v9");
    }

    #[test]
    fn id_of_last_shard_and_last_service_keeps_both_numbers() {
        let key = TimerKey::from_parts(u32::MAX, NonZeroU32::MAX);
        let (service, shard) = (ServiceId((1 << 22) - 1), ShardId::new(1_023));
        let id = service.home(shard).timer(key);
        assert_eq!((id.home().service(), id.shard(), id.key()), (service, shard, key));
        assert!(id.is_of(service) && !id.is_of(ServiceId(0)));
    }

    #[test]
    fn list_of_last_services_forgets_the_first_of_too_many() {
        let mut last = LastServices::new();
        let services: Vec<_> = (0..=LastServices::MAX).map(|_| ServiceId::next()).collect();
        let is_new: Vec<_> = services.iter().map(|service| last.note(*service)).collect();
        assert!(is_new.iter().all(|is_new| *is_new));
        assert!(!last.note(services[1]), "it is known");
        assert!(!last.contains(services[0]), "it is forgotten");
        assert!(services[1..].iter().all(|service| last.contains(*service)));
    }
}

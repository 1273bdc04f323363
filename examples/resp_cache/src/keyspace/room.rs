//! Room for what is written, under a limit of memory: which keys go, and which writes are refused.
//!
//! Keys with a time to live can be evicted, that which expires first before the others. A write
//! that would not fit beside the keys without one is refused, and evicts nothing.

use corewheel::{Payload, TimerId};
use hashbrown::HashTable;
use slab::Slab;

use super::{Deadline, ENTRY_BYTES, Key, Keyspace, NO_MEMORY, Written, spread};
use crate::notify::Class;

/// The most keys that one write evicts beyond those that make room for it, and one step of
/// housekeeping. Only a limit that was lowered needs more.
const EVICTIONS_MAX: usize = 1 << 10;

impl Keyspace {
    /// Whether values for several keys fit beside the keys that cannot be evicted. If they do, each
    /// of them can be written, one after the other, without a time to live.
    pub(crate) fn check_room(&mut self, pairs: &[&[u8]]) -> Written {
        if self.memory_max == 0 {
            return Ok(());
        }
        let mut more = 0;
        for pair in pairs.chunks_exact(2) {
            let needed = pair[0].len() + pair[1].len() + ENTRY_BYTES;
            let found = self.find(Key::new(pair[0]));
            let kept = found.map_or(0, |index| self.entries[index].kept_bytes());
            more += needed.saturating_sub(kept);
        }
        let is_enough = self.memory - self.evictable + more <= self.memory_max;
        if is_enough { Ok(()) } else { Err(NO_MEMORY) }
    }

    /// Evicts keys until an entry of `bytes` fits, in place of the one that was found, which stays.
    /// Evicts none if it would not fit beside the keys that cannot be evicted.
    ///
    /// After a limit was lowered, the write takes place once it has made room for itself and
    /// [`EVICTIONS_MAX`] keys have gone: the memory falls with each write, and with each
    /// [`shrink`](Self::shrink).
    pub(super) fn make_room(&mut self, bytes: usize, found: Option<usize>) -> Written {
        if self.memory_max == 0 {
            return Ok(());
        }
        let found = found.map(|index| (index, &self.entries[index]));
        let replaced = found.map_or(0, |(_, entry)| entry.bytes());
        let kept = found.map_or(0, |(_, entry)| entry.kept_bytes());
        let own = found.and_then(|(index, entry)| entry.timer.map(|timer| (timer, index)));
        if self.memory - self.evictable - kept + bytes > self.memory_max {
            return Err(NO_MEMORY);
        }
        let more = bytes.saturating_sub(replaced);
        let (before, mut evicted) = (self.memory, 0);
        let has_room = |keys: &Self, evicted| {
            let is_enough = evicted >= EVICTIONS_MAX && keys.memory + more <= before;
            is_enough || keys.memory + more <= keys.memory_max
        };
        while !has_room(self, evicted) && self.evict(own.map(|(timer, _)| timer)) {
            evicted += 1;
        }
        if let (Some((timer, index)), true) = (own, evicted > 0) {
            self.rearm(timer, self.entries[index].deadline);
        }
        if has_room(self, evicted) { Ok(()) } else { Err(NO_MEMORY) }
    }

    /// Evicts keys while the limit is exceeded, as far as one step may, and gives up room that is
    /// not used. True if more keys are to be evicted.
    pub(crate) fn shrink(&mut self) -> bool {
        if self.entries.is_empty() {
            (self.table, self.entries) = (HashTable::new(), Slab::new());
        } else if self.table.len() < self.table.capacity() / 8 {
            self.table.shrink_to(2 * self.table.len(), |place| spread(place.hash));
        }
        let is_over = |keys: &Self| keys.memory_max > 0 && keys.memory > keys.memory_max;
        (0..EVICTIONS_MAX).all(|_| is_over(self) && self.evict(None))
    }

    /// Evicts the key that expires first; false if no key has a time to live.
    ///
    /// A timer that is `kept` is put behind all others if it is the first. The caller then gives it
    /// its deadline again.
    pub(super) fn evict(&mut self, kept: Option<TimerId>) -> bool {
        let mut first = self.timers.soonest_value();
        if first.is_some() && first == kept {
            first.inspect(|timer| self.rearm(*timer, Deadline::LAST));
            first = self.timers.soonest_value().filter(|timer| Some(*timer) != kept);
        }
        let evicted = first.map(|timer| self.timers.cancel(timer).payload());
        let value = evicted.flatten().and_then(Payload::into_value);
        let Some(index) = value.map(|index| index as usize) else { return false };
        self.note(Class::EVICTED, "evicted", index);
        self.gauges.evicted.add(1);
        self.remove_at(index);
        true
    }

    /// Gives the timer of a key another deadline.
    fn rearm(&self, timer: TimerId, deadline: Deadline) {
        let at = deadline.micros().and_then(|micros| self.time.instant(micros));
        let _is_pending = at.map(|at| self.timers.reset(timer, at));
    }
}

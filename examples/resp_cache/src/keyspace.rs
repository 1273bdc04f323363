//! The keys of one core: a table of places in a slab of entries, each of which may have a timer.
//!
//! An entry is one allocation for key and value. Its timer's payload is the entry's place in the
//! slab, so a time to live costs a timer of the wheel and no allocation. A key whose deadline has
//! passed is never answered: each access compares the deadline with the clock, and removes the key
//! if the wheel has not come to it yet.
//!
//! Cost: O(1) for each command on a key. An eviction asks the shard for its soonest timer:
//! amortised O(1) entries of the wheel, and O(log keys) comparisons of numbers. An access to a key
//! with a deadline reads the clock.

use std::hash::BuildHasher;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use corewheel::{Fired, Payload, ResetOutcome, TimerId, Timers};
use hashbrown::{DefaultHashBuilder, HashTable};
use slab::Slab;

use crate::core::Gauges;
use crate::notify::{Event, Flags};

/// What an entry takes beside its key and value: its place in the slab, in the table and the
/// allocator's own bytes.
const ENTRY_BYTES: usize = size_of::<Entry>() + 18 + 16;
/// What a timer takes.
const TIMER_BYTES: usize = 40;
/// No command states a time to live as long as this, as it has 64 bits for milliseconds.
const LATER_THAN_ALL: Duration = Duration::from_secs(1 << 60);

/// A key and its hash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) hash: u64,
}

impl<'a> Key<'a> {
    pub(crate) fn new(name: &'a [u8]) -> Self {
        /// All cores hash a key alike, as the hash says which core has the key.
        static HASHER: LazyLock<DefaultHashBuilder> = LazyLock::new(DefaultHashBuilder::default);
        Self { name, hash: HASHER.hash_one(name) }
    }
}

/// What a write does with a key's time to live.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ttl {
    Remove,
    Keep,
    Set(Instant),
}

/// The outcome of a write: why it did not take place, as the client is told.
pub(crate) type Written = Result<(), &'static str>;

const NO_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";
const NO_TIMER: &str =
    "OOM this core has no timer left for a time to live; start with more --timers-max";

#[derive(Debug)]
struct Entry {
    /// The key, and the value behind it.
    data: Vec<u8>,
    key_length: u32,
    /// `None` if the key has no deadline.
    timer: Option<TimerId>,
    deadline: Option<Instant>,
}

impl Entry {
    fn key(&self) -> &[u8] {
        &self.data[..self.key_length as usize]
    }

    fn value(&self) -> &[u8] {
        &self.data[self.key_length as usize..]
    }

    fn bytes(&self) -> usize {
        self.data.capacity() + ENTRY_BYTES + if self.timer.is_some() { TIMER_BYTES } else { 0 }
    }
}

/// Where an entry is. A part of the key's hash is beside it, so a table that grows reads no entry.
#[derive(Clone, Copy, Debug)]
struct Place {
    index: u32,
    hash: u32,
}

/// The table takes bits of both ends of a hash.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

pub(crate) struct Keyspace {
    table: HashTable<Place>,
    entries: Slab<Entry>,
    timers: Timers<u32>,
    /// The bytes of all entries.
    memory: usize,
    /// The bytes of the entries with a deadline, which can be evicted.
    evictable: usize,
    /// The greatest number of those bytes; zero is no limit.
    pub(crate) memory_max: usize,
    /// The most keys with a deadline. The shard has more timers, for what else the core does.
    pub(crate) timers_max: usize,
    /// How many keys have a deadline.
    timed: usize,
    /// What is to be published: filled while `flags` ask for it.
    pub(crate) events: Vec<Event>,
    pub(crate) flags: Flags,
    gauges: Arc<Gauges>,
}

impl Keyspace {
    pub(crate) fn new(timers: Timers<u32>, gauges: Arc<Gauges>) -> Self {
        Self {
            table: HashTable::new(),
            entries: Slab::new(),
            timers,
            memory: 0,
            evictable: 0,
            memory_max: 0,
            timers_max: usize::MAX,
            timed: 0,
            events: Vec::new(),
            flags: Flags::default(),
            gauges,
        }
    }

    /// The value of a key, unless its time is over.
    pub(crate) fn get(&mut self, key: Key<'_>) -> Option<&[u8]> {
        self.find(key).map(|index| self.entries[index].value())
    }

    pub(crate) fn contains(&mut self, key: Key<'_>) -> bool {
        self.find(key).is_some()
    }

    /// The deadline of a key, or that it is to be kept without one; `None` without the key.
    pub(crate) fn ttl(&mut self, key: Key<'_>) -> Option<Ttl> {
        self.find(key).map(|index| self.entries[index].deadline.map_or(Ttl::Keep, Ttl::Set))
    }

    /// Writes a value. Nothing has changed if it fails, apart from evictions.
    pub(crate) fn set(&mut self, key: Key<'_>, value: &[u8], ttl: Ttl) -> Written {
        let found = self.find(key);
        let is_timed = match ttl {
            Ttl::Set(_) => true,
            Ttl::Remove => false,
            Ttl::Keep => found.is_some_and(|index| self.entries[index].timer.is_some()),
        };
        let timer = if is_timed { TIMER_BYTES } else { 0 };
        self.make_room(key.name.len() + value.len() + ENTRY_BYTES + timer, found)?;
        let index = found.unwrap_or_else(|| self.insert(key, value.len()));
        if let Ttl::Set(deadline) = ttl {
            self.arm(index, deadline).inspect_err(|_| {
                if found.is_none() {
                    self.remove_at(index);
                }
            })?;
        } else if matches!(ttl, Ttl::Remove) {
            self.disarm(index);
        }
        let entry = &mut self.entries[index];
        let before = entry.bytes();
        entry.data.truncate(entry.key_length as usize);
        entry.data.reserve_exact(value.len());
        entry.data.extend_from_slice(value);
        // A short value does not hold the room of a long one before it.
        if entry.data.capacity() > 2 * entry.data.len() + 64 {
            entry.data.shrink_to_fit();
        }
        self.memory = self.memory - before + entry.bytes();
        if entry.timer.is_some() {
            self.evictable = self.evictable - before + entry.bytes();
        }
        self.gauges.memory.set(self.memory as u64);
        Ok(())
    }

    /// Removes a key. False if there is none.
    pub(crate) fn remove(&mut self, key: Key<'_>) -> bool {
        self.find(key).map(|index| self.remove_at(index)).is_some()
    }

    /// Gives a key another deadline, or none, if it is there.
    pub(crate) fn expire(&mut self, key: Key<'_>, deadline: Option<Instant>) -> Written {
        match (self.find(key), deadline) {
            (Some(index), Some(deadline)) => return self.arm(index, deadline),
            (Some(index), None) => self.disarm(index),
            (None, _) => {}
        }
        Ok(())
    }

    /// Removes all keys.
    pub(crate) fn clear(&mut self) {
        for (_, entry) in &self.entries {
            let _ = entry.timer.map(|timer| self.timers.cancel(timer));
        }
        (self.table, self.entries) = (HashTable::new(), Slab::new());
        (self.memory, self.evictable, self.timed) = (0, 0, 0);
        self.publish_gauges();
    }

    /// The timer of a key has fired.
    pub(crate) fn fired(&mut self, fired: &Fired<u32>) {
        let index = fired.payload as usize;
        if self.entries.get(index).is_some_and(|entry| entry.timer == Some(fired.timer)) {
            self.end(index, false);
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.timers.now()
    }

    /// The entry of a key, unless its time is over. Then the entry is removed.
    #[inline]
    fn find(&mut self, key: Key<'_>) -> Option<usize> {
        let hash = key.hash as u32;
        let entries = &self.entries;
        let is_it =
            |place: &Place| place.hash == hash && entries[place.index as usize].key() == key.name;
        let index = self.table.find(spread(hash), is_it)?.index as usize;
        if self.entries[index].deadline.is_some_and(|deadline| deadline <= self.now()) {
            self.end(index, false);
            return None;
        }
        Some(index)
    }

    /// Removes a key that has expired, or is evicted.
    fn end(&mut self, index: usize, is_evicted: bool) {
        self.flags.push_events(is_evicted, self.entries[index].key(), &mut self.events);
        let gauge = if is_evicted { &self.gauges.evicted } else { &self.gauges.expired };
        gauge.add(1);
        self.remove_at(index);
    }

    fn insert(&mut self, key: Key<'_>, value_length: usize) -> usize {
        let mut data = Vec::with_capacity(key.name.len() + value_length);
        data.extend_from_slice(key.name);
        let key_length = key.name.len() as u32;
        let entry = Entry { data, key_length, timer: None, deadline: None };
        self.memory += entry.bytes();
        let index = self.entries.insert(entry);
        let place = Place { index: index as u32, hash: key.hash as u32 };
        self.table.insert_unique(spread(place.hash), place, |place| spread(place.hash));
        self.publish_gauges();
        index
    }

    fn remove_at(&mut self, index: usize) {
        self.disarm(index);
        let entry = self.entries.remove(index);
        let hash = Key::new(entry.key()).hash as u32;
        let found = self.table.find_entry(spread(hash), |place| place.index as usize == index);
        let _place = found.expect("the table has a place for each entry").remove();
        self.memory -= entry.bytes();
        if self.entries.is_empty() {
            // The memory of many keys goes back with the last of them.
            (self.table, self.entries) = (HashTable::new(), Slab::new());
        }
        self.publish_gauges();
    }

    fn arm(&mut self, index: usize, deadline: Instant) -> Written {
        let at = self.timers.deadline(deadline);
        let entry = &mut self.entries[index];
        let is_reset =
            entry.timer.is_some_and(|timer| self.timers.reset(timer, at) == ResetOutcome::Reset);
        if !is_reset {
            if entry.timer.is_none() && self.timed >= self.timers_max {
                return Err(NO_TIMER);
            }
            let timer = self.timers.schedule(at, index as u32).map_err(|_| NO_TIMER)?;
            if entry.timer.replace(timer).is_none() {
                self.memory += TIMER_BYTES;
                self.evictable += entry.bytes();
                self.timed += 1;
            }
        }
        entry.deadline = Some(deadline);
        self.publish_gauges();
        Ok(())
    }

    fn disarm(&mut self, index: usize) {
        let entry = &mut self.entries[index];
        entry.deadline = None;
        let bytes = entry.bytes();
        if let Some(timer) = entry.timer.take() {
            let _outcome = self.timers.cancel(timer);
            self.memory -= TIMER_BYTES;
            self.evictable -= bytes;
            self.timed -= 1;
        }
    }

    /// Evicts keys until an entry of `bytes` fits, in place of the one that was found, which stays.
    /// Evicts none if it would not fit beside the keys that cannot be evicted.
    fn make_room(&mut self, bytes: usize, found: Option<usize>) -> Written {
        if self.memory_max == 0 {
            return Ok(());
        }
        let found = found.map(|index| &self.entries[index]);
        let replaced = found.map_or(0, Entry::bytes);
        // No eviction frees the bytes of a key without a deadline.
        let kept = found.filter(|entry| entry.timer.is_none()).map_or(0, Entry::bytes);
        if self.memory - self.evictable - kept + bytes > self.memory_max {
            return Err(NO_MEMORY);
        }
        let own = found.and_then(|entry| entry.timer.zip(entry.deadline));
        let more = bytes.saturating_sub(replaced);
        let mut has_evicted = false;
        while self.memory + more > self.memory_max && self.evict(own.map(|(timer, _)| timer)) {
            has_evicted = true;
        }
        if let (Some((timer, deadline)), true) = (own, has_evicted) {
            let _is_pending = self.timers.reset(timer, deadline);
        }
        Ok(())
    }

    /// Evicts the key that expires first; false if no key has a time to live.
    ///
    /// A timer that is `kept` is put behind all others if it is the first. The caller then gives it
    /// its deadline again.
    fn evict(&mut self, kept: Option<TimerId>) -> bool {
        let mut first = self.timers.soonest_value();
        if first.is_some() && first == kept {
            let last = self.now() + LATER_THAN_ALL;
            let _is_pending = first.map(|timer| self.timers.reset(timer, last));
            first = self.timers.soonest_value().filter(|timer| Some(*timer) != kept);
        }
        let evicted = first.map(|timer| self.timers.cancel(timer).payload());
        let value = evicted.flatten().and_then(Payload::into_value);
        value.map(|index| self.end(index as usize, true)).is_some()
    }

    fn publish_gauges(&self) {
        self.gauges.keys.set(self.entries.len() as u64);
        self.gauges.memory.set(self.memory as u64);
    }
}

#[cfg(test)]
mod tests;

//! The keys of one core: a table of places in a slab of entries, each of which may have a timer.
//!
//! An entry is one allocation for key and value. Its timer's payload is the entry's place in the
//! slab, so a time to live costs a timer of the wheel and no allocation. A key whose deadline has
//! passed is never answered: each access compares the deadline with the clock, and removes the key
//! if the wheel has not come to it yet.
//!
//! Cost: O(1) for each command on a key. An eviction asks the shard for its soonest timer:
//! amortised O(1) entries of the wheel, and O(log keys) comparisons of numbers. An access to a key
//! with a deadline reads the clock, and the wall clock too if the deadline is a point in wall time.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use corewheel::{Fired, Payload, ResetOutcome, TimerId, Timers};
use hashbrown::{DefaultHashBuilder, HashTable};
use slab::Slab;

use crate::gauges::Gauges;
use crate::notify::{Class, Event, Flags};
use crate::wall::{Time, WallClock};

/// What an entry takes beside its key and value: its place in the slab, in the table and the
/// allocator's own bytes.
const ENTRY_BYTES: usize = size_of::<Entry>() + 18 + 16;
/// What a timer takes.
const TIMER_BYTES: usize = 40;
/// The most keys that one write evicts beyond those that make room for it, and one step of
/// housekeeping. Only a limit that was lowered needs more.
const EVICTIONS_MAX: usize = 1 << 10;

/// When a key expires, in monotonic time: in microseconds up to 146,000 years, and beyond in units
/// of two milliseconds, so that each time that a command can state in milliseconds has a deadline.
///
/// The lowest bit says whether the deadline follows the wall clock, and the highest one says the
/// unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Deadline(u64);

/// The bit of a deadline that says that its unit is [`FAR_UNIT`].
const FAR: u64 = 1 << 63;
const FAR_UNIT: i128 = 2_000;
/// The values of either unit are less.
const VALUES: i128 = 1 << 62;

impl Deadline {
    const NEVER: Self = Self(0);

    /// A deadline that follows the wall clock if `is_wall`. It is at least 1, and less than 2⁶³
    /// milliseconds.
    pub(crate) fn new(micros: i128, is_wall: bool) -> Self {
        let far = (micros + FAR_UNIT - 1) / FAR_UNIT;
        let bits = if micros < VALUES {
            (micros.max(1).cast_unsigned() as u64) << 1
        } else {
            FAR | (far.min(VALUES - 1).cast_unsigned() as u64) << 1
        };
        Self(bits | u64::from(is_wall))
    }

    /// `None` for [`NEVER`](Self::NEVER).
    pub(crate) fn micros(self) -> Option<i128> {
        let value = i128::from((self.0 & !FAR) >> 1);
        let micros = if self.0 & FAR == 0 { value } else { value * FAR_UNIT };
        (self != Self::NEVER).then_some(micros)
    }

    fn is_wall(self) -> bool {
        self.0 & 1 == 1
    }
}

/// A key and its hash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) hash: u64,
}

impl<'a> Key<'a> {
    pub(crate) fn new(name: &'a [u8]) -> Self {
        Self { name, hash: Self::hasher().hash_one(name) }
    }

    /// A number less than `bound`, or 0.
    pub(crate) fn random(bound: u64) -> u64 {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: a count.
        Self::hasher()
            .hash_one(COUNT.fetch_add(1, Ordering::Relaxed))
            .checked_rem(bound)
            .unwrap_or(0)
    }

    /// All cores hash a key alike, as the hash says which core has the key.
    fn hasher() -> &'static DefaultHashBuilder {
        static HASHER: LazyLock<DefaultHashBuilder> = LazyLock::new(DefaultHashBuilder::default);
        &HASHER
    }
}

/// What a write does with a key's time to live.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ttl {
    Remove,
    Keep,
    Set(Deadline),
}

/// Why a write did not take place, as the client is told.
pub(crate) type WriteError = &'static str;
pub(crate) type Written<T = ()> = Result<T, WriteError>;

const NO_MEMORY: WriteError = "OOM command not allowed when used memory > 'maxmemory'.";
const NO_TIMER: WriteError =
    "OOM this core has no timer left for a time to live; start with more --timers-max";

#[derive(Debug)]
struct Entry {
    /// The key, and the value behind it.
    data: Vec<u8>,
    key_length: u32,
    /// `None` if the key has no deadline.
    timer: Option<TimerId>,
    deadline: Deadline,
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
    time: Time,
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
    /// The number of this core, and how many there are.
    pub(crate) core: usize,
    pub(crate) cores: usize,
    /// What is to be published: filled while `flags` ask for it.
    pub(crate) events: Vec<Event>,
    pub(crate) flags: Flags,
    gauges: Arc<Gauges>,
}

impl Keyspace {
    pub(crate) fn new(timers: Timers<u32>, wall: WallClock, gauges: Arc<Gauges>) -> Self {
        Self {
            table: HashTable::new(),
            entries: Slab::new(),
            time: Time::new(wall, || timers.now()),
            timers,
            memory: 0,
            evictable: 0,
            memory_max: 0,
            timers_max: usize::MAX,
            timed: 0,
            core: 0,
            cores: 1,
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

    /// When a key expires: `None` if there is no such key.
    pub(crate) fn deadline(&mut self, key: Key<'_>) -> Option<Deadline> {
        self.find(key).map(|index| self.entries[index].deadline)
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
        // An eviction may have removed it.
        let found = found.and_then(|_| self.find(key));
        let index = match found {
            Some(index) => index,
            None => self.insert(key, value.len()),
        };
        if let Ttl::Set(deadline) = ttl {
            self.arm(index, deadline).inspect_err(|_| {
                if found.is_none() {
                    self.remove_at(index);
                }
            })?;
        } else if matches!(ttl, Ttl::Remove) {
            self.disarm(index);
        }
        if found.is_none() {
            self.note(Class::NEW, "new", index);
        }
        self.change_value(index, |data, begin| {
            data.truncate(begin);
            data.extend_from_slice(value);
            // A short value does not hold the room of a long one before it.
            if data.capacity() > 2 * data.len() + 64 {
                data.shrink_to_fit();
            }
        });
        Ok(())
    }

    /// Appends to a value; false if there is none.
    pub(crate) fn append(&mut self, key: Key<'_>, tail: &[u8]) -> Written<bool> {
        let found = self.find(key);
        let before = found.map_or(0, |index| self.entries[index].bytes());
        self.make_room(before + tail.len(), found)?;
        let Some(index) = found.and_then(|_| self.find(key)) else {
            return Ok(false);
        };
        self.change_value(index, |data, _| data.extend_from_slice(tail));
        Ok(true)
    }

    /// Removes a key. False if there is none.
    pub(crate) fn remove(&mut self, key: Key<'_>) -> bool {
        let Some(index) = self.find(key) else { return false };
        self.note(Class::GENERIC, "del", index);
        self.remove_at(index);
        true
    }

    /// Removes a key that is there, without an event.
    pub(crate) fn remove_silently(&mut self, key: Key<'_>) {
        if let Some(index) = self.find(key) {
            self.remove_at(index);
        }
    }

    /// Gives a key the value and the deadline of another. False if that is not there.
    pub(crate) fn copy(&mut self, from: Key<'_>, to: Key<'_>) -> Written<bool> {
        let Some(index) = self.find(from) else { return Ok(false) };
        let Entry { deadline, .. } = self.entries[index];
        let ttl = if deadline == Deadline::NEVER { Ttl::Remove } else { Ttl::Set(deadline) };
        let value = self.entries[index].value().to_vec();
        self.set(to, &value, ttl).map(|()| true)
    }

    /// Gives a key that is there another deadline, or none.
    pub(crate) fn expire(&mut self, key: Key<'_>, deadline: Option<Deadline>) -> Written {
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

    /// Calls a function with each key whose time is not over.
    pub(crate) fn for_each_key(&mut self, mut call: impl FnMut(&[u8])) {
        self.follow_wall();
        let now = self.now();
        for (_, entry) in &self.entries {
            if entry.deadline.micros().is_none_or(|deadline| deadline > now) {
                call(entry.key());
            }
        }
    }

    /// Calls a function with the keys at the next places of the slab, from `from` on, whose time is
    /// not over. Ends after so many keys, or ten times as many places. Returns the place at which
    /// the next call goes on; `None` after the last. A key does not change its place.
    pub(crate) fn scan(
        &mut self,
        from: usize,
        count: usize,
        mut call: impl FnMut(&[u8]),
    ) -> Option<usize> {
        self.follow_wall();
        let (now, end, mut found) = (self.now(), self.entries.capacity(), 0);
        for index in from..end {
            if found >= count || index - from >= count.saturating_mul(10) {
                return Some(index);
            }
            let Some(entry) = self.entries.get(index) else { continue };
            found += 1;
            if entry.deadline.micros().is_none_or(|deadline| deadline > now) {
                call(entry.key());
            }
        }
        None
    }

    /// Any key whose time is not over; `None` if none is found. Most times all keys are alike.
    pub(crate) fn any_key(&mut self) -> Option<&[u8]> {
        const ATTEMPTS: u64 = 100;
        self.follow_wall();
        let (now, places) = (self.now(), self.entries.capacity().max(1) as u64);
        let is_alive = |entry: &Entry| entry.deadline.micros().is_none_or(|at| at > now);
        let mut tried = (0..ATTEMPTS).map(|_| Key::random(places) as usize);
        let found = tried.find(|at| self.entries.get(*at).is_some_and(is_alive));
        let entry = match found {
            Some(index) => self.entries.get(index),
            None => self.entries.iter().map(|(_, entry)| entry).find(|entry| is_alive(entry)),
        };
        entry.map(Entry::key)
    }

    /// The timer of a key has fired.
    pub(crate) fn fired(&mut self, fired: &Fired<u32>) {
        let index = fired.payload as usize;
        let timer = self.entries.get(index).and_then(|entry| entry.timer);
        if timer == Some(fired.timer) {
            self.expire_at(index);
        }
    }

    /// Moves the deadlines that are points in wall time if the wall clock has stepped. O(keys) if
    /// it has, else two clock readings.
    pub(crate) fn follow_wall(&mut self) {
        let Some(step) = self.time.take_step(|| self.timers.now()) else { return };
        tracing::warn!(step_micros = step, "the wall clock has stepped");
        let followers = self.entries.iter_mut().filter(|(_, entry)| entry.deadline.is_wall());
        for (_, entry) in followers {
            let deadline = entry.deadline.micros().unwrap_or_default();
            // A deadline that has passed becomes the least deadline, and so the timer is due.
            let moved = (deadline - i128::from(step)).max(1);
            entry.deadline = Deadline::new(moved, true);
            if let (Some(timer), Some(at)) = (entry.timer, self.time.instant(moved)) {
                let _is_pending = self.timers.reset(timer, at);
            }
        }
    }

    /// Monotonic time, in microseconds.
    pub(crate) fn now(&self) -> i128 {
        self.time.micros(self.timers.now()).into()
    }

    /// The present wall time, and the way to and from wall time.
    pub(crate) fn wall(&mut self) -> (i128, &Time) {
        self.follow_wall();
        (self.time.to_wall(self.now()), &self.time)
    }

    /// Notes an event of a key, if a client may wait for it.
    pub(crate) fn event(&mut self, class: Class, name: &'static str, key: Key<'_>) {
        self.flags.push_events(class, name, key.name, &mut self.events);
    }

    fn note(&mut self, class: Class, name: &'static str, index: usize) {
        self.flags.push_events(class, name, self.entries[index].key(), &mut self.events);
    }

    /// The entry of a key, unless its time is over. Then the entry is removed.
    #[inline]
    fn find(&mut self, key: Key<'_>) -> Option<usize> {
        let hash = key.hash as u32;
        let entries = &self.entries;
        let is_it =
            |place: &Place| place.hash == hash && entries[place.index as usize].key() == key.name;
        let index = self.table.find(spread(hash), is_it)?.index as usize;
        if self.entries[index].deadline != Deadline::NEVER && self.is_over(index) {
            self.expire_at(index);
            return None;
        }
        Some(index)
    }

    fn is_over(&mut self, index: usize) -> bool {
        if self.entries[index].deadline.is_wall() {
            self.follow_wall();
        }
        let deadline = self.entries[index].deadline.micros();
        deadline.is_some_and(|deadline| deadline <= self.now())
    }

    fn expire_at(&mut self, index: usize) {
        self.note(Class::EXPIRED, "expired", index);
        self.gauges.expired.add(1);
        self.remove_at(index);
    }

    fn insert(&mut self, key: Key<'_>, value_length: usize) -> usize {
        let mut data = Vec::with_capacity(key.name.len() + value_length);
        data.extend_from_slice(key.name);
        let key_length = key.name.len() as u32;
        let entry = Entry { data, key_length, timer: None, deadline: Deadline::NEVER };
        self.memory += entry.bytes();
        let index = self.entries.insert(entry);
        let place = Place { index: index as u32, hash: key.hash as u32 };
        self.table.insert_unique(spread(place.hash), place, |place| spread(place.hash));
        self.publish_gauges();
        index
    }

    fn change_value(&mut self, index: usize, change: impl FnOnce(&mut Vec<u8>, usize)) {
        let entry = &mut self.entries[index];
        let before = entry.bytes();
        let begin = entry.key_length as usize;
        change(&mut entry.data, begin);
        self.memory = self.memory - before + entry.bytes();
        if entry.timer.is_some() {
            self.evictable = self.evictable - before + entry.bytes();
        }
        self.gauges.memory.set(self.memory as u64);
    }

    fn remove_at(&mut self, index: usize) {
        self.disarm(index);
        let entry = self.entries.remove(index);
        let hash = Key::new(entry.key()).hash as u32;
        let found = self.table.find_entry(spread(hash), |place| place.index as usize == index);
        let _place = found.expect("the table has a place for each entry").remove();
        self.memory -= entry.bytes();
        self.publish_gauges();
    }

    fn arm(&mut self, index: usize, deadline: Deadline) -> Written {
        let at = deadline.micros().and_then(|micros| self.time.instant(micros));
        let at = self.timers.deadline(at.expect("the instants reach as far as deadlines do"));
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
        entry.deadline = deadline;
        self.publish_gauges();
        Ok(())
    }

    fn disarm(&mut self, index: usize) {
        let entry = &mut self.entries[index];
        entry.deadline = Deadline::NEVER;
        let bytes = entry.bytes();
        if let Some(timer) = entry.timer.take() {
            let _outcome = self.timers.cancel(timer);
            self.memory -= TIMER_BYTES;
            self.evictable -= bytes;
            self.timed -= 1;
        }
    }

    /// Evicts keys until an entry of `bytes` fits, in place of the one that was found. Evicts none
    /// if it would not fit beside the keys that cannot be evicted.
    ///
    /// After a limit was lowered, the write takes place once it has made room for itself and
    /// [`EVICTIONS_MAX`] keys have gone: the memory falls with each write, and with each
    /// [`shrink`](Self::shrink).
    fn make_room(&mut self, bytes: usize, found: Option<usize>) -> Written {
        if self.memory_max == 0 {
            return Ok(());
        }
        let replaced = |keys: &Self| {
            let entry = found.and_then(|index| keys.entries.get(index));
            entry.map_or((0, 0), |entry| {
                (entry.bytes(), if entry.timer.is_some() { 0 } else { entry.bytes() })
            })
        };
        let (_, kept) = replaced(self);
        if self.memory - self.evictable - kept + bytes > self.memory_max {
            return Err(NO_MEMORY);
        }
        let (before, mut evicted) = (self.memory, 0);
        loop {
            // An eviction may have removed the entry that was found.
            let more = bytes.saturating_sub(replaced(self).0);
            let has_room = self.memory + more <= self.memory_max;
            if has_room || (evicted >= EVICTIONS_MAX && self.memory + more <= before) {
                return Ok(());
            }
            if !self.evict() {
                return Err(NO_MEMORY);
            }
            evicted += 1;
        }
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
        (0..EVICTIONS_MAX).all(|_| is_over(self) && self.evict())
    }

    /// Evicts the key that expires first; false if no key has a time to live.
    fn evict(&mut self) -> bool {
        let evicted = self.timers.soonest_value().map(|timer| self.timers.cancel(timer).payload());
        let value = evicted.flatten().and_then(Payload::into_value);
        let Some(index) = value.map(|index| index as usize) else { return false };
        self.note(Class::EVICTED, "evicted", index);
        self.gauges.evicted.add(1);
        self.remove_at(index);
        true
    }

    fn publish_gauges(&self) {
        self.gauges.keys.set(self.entries.len() as u64);
        self.gauges.with_deadline.set(self.timed as u64);
        self.gauges.memory.set(self.memory as u64);
    }
}

#[cfg(test)]
mod tests;

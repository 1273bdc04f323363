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

mod room;

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use corewheel::{Fired, ResetOutcome, TimerId, Timers};
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
    /// No deadline is later.
    const LAST: Self = Self(!1);

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

    /// The bytes that no eviction frees.
    fn kept_bytes(&self) -> usize {
        if self.timer.is_some() { 0 } else { self.bytes() }
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
    /// The number of this core among `cores`.
    pub(crate) core: usize,
    /// The numbers of all cores, this one too.
    pub(crate) cores: Vec<Arc<Gauges>>,
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
            cores: vec![Arc::clone(&gauges)],
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
        self.place(key, value, ttl, found)
    }

    /// Writes a value into the entry that was found, or into a new one.
    fn place(&mut self, key: Key<'_>, value: &[u8], ttl: Ttl, found: Option<usize>) -> Written {
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
        let Some(index) = found else { return Ok(false) };
        self.make_room(self.entries[index].bytes() + tail.len(), found)?;
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

    /// Gives a key the value and the deadline of another. False if that is not there.
    pub(crate) fn copy(&mut self, from: Key<'_>, to: Key<'_>) -> Written<bool> {
        let Some(index) = self.find(from) else { return Ok(false) };
        let (value, ttl) = self.content(index);
        self.set(to, &value, ttl).map(|()| true)
    }

    /// Gives a key the value and the deadline of another, which goes without an event. False if
    /// that is not there. Needs no timer, and no room but for a longer name.
    pub(crate) fn rename(&mut self, from: Key<'_>, to: Key<'_>) -> Written<bool> {
        let Some(index) = self.find(from) else { return Ok(false) };
        if from.name == to.name {
            return Ok(true);
        }
        let (value, ttl) = self.content(index);
        let longer = to.name.len().saturating_sub(from.name.len());
        if let Some(replaced) = self.find(to) {
            self.remove_at(replaced);
        } else if longer > 0 {
            self.make_room(self.entries[index].bytes() + longer, Some(index))?;
        }
        self.remove_at(index);
        // The room and the timer of the key that has gone.
        self.place(to, &value, ttl, None).map(|()| true)
    }

    fn content(&self, index: usize) -> (Vec<u8>, Ttl) {
        let entry = &self.entries[index];
        let has_deadline = entry.deadline != Deadline::NEVER;
        let ttl = if has_deadline { Ttl::Set(entry.deadline) } else { Ttl::Remove };
        (entry.value().to_vec(), ttl)
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

    /// Calls a function with each key whose time is not over, until it returns false: then this
    /// returns false, too.
    pub(crate) fn all_keys(&mut self, mut call: impl FnMut(&[u8]) -> bool) -> bool {
        self.follow_wall();
        let now = self.now();
        let is_alive = |entry: &Entry| entry.deadline.micros().is_none_or(|at| at > now);
        self.entries.iter().all(|(_, entry)| !is_alive(entry) || call(entry.key()))
    }

    /// Calls a function with the keys at the next places of the slab, from `from` on, whose time is
    /// not over. Ends after so many keys, ten times as many places, or when the function returns
    /// false. Returns the place at which the next call goes on; `None` after the last. A key does
    /// not change its place.
    pub(crate) fn scan(
        &mut self,
        from: usize,
        count: usize,
        mut call: impl FnMut(&[u8]) -> bool,
    ) -> Option<usize> {
        self.follow_wall();
        let (now, end, mut found) = (self.now(), self.entries.capacity(), 0);
        for index in from..end {
            if found >= count || index - from >= count.saturating_mul(10) {
                return Some(index);
            }
            let Some(entry) = self.entries.get(index) else { continue };
            found += 1;
            let is_alive = entry.deadline.micros().is_none_or(|deadline| deadline > now);
            if is_alive && !call(entry.key()) {
                return Some(index + 1);
            }
        }
        None
    }

    /// Any key whose time is not over; `None` if there is none. All keys are alike, unless nearly
    /// all places of the table are free.
    pub(crate) fn any_key(&mut self) -> Option<&[u8]> {
        const ATTEMPTS: u64 = 100;
        self.follow_wall();
        let (now, buckets) = (self.now(), self.table.num_buckets() as u64);
        let entry_at = |place: &Place| &self.entries[place.index as usize];
        let is_alive = |entry: &&Entry| entry.deadline.micros().is_none_or(|at| at > now);
        let tried = (0..ATTEMPTS).map(|_| self.table.get_bucket(Key::random(buckets) as usize));
        let found = tried.flatten().map(entry_at).find(is_alive);
        // The housekeeping keeps the table from being much larger than its keys.
        let entry = found.or_else(|| self.table.iter().map(entry_at).find(is_alive));
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

    fn publish_gauges(&self) {
        self.gauges.keys.set(self.entries.len() as u64);
        self.gauges.with_deadline.set(self.timed as u64);
        self.gauges.memory.set(self.memory as u64);
    }
}

#[cfg(test)]
mod tests;

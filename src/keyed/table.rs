//! The keys of keyed timers, what each holds, and the groups that they belong to.
//!
//! A key is stored once, with its value and its timer, in a slab; the table of hashes holds the
//! numbers of their places. The keys of a group are chained through the same slab, so that a group
//! ends in as many steps as it has keys, and a key leaves it in one.
//!
//! Invariants: a chain is in the order in which the keys came to the group, and a group is there
//! only while it has keys. Absent by design: anything that runs or drops what is the user's, but
//! `Hash` and `Eq`.

use corewheel_shard::{Tick, TimerKey};
use hashbrown::HashTable;
use slab::Slab;

use crate::capacity::{no_memory, slab};
use crate::error::ConfigError;

/// Where a chain ends, and the group of a key that has none.
const NONE: u32 = u32::MAX;

pub(super) struct Table<K, V, G> {
    entries: Slab<Entry<K, V>>,
    by_key: HashTable<u32>,
    groups: Slab<Group<G>>,
    by_group: HashTable<u32>,
}

/// One key, in its place.
pub(super) struct Entry<K, V> {
    pub(super) key: K,
    pub(super) value: V,
    pub(super) deadline: Tick,
    /// None only while it is being made.
    pub(super) timer: Option<TimerKey>,
    hash: u64,
    group: u32,
    previous: u32,
    next: u32,
}

struct Group<G> {
    name: G,
    hash: u64,
    first: u32,
    last: u32,
    len: u32,
}

/// A name with its hash.
pub(super) type Hashed<G> = (u64, G);

impl<K, V, G> Table<K, V, G> {
    /// Fails if there is no memory for it.
    pub(super) fn with_capacity(capacity: usize) -> Result<Self, ConfigError> {
        // It comes first, as the table is touched from end to end.
        let entries = slab("capacity", capacity)?;
        let mut by_key = HashTable::new();
        by_key
            .try_reserve(capacity, |_| unreachable!("it is empty"))
            .map_err(|_| no_memory("capacity", capacity))?;
        Ok(Self { entries, by_key, groups: Slab::new(), by_group: HashTable::new() })
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many groups have keys.
    pub(super) fn groups(&self) -> usize {
        self.groups.len()
    }

    #[inline]
    pub(super) fn find(&self, hash: u64, is_key: impl Fn(&K) -> bool) -> Option<u32> {
        self.by_key.find(hash, |entry| is_key(&self.entries[*entry as usize].key)).copied()
    }

    #[inline]
    pub(super) fn get(&mut self, entry: u32) -> Option<&mut Entry<K, V>> {
        self.entries.get_mut(entry as usize)
    }

    /// A new key, in no group and without a timer.
    pub(super) fn insert(&mut self, hash: u64, key: K, value: V, deadline: Tick) -> u32 {
        let entry = Entry {
            key,
            value,
            deadline,
            timer: None,
            hash,
            group: NONE,
            previous: NONE,
            next: NONE,
        };
        let number = self.entries.insert(entry) as u32;
        let entries = &self.entries;
        self.by_key.insert_unique(hash, number, |entry| entries[*entry as usize].hash);
        number
    }

    /// Takes a key out of its place and out of its group, whose name comes out with the last one.
    pub(super) fn remove(&mut self, number: u32) -> (Entry<K, V>, Option<G>) {
        let name = self.leave_group(number);
        let entry = self.entries.remove(number as usize);
        if let Ok(place) = self.by_key.find_entry(entry.hash, |known| *known == number) {
            place.remove();
        }
        (entry, name)
    }

    /// Takes a key out of its group, whose name comes out with the last one.
    pub(super) fn leave_group(&mut self, number: u32) -> Option<G> {
        let entry = &mut self.entries[number as usize];
        let (group, previous, next) = (entry.group, entry.previous, entry.next);
        (entry.group, entry.previous, entry.next) = (NONE, NONE, NONE);
        let known = self.groups.get_mut(group as usize)?;
        match self.entries.get_mut(previous as usize) {
            Some(before) => before.next = next,
            None => known.first = next,
        }
        match self.entries.get_mut(next as usize) {
            Some(after) => after.previous = previous,
            None => known.last = previous,
        }
        known.len -= 1;
        if known.len > 0 {
            return None;
        }
        let gone = self.groups.remove(group as usize);
        if let Ok(place) = self.by_group.find_entry(gone.hash, |known| *known == group) {
            place.remove();
        }
        Some(gone.name)
    }

    /// Puts a key that is in no group at the end of one. The name comes back where the group is
    /// there already.
    pub(super) fn join_group(&mut self, number: u32, (hash, name): Hashed<G>) -> Option<G>
    where
        G: Eq,
    {
        let found = self.find_group(hash, |known| *known == name);
        let (group, left) = if let Some(group) = found {
            (group, Some(name))
        } else {
            let group = Group { name, hash, first: NONE, last: NONE, len: 0 };
            let group = self.groups.insert(group) as u32;
            let groups = &self.groups;
            self.by_group.insert_unique(hash, group, |group| groups[*group as usize].hash);
            (group, None)
        };
        let known = &mut self.groups[group as usize];
        let previous = std::mem::replace(&mut known.last, number);
        known.len += 1;
        match self.entries.get_mut(previous as usize) {
            Some(before) => before.next = number,
            None => known.first = number,
        }
        let entry = &mut self.entries[number as usize];
        (entry.group, entry.previous) = (group, previous);
        left
    }

    /// Whether a key is in the group of this name.
    pub(super) fn is_in_group(&self, number: u32, name: Option<&Hashed<G>>) -> bool
    where
        G: Eq,
    {
        let group = self.groups.get(self.entries[number as usize].group as usize);
        group.map(|group| &group.name) == name.map(|(_, name)| name)
    }

    pub(super) fn group_len(&self, hash: u64, is_group: impl Fn(&G) -> bool) -> usize {
        let group = self.find_group(hash, is_group);
        group.map_or(0, |group| self.groups[group as usize].len as usize)
    }

    /// The keys of a group, in the order in which they came to it.
    pub(super) fn members(&self, hash: u64, is_group: impl Fn(&G) -> bool) -> Vec<u32> {
        let Some(group) = self.find_group(hash, is_group) else { return Vec::new() };
        let Group { first, len, .. } = self.groups[group as usize];
        let mut members = Vec::with_capacity(len as usize);
        let mut next = first;
        while let Some(entry) = self.entries.get(next as usize) {
            members.push(next);
            next = entry.next;
        }
        members
    }

    /// All keys, in no particular order.
    pub(super) fn all(&self) -> Vec<u32> {
        self.entries.iter().map(|(number, _)| number as u32).collect()
    }

    fn find_group(&self, hash: u64, is_group: impl Fn(&G) -> bool) -> Option<u32> {
        self.by_group.find(hash, |group| is_group(&self.groups[*group as usize].name)).copied()
    }
}

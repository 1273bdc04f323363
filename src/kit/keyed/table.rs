//! The keys of keyed timers, what each holds, and the groups that they belong to.
//!
//! A key is stored once, with its value and its timer, in a slab; the table of hashes holds the
//! numbers of their places. The keys of a group are chained through a slab of memberships, so that
//! a group ends in as many steps as it has keys, and a key leaves it in one.
//!
//! Why not a table of numbers with their hashes, side by side, which finds a key with one cache
//! line less: it is three times as large, and with many keys it is what no longer fits the caches
//! that costs.
//!
//! Invariants: a chain is in the order in which the keys came to the group, and a group is there
//! only while it has keys. Absent by design: anything that runs or drops what is the user's, but
//! `Hash` and `Eq`.

use corewheel_shard::{Tick, TimerKey};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Spot;
use slab::Slab;

use crate::values::capacity::{no_memory, slab};
use crate::values::error::ConfigError;
use crate::values::list::{Link, List, Node};

/// The membership of a key that is in no group.
const NONE: u32 = u32::MAX;

pub(super) struct Table<K, V, G> {
    entries: Slab<Entry<K, V>>,
    by_key: HashTable<u32>,
    members: Slab<Member>,
    groups: Slab<Group<G>>,
    by_group: HashTable<u32>,
}

/// One key, in its place.
pub(super) struct Entry<K, V> {
    pub(super) key: K,
    pub(super) value: V,
    pub(super) deadline: Tick,
    pub(super) timer: TimerKey,
    hash: u32,
    member: u32,
}

const _: () = assert!(size_of::<Option<Entry<u64, u64>>>() == 40);

/// The place of a key in the chain of its group.
struct Member {
    entry: u32,
    group: u32,
    link: Link,
}

impl Node for Member {
    fn link(&self) -> Link {
        self.link
    }

    fn set_link(&mut self, link: Link) {
        self.link = link;
    }
}

struct Group<G> {
    name: G,
    hash: u64,
    members: List,
    len: u32,
}

/// A name with its hash.
pub(super) type Hashed<G> = (u64, G);

/// What became of a key that was put in.
pub(super) enum Put<K, V> {
    /// It is there by this number.
    New(u32),
    /// It was there before, and is by this number.
    Known(u32, K, V),
    /// There is no room for it.
    Refused(K, V),
}

/// The part of a hash that is kept, as the table of hashes takes it: the highest and the lowest
/// bits count there.
#[inline]
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

impl<K, V, G> Table<K, V, G> {
    /// Fails if there is no memory for it.
    pub(super) fn with_capacity(capacity: usize) -> Result<Self, ConfigError> {
        // It comes first, as the table is touched from end to end.
        let entries = slab("capacity", capacity)?;
        let mut by_key = HashTable::new();
        by_key
            .try_reserve(capacity, |_| unreachable!("it is empty"))
            .map_err(|_| no_memory("capacity", capacity))?;
        let (members, groups, by_group) = (Slab::new(), Slab::new(), HashTable::new());
        Ok(Self { entries, by_key, members, groups, by_group })
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
        let is_entry = |entry: &u32| is_key(&self.entries[*entry as usize].key);
        self.by_key.find(spread(hash as u32), is_entry).copied()
    }

    #[inline]
    pub(super) fn get(&mut self, entry: u32) -> Option<&mut Entry<K, V>> {
        self.entries.get_mut(entry as usize)
    }

    /// Looks for a key, and makes it if it is not there and they are fewer than `max`, in no group
    /// and with the timer that `schedule` has for its number.
    #[inline]
    pub(super) fn put(
        &mut self,
        (hash, key): (u64, K),
        value: V,
        deadline: Tick,
        max: usize,
        schedule: impl FnOnce(u32) -> Option<TimerKey>,
    ) -> Put<K, V>
    where
        K: Eq,
    {
        let hash = hash as u32;
        let entries = &mut self.entries;
        // Where there is no room, the table is not to make any.
        if entries.len() >= max {
            let is_entry = |entry: &u32| entries[*entry as usize].key == key;
            return match self.by_key.find(spread(hash), is_entry) {
                Some(entry) => Put::Known(*entry, key, value),
                None => Put::Refused(key, value),
            };
        }
        let spot = self.by_key.entry(
            spread(hash),
            |entry| entries[*entry as usize].key == key,
            |entry| spread(entries[*entry as usize].hash),
        );
        let vacant = match spot {
            Spot::Occupied(known) => return Put::Known(*known.get(), key, value),
            Spot::Vacant(vacant) => vacant,
        };
        let number = entries.vacant_key() as u32;
        let Some(timer) = schedule(number) else { return Put::Refused(key, value) };
        entries.insert(Entry { key, value, deadline, timer, hash, member: NONE });
        vacant.insert(number);
        Put::New(number)
    }

    /// Takes a key out of its place and out of its group, whose name comes out with the last one.
    #[inline]
    pub(super) fn remove(&mut self, number: u32) -> (Entry<K, V>, Option<G>) {
        let name = self.leave_group(number);
        let entry = self.entries.remove(number as usize);
        if let Ok(place) = self.by_key.find_entry(spread(entry.hash), |known| *known == number) {
            place.remove();
        }
        (entry, name)
    }

    /// Takes a key out of its group, whose name comes out with the last one.
    #[inline]
    pub(super) fn leave_group(&mut self, number: u32) -> Option<G> {
        let member = std::mem::replace(&mut self.entries[number as usize].member, NONE);
        if member == NONE { None } else { self.end_membership(member) }
    }

    fn end_membership(&mut self, member: u32) -> Option<G> {
        let group = self.members[member as usize].group;
        let known = &mut self.groups[group as usize];
        known.members.remove(&mut self.members, member);
        self.members.remove(member as usize);
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
            let group = Group { name, hash, members: List::default(), len: 0 };
            let group = self.groups.insert(group) as u32;
            let groups = &self.groups;
            self.by_group.insert_unique(hash, group, |group| groups[*group as usize].hash);
            (group, None)
        };
        let known = &mut self.groups[group as usize];
        let member = Member { entry: number, group, link: Link::default() };
        let member = self.members.insert(member) as u32;
        known.members.append(&mut self.members, member);
        known.len += 1;
        self.entries[number as usize].member = member;
        left
    }

    /// Whether a key is in the group of this name.
    pub(super) fn is_in_group(&self, number: u32, name: Option<&Hashed<G>>) -> bool
    where
        G: Eq,
    {
        let member = self.members.get(self.entries[number as usize].member as usize);
        let group = member.map(|member| &self.groups[member.group as usize].name);
        group == name.map(|(_, name)| name)
    }

    pub(super) fn group_len(&self, hash: u64, is_group: impl Fn(&G) -> bool) -> usize {
        let group = self.find_group(hash, is_group);
        group.map_or(0, |group| self.groups[group as usize].len as usize)
    }

    /// The keys of a group, in the order in which they came to it.
    pub(super) fn members(&self, hash: u64, is_group: impl Fn(&G) -> bool) -> Vec<u32> {
        let Some(group) = self.find_group(hash, is_group) else { return Vec::new() };
        let Group { members: list, len, .. } = self.groups[group as usize];
        let mut members = Vec::with_capacity(len as usize);
        let mut next = list.first();
        while let Some(member) = next {
            let Member { entry, link, .. } = self.members[member as usize];
            members.push(entry);
            next = link.next();
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

//! The keys of keyed timers, what each holds, and the groups that they belong to.
//!
//! A key is stored once, with its value and its timer, in a slab; the hash table holds the numbers
//! of the entries. The keys of a group are chained, so removing a group is O(its keys), and a key
//! leaves its group in O(1).
//!
//! Why not a hash table that holds each number with its hash, which finds a key with one cache line
//! less: the table is three times as large, and with many keys its misses cost more than that line.
//!
//! Absent by design: code of the user, except `Hash` and `Eq` of keys and names and the closures
//! that are lent entries.

use corewheel::Deadline;
use corewheel::part::PartTimer;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Spot;
use slab::Slab;

use crate::chains::Chains;

/// The membership of a key that is in no group.
const NONE: u32 = u32::MAX;

pub(super) struct Table<K, V, G> {
    entries: Slab<Entry<K, V>>,
    by_key: HashTable<u32>,
    /// The members of a group are the numbers of its entries.
    groups: Chains<G, u32>,
}

/// One key with its value and its timer.
pub(super) struct Entry<K, V> {
    pub(super) key: K,
    pub(super) value: V,
    pub(super) deadline: Deadline,
    pub(super) timer: PartTimer,
    hash: u32,
    member: u32,
}

const _: () = assert!(size_of::<Option<Entry<u64, u64>>>() == 40);

/// The name of a group, with its hash.
pub(super) type Hashed<G> = (u64, G);

/// The outcome of [`Table::put`].
pub(super) enum Put<K, V> {
    /// The key was inserted, as the entry of this number.
    New(u32),
    /// The entry of this number has the key already; nothing has changed.
    Known(u32, K, V),
    /// The shard has no room.
    Refused(K, V),
}

/// A hash for the hash table, which looks at the highest and the lowest bits, made of the half that
/// an entry keeps.
#[inline]
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

impl<K, V, G> Table<K, V, G> {
    pub(super) fn new() -> Self {
        Self { entries: Slab::new(), by_key: HashTable::new(), groups: Chains::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
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

    /// Inserts a key that is not there yet. The key is in no group, and has the timer that
    /// `schedule` makes for the number of its entry.
    #[inline]
    pub(super) fn put(
        &mut self,
        (hash, key): (u64, K),
        value: V,
        deadline: Deadline,
        schedule: impl FnOnce(u32) -> Option<PartTimer>,
    ) -> Put<K, V>
    where
        K: Eq,
    {
        let hash = hash as u32;
        let entries = &mut self.entries;
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

    /// Takes an entry out. With the last key of a group, the group's name is returned.
    #[inline]
    pub(super) fn remove(&mut self, number: u32) -> (Entry<K, V>, Option<G>) {
        let name = self.leave_group(number);
        let entry = self.entries.remove(number as usize);
        if let Ok(place) = self.by_key.find_entry(spread(entry.hash), |known| *known == number) {
            place.remove();
        }
        (entry, name)
    }

    /// Takes a key out of its group. With the last key, the group's name is returned.
    #[inline]
    pub(super) fn leave_group(&mut self, number: u32) -> Option<G> {
        let member = std::mem::replace(&mut self.entries[number as usize].member, NONE);
        if member == NONE { None } else { self.groups.remove(member).1 }
    }

    /// Puts a key that is in no group at the end of a group. If the group exists, the name is
    /// returned.
    pub(super) fn join_group(&mut self, number: u32, (hash, name): Hashed<G>) -> Option<G>
    where
        G: Eq,
    {
        let found = self.groups.find(hash, |known| *known == name);
        let (group, left) = if let Some(group) = found {
            (group, Some(name))
        } else {
            (self.groups.add(hash, name), None)
        };
        self.entries[number as usize].member = self.groups.append(group, number);
        left
    }

    /// Whether a key is in the group of this name.
    pub(super) fn is_in_group(&self, number: u32, name: Option<&Hashed<G>>) -> bool
    where
        G: Eq,
    {
        let member = self.entries[number as usize].member;
        let group = (member != NONE).then(|| self.groups.name_of(member));
        group == name.map(|(_, name)| name)
    }

    /// The numbers of the entries of a group, in the order in which their keys came to it.
    pub(super) fn members(&self, hash: u64, is_group: impl Fn(&G) -> bool) -> Vec<u32> {
        let group = self.groups.find(hash, is_group);
        group.map_or_else(Vec::new, |group| self.groups.members(group).copied().collect())
    }

    /// The numbers of all entries, in no particular order.
    pub(super) fn all(&self) -> Vec<u32> {
        self.entries.iter().map(|(number, _)| number as u32).collect()
    }
}

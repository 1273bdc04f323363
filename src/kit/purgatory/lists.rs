//! The operations of a purgatory and the lists in which they watch their keys.
//!
//! A list is chained through a slab of watches, and so are the watches of one operation, so that an
//! operation leaves all its lists in as many steps as it watches keys. Why not a vector for each
//! key that is swept now and then, as in Kafka: what has completed would stay in it until then, and
//! the sweep walks over everything.
//!
//! Invariants: a list is in the order in which its operations came, and it is there only while it
//! is not empty. A walk stands at a watch that is still to be looked at; who removes that watch
//! moves the walk on. Absent by design: anything that runs an operation. Keys that are used up are
//! left in `spent`, to be dropped when nothing is borrowed.
//!
//! Cost: 24 bytes for each watch, and 48 bytes with the key for each list.

use std::collections::VecDeque;

use hashbrown::HashTable;
use slab::Slab;

use corewheel_shard::TimerKey;

use crate::values::capacity::slab;
use crate::values::error::ConfigError;
use crate::values::list::{Link, List, Node};

/// Where the chain of an operation's watches ends.
const NONE: u32 = u32::MAX;

/// A key with its hash; without the key once that has found its place in a list.
pub(super) type Hashed<K> = (u64, Option<K>);

pub(super) struct Lists<K, Op> {
    pub(super) operations: Slab<Waiting<Op>>,
    watches: Slab<Watch>,
    by_number: Slab<Watched<K>>,
    /// The numbers of the lists.
    by_key: HashTable<u32>,
    /// Where each walk that is under way goes on, the innermost last.
    walks: Vec<Option<u32>>,
    /// Lists that are to be walked along when those walks are over.
    postponed: VecDeque<u32>,
    /// Keys whose lists are gone.
    pub(super) spent: Vec<K>,
    /// How many operations have come.
    serial: u64,
}

/// An operation in its place.
pub(super) struct Waiting<Op> {
    /// Gone while it is tried.
    pub(super) operation: Option<Op>,
    /// The how-manieth it is, from 0.
    pub(super) serial: u64,
    pub(super) timer: Option<TimerKey>,
    /// One of its keys was checked while it was tried.
    pub(super) again: bool,
    /// Its time was up while it was tried.
    pub(super) due: bool,
    first: u32,
}

impl<Op> Waiting<Op> {
    /// The operation, unless it is being tried.
    pub(super) fn take(&mut self) -> Option<Op> {
        self.operation.take()
    }
}

#[derive(Clone, Copy)]
struct Watch {
    operation: u32,
    list: u32,
    link: Link,
    /// The next watch of the same operation.
    sibling: u32,
}

impl Node for Watch {
    fn link(&self) -> Link {
        self.link
    }

    fn set_link(&mut self, link: Link) {
        self.link = link;
    }
}

/// The operations that watch one key.
struct Watched<K> {
    key: K,
    hash: u64,
    watches: List,
    len: u32,
    /// How many operations a walk that was put off may complete.
    postponed: usize,
}

/// A walk along one list, over those that were there when it began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    place: usize,
    before: u64,
}

impl<K, Op> Lists<K, Op> {
    pub(super) fn with_capacity(operations: usize, watches: usize) -> Result<Self, ConfigError> {
        Ok(Self {
            operations: slab("operations_max", operations)?,
            watches: slab("watches_max", watches)?,
            by_number: Slab::new(),
            by_key: HashTable::new(),
            walks: Vec::new(),
            postponed: VecDeque::new(),
            spent: Vec::new(),
            serial: 0,
        })
    }

    /// How many watches there are in all lists.
    pub(super) fn watched(&self) -> usize {
        self.watches.len()
    }

    /// How many keys are watched.
    pub(super) fn keys(&self) -> usize {
        self.by_number.len()
    }

    pub(super) fn watched_by(&self, hash: u64, is_key: impl Fn(&K) -> bool) -> usize {
        self.find(hash, is_key).map_or(0, |list| self.by_number[list as usize].len as usize)
    }

    /// Makes a place for an operation that is being tried, at the end of the lists of its keys. A
    /// key that is there twice counts once. What is left of the keys is to be dropped when nothing
    /// is borrowed.
    pub(super) fn insert(&mut self, keys: &mut [Hashed<K>]) -> (u32, u64)
    where
        K: Eq,
    {
        let serial = self.serial;
        self.serial += 1;
        let index = self.operations.insert(Waiting {
            operation: None,
            serial,
            timer: None,
            again: false,
            due: false,
            first: NONE,
        }) as u32;
        for (hash, key) in keys {
            let list = self.list_of(*hash, key);
            self.append(index, list);
        }
        (index, serial)
    }

    /// Takes an operation out of its place and out of all its lists.
    pub(super) fn remove(&mut self, index: u32) -> Waiting<Op> {
        let waiting = self.operations.remove(index as usize);
        let mut watch = waiting.first;
        while watch != NONE {
            watch = self.unlink(watch);
        }
        waiting
    }

    /// The operation that has this place, if it is that one.
    pub(super) fn get(&mut self, index: u32, serial: u64) -> Option<&mut Waiting<Op>> {
        self.operations.get_mut(index as usize).filter(|waiting| waiting.serial == serial)
    }

    /// The operations that watch a key, in order: their places, and which they are.
    pub(super) fn watchers(
        &self,
        hash: u64,
        is_key: impl Fn(&K) -> bool,
    ) -> impl Iterator<Item = (u32, u64)> {
        let list = self.find(hash, is_key);
        let mut next = list.and_then(|list| self.by_number[list as usize].watches.first());
        std::iter::from_fn(move || {
            let Watch { operation, link, .. } = self.watches[next? as usize];
            next = link.next();
            Some((operation, self.operations[operation as usize].serial))
        })
    }

    /// Begins a walk along the list of a key. It must be ended before one that began earlier.
    pub(super) fn begin_walk(&mut self, hash: u64, is_key: impl Fn(&K) -> bool) -> Option<Walk> {
        let list = self.find(hash, is_key)?;
        Some(self.walk_along(list))
    }

    /// Puts a walk along the list of a key off until all others are over.
    pub(super) fn postpone_walk(&mut self, hash: u64, is_key: impl Fn(&K) -> bool, max: usize) {
        if max == 0 {
            return;
        }
        let Some(list) = self.find(hash, is_key) else { return };
        let postponed = &mut self.by_number[list as usize].postponed;
        if *postponed == 0 {
            self.postponed.push_back(list);
        }
        *postponed = postponed.saturating_add(max);
    }

    /// Begins a walk that was put off, and says how many operations it may complete.
    pub(super) fn resume_walk(&mut self) -> Option<(Walk, usize)> {
        loop {
            let list = self.postponed.pop_front()?;
            // The list may be gone, and another in its place.
            if let Some(known) = self.by_number.get_mut(list as usize)
                && known.postponed > 0
            {
                let max = std::mem::take(&mut known.postponed);
                return Some((self.walk_along(list), max));
            }
        }
    }

    /// How many walks are under way.
    pub(super) fn walks(&self) -> usize {
        self.walks.len()
    }

    /// The next operation of a walk that can be tried. One that is being tried will be tried again.
    pub(super) fn step(&mut self, walk: Walk) -> Option<(u32, Op)> {
        loop {
            let watch = self.walks[walk.place]?;
            let Watch { operation: index, link, .. } = self.watches[watch as usize];
            let waiting = &mut self.operations[index as usize];
            if waiting.serial >= walk.before {
                return None;
            }
            self.walks[walk.place] = link.next();
            match waiting.operation.take() {
                Some(operation) => return Some((index, operation)),
                None => waiting.again = true,
            }
        }
    }

    pub(super) fn end_walk(&mut self, walk: Walk) {
        self.walks.truncate(walk.place);
    }

    /// Takes all keys out, with their lists, for the end of all.
    pub(super) fn take_keys(&mut self) -> Vec<K> {
        self.by_key.clear();
        let mut keys = std::mem::take(&mut self.spent);
        keys.extend(self.by_number.drain().map(|list| list.key));
        keys
    }

    fn walk_along(&mut self, list: u32) -> Walk {
        self.walks.push(self.by_number[list as usize].watches.first());
        Walk { place: self.walks.len() - 1, before: self.serial }
    }

    fn find(&self, hash: u64, is_key: impl Fn(&K) -> bool) -> Option<u32> {
        self.by_key.find(hash, |list| is_key(&self.by_number[*list as usize].key)).copied()
    }

    /// The list of a key; if there is none yet, the key is taken for one.
    fn list_of(&mut self, hash: u64, key: &mut Option<K>) -> u32
    where
        K: Eq,
    {
        if let Some(list) = self.find(hash, |known| key.as_ref() == Some(known)) {
            return list;
        }
        let key = key.take().expect("a key is used once");
        let watched = Watched { key, hash, watches: List::default(), len: 0, postponed: 0 };
        let list = self.by_number.insert(watched) as u32;
        let lists = &self.by_number;
        self.by_key.insert_unique(hash, list, |list| lists[*list as usize].hash);
        list
    }

    fn append(&mut self, operation: u32, list: u32) {
        let known = &mut self.by_number[list as usize];
        // It can only have come last.
        let newest = known.watches.last();
        if newest.is_some_and(|newest| self.watches[newest as usize].operation == operation) {
            return;
        }
        let waiting = &mut self.operations[operation as usize];
        let watch = self.watches.insert(Watch {
            operation,
            list,
            link: Link::default(),
            sibling: waiting.first,
        }) as u32;
        waiting.first = watch;
        known.watches.append(&mut self.watches, watch);
        known.len += 1;
    }

    /// Takes a watch out of its list, and the list away if it is empty. The operation's next watch.
    fn unlink(&mut self, watch: u32) -> u32 {
        let Watch { list, link, sibling, .. } = self.watches[watch as usize];
        for walk in self.walks.iter_mut().filter(|walk| **walk == Some(watch)) {
            *walk = link.next();
        }
        let Watched { watches, len, hash, .. } = &mut self.by_number[list as usize];
        watches.remove(&mut self.watches, watch);
        self.watches.remove(watch as usize);
        *len -= 1;
        if *len == 0
            && let Ok(entry) = self.by_key.find_entry(*hash, |known| *known == list)
        {
            entry.remove();
            self.spent.push(self.by_number.remove(list as usize).key);
        }
        sibling
    }
}

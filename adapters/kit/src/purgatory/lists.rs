//! The operations of a purgatory and the lists in which they watch their keys.
//!
//! The watches of a list are chained, and so are those of one operation: an operation that watches
//! `n` keys leaves all its lists in `n` steps. Why not a vector for each key that is swept now and
//! then, as in Kafka: operations that have completed would stay in it until then, and the sweep
//! visits every watch.
//!
//! Invariant: the walk stands at the next watch to be visited; removing that watch moves the walk
//! to the one after it. Absent by design: running an operation. Keys without a list are left in
//! `spent`, for the caller to drop when nothing is borrowed.
//!
//! Cost: 24 bytes for each watch, and 48 bytes and the key for each list.

use std::collections::VecDeque;

use corewheel::part::PartTimer;
use slab::Slab;

use crate::chains::Chains;

/// Where the chain of an operation's watches ends.
const NONE: u32 = u32::MAX;

/// A key with its hash. The key is `None` when it was moved into the lists.
pub(super) type Hashed<K> = (u64, Option<K>);

pub(super) struct Lists<K, Op> {
    pub(super) operations: Slab<Waiting<Op>>,
    watches: Chains<Watched<K>, Watch>,
    /// The next watch of the walk along a list. `None` at the end of the list.
    walk: Option<u32>,
    /// The operations of the walk have serials below this.
    before: u64,
    /// Lists that were checked and whose walks have not begun.
    checked: VecDeque<u32>,
    /// Keys whose lists are removed.
    pub(super) spent: Vec<K>,
    /// The serial of the next operation.
    serial: u64,
}

/// An operation in its place.
pub(super) struct Waiting<Op> {
    /// `None` while it is tried.
    pub(super) operation: Option<Op>,
    /// How many operations came before it.
    pub(super) serial: u64,
    /// `None` once it has fired.
    pub(super) timer: Option<PartTimer>,
    /// Its timer fired while it was tried.
    pub(super) due: bool,
    /// Its first watch, or [`NONE`].
    first: u32,
}

#[derive(Clone, Copy)]
struct Watch {
    operation: u32,
    /// The next watch of the same operation, or [`NONE`].
    sibling: u32,
}

/// A key that operations watch.
struct Watched<K> {
    key: K,
    /// Whether a walk is to begin.
    is_checked: bool,
}

impl<K, Op> Lists<K, Op> {
    pub(super) fn new() -> Self {
        Self {
            operations: Slab::new(),
            watches: Chains::new(),
            walk: None,
            before: 0,
            checked: VecDeque::new(),
            spent: Vec::new(),
            serial: 0,
        }
    }

    /// How many watches there are in all lists.
    pub(super) fn watched(&self) -> usize {
        self.watches.len()
    }

    /// How many keys are watched.
    pub(super) fn keys(&self) -> usize {
        self.watches.lists()
    }

    /// Makes a place for an operation that is being tried, at the end of the lists of its keys. A
    /// key that is given twice counts once. The caller drops the keys that are not moved into the
    /// lists, when nothing is borrowed.
    pub(super) fn insert(&mut self, keys: &mut [Hashed<K>]) -> u32
    where
        K: Eq,
    {
        let serial = self.serial;
        self.serial += 1;
        let index = self.operations.insert(Waiting {
            operation: None,
            serial,
            timer: None,
            due: false,
            first: NONE,
        }) as u32;
        for (hash, key) in keys {
            let list = self.list_of(*hash, key);
            self.append(index, list);
        }
        index
    }

    /// Removes an operation from its place and from all its lists.
    pub(super) fn remove(&mut self, index: u32) -> Waiting<Op> {
        let waiting = self.operations.remove(index as usize);
        let mut watch = waiting.first;
        while watch != NONE {
            watch = self.unlink(watch);
        }
        waiting
    }

    /// The operation in this place, if it has this serial.
    pub(super) fn get(&mut self, index: u32, serial: u64) -> Option<&mut Waiting<Op>> {
        self.operations.get_mut(index as usize).filter(|waiting| waiting.serial == serial)
    }

    /// The operations that watch a key, in order: their places and serials.
    pub(super) fn watchers(
        &self,
        hash: u64,
        is_key: impl Fn(&K) -> bool,
    ) -> impl Iterator<Item = (u32, u64)> {
        let list = self.find(hash, is_key).into_iter();
        list.flat_map(|list| self.watches.members(list))
            .map(|watch| (watch.operation, self.operations[watch.operation as usize].serial))
    }

    /// Notes that a key was checked: a walk along its list is to begin.
    pub(super) fn check(&mut self, hash: u64, is_key: impl Fn(&K) -> bool) {
        let Some(list) = self.find(hash, is_key) else { return };
        let Some(known) = self.watches.name(list) else { return };
        if !std::mem::replace(&mut known.is_checked, true) {
            self.checked.push_back(list);
        }
    }

    /// How many walks are to begin.
    pub(super) fn checked(&self) -> usize {
        self.checked.len()
    }

    /// Begins the next walk, over the operations that are in its list now. The walk before is over.
    pub(super) fn begin_walk(&mut self) {
        let Some(list) = self.checked.pop_front() else { return };
        // The list may have been removed, and another list may have its index.
        let known = self.watches.name(list);
        if known.is_some_and(|known| std::mem::take(&mut known.is_checked)) {
            (self.walk, self.before) = (self.watches.first(list), self.serial);
        }
    }

    /// Takes the next operation of the walk out of its place.
    pub(super) fn step(&mut self) -> Option<(u32, Op)> {
        loop {
            let watch = self.walk?;
            let index = self.watches.get(watch).operation;
            let waiting = &mut self.operations[index as usize];
            if waiting.serial >= self.before {
                self.walk = None;
                return None;
            }
            self.walk = self.watches.next(watch);
            if let Some(operation) = waiting.operation.take() {
                return Some((index, operation));
            }
        }
    }

    /// Takes all keys, when the purgatory is dropped.
    pub(super) fn take_keys(&mut self) -> Vec<K> {
        let mut keys = std::mem::take(&mut self.spent);
        keys.extend(self.watches.take_names().map(|known| known.key));
        keys
    }

    fn find(&self, hash: u64, is_key: impl Fn(&K) -> bool) -> Option<u32> {
        self.watches.find(hash, |known| is_key(&known.key))
    }

    /// The list of a key. A new list takes the key.
    fn list_of(&mut self, hash: u64, key: &mut Option<K>) -> u32
    where
        K: Eq,
    {
        if let Some(list) = self.find(hash, |known| key.as_ref() == Some(known)) {
            return list;
        }
        let key = key.take().expect("a key is moved into the lists once");
        self.watches.add(hash, Watched { key, is_checked: false })
    }

    fn append(&mut self, operation: u32, list: u32) {
        // An operation that watches this key already is the last in the list: it has just come.
        if self.watches.last(list).is_some_and(|newest| newest.operation == operation) {
            return;
        }
        let waiting = &mut self.operations[operation as usize];
        let watch = Watch { operation, sibling: waiting.first };
        waiting.first = self.watches.append(list, watch);
    }

    /// Removes a watch from its list, and the list if it is empty. Returns the next watch of the
    /// same operation, or [`NONE`].
    fn unlink(&mut self, watch: u32) -> u32 {
        if self.walk == Some(watch) {
            self.walk = self.watches.next(watch);
        }
        let (Watch { sibling, .. }, spent) = self.watches.remove(watch);
        self.spent.extend(spent.map(|known| known.key));
        sibling
    }
}

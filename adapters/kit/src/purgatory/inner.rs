//! What the clones of a purgatory share: operations and their lists, timers and counts.
//!
//! Invariants: each operation ends once; an operation that has ended is in no list and has no
//! timer. Nothing is borrowed while a method of an operation runs, or while an operation or a key
//! is dropped. Absent by design: a sweep.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, Hash};
use std::rc::Rc;

use corewheel::part::{Part, PartHandle};
use corewheel::{Deadline, Refused, RefusedKind};
use hashbrown::DefaultHashBuilder;

use super::lists::{Hashed, Lists, Walk};
use super::{Operation, OperationId, PurgatoryStats};

/// How often an operation is tried again because its `try_complete` has checked one of its keys.
const TRIES_MAX: usize = 64;
/// How many checks may be nested; a check within so many is deferred.
const NESTED_MAX: usize = 16;

pub(super) struct Inner<K, Op> {
    pub(super) shard: PartHandle,
    pub(super) lists: RefCell<Lists<K, Op>>,
    hasher: DefaultHashBuilder,
    /// Room for the keys of an operation that comes; taken while it is used.
    keys: RefCell<Vec<Hashed<K>>>,
    /// How many checks there were.
    checks: Cell<u64>,
    pub(super) counts: Cell<PurgatoryStats>,
    operations_max: usize,
    watches_max: usize,
}

impl<K, Op> Inner<K, Op>
where
    K: Hash + Eq + 'static,
    Op: Operation,
{
    pub(super) fn new(
        shard: PartHandle,
        lists: Lists<K, Op>,
        operations_max: usize,
        watches_max: usize,
    ) -> Self {
        Self {
            shard,
            lists: RefCell::new(lists),
            hasher: DefaultHashBuilder::default(),
            keys: RefCell::default(),
            checks: Cell::new(0),
            counts: Cell::default(),
            operations_max,
            watches_max,
        }
    }

    pub(super) fn hash(&self, key: &(impl Hash + ?Sized)) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Tries an operation. One that is not complete gets a place; `None` if it has completed.
    pub(super) fn watch(
        &self,
        mut operation: Op,
        deadline: Deadline,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Option<OperationId>, Refused<Op>> {
        let checks = self.checks.get();
        if self.try_complete(&mut operation) {
            self.count(|counts| counts.completed_at_once += 1);
            self.shard.contain(|| operation.completed());
            return Ok(None);
        }
        let mut incoming =
            Incoming { hashed: self.keys.take(), shard: &self.shard, room: &self.keys };
        // An iterator without an end is cut off where its keys are too many.
        let keys = keys.into_iter().take(self.watches_max + 1);
        incoming.hashed.extend(keys.map(|key| (self.hash(&key), Some(key))));
        let inserted = self.insert(deadline, &mut incoming.hashed);
        // A key that has a list already was not moved into the lists.
        drop(incoming);
        let id = match inserted {
            Ok(id) => id,
            Err(refuse) => return Err(refuse(operation)),
        };
        if self.checks.get() != checks {
            // A check may have come during the first try, when the operation was in no list.
            self.lists.borrow_mut().operations[id.index as usize].again = true;
        }
        let again = self.put_back(id.index, operation);
        let completed = again.is_some_and(|operation| self.attempt(id.index, operation));
        Ok((!completed).then_some(id))
    }

    /// Makes a place for an operation, with its watches and its timer. The error makes the refusal.
    fn insert(
        &self,
        deadline: Deadline,
        keys: &mut [Hashed<K>],
    ) -> Result<OperationId, fn(Op) -> Refused<Op>> {
        let refuse = |how: fn(Op) -> Refused<Op>| {
            self.count(|counts| counts.refused += 1);
            Err(how)
        };
        if self.shard.is_closed() {
            let is_dropped = self.shard.why_closed() == RefusedKind::Dropped;
            return refuse(if is_dropped { Refused::Dropped } else { Refused::Closed });
        }
        let (index, serial) = {
            let mut lists = self.lists.borrow_mut();
            let full = lists.operations.len() >= self.operations_max
                || lists.watched() + keys.len() > self.watches_max;
            if full {
                return refuse(Refused::Full);
            }
            lists.insert(keys)
        };
        // The driver is woken when the operation is complete.
        let _compound = self.shard.compound();
        let Ok(timer) = self.shard.schedule(deadline, index) else {
            self.lists.borrow_mut().remove(index);
            self.drop_spent();
            return refuse(Refused::Full);
        };
        self.lists.borrow_mut().operations[index as usize].timer = Some(timer);
        self.count(|counts| counts.accepted += 1);
        Ok(OperationId { serial, index })
    }

    /// Tries the operations that watch a key. The outermost check also runs the deferred ones.
    pub(super) fn check(&self, hash: u64, is_key: impl Fn(&K) -> bool) -> usize {
        self.checks.set(self.checks.get() + 1);
        let (walk, is_outermost) = {
            let mut lists = self.lists.borrow_mut();
            if lists.walks() >= NESTED_MAX {
                lists.defer_walk(hash, is_key);
                return 0;
            }
            let is_outermost = lists.walks() == 0;
            let Some(walk) = lists.begin_walk(hash, is_key) else { return 0 };
            (walk, is_outermost)
        };
        let mut completed = self.walk(walk);
        if is_outermost {
            loop {
                let deferred = self.lists.borrow_mut().begin_deferred_walk();
                let Some(walk) = deferred else { break };
                completed += self.walk(walk);
            }
        }
        completed
    }

    /// Tries operations until the walk is over.
    fn walk(&self, walk: Walk) -> usize {
        let mut completed = 0;
        loop {
            let step = self.lists.borrow_mut().step(walk);
            let Some((index, operation)) = step else { break };
            completed += usize::from(self.attempt(index, operation));
        }
        self.lists.borrow_mut().end_walk(walk);
        completed
    }

    /// Tries an operation that was taken from its place, and completes it or puts it back.
    fn attempt(&self, index: u32, mut operation: Op) -> bool {
        for _ in 0..TRIES_MAX {
            if self.try_complete(&mut operation) {
                self.end(index, |counts| counts.completed += 1);
                self.shard.contain(|| operation.completed());
                return true;
            }
            match self.put_back(index, operation) {
                Some(again) => operation = again,
                None => return false,
            }
        }
        tracing::warn!(
            name: "operation-checks-itself",
            target: "corewheel::kit",
            shard = self.shard.shard_id().number(),
            tries = TRIES_MAX,
            "an operation checks its own keys each time that it is tried"
        );
        self.lists.borrow_mut().operations[index as usize].operation = Some(operation);
        false
    }

    /// Puts an operation that was not complete back into its place, or expires it if its timer has
    /// fired meanwhile. Returns the operation if it must be tried again.
    fn put_back(&self, index: u32, operation: Op) -> Option<Op> {
        let mut lists = self.lists.borrow_mut();
        let waiting = &mut lists.operations[index as usize];
        if waiting.due {
            drop(lists);
            self.end(index, |counts| counts.expired += 1);
            self.shard.contain(|| operation.expired());
            return None;
        }
        if std::mem::take(&mut waiting.again) {
            return Some(operation);
        }
        waiting.operation = Some(operation);
        None
    }

    /// The timer of an operation has fired.
    fn expire(&self, index: u32) {
        let mut lists = self.lists.borrow_mut();
        let Some(waiting) = lists.operations.get_mut(index as usize) else { return };
        waiting.timer = None;
        let Some(operation) = waiting.operation.take() else {
            waiting.due = true;
            return;
        };
        drop(lists);
        self.end(index, |counts| counts.expired += 1);
        operation.expired();
    }

    /// Cancels those of these operations that have not ended. The `Drop` of a key may end the
    /// others meanwhile, and let new operations take their places.
    pub(super) fn cancel_all(&self, operations: Vec<(u32, u64)>) -> Vec<Op> {
        operations.into_iter().filter_map(|(index, serial)| self.cancel(index, serial)).collect()
    }

    pub(super) fn cancel(&self, index: u32, serial: u64) -> Option<Op> {
        let operation = self.lists.borrow_mut().get(index, serial)?.operation.take()?;
        self.end(index, |counts| counts.cancelled += 1);
        Some(operation)
    }

    /// Frees the place of an operation, with its watches and its timer, and counts its end.
    fn end(&self, index: u32, count: impl FnOnce(&mut PurgatoryStats)) {
        let timer = self.lists.borrow_mut().remove(index).timer;
        self.count(count);
        if let Some(timer) = timer {
            self.shard.cancel(timer);
        }
        self.drop_spent();
    }

    /// Drops the keys that no operation watches any more. Their `Drop` is code of the user.
    fn drop_spent(&self) {
        let mut spent = {
            let mut lists = self.lists.borrow_mut();
            if lists.spent.is_empty() {
                return;
            }
            std::mem::take(&mut lists.spent)
        };
        self.shard.drop_each(spent.drain(..));
        let mut lists = self.lists.borrow_mut();
        if lists.spent.is_empty() {
            // The allocation is kept for the next keys.
            lists.spent = spent;
        }
    }

    fn try_complete(&self, operation: &mut Op) -> bool {
        let mut complete = false;
        self.shard.contain(|| complete = operation.try_complete());
        complete
    }

    fn count(&self, count: impl FnOnce(&mut PurgatoryStats)) {
        let mut counts = self.counts.get();
        count(&mut counts);
        self.counts.set(counts);
    }
}

/// The keys of an operation that comes. They are dropped one by one, also if the iterator panics
/// that yields them, and their room is kept.
struct Incoming<'a, K> {
    hashed: Vec<Hashed<K>>,
    shard: &'a PartHandle,
    room: &'a RefCell<Vec<Hashed<K>>>,
}

impl<K> Drop for Incoming<'_, K> {
    fn drop(&mut self) {
        self.shard.drop_each(self.hashed.drain(..));
        self.room.replace(std::mem::take(&mut self.hashed));
    }
}

impl<K, Op> Part for Inner<K, Op>
where
    K: Hash + Eq + 'static,
    Op: Operation,
{
    fn expired(self: Rc<Self>, index: u32) {
        self.expire(index);
    }
}

impl<K, Op> Drop for Inner<K, Op> {
    fn drop(&mut self) {
        let operations = std::mem::take(&mut self.lists.get_mut().operations);
        for (_, waiting) in operations {
            if let Some(timer) = waiting.timer {
                self.shard.cancel(timer);
            }
            self.shard.drop_each(waiting.operation);
        }
        self.shard.drop_each(self.lists.get_mut().take_keys());
    }
}

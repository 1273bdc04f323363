//! What the clones of a purgatory share: operations and their lists, timers and counts.
//!
//! Invariants: each operation ends once; an operation that has ended is in no list and has no
//! timer. Nothing is borrowed while a method of an operation runs, or while an operation or a key
//! is dropped. Absent by design: a sweep.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, Hash};
use std::rc::Rc;

use corewheel::part::{Part, PartHandle};
use corewheel::{Deadline, Refused};
use hashbrown::DefaultHashBuilder;

use super::lists::{Hashed, Lists};
use super::{Operation, PurgatoryStats};

/// How often all that was checked meanwhile is tried again, while none of it completes.
const ROUNDS_MAX: usize = 64;
/// How many keys an operation watches on average where the purgatory has no room for another.
const WATCHES_EACH: usize = 4;

pub(super) struct Inner<K, Op> {
    pub(super) shard: PartHandle,
    pub(super) lists: RefCell<Lists<K, Op>>,
    hasher: DefaultHashBuilder,
    /// Room for the keys of an operation that comes; taken while it is used.
    keys: RefCell<Vec<Hashed<K>>>,
    /// How many checks there were.
    checks: Cell<u64>,
    /// Operations are being tried by a check, and other checks wait for their turn.
    is_checking: Cell<bool>,
    pub(super) counts: Cell<PurgatoryStats>,
    watches_max: usize,
}

impl<K, Op> Inner<K, Op>
where
    K: Hash + Eq + 'static,
    Op: Operation,
{
    pub(super) fn new(shard: PartHandle, capacity: u32) -> Self {
        Self {
            shard,
            lists: RefCell::new(Lists::new()),
            hasher: DefaultHashBuilder::default(),
            keys: RefCell::default(),
            checks: Cell::new(0),
            is_checking: Cell::new(false),
            counts: Cell::default(),
            watches_max: (WATCHES_EACH * capacity as usize).min(u32::MAX as usize / 2),
        }
    }

    pub(super) fn hash(&self, key: &(impl Hash + ?Sized)) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Tries an operation. One that is not complete gets a place; true if it has completed.
    pub(super) fn watch(
        &self,
        mut operation: Op,
        deadline: Deadline,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<bool, Refused<Op>> {
        let checks = self.checks.get();
        if self.try_complete(&mut operation) {
            self.count(|counts| counts.completed_at_once += 1);
            self.shard.contain(|| operation.completed());
            return Ok(true);
        }
        let mut incoming =
            Incoming { hashed: self.keys.take(), shard: &self.shard, room: &self.keys };
        // An iterator without an end is cut off where its keys are too many.
        let keys = keys.into_iter().take(self.watches_max + 1);
        incoming.hashed.extend(keys.map(|key| (self.hash(&key), Some(key))));
        let inserted = self.insert(deadline, &mut incoming.hashed);
        // A key that has a list already was not moved into the lists.
        drop(incoming);
        let index = match inserted {
            Ok(index) => index,
            Err(refuse) => return Err(refuse(operation)),
        };
        if self.checks.get() == checks {
            self.put_back(index, operation);
            return Ok(false);
        }
        // A check that came during the first try has not found the operation.
        Ok(self.alone(|| self.try_again(index, operation)))
    }

    /// Makes a place for an operation, with its watches and its timer. The error makes the refusal.
    fn insert(
        &self,
        deadline: Deadline,
        keys: &mut [Hashed<K>],
    ) -> Result<u32, fn(Op) -> Refused<Op>> {
        let refuse = |how: fn(Op) -> Refused<Op>| {
            self.count(|counts| counts.refused += 1);
            Err(how)
        };
        if self.shard.is_closed() {
            return refuse(Refused::Closed);
        }
        let index = {
            let mut lists = self.lists.borrow_mut();
            if lists.watched() + keys.len() > self.watches_max {
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
        Ok(index)
    }

    /// Tries the operations that watch a key, and those whose keys are checked meanwhile. A check
    /// within another one leaves that to it.
    pub(super) fn check(&self, hash: u64, is_key: impl Fn(&K) -> bool) -> usize {
        self.checks.set(self.checks.get() + 1);
        self.lists.borrow_mut().check(hash, is_key);
        let completed = self.counts.get().completed;
        if !self.is_checking.get() {
            self.alone(|| ());
        }
        (self.counts.get().completed - completed) as usize
    }

    /// Runs `work`, and then all checks that have come meanwhile, unless a check runs already.
    fn alone<R>(&self, work: impl FnOnce() -> R) -> R {
        if self.is_checking.replace(true) {
            return work();
        }
        let done = work();
        let (mut idle, mut completed) = (0, self.counts.get().completed);
        while idle < ROUNDS_MAX {
            let round = self.lists.borrow().checked();
            if round == 0 {
                break;
            }
            for _ in 0..round {
                self.lists.borrow_mut().begin_walk();
                while let Some((index, operation)) = self.step() {
                    self.try_again(index, operation);
                }
            }
            let before = std::mem::replace(&mut completed, self.counts.get().completed);
            idle = if completed > before { 0 } else { idle + 1 };
        }
        if idle == ROUNDS_MAX {
            tracing::warn!(
                name: "operation-checks-itself",
                target: "corewheel::kit",
                shard = self.shard.shard_id().number(),
                tries = ROUNDS_MAX,
                "an operation checks its own keys each time that it is tried"
            );
        }
        self.is_checking.set(false);
        done
    }

    /// Takes the next operation of the walk out of its place, and borrows nothing after that.
    fn step(&self) -> Option<(u32, Op)> {
        self.lists.borrow_mut().step()
    }

    /// Tries an operation that was taken from its place, and completes it or puts it back.
    fn try_again(&self, index: u32, mut operation: Op) -> bool {
        let is_complete = self.try_complete(&mut operation);
        if is_complete {
            self.end(index, |counts| counts.completed += 1);
            self.shard.contain(|| operation.completed());
        } else {
            self.put_back(index, operation);
        }
        is_complete
    }

    /// Puts an operation that was not complete back into its place, or expires it if its timer has
    /// fired meanwhile.
    fn put_back(&self, index: u32, operation: Op) {
        let mut lists = self.lists.borrow_mut();
        let waiting = &mut lists.operations[index as usize];
        if waiting.due {
            drop(lists);
            self.end(index, |counts| counts.expired += 1);
            self.shard.contain(|| operation.expired());
        } else {
            waiting.operation = Some(operation);
        }
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
        let cancel = |(index, serial)| {
            let operation = self.lists.borrow_mut().get(index, serial)?.operation.take()?;
            self.end(index, |counts| counts.cancelled += 1);
            Some(operation)
        };
        operations.into_iter().filter_map(cancel).collect()
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

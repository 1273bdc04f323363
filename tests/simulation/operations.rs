//! A purgatory on each shard. Its operations complete when their keys were checked often enough.
//!
//! The test counts the checks itself, and walks over all operations where the code has an index of
//! keys. An operation's predicate reads the same counts: so a fault of the index shows, and none of
//! a predicate, which is the user's.

use std::borrow::Borrow;
use std::cell::{Cell, RefCell};
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use corewheel::Timers;
use corewheel_kit::purgatory::{Operation, Purgatory};

use crate::commands::{Due, Temper};
use crate::ledger::{Id, Job, Ledger, State, drop_contained};
use crate::world::{World, by_due, deliver, shard_of, world};

/// How many keys there are.
pub(crate) const KEYS: u8 = 6;

/// How often each key was checked.
type Checks = Rc<[Cell<u32>; KEYS as usize]>;

/// A key of the purgatory.
struct Key {
    number: u8,
    panics: bool,
}

impl Drop for Key {
    fn drop(&mut self) {
        if std::thread::panicking() {
            Ledger::violate_unwinding("a key");
        } else {
            assert!(!self.panics, "on purpose");
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

impl Borrow<u8> for Key {
    fn borrow(&self) -> &u8 {
        &self.number
    }
}

/// An operation, complete when its keys were checked `needed` times in all.
struct Op {
    job: Job,
    needed: Needed,
    checks: Checks,
    on: Timers<Job>,
    /// Whether it has checked a key itself when it was first tried.
    has_checked: bool,
}

#[derive(Clone, Copy)]
struct Needed {
    /// A bit for each key.
    keys: u8,
    /// How often the keys must have been checked in all, since the shard began.
    checks: u32,
}

impl Needed {
    fn is_met(self, checks: &Checks) -> bool {
        count(checks, self.keys) >= self.checks
    }
}

/// The numbers of these keys.
fn numbers(keys: u8) -> impl Iterator<Item = u8> {
    (0..KEYS).filter(move |key| keys >> key & 1 == 1)
}

/// How often these keys were checked.
fn count(checks: &Checks, keys: u8) -> u32 {
    numbers(keys).map(|key| checks[usize::from(key)].get()).sum()
}

impl Operation for Op {
    fn try_complete(&mut self) -> bool {
        let is_met = self.needed.is_met(&self.checks);
        if self.job.temper == Temper::Reentrant && !std::mem::replace(&mut self.has_checked, true) {
            let Some(world) = world() else { return is_met };
            let containers = world.containers.borrow();
            let on = &containers[shard_of(&self.on)];
            // A key that it watches, if it watches any: then it must be tried again.
            on.operations.check(&world, numbers(self.needed.keys).next().unwrap_or(0));
        }
        is_met
    }

    fn completed(self) {
        let Some(world) = world() else { return };
        // Before its deadline.
        world.ledger.finish(self.job.id, State::Fired);
        self.job.act(&world, &self.on);
    }

    fn expired(self) {
        deliver(self.job, shard_of(&self.on), None, &self.on);
    }
}

/// The purgatory of a shard.
pub(crate) struct Operations {
    purgatory: Purgatory<Key, Op>,
    on: Timers<Job>,
    checks: Checks,
    known: RefCell<Vec<(Id, Needed)>>,
    /// How many checks run, one within the other.
    running: Cell<u32>,
}

impl Operations {
    pub(crate) fn new(timers: &Timers<Job>) -> Self {
        Self {
            purgatory: Purgatory::new(timers),
            on: timers.clone(),
            checks: Rc::default(),
            known: RefCell::default(),
            running: Cell::new(0),
        }
    }

    pub(crate) fn watch(&self, world: &World, due: Due, temper: Temper, keys: u8, times: u32) {
        let job = world.ledger.value(shard_of(&self.on), due, temper);
        let id = job.id;
        let needed = Needed { keys, checks: count(&self.checks, keys) + times };
        let (checks, on) = (Rc::clone(&self.checks), self.on.clone());
        let operation = Op { job, needed, checks, on, has_checked: false };
        let panics = temper == Temper::PanicsWhenDropped;
        let keys = numbers(keys).map(|number| Key { number, panics });
        self.running.set(self.running.get() + 1);
        let watched = by_due!(world, due, |when| self
            .purgatory
            .try_complete_else_watch(operation, when, keys));
        self.running.set(self.running.get() - 1);
        match watched {
            Ok(true) => {}
            Ok(false) => self.known.borrow_mut().push((id, needed)),
            Err(refused) => world.ledger.refuse(refused.into_value().job),
        }
        self.find_complete(world);
    }

    /// Checks a key.
    pub(crate) fn check(&self, world: &World, key: u8) {
        let count = &self.checks[usize::from(key)];
        count.set(count.get() + 1);
        self.running.set(self.running.get() + 1);
        self.purgatory.check_and_complete(&key);
        self.running.set(self.running.get() - 1);
        self.find_complete(world);
    }

    /// Finds an operation that waits, and whose keys were checked often enough.
    fn find_complete(&self, world: &World) {
        if self.running.get() > 0 {
            return;
        }
        let known = self.known.borrow();
        let is_left =
            |(id, needed): &&(Id, Needed)| needed.is_met(&self.checks) && world.ledger.is_live(*id);
        if let Some((id, ..)) = known.iter().find(is_left) {
            world.ledger.violate(format!("operation {id} is complete, and waits"));
        }
    }

    pub(crate) fn cancel_for_key(&self, world: &World, key: u8) {
        let cancelled = self.purgatory.cancel_for_key(&key);
        world.ledger.taken_out(cancelled.into_iter().map(|operation| operation.job));
    }

    pub(crate) fn clear(&self, world: &World) {
        self.may_drop(world);
        self.purgatory.drain().into_iter().for_each(drop_contained);
    }

    /// The operations that wait may be dropped from now on.
    pub(crate) fn may_drop(&self, world: &World) {
        self.known.borrow().iter().for_each(|(id, ..)| world.ledger.may_drop(&[*id]));
    }

    /// The shard has ended: the operations that wait can be taken out.
    pub(crate) fn end(&self, ledger: &Ledger) {
        ledger.taken_out(self.purgatory.drain().into_iter().map(|operation| operation.job));
    }
}

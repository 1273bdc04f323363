//! The containers of each shard: a delay queue, keyed timers, scaled timeouts and a purgatory.
//!
//! What is expected of a delay queue and of keyed timers is what the ledger expects of any timer.
//! With the code it shares nothing beside that.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use corewheel::Timers;
use corewheel_kit::keyed::KeyedTimers;
use corewheel_kit::queue::{DelayKey, DelayQueue, Expired};

use crate::commands::{ContainerCommand, Due, Temper};
use crate::ledger::{Id, Job, Ledger, drop_contained};
use crate::operations::Operations;
use crate::scaled::Scaled;
use crate::world::{World, by_due, deliver, shard_of};

/// The containers of one shard.
pub(crate) struct Containers {
    shard: usize,
    queue: Rc<DelayQueue<Job>>,
    /// How many futures wait for a value of the queue.
    takers: Rc<Cell<u32>>,
    /// How many of them end when the queue is empty.
    takers_of_all: Rc<Cell<u32>>,
    keys: RefCell<Vec<(Id, DelayKey)>>,
    pub(crate) scaled: Scaled,
    pub(crate) operations: Operations,
    keyed: KeyedTimers<u8, Job>,
    /// The values that were put into the keyed timers.
    ids: RefCell<Vec<Id>>,
}

/// Counts a future that waits, until it is dropped.
struct Taker(Rc<Cell<u32>>);

impl Taker {
    fn new(count: &Rc<Cell<u32>>) -> Self {
        count.set(count.get() + 1);
        Self(Rc::clone(count))
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Containers {
    /// New containers of a shard with this scale, see [`Scaled::new`].
    pub(crate) fn new(timers: &Timers<Job>, quarters: Option<u8>) -> Self {
        let (shard, on) = (shard_of(timers), timers.clone());
        let handler = move |expired: Expired<Job, u8>, _: &KeyedTimers<u8, Job>| {
            deliver(expired.value, shard, Some(expired.deadline), &on);
        };
        Self {
            shard,
            queue: Rc::new(DelayQueue::new(timers)),
            takers: Rc::default(),
            takers_of_all: Rc::default(),
            keys: RefCell::default(),
            scaled: Scaled::new(timers, quarters),
            operations: Operations::new(timers),
            keyed: KeyedTimers::new(timers, handler),
            ids: RefCell::default(),
        }
    }

    pub(crate) fn execute(&self, world: &World, command: ContainerCommand) {
        use ContainerCommand as Is;
        let ledger = &world.ledger;
        match command {
            Is::QueueInsert(due, temper) => self.insert_waiting(world, due, temper),
            Is::QueueTake(max) => self.take(world, max),
            Is::QueueRemove(value) => {
                let removed = self.key(value).and_then(|(_, key)| self.queue.remove(key));
                ledger.taken_out(removed.map(|removed| removed.value));
            }
            Is::QueueReset(value, due) => self.reset_waiting(world, value, due),
            Is::QueueClear => {
                self.may_drop_waiting(world);
                self.queue.drain().into_iter().for_each(|expired| drop_contained(expired.value));
            }
            Is::KeyedInsert(key, due, temper) => self.insert_keyed(world, key, due, temper),
            Is::KeyedReset(key, due) => self.reset_keyed(world, key, due),
            Is::KeyedRemove(key) => {
                let removed = self.keyed.remove(&key);
                ledger.taken_out(removed.map(|removed| removed.value));
            }
            Is::KeyedClear => {
                ledger.may_drop(&self.ids.borrow());
                self.keyed.drain().into_iter().for_each(|expired| drop_contained(expired.value));
            }
            Is::ScaledStart(temper) => self.scaled.start(world, temper),
            Is::ScaledReset(timeout) => self.scaled.reset(world, timeout),
            Is::ScaledCancel(timeout) => self.scaled.cancel(world, timeout),
            Is::ScaledClear => self.scaled.clear(world),
            Is::SetScale(quarters, is_remote) => self.scaled.set_scale(world, quarters, is_remote),
            Is::Watch(due, temper, keys, times) => {
                self.operations.watch(world, due, temper, keys, times);
            }
            Is::Check(key) => self.operations.check(world, key),
            Is::CancelForKey(key) => self.operations.cancel_for_key(world, key),
            Is::ClearOperations => self.operations.clear(world),
        }
    }

    fn insert_waiting(&self, world: &World, due: Due, temper: Temper) {
        let job = world.ledger.value(self.shard, due, temper);
        let id = job.id;
        world.ledger.waits_for(id, &self.takers);
        let inserted = by_due!(world, due, |when| self.queue.insert(job, when));
        match inserted {
            Ok(key) => self.keys.borrow_mut().push((id, key)),
            Err(refused) => world.ledger.refuse(refused.into_value()),
        }
    }

    /// Takes values that are due. None is due before the one that `peek` names.
    fn take(&self, world: &World, max: u8) {
        for _ in 0..max {
            let soonest = self.queue.peek().and_then(|key| self.queue.due(key));
            let Some(expired) = self.queue.try_next() else { return };
            if soonest.is_none_or(|soonest| soonest > expired.deadline) {
                let (id, due) = (expired.value.id, expired.deadline);
                world.ledger.violate(format!("peek names {soonest:?}, and {id} of {due:?} comes"));
            }
            world.ledger.fired(expired.value.id, self.shard, Some(expired.deadline));
            expired.value.disarm();
        }
    }

    fn reset_waiting(&self, world: &World, value: u8, due: Due) {
        let Some((id, key)) = self.key(value) else { return };
        let was_live = world.ledger.is_live(id);
        let was_reset = by_due!(world, due, |when| self.queue.reset(key, when));
        if was_reset {
            world.ledger.value_reset(id, due);
        }
        if was_reset != was_live {
            world.ledger.violate(format!("a reset of {id} says {was_reset}"));
        }
    }

    fn key(&self, value: u8) -> Option<(Id, DelayKey)> {
        let keys = self.keys.borrow();
        keys.get(usize::from(value) % keys.len().max(1)).copied()
    }

    fn may_drop_waiting(&self, world: &World) {
        self.keys.borrow().iter().for_each(|(id, _)| world.ledger.may_drop(&[*id]));
    }

    /// A future that takes so many values as they are due. `all` if it ends when the queue is
    /// empty.
    pub(crate) fn taker(
        &self,
        world: &Rc<World>,
        count: u8,
        all: bool,
    ) -> impl Future<Output = ()> + use<> {
        let (world, shard, queue) = (Rc::clone(world), self.shard, Rc::clone(&self.queue));
        let mut counted = vec![Taker::new(&self.takers)];
        counted.extend(all.then(|| Taker::new(&self.takers_of_all)));
        async move {
            let _counted = counted;
            for _ in 0..count {
                let taken = if all { queue.next().await } else { queue.recv().await };
                let Some(expired) = taken else { return };
                world.ledger.fired(expired.value.id, shard, Some(expired.deadline));
                expired.value.disarm();
            }
        }
    }

    /// Nothing can run, and the clock has moved.
    pub(crate) fn check_rest(&self, ledger: &Ledger) {
        let takers = self.takers_of_all.get();
        if takers > 0 && self.queue.is_empty() {
            ledger.violate(format!("{takers} tasks wait for values of an empty queue"));
        }
    }

    /// The containers are about to be dropped with what waits in them.
    pub(crate) fn may_drop(&self, world: &World) {
        self.may_drop_waiting(world);
        world.ledger.may_drop(&self.ids.borrow());
        self.scaled.may_drop(world);
        self.operations.may_drop(world);
    }

    fn insert_keyed(&self, world: &World, key: u8, due: Due, temper: Temper) {
        let job = world.ledger.value(self.shard, due, temper);
        let id = job.id;
        let inserted = by_due!(world, due, |when| self.keyed.insert(key, job, when));
        match inserted {
            Ok(replaced) => {
                self.ids.borrow_mut().push(id);
                world.ledger.taken_out(replaced.map(|replaced| replaced.value));
            }
            Err(refused) => world.ledger.refuse(refused.into_value().1),
        }
    }

    fn reset_keyed(&self, world: &World, key: u8, due: Due) {
        let id = self.keyed.with(&key, |job| job.id);
        let was_reset = by_due!(world, due, |when| self.keyed.reset(&key, when));
        match id {
            Some(id) if was_reset => world.ledger.value_reset(id, due),
            None if !was_reset => {}
            // Nothing of a shard that has ended is due at another time.
            Some(_) if world.ledger.ended.borrow()[self.shard] => {}
            _ => world.ledger.violate(format!("a reset of {id:?} says {was_reset}")),
        }
    }

    /// The shard has ended: what it has not delivered can be taken out.
    pub(crate) fn end(self, ledger: &Ledger) {
        ledger.taken_out(self.queue.drain().into_iter().map(|expired| expired.value));
        ledger.taken_out(self.keyed.drain().into_iter().map(|expired| expired.value));
        self.scaled.end(ledger);
        self.operations.end(ledger);
    }
}

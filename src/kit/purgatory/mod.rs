//! Operations that wait for an event or for their deadline, whichever is first.
//!
//! A request that asks for data which is not there yet, a write that waits for its replicas, a
//! client that waits for a lock: each is tried once, and if it cannot be done it watches the keys
//! on which that depends. Code that changes something under a key checks the key, which
//! tries the operations that watch it. What is never complete expires.
//!
//! The idea and the names are those of Kafka's purgatory. Why a list for each key, and not a future
//! for each operation: one event may concern many, in the order in which they came, and each is
//! looked at once for it.
//!
//! Invariants: each operation ends once; one that has ended is in no list and has no timer. Nothing
//! is borrowed while an operation runs or is dropped. Absent by design: a sweep.
//!
//! Cost: a timer of the shard, a place in the slab and 24 bytes for each key. Watching costs O(its
//! keys), and so do completing, expiring and cancelling; checking a key costs O(those that watch
//! it). Nothing is allocated but for a purgatory that grows and, where the caller's iterator of
//! keys makes it, the keys.

mod config;
mod lists;
mod operation;
mod weak;

use std::borrow::Borrow;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use corewheel_shard::{Tick, TimerKey};
use hashbrown::DefaultHashBuilder;

pub use self::config::{OperationId, PurgatoryBuilder, PurgatoryStats, Watch, WatchError};
use self::lists::{Hashed, Lists, Waiting, Walk};
pub use self::operation::{Completion, Operation, OperationFn};
pub use self::weak::WeakPurgatory;
use crate::face::calls::Owner;
use crate::face::timers::Timers;
use crate::values::class::{TimerClass, UnknownClass};
use crate::values::contain::Each;
use crate::values::error::ConfigError;

/// How often an operation is tried again because what it did when it was tried led to a check of
/// one of its own keys.
const TRIES_MAX: usize = 64;
/// How deep checks may lie within checks, before they are put off.
const NESTED_MAX: usize = 16;

/// Operations of one shard that complete by an event or by their deadline, exactly once.
///
/// `!Send`, and as cheap to clone as an [`Rc`]: all clones are one purgatory. `K` is what is
/// watched, `Op` is what waits. `K`'s `Hash` and `Eq` must not use the purgatory.
///
/// An operation that is not complete when it comes is tried again whenever one of its keys is
/// checked, in the order in which the operations came, and expires in the turn in which its timer
/// fires: never early, and late by no more than any timer. Its end takes it out of all its lists at
/// once.
///
/// When the shard is shut down, operations expire at once by `ShutdownPolicy::Fire`; by the other
/// policies they stay, without a deadline, until they are checked, cancelled or
/// [drained](Self::drain). Dropping the last clone drops them and their timers.
///
/// ```
/// use std::cell::Cell;
/// use std::rc::Rc;
/// use std::time::Duration;
/// use corewheel::{Completion, Fired, ManualClock, OperationFn, Purgatory, TimerService, Watch};
///
/// let clock = ManualClock::new();
/// let builder = TimerService::builder().shards(1).clock(clock.clock());
/// let service = builder.start_attached::<()>()?;
/// let shard = service.shards().next().unwrap();
/// let mut shard = service.attach(shard)?.into_loop(|_: Fired<()>, _: &_| {})?;
///
/// // A fetch waits until there are 100 bytes in a partition, for half a second at most.
/// let purgatory = Purgatory::new(shard.timers());
/// let fetch = |bytes: &Rc<Cell<u32>>| {
///     let bytes = Rc::clone(bytes);
///     OperationFn::new(move || bytes.get() >= 100, |how| println!("answered by {how:?}"))
/// };
/// let (a, b) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
/// let wait = Duration::from_millis(500);
/// let watch = purgatory.try_complete_else_watch(fetch(&a), wait, ["partition a"])?;
/// assert!(matches!(watch, Watch::Watched(_)));
/// let _ = purgatory.try_complete_else_watch(fetch(&b), wait, ["partition b"])?;
///
/// // The code that appends checks the partition.
/// a.set(150);
/// assert_eq!(purgatory.check_and_complete("partition a"), 1);
///
/// // Nothing comes for the other.
/// clock.advance(wait);
/// let _ = shard.turn();
/// let stats = purgatory.stats();
/// assert_eq!((stats.completed, stats.expired, stats.delayed), (1, 1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Purgatory<K, Op, T = std::convert::Infallible>(Rc<Inner<K, Op, T>>)
where
    K: Hash + Eq + 'static,
    Op: Operation,
    T: Send + 'static;

struct Inner<K, Op, T>
where
    K: Hash + Eq + 'static,
    Op: Operation,
    T: Send + 'static,
{
    timers: Timers<T>,
    /// What the timers of all operations call.
    expire: Owner<T>,
    lists: RefCell<Lists<K, Op>>,
    hasher: DefaultHashBuilder,
    /// Room for the keys of an operation that comes; taken while it is used.
    keys: RefCell<Vec<Hashed<K>>>,
    /// How many checks there were.
    checks: Cell<u64>,
    counts: Cell<PurgatoryStats>,
    operations_max: usize,
    watches_max: usize,
}

impl<K, Op, T> Purgatory<K, Op, T>
where
    K: Hash + Eq + 'static,
    Op: Operation,
    T: Send + 'static,
{
    /// A purgatory on the shard of `timers`, for up to 65,536 operations with four keys each.
    ///
    /// # Panics
    ///
    /// There is no memory for so many; [`builder`](Purgatory::builder) says so instead.
    pub fn new(timers: &Timers<T>) -> Self {
        Purgatory::builder().build(timers).expect("there is memory for so many")
    }

    fn with_limits(
        timers: &Timers<T>,
        operations_max: usize,
        watches_max: usize,
    ) -> Result<Self, ConfigError> {
        let lists = Lists::with_capacity(operations_max, watches_max)?;
        Ok(Self(Rc::new_cyclic(|inner: &Weak<Inner<K, Op, T>>| {
            let inner = inner.clone();
            let expire = move |_: &Timers<T>, index| {
                if let Some(inner) = inner.upgrade() {
                    inner.expire(index);
                }
            };
            Inner {
                timers: timers.clone(),
                expire: timers.core().enter_owner(Rc::new(expire)),
                lists: RefCell::new(lists),
                hasher: DefaultHashBuilder::default(),
                keys: RefCell::default(),
                checks: Cell::new(0),
                counts: Cell::default(),
                operations_max,
                watches_max,
            }
        })))
    }

    /// Has the timers of operations that are watched from now on counted as those of a class.
    ///
    /// # Errors
    ///
    /// The service has no such class.
    pub fn set_class(&self, class: TimerClass) -> Result<(), UnknownClass> {
        let core = self.0.timers.core();
        self.0.expire.set_class(core.directory().settings.classes.find(class)?);
        Ok(())
    }

    /// Tries an operation. If it is complete, that was it. If not, it watches these keys for up to
    /// `delay` from now. A delay that does not fit means for ever; without keys it waits for its
    /// deadline alone.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the operation, which has been tried and was not complete.
    pub fn try_complete_else_watch(
        &self,
        operation: Op,
        delay: Duration,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Watch, WatchError<Op>> {
        let deadline = self.0.timers.core().deadline_after(delay);
        self.0.watch(operation, deadline, keys)
    }

    /// The same, up to a moment. If that has passed, it expires in the next turn.
    ///
    /// # Errors
    ///
    /// As for [`try_complete_else_watch`](Self::try_complete_else_watch).
    pub fn try_complete_else_watch_until(
        &self,
        operation: Op,
        at: Instant,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Watch, WatchError<Op>> {
        let deadline = self.0.timers.core().deadline_at(at);
        self.0.watch(operation, deadline, keys)
    }

    /// Tries all operations that watch a key, in the order in which they came, and tells how many
    /// of them were completed. To be called whenever something has changed on which they depend.
    ///
    /// Those that come to watch the key meanwhile are not among them: they were tried when they
    /// came. One that is being tried right now, further up this call, is tried once more when it is
    /// done, up to 64 times.
    ///
    /// Operations may check keys as they run. From 16 checks deep on, the stack has had enough:
    /// such a check is put off until the outermost one is through with its key, tells 0, and counts
    /// there.
    pub fn check_and_complete<Q>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.check_and_complete_up_to(key, usize::MAX)
    }

    /// The same, until so many are completed: for a key that stands for something of which each
    /// operation takes a part. Those that are tried and not complete are not counted, so it does
    /// not bound the work.
    pub fn check_and_complete_up_to<Q>(&self, key: &Q, completed_max: usize) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let inner = &*self.0;
        inner.checks.set(inner.checks.get() + 1);
        let hash = inner.hasher.hash_one(key);
        let is_key = |known: &K| known.borrow() == key;
        let (walk, is_outermost) = {
            let mut lists = inner.lists.borrow_mut();
            if lists.walks() >= NESTED_MAX {
                lists.postpone_walk(hash, is_key, completed_max);
                return 0;
            }
            let is_outermost = lists.walks() == 0;
            let Some(walk) = lists.begin_walk(hash, is_key) else { return 0 };
            (walk, is_outermost)
        };
        let mut completed = inner.walk(walk, completed_max);
        if is_outermost {
            loop {
                let resumed = inner.lists.borrow_mut().resume_walk();
                let Some((walk, completed_max)) = resumed else { break };
                completed += inner.walk(walk, completed_max);
            }
        }
        completed
    }

    /// Cancels all operations that watch a key and hands them back, in the order in which they
    /// came. They leave the lists of their other keys as well.
    ///
    /// An operation that is being tried right now, further up this call, is not cancelled: what it
    /// answers decides.
    pub fn cancel_for_key<Q>(&self, key: &Q) -> Vec<Op>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.0.hasher.hash_one(key);
        let watchers: Vec<_> =
            self.0.lists.borrow().watchers(hash, |known| known.borrow() == key).collect();
        self.0.cancel_all(watchers)
    }

    /// Cancels one operation and hands it back. `None` if it is done, or being tried right now,
    /// further up this call.
    pub fn cancel(&self, operation: OperationId) -> Option<Op> {
        self.0.cancel(operation.index, operation.serial)
    }

    /// Cancels all operations and hands them back, in the order in which they came.
    pub fn drain(&self) -> Vec<Op> {
        let mut all: Vec<_> = {
            let lists = self.0.lists.borrow();
            let known = |(index, waiting): (usize, &Waiting<_>)| (index as u32, waiting.serial);
            lists.operations.iter().map(known).collect()
        };
        all.sort_unstable_by_key(|(_, serial)| *serial);
        self.0.cancel_all(all)
    }

    /// Cancels all operations and drops them.
    pub fn clear(&self) {
        self.0.timers.core().drop_each(self.drain());
    }

    /// How many operations watch a key.
    pub fn watched_by<Q>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.0.hasher.hash_one(key);
        self.0.lists.borrow().watched_by(hash, |known| known.borrow() == key)
    }

    /// What the purgatory holds and has counted. Costs a copy: nothing is walked over.
    pub fn stats(&self) -> PurgatoryStats {
        let lists = self.0.lists.borrow();
        PurgatoryStats {
            delayed: lists.operations.len() as u64,
            watched: lists.watched() as u64,
            keys: lists.keys() as u64,
            ..self.0.counts.get()
        }
    }

    /// How many operations wait.
    pub fn len(&self) -> usize {
        self.0.lists.borrow().operations.len()
    }

    /// Whether no operation waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The shard's timers.
    pub fn timers(&self) -> &Timers<T> {
        &self.0.timers
    }

    /// The same purgatory, for what must not keep it alive: an operation that waits in it.
    pub fn downgrade(&self) -> WeakPurgatory<K, Op, T> {
        WeakPurgatory::of(self)
    }
}

impl Purgatory<(), OperationFn> {
    /// A builder with the defaults: 65,536 operations with four keys each.
    pub fn builder() -> PurgatoryBuilder {
        PurgatoryBuilder::new()
    }
}

impl<K, Op, T> Inner<K, Op, T>
where
    K: Hash + Eq + 'static,
    Op: Operation,
    T: Send + 'static,
{
    fn watch(
        &self,
        mut operation: Op,
        deadline: Tick,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Watch, WatchError<Op>> {
        let checks = self.checks.get();
        if self.try_complete(&mut operation) {
            self.count(|counts| counts.completed_at_once += 1);
            self.contain(|| operation.completed());
            return Ok(Watch::Completed);
        }
        let mut hashed = Each(self.keys.take());
        // No more than show that it is too many.
        let keys = keys.into_iter().take(self.watches_max + 1);
        hashed.0.extend(keys.map(|key| (self.hasher.hash_one(&key), Some(key))));
        let taken = self.take_in(deadline, &mut hashed.0);
        // Of keys that have a list already, this is the second copy.
        self.timers.core().drop_each(hashed.0.drain(..));
        self.keys.replace(hashed.take());
        let id = match taken {
            Ok(id) => id,
            Err(refuse) => return Err(refuse(operation)),
        };
        if self.checks.get() != checks {
            // An event may have come while it was tried for the first time and in no list.
            self.lists.borrow_mut().operations[id.index as usize].again = true;
        }
        let again = self.rest(id.index, operation);
        let completed = again.is_some_and(|operation| self.attempt(id.index, operation));
        Ok(if completed { Watch::Completed } else { Watch::Watched(id) })
    }

    /// Makes a place for an operation, with its watches and its timer, or says how to refuse it.
    fn take_in(
        &self,
        deadline: Tick,
        keys: &mut [Hashed<K>],
    ) -> Result<OperationId, fn(Op) -> WatchError<Op>> {
        let core = self.timers.core();
        let refuse = |how: fn(Op) -> WatchError<Op>| {
            self.count(|counts| counts.refused += 1);
            Err(how)
        };
        if core.is_closed() {
            return refuse(WatchError::Closed);
        }
        let (index, serial) = {
            let mut lists = self.lists.borrow_mut();
            let full = lists.operations.len() >= self.operations_max
                || lists.watched() + keys.len() > self.watches_max;
            if full {
                return refuse(WatchError::Full);
            }
            lists.insert(keys)
        };
        // The driver is woken when the operation is complete.
        let _compound = core.compound();
        let Some(timer) = core.schedule_owned(deadline, &self.expire, index) else {
            self.lists.borrow_mut().remove(index);
            self.drop_spent();
            return refuse(WatchError::Full);
        };
        self.lists.borrow_mut().operations[index as usize].timer = Some(timer);
        self.count(|counts| counts.accepted += 1);
        Ok(OperationId { serial, index })
    }

    /// Tries operations until the walk is over or enough of them are completed.
    fn walk(&self, walk: Walk, completed_max: usize) -> usize {
        let mut completed = 0;
        while completed < completed_max {
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
                self.contain(|| operation.completed());
                return true;
            }
            match self.rest(index, operation) {
                Some(again) => operation = again,
                None => return false,
            }
        }
        tracing::warn!(
            shard = self.timers.shard_id().number(),
            tries = TRIES_MAX,
            "an operation checks its own keys each time that it is tried"
        );
        self.lists.borrow_mut().operations[index as usize].operation = Some(operation);
        false
    }

    /// Ends the trying of an operation that was not complete. It comes back if it must be tried
    /// again.
    fn rest(&self, index: u32, operation: Op) -> Option<Op> {
        let mut lists = self.lists.borrow_mut();
        let waiting = &mut lists.operations[index as usize];
        if waiting.due {
            drop(lists);
            self.end(index, |counts| counts.expired += 1);
            self.contain(|| operation.expired());
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
        let Some(operation) = waiting.take() else {
            waiting.due = true;
            return;
        };
        drop(lists);
        self.end(index, |counts| counts.expired += 1);
        operation.expired();
    }

    /// Cancels operations that were there when they were asked for. The keys that this drops are
    /// the user's: they may end the others, and let new ones take their places.
    fn cancel_all(&self, operations: Vec<(u32, u64)>) -> Vec<Op> {
        operations.into_iter().filter_map(|(index, serial)| self.cancel(index, serial)).collect()
    }

    fn cancel(&self, index: u32, serial: u64) -> Option<Op> {
        let operation = self.lists.borrow_mut().get(index, serial)?.take()?;
        self.end(index, |counts| counts.cancelled += 1);
        Some(operation)
    }

    /// Takes the place of an operation away, with its watches and its timer, and counts it.
    fn end(&self, index: u32, count: impl FnOnce(&mut PurgatoryStats)) {
        let timer: Option<TimerKey> = self.lists.borrow_mut().remove(index).timer;
        self.count(count);
        if let Some(timer) = timer {
            self.timers.core().cancel_shared(timer);
        }
        self.drop_spent();
    }

    /// Drops keys that nobody watches any more, which is the user's code.
    fn drop_spent(&self) {
        let mut spent = {
            let mut lists = self.lists.borrow_mut();
            if lists.spent.is_empty() {
                return;
            }
            std::mem::take(&mut lists.spent)
        };
        self.timers.core().drop_each(spent.drain(..));
        let mut lists = self.lists.borrow_mut();
        if lists.spent.is_empty() {
            // The room is kept for the next ones.
            lists.spent = spent;
        }
    }

    fn try_complete(&self, operation: &mut Op) -> bool {
        let mut complete = false;
        self.contain(|| complete = operation.try_complete());
        complete
    }

    /// Runs something of the user's.
    fn contain(&self, run: impl FnOnce()) {
        self.timers.core().contain(run);
    }

    fn count(&self, count: impl FnOnce(&mut PurgatoryStats)) {
        let mut counts = self.counts.get();
        count(&mut counts);
        self.counts.set(counts);
    }
}

impl<K, Op, T> Drop for Inner<K, Op, T>
where
    K: Hash + Eq + 'static,
    Op: Operation,
    T: Send + 'static,
{
    fn drop(&mut self) {
        let operations = std::mem::take(&mut self.lists.get_mut().operations);
        for (_, waiting) in operations {
            if let Some(timer) = waiting.timer {
                self.timers.core().cancel_shared(timer);
            }
            self.timers.core().drop_each(waiting.operation);
        }
        self.timers.core().drop_each(self.lists.get_mut().take_keys());
        self.timers.core().leave_owner(&mut self.expire);
    }
}

impl<K, Op, T> Clone for Purgatory<K, Op, T>
where
    K: Hash + Eq + 'static,
    Op: Operation,
    T: Send + 'static,
{
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<K, Op, T> fmt::Debug for Purgatory<K, Op, T>
where
    K: Hash + Eq + 'static,
    Op: Operation,
    T: Send + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Purgatory").field(&self.stats()).finish()
    }
}

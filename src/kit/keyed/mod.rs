//! Timers that the caller knows by keys of its own.
//!
//! Sessions by their number, leases by their name, requests by their correlation id: who has the
//! key moves and cancels the timer, and nobody keeps handles. Why not a map from keys to handles
//! beside the timers: it would have to be told of every timer that fires, and one that is scheduled
//! again while the old one is due would fire for the new.
//!
//! Invariants: a key has one timer at most, and it is free again before the handler is called for
//! it. Nothing is borrowed while the handler or a `Drop` of the user's runs. Absent by design: a
//! clone of a key, a walk over all of them.
//!
//! Cost: a timer of the shard, and about 30 bytes beside the key and the value, 5.7 of them for the
//! table of hashes at its fullest; 24 more for a key in a group. Every method is O(1) but those
//! that end several timers, which are O(those that they end).

mod table;
mod weak;

use std::borrow::Borrow;
use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, Hash};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use corewheel_shard::Tick;
use hashbrown::DefaultHashBuilder;

use self::table::{Entry, Hashed, Put, Table};
pub use self::weak::WeakKeyedTimers;
use crate::face::calls::Owner;
use crate::face::timers::Timers;
use crate::values::capacity::{CAPACITY, check};
use crate::values::class::{TimerClass, UnknownClass};
use crate::values::error::ConfigError;
use crate::values::expired::{Expired, InsertError};
use crate::values::outcome::ResetOutcome;

/// The timers of one shard that are known by keys, one for each key.
///
/// `!Send`, and as cheap to clone as an [`Rc`]: all clones are one. `K` is the key, `V` what the
/// timer holds, `G` the name of a group; `Hash` and `Eq` of keys and names must not use these
/// timers. Keys are looked up by whatever they can be borrowed as: a `String` by a `&str`.
///
/// When a timer fires, the handler is given key, value and deadline, in the turn in which any timer
/// would fire: never early, and in the order of the deadlines. The key is free by then, so the
/// handler may schedule it again, as it may do everything else. A handler that panics is counted by
/// the shard, and is called for the next timer as before.
///
/// When the shard is shut down, all timers fire at once by `ShutdownPolicy::Fire`; by the other
/// policies keys and values stay, to be cancelled or [drained](Self::drain). Dropping the last
/// clone drops them and their timers.
///
/// ```
/// use std::cell::RefCell;
/// use std::rc::Rc;
/// use std::time::Duration;
/// use corewheel::{Expired, Fired, KeyedTimers, ManualClock, Inserted, TimerService};
///
/// let clock = ManualClock::new();
/// let builder = TimerService::builder().shards(1).clock(clock.clock());
/// let service = builder.start_attached::<()>()?;
/// let shard = service.shards().next().unwrap();
/// let mut shard = service.attach(shard)?.into_loop(|_: Fired<()>, _: &_| {})?;
///
/// // Sessions by their names, in groups by the numbers of their users.
/// let ended = Rc::new(RefCell::new(Vec::new()));
/// let noted = Rc::clone(&ended);
/// let sessions: KeyedTimers<String, &str, u32, ()> =
///     KeyedTimers::new(shard.timers(), move |session: Expired<&str, String>, _: &_| {
///         noted.borrow_mut().push(session.key);
///     });
/// let minute = Duration::from_secs(60);
/// for (name, user) in [("red", 1), ("green", 2), ("blue", 2), ("pink", 3)] {
///     let scheduled = sessions.schedule_in(user, name.to_owned(), minute, "from a phone")?;
///     assert_eq!(scheduled, Inserted::New);
/// }
///
/// // One user is still there, another one logs out everywhere.
/// clock.advance(Duration::from_secs(30));
/// assert!(sessions.reset("pink", minute));
/// let names: Vec<_> = sessions.cancel_group(&2).into_iter().map(|ended| ended.key).collect();
/// assert_eq!(names, ["green", "blue"]);
///
/// clock.advance(Duration::from_secs(30));
/// let _ = shard.turn();
/// assert_eq!(*ended.borrow(), ["red"]);
/// assert!(sessions.contains("pink"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct KeyedTimers<K, V, G = (), T = std::convert::Infallible>(Rc<Inner<K, V, G, T>>)
where
    K: Hash + Eq + 'static,
    V: 'static,
    G: Hash + Eq + 'static,
    T: Send + 'static;

/// What became of a key that was scheduled.
#[must_use = "it says whether the key had a timer before, and holds what that held"]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Inserted<V> {
    /// It has a timer now.
    New,
    /// It had one, which has been moved; this is what it held.
    Replaced(V),
}

type KeyedHandler<K, V, G, T> = Box<dyn FnMut(Expired<V, K>, &KeyedTimers<K, V, G, T>)>;

struct Inner<K, V, G, T>
where
    K: Hash + Eq + 'static,
    V: 'static,
    G: Hash + Eq + 'static,
    T: Send + 'static,
{
    timers: Timers<T>,
    /// What all timers call.
    fire: Owner<T>,
    /// Taken while it runs.
    handler: Cell<Option<KeyedHandler<K, V, G, T>>>,
    table: RefCell<Table<K, V, G>>,
    hasher: DefaultHashBuilder,
    capacity: usize,
}

/// Making them, scheduling, moving and cancelling.
impl<K, V, G, T> KeyedTimers<K, V, G, T>
where
    K: Hash + Eq + 'static,
    V: 'static,
    G: Hash + Eq + 'static,
    T: Send + 'static,
{
    /// Timers on the shard of `timers`, for up to 65,536 keys.
    ///
    /// A handler that holds these timers itself keeps them alive for ever; it is given them.
    ///
    /// # Panics
    ///
    /// If there is no memory for that.
    pub fn new(timers: &Timers<T>, handler: impl FnMut(Expired<V, K>, &Self) + 'static) -> Self {
        Self::with_capacity(timers, CAPACITY, handler).expect("there is memory for 65,536 keys")
    }

    /// Timers for up to so many keys, 1 to 2³⁰. Memory for them is reserved now, and touched as it
    /// comes into use, but for the table of hashes: 5 to 10 bytes for each.
    ///
    /// # Errors
    ///
    /// A capacity that is out of its range or for which there is no memory.
    pub fn with_capacity(
        timers: &Timers<T>,
        capacity: u32,
        handler: impl FnMut(Expired<V, K>, &Self) + 'static,
    ) -> Result<Self, ConfigError> {
        let capacity = check("capacity", capacity)?;
        let table = Table::with_capacity(capacity)?;
        let handler: KeyedHandler<K, V, G, T> = Box::new(handler);
        Ok(Self(Rc::new_cyclic(|inner: &Weak<Inner<K, V, G, T>>| {
            let inner = inner.clone();
            let fire = move |_: &Timers<T>, entry| {
                if let Some(inner) = inner.upgrade() {
                    Self(inner).fire(entry);
                }
            };
            Inner {
                timers: timers.clone(),
                fire: timers.core().enter_owner(Rc::new(fire)),
                handler: Cell::new(Some(handler)),
                table: RefCell::new(table),
                hasher: DefaultHashBuilder::default(),
                capacity,
            }
        })))
    }

    /// Has the timers that are made from now on counted as those of a class.
    ///
    /// # Errors
    ///
    /// The service has no such class.
    pub fn set_class(&self, class: TimerClass) -> Result<(), UnknownClass> {
        self.0.fire.set_class(self.0.timers.core().directory().settings.classes.find(class)?);
        Ok(())
    }

    /// Has the handler called with `key` and `value` in `delay` from now. A delay that does not fit
    /// (584 years) means never.
    ///
    /// A key that has a timer already keeps that one, which is moved: it holds the new value, is
    /// due at the new deadline and is in no group.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with key and value; nothing has changed then.
    pub fn schedule(
        &self,
        key: K,
        delay: Duration,
        value: V,
    ) -> Result<Inserted<V>, InsertError<(K, V)>> {
        let deadline = self.0.timers.core().deadline_after(delay);
        self.put(None, key, deadline, value).map_err(without_group)
    }

    /// The same, for a moment. One that has passed fires in the next turn.
    ///
    /// # Errors
    ///
    /// As for [`schedule`](Self::schedule).
    pub fn schedule_at(
        &self,
        key: K,
        at: Instant,
        value: V,
    ) -> Result<Inserted<V>, InsertError<(K, V)>> {
        let deadline = self.0.timers.core().deadline_at(at);
        self.put(None, key, deadline, value).map_err(without_group)
    }

    /// Schedules a key that belongs to a group. One that is in this group already keeps its place
    /// there, one that is in another leaves that.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with group, key and value; nothing has changed then.
    pub fn schedule_in(
        &self,
        group: G,
        key: K,
        delay: Duration,
        value: V,
    ) -> Result<Inserted<V>, InsertError<(G, K, V)>> {
        let deadline = self.0.timers.core().deadline_after(delay);
        self.put(Some(group), key, deadline, value).map_err(with_group)
    }

    /// The same, for a moment.
    ///
    /// # Errors
    ///
    /// As for [`schedule_in`](Self::schedule_in).
    pub fn schedule_in_at(
        &self,
        group: G,
        key: K,
        at: Instant,
        value: V,
    ) -> Result<Inserted<V>, InsertError<(G, K, V)>> {
        let deadline = self.0.timers.core().deadline_at(at);
        self.put(Some(group), key, deadline, value).map_err(with_group)
    }

    /// Moves the timer of a key to `delay` from now; value and group stay. False if the key has
    /// none.
    pub fn reset<Q>(&self, key: &Q, delay: Duration) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.move_to(key, self.0.timers.core().deadline_after(delay))
    }

    /// Moves the timer of a key to a moment; value and group stay. False if the key has none.
    pub fn reset_at<Q>(&self, key: &Q, at: Instant) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.move_to(key, self.0.timers.core().deadline_at(at))
    }

    /// Ends the timer of a key and hands back what it held. One that is due but not delivered yet
    /// can still be cancelled. `None` if the key has none.
    pub fn cancel<Q>(&self, key: &Q) -> Option<Expired<V, K>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let entry = self.find(key)?;
        Some(self.end(entry))
    }

    /// Ends the timers of all keys of a group, and hands back what they held, in the order in which
    /// they came to the group. O(its keys).
    pub fn cancel_group<Q>(&self, group: &Q) -> Vec<Expired<V, K>>
    where
        G: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.0.hasher.hash_one(group);
        let members = self.0.table.borrow().members(hash, |known| known.borrow() == group);
        self.end_all(members)
    }

    /// Ends all timers, and hands back what they held, in the order of their deadlines; those of
    /// one tick in no particular one.
    pub fn drain(&self) -> Vec<Expired<V, K>> {
        let all = self.0.table.borrow().all();
        let mut drained = self.end_all(all);
        drained.sort_by_key(|expired| expired.deadline);
        drained
    }

    /// Ends all timers, and drops what they held.
    pub fn clear(&self) {
        let core = self.0.timers.core();
        for Expired { key, value, .. } in self.drain() {
            core.drop_each([key]);
            core.drop_each([value]);
        }
    }
}

/// Questions.
impl<K, V, G, T> KeyedTimers<K, V, G, T>
where
    K: Hash + Eq + 'static,
    V: 'static,
    G: Hash + Eq + 'static,
    T: Send + 'static,
{
    /// Whether a key has a timer.
    pub fn contains<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.find(key).is_some()
    }

    /// When the timer of a key is due: its deadline, rounded up to a tick. `None` if it has none.
    pub fn deadline<Q>(&self, key: &Q) -> Option<Instant>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let entry = self.find(key)?;
        let deadline = self.0.table.borrow_mut().get(entry)?.deadline;
        Some(self.instant(deadline))
    }

    /// How long the timer of a key still has; zero if it is due. `None` if it has none.
    pub fn remaining<Q>(&self, key: &Q) -> Option<Duration>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let entry = self.find(key)?;
        let deadline = self.0.table.borrow_mut().get(entry)?.deadline;
        let core = self.0.timers.core();
        Some(core.time().remaining(deadline, core.nanos_near()))
    }

    /// How many keys of a group have a timer.
    pub fn group_len<Q>(&self, group: &Q) -> usize
    where
        G: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.0.hasher.hash_one(group);
        self.0.table.borrow().group_len(hash, |known| known.borrow() == group)
    }

    /// How many groups have keys.
    pub fn groups(&self) -> usize {
        self.0.table.borrow().groups()
    }

    /// How many keys have a timer.
    pub fn len(&self) -> usize {
        self.0.table.borrow().len()
    }

    /// Whether no key has a timer.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys there is room for, those included that are there.
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// The shard's timers.
    pub fn timers(&self) -> &Timers<T> {
        &self.0.timers
    }

    /// The same timers, for what must not keep them alive: a value that they hold.
    pub fn downgrade(&self) -> WeakKeyedTimers<K, V, G, T> {
        WeakKeyedTimers::new(self)
    }
}

/// What was refused: perhaps a group's name, a key and a value.
type Refused<K, V, G> = InsertError<(Option<G>, K, V)>;

impl<K, V, G, T> KeyedTimers<K, V, G, T>
where
    K: Hash + Eq + 'static,
    V: 'static,
    G: Hash + Eq + 'static,
    T: Send + 'static,
{
    fn put(
        &self,
        group: Option<G>,
        key: K,
        deadline: Tick,
        value: V,
    ) -> Result<Inserted<V>, Refused<K, V, G>> {
        let core = self.0.timers.core();
        if core.is_closed() {
            return Err(InsertError::Closed((group, key, value)));
        }
        // The driver is woken when the entry is complete.
        let _compound = core.compound();
        let hash = self.0.hasher.hash_one(&key);
        let group = group.map(|group| (self.0.hasher.hash_one(&group), group));
        let mut table = self.0.table.borrow_mut();
        let schedule = |entry| core.schedule_owned(deadline, &self.0.fire, entry);
        let put = table.put((hash, key), value, deadline, self.0.capacity, schedule);
        let name = match put {
            Put::New(entry) => group.and_then(|group| table.join_group(entry, group)),
            Put::Known(entry, key, value) => {
                drop(table);
                core.drop_each([key]);
                return Ok(self.replace(entry, group, deadline, value));
            }
            Put::Refused(key, value) => {
                return Err(InsertError::Full((group.map(|(_, group)| group), key, value)));
            }
        };
        drop(table);
        self.drop_name(name);
        Ok(Inserted::New)
    }

    /// Another value, deadline and group for a key that has a timer. The value that it had.
    fn replace(
        &self,
        entry: u32,
        group: Option<Hashed<G>>,
        deadline: Tick,
        value: V,
    ) -> Inserted<V> {
        let mut table = self.0.table.borrow_mut();
        let names = if table.is_in_group(entry, group.as_ref()) {
            [None, group.map(|(_, group)| group)]
        } else {
            let left = table.leave_group(entry);
            [left, group.and_then(|group| table.join_group(entry, group))]
        };
        let known = table.get(entry).expect("it has just been found");
        let old = std::mem::replace(&mut known.value, value);
        known.deadline = deadline;
        let timer = known.timer;
        drop(table);
        let moved = self.0.timers.core().reset(timer, deadline);
        debug_assert_eq!(moved, ResetOutcome::Moved, "a key has a timer that is pending");
        for name in names {
            self.drop_name(name);
        }
        Inserted::Replaced(old)
    }

    fn move_to<Q>(&self, key: &Q, deadline: Tick) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let core = self.0.timers.core();
        let Some(entry) = self.find(key).filter(|_| !core.is_closed()) else { return false };
        let timer = {
            let mut table = self.0.table.borrow_mut();
            let Some(known) = table.get(entry) else { return false };
            known.deadline = deadline;
            known.timer
        };
        core.reset(timer, deadline) == ResetOutcome::Moved
    }

    fn find<Q>(&self, key: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.0.hasher.hash_one(key);
        self.0.table.borrow().find(hash, |known| known.borrow() == key)
    }

    /// The timer of a key has fired.
    fn fire(&self, entry: u32) {
        let (ended, name) = self.0.table.borrow_mut().remove(entry);
        self.drop_name(name);
        let ended = self.expired(ended);
        let mut handler = self.0.handler.take().expect("it is not called from within itself");
        self.contain(|| handler(ended, self));
        self.0.handler.set(Some(handler));
    }

    /// Takes a key out, with its timer.
    fn end(&self, entry: u32) -> Expired<V, K> {
        let (ended, name) = self.0.table.borrow_mut().remove(entry);
        self.cancel_timer(&ended);
        self.drop_name(name);
        self.expired(ended)
    }

    /// The same for several. They are taken out together, before a `Drop` can interfere.
    fn end_all(&self, entries: impl IntoIterator<Item = u32>) -> Vec<Expired<V, K>> {
        let removed: Vec<_> = {
            let mut table = self.0.table.borrow_mut();
            entries.into_iter().map(|entry| table.remove(entry)).collect()
        };
        for (ended, _) in &removed {
            self.cancel_timer(ended);
        }
        let end = |(ended, name)| {
            self.drop_name(name);
            self.expired(ended)
        };
        removed.into_iter().map(end).collect()
    }

    fn cancel_timer(&self, ended: &Entry<K, V>) {
        self.0.timers.core().cancel_shared(ended.timer);
    }

    /// Drops the name of a group that is gone, or one that is there twice.
    fn drop_name(&self, name: Option<G>) {
        self.0.timers.core().drop_each(name);
    }

    /// Runs something of the user's.
    fn contain(&self, run: impl FnOnce()) {
        self.0.timers.core().contain(run);
    }

    fn expired(&self, ended: Entry<K, V>) -> Expired<V, K> {
        let Entry { key, value, deadline, .. } = ended;
        Expired { key, deadline: self.instant(deadline), value }
    }

    fn instant(&self, tick: Tick) -> Instant {
        self.0.timers.core().time().instant(tick)
    }
}

impl<K, V, G, T> Drop for Inner<K, V, G, T>
where
    K: Hash + Eq + 'static,
    V: 'static,
    G: Hash + Eq + 'static,
    T: Send + 'static,
{
    fn drop(&mut self) {
        let core = self.timers.core();
        let table = self.table.get_mut();
        for entry in table.all() {
            let (ended, name) = table.remove(entry);
            core.cancel_shared(ended.timer);
            core.drop_each([ended.key]);
            core.drop_each([ended.value]);
            core.drop_each(name);
        }
        core.leave_owner(&mut self.fire);
        core.drop_each(self.handler.take());
    }
}

fn without_group<K, V, G>(refused: Refused<K, V, G>) -> InsertError<(K, V)> {
    refused.map(|(_, key, value)| (key, value))
}

fn with_group<K, V, G>(refused: Refused<K, V, G>) -> InsertError<(G, K, V)> {
    refused.map(|(group, key, value)| (group.expect("it comes back with the key"), key, value))
}

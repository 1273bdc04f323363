//! Timers that are known by keys of the caller's own, and lend the values that they hold.
//!
//! For a cache with a time to live, sessions, leases, requests by their correlation id. By hand it
//! is a map from keys to ids beside timers that carry their keys: each key twice, where here it is
//! once.
//!
//! ```
//! use corewheel::clock::ManualClock;
//! use corewheel::{Fired, TimerService, Timers};
//! use corewheel_kit::keyed::KeyedTimers;
//! use std::time::{Duration, Instant};
//!
//! // A shard in a loop of our own, on a clock that we move; a server starts its service instead.
//! let clock = ManualClock::new();
//! let service = TimerService::builder().shards(1).clock(&clock).start_attached_with()?;
//! let attachment = service.attach(service.shards().next().unwrap())?;
//! let mut shard = attachment.into_loop(|_: Fired<()>, _: &Timers<()>| {})?;
//!
//! // A cache of addresses, each for a minute. The handler is given the entries that expire.
//! const TTL: Duration = Duration::from_secs(60);
//! let cache = KeyedTimers::<String, u32>::new(shard.timers(), |entry, cache| {
//!     println!("{} has expired, {} are left", entry.key, cache.len());
//! });
//! cache.insert("a.example".to_owned(), 0xC000_0201, TTL)?;
//! cache.insert("b.example".to_owned(), 0xC000_0202, TTL)?;
//!
//! // A hit reads the value where it lies; another lookup extends its life as well.
//! clock.advance(TTL / 2);
//! assert_eq!(cache.with("a.example", |address| *address), Some(0xC000_0201));
//! assert!(cache.reset("b.example", TTL));
//!
//! clock.advance(TTL / 2);
//! let _next = shard.turn();
//! assert_eq!(cache.with("a.example", |address| *address), None);
//! assert!(cache.due("b.example").is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A caller that has the key resets and removes the timer, and keeps no id. Why not a map from
//! keys to ids beside the timers: the map would have to follow each timer that fires, and a
//! timer that is scheduled again while the old one is due would fire for the new one.
//!
//! # Cost
//!
//! A timer of the shard, and about 30 bytes beside the key and the value, 5.7 of them for the
//! hash table at its fullest; 24 bytes more for a key in a group. Memory is taken when it is
//! needed, and kept. Each method is amortised O(1), except those that end several timers, which are
//! O(those).
#![doc = ""]
#![doc = include_str!("other_threads.md")]

// Invariants: a key has at most one timer, and it is free again before the handler is called for
// it. Nothing is borrowed while the handler or a `Drop` of the user runs; the table is borrowed
// while a closure is lent a value. Absent by design: a clone of a key.

mod lend;
mod table;

use std::borrow::Borrow;
use std::cell::{Cell, RefCell, RefMut};
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::rc::Rc;
use std::time::Instant;

use corewheel::part::{Part, PartHandle};
use corewheel::{Deadline, Refused, Timers, When};
use hashbrown::DefaultHashBuilder;

use self::lend::used_while_lent;
use self::table::{Entry, Hashed, Put, Table};
#[doc(no_inline)]
pub use crate::queue::Expired;

/// The timers of one shard that are known by keys, one timer for each key. See the [module](self)
/// for an example.
///
/// `!Send`, and as cheap to clone as an [`Rc`]: all clones are the same timers. Other threads use
/// them by a [`Kept`](corewheel::kept::Kept). `K` is the key, `V`
/// is what a timer holds, `G` is the name of a group. A key is looked up by any type that it can be
/// borrowed as: a `String` by a `&str`.
///
/// **Firing.** When a timer fires, the handler is called with its key, value and deadline, in the
/// turn in which any timer would fire: never early, and in the order of the deadlines. The key is
/// free by then, and the handler may use these timers in every way, which it is given for that. A
/// panic of the handler is counted by the shard and ends only that call. A handler that owns a
/// clone of its own timers keeps them alive for ever.
///
/// **Lending.** [`with`](Self::with) lends a value to a closure. The closure must not use these
/// timers, and neither may `Hash` and `Eq` of keys and names: each method panics then, and changes
/// nothing. Other timers of the shard may be used. A timer that would fire while the closure runs,
/// because the closure takes a turn of the shard, fires when the closure has returned.
///
/// **Class.** Timers that are made with a view [of a class](Timers::of_class) count for the class.
///
/// **Shutdown.** `ShutdownPolicy::Fire` fires all timers at once. With the other policies keys and
/// values stay, to be removed or [drained](Self::drain). When the last clone is dropped, keys,
/// values and their timers are dropped.
pub struct KeyedTimers<K: 'static, V: 'static, G: 'static = ()>(Rc<Inner<K, V, G>>);

type KeyedHandler<K, V, G> = Box<dyn FnMut(Expired<V, K>, &KeyedTimers<K, V, G>)>;

struct Inner<K: 'static, V: 'static, G: 'static> {
    shard: PartHandle,
    /// None while it runs.
    handler: Cell<Option<KeyedHandler<K, V, G>>>,
    table: RefCell<Table<K, V, G>>,
    /// Entries whose timers have fired while a value was lent.
    deferred: RefCell<Vec<u32>>,
    hasher: DefaultHashBuilder,
}

impl<K: Hash + Eq, V> KeyedTimers<K, V> {
    /// Timers on this shard, without groups. Each key has a timer of the shard, so the shard's
    /// [capacity](Timers::capacity) is also theirs.
    pub fn new<T: Send + 'static>(
        timers: &Timers<T>,
        handler: impl FnMut(Expired<V, K>, &Self) + 'static,
    ) -> Self {
        Self::in_groups(timers, handler)
    }
}

impl<K: Hash + Eq, V, G: Hash + Eq> KeyedTimers<K, V, G> {
    /// Timers on this shard whose keys may be in groups with names of type `G`.
    ///
    /// ```
    /// # use corewheel::{Fired, TimerService, Timers};
    /// # use corewheel_kit::keyed::KeyedTimers;
    /// # use std::time::{Duration, Instant};
    /// # let service = TimerService::builder().shards(1).start_attached_with()?;
    /// # let shard = service.attach(service.shards().next().unwrap())?;
    /// # let shard = shard.into_loop(|_: Fired<()>, _: &Timers<()>| {})?;
    /// # let timers = shard.timers();
    /// // Sessions by their tokens, in groups by the numbers of their users.
    /// let sessions = KeyedTimers::<&str, (), u32>::in_groups(timers, |_expired, _sessions| {});
    /// let idle = timers.deadline(Duration::from_secs(60));
    /// for (user, token) in [(1, "red"), (2, "green"), (2, "blue")] {
    ///     sessions.insert_in(user, token, (), idle)?;
    /// }
    /// // A user logs out everywhere.
    /// let ended = sessions.remove_group(&2);
    /// assert!(ended.into_iter().map(|session| session.key).eq(["green", "blue"]));
    /// assert_eq!(sessions.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn in_groups<T: Send + 'static>(
        timers: &Timers<T>,
        handler: impl FnMut(Expired<V, K>, &Self) + 'static,
    ) -> Self {
        let handler: KeyedHandler<K, V, G> = Box::new(handler);
        Self(timers.add_part(|shard| Inner {
            shard,
            handler: Cell::new(Some(handler)),
            table: RefCell::new(Table::new()),
            deferred: RefCell::default(),
            hasher: DefaultHashBuilder::default(),
        }))
    }
}

/// Inserting, resetting and removing.
impl<K: Hash + Eq, V, G: Hash + Eq> KeyedTimers<K, V, G> {
    /// Inserts a key with a value and a timer, for which the handler is called when it is due.
    ///
    /// A key that has a timer already keeps that timer, which is reset: the timer holds the new key
    /// and value, and the key leaves its group. The entry that was there before is returned.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with key and value. Nothing has changed then.
    #[expect(clippy::type_complexity, reason = "an alias would hide what is returned")]
    pub fn insert<W: When>(
        &self,
        key: K,
        value: V,
        when: W,
    ) -> Result<Option<Expired<V, K>>, Refused<(K, V)>> {
        let deadline = self.0.shard.deadline(when);
        let refuse = |refused: NotInserted<K, V, G>| refused.map(|(_, key, value)| (key, value));
        self.put(None, key, value, deadline).map_err(refuse)
    }

    /// Inserts a key into a group, with a value and a timer. A key that is in this group already
    /// keeps its place there; a key that is in another group leaves that. The entry that was there
    /// before is returned.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with group, key and value. Nothing has changed then.
    #[expect(clippy::type_complexity, reason = "an alias would hide what is returned")]
    pub fn insert_in<W: When>(
        &self,
        group: G,
        key: K,
        value: V,
        when: W,
    ) -> Result<Option<Expired<V, K>>, Refused<(G, K, V)>> {
        let deadline = self.0.shard.deadline(when);
        self.put(Some(group), key, value, deadline).map_err(|refused| {
            refused.map(|(group, key, value)| {
                (group.expect("the group is refused with its key"), key, value)
            })
        })
    }

    /// Changes the deadline of a key; its value and its group stay. False if there is no such key,
    /// or if the shard is closed. A key that is due and not delivered yet is reset like any other.
    pub fn reset<Q, W>(&self, key: &Q, when: W) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        W: When,
    {
        let deadline = self.0.shard.deadline(when);
        let shard = &self.0.shard;
        let Some(entry) = self.find(key).filter(|_| !shard.is_closed()) else { return false };
        let timer = {
            let mut table = self.table();
            let Some(known) = table.get(entry) else { return false };
            known.deadline = deadline;
            known.timer
        };
        shard.reset(timer, deadline)
    }

    /// Takes a key out with its value, and ends its timer. A key whose timer is due but not
    /// delivered yet can still be removed. `None` if there is no such key.
    pub fn remove<Q>(&self, key: &Q) -> Option<Expired<V, K>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let entry = self.find(key)?;
        let (ended, name) = self.table().remove(entry);
        self.0.shard.cancel(ended.timer);
        self.0.shard.drop_each(name);
        Some(self.expired(ended))
    }

    /// Takes all keys of a group out, in the order in which they came to the group. O(its keys).
    pub fn remove_group<Q>(&self, group: &Q) -> Vec<Expired<V, K>>
    where
        G: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.0.hasher.hash_one(group);
        let members = self.table().members(hash, |known| known.borrow() == group);
        self.remove_all(members)
    }

    /// Takes all keys out, in the order of their deadlines. The order of keys of one tick is not
    /// defined.
    pub fn drain(&self) -> Vec<Expired<V, K>> {
        let all = self.table().all();
        let mut drained = self.remove_all(all);
        drained.sort_by_key(|expired| expired.deadline);
        drained
    }
}

/// Queries.
impl<K: Hash + Eq, V, G: Hash + Eq> KeyedTimers<K, V, G> {
    /// When the timer of a key is due: its deadline, rounded up to a tick. `None` if there is no
    /// such key.
    ///
    /// A key is there until its timer is delivered, which is later than its deadline by the shard's
    /// lateness: a turn delivers only as many timers as its budget allows. A cache that must not
    /// return a value after its deadline looks whether that has passed.
    pub fn due<Q>(&self, key: &Q) -> Option<Instant>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let entry = self.find(key)?;
        let deadline = self.table().get(entry)?.deadline;
        Some(self.0.shard.instant_of(deadline))
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.table().len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The refusal of a group's name, if there is one, a key and a value.
type NotInserted<K, V, G> = Refused<(Option<G>, K, V)>;

impl<K: Hash + Eq, V, G: Hash + Eq> KeyedTimers<K, V, G> {
    fn put(
        &self,
        group: Option<G>,
        key: K,
        value: V,
        deadline: Deadline,
    ) -> Result<Option<Expired<V, K>>, NotInserted<K, V, G>> {
        let shard = &self.0.shard;
        if shard.is_closed() {
            return Err(Refused::Closed((group, key, value)));
        }
        // The driver is woken when the entry is complete.
        let _compound = shard.compound();
        let hash = self.0.hasher.hash_one(&key);
        let group = group.map(|group| (self.0.hasher.hash_one(&group), group));
        let mut table = self.table();
        let schedule = |entry| shard.schedule(deadline, entry).ok();
        let put = table.put((hash, key), value, deadline, schedule);
        let name = match put {
            Put::New(entry) => group.and_then(|group| table.join_group(entry, group)),
            Put::Known(entry, key, value) => {
                drop(table);
                return Ok(Some(self.replace(entry, group, (key, value), deadline)));
            }
            Put::Refused(key, value) => {
                return Err(Refused::Full((group.map(|(_, group)| group), key, value)));
            }
        };
        drop(table);
        self.0.shard.drop_each(name);
        Ok(None)
    }

    /// Replaces key, value, deadline and group of an entry, and returns the old entry.
    fn replace(
        &self,
        entry: u32,
        group: Option<Hashed<G>>,
        (key, value): (K, V),
        deadline: Deadline,
    ) -> Expired<V, K> {
        let mut table = self.table();
        let names = if table.is_in_group(entry, group.as_ref()) {
            [None, group.map(|(_, group)| group)]
        } else {
            let left = table.leave_group(entry);
            [left, group.and_then(|group| table.join_group(entry, group))]
        };
        let known = table.get(entry).expect("the entry has just been found");
        let key = std::mem::replace(&mut known.key, key);
        let value = std::mem::replace(&mut known.value, value);
        let before = std::mem::replace(&mut known.deadline, deadline);
        let timer = known.timer;
        drop(table);
        let is_reset = self.0.shard.reset(timer, deadline);
        debug_assert!(is_reset, "the timer of an entry is pending");
        for name in names {
            self.0.shard.drop_each(name);
        }
        Expired { key, deadline: self.0.shard.instant_of(before), value }
    }

    fn find<Q>(&self, key: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.0.hasher.hash_one(key);
        self.table().find(hash, |known| known.borrow() == key)
    }
}

impl<K, V, G> KeyedTimers<K, V, G> {
    /// Borrows the table, for a time in which no code of the user runs but `Hash` and `Eq`.
    #[inline]
    fn table(&self) -> RefMut<'_, Table<K, V, G>> {
        self.0.table.try_borrow_mut().unwrap_or_else(|_| used_while_lent())
    }

    /// The timer of an entry has fired.
    fn fire(&self, entry: u32) {
        let Ok(mut table) = self.0.table.try_borrow_mut() else {
            return self.0.deferred.borrow_mut().push(entry);
        };
        let ended = table.remove(entry);
        drop(table);
        self.end(ended);
    }

    /// Calls the handler for an entry that has left the table.
    fn end(&self, (ended, name): (Entry<K, V>, Option<G>)) {
        self.0.shard.drop_each(name);
        let ended = self.expired(ended);
        let mut handler = self.0.handler.take().expect("a turn is not taken within a turn");
        self.0.shard.contain(|| handler(ended, self));
        self.0.handler.set(Some(handler));
    }

    /// Takes entries out. All of them are gone before a `Drop` of the user runs.
    fn remove_all(&self, entries: impl IntoIterator<Item = u32>) -> Vec<Expired<V, K>> {
        let removed: Vec<_> = {
            let mut table = self.table();
            entries.into_iter().map(|entry| table.remove(entry)).collect()
        };
        for (ended, _) in &removed {
            self.0.shard.cancel(ended.timer);
        }
        let end = |(ended, name)| {
            self.0.shard.drop_each(name);
            self.expired(ended)
        };
        removed.into_iter().map(end).collect()
    }

    fn expired(&self, ended: Entry<K, V>) -> Expired<V, K> {
        let Entry { key, value, deadline, .. } = ended;
        Expired { key, deadline: self.0.shard.instant_of(deadline), value }
    }
}

impl<K, V, G> Part for Inner<K, V, G> {
    fn expired(self: Rc<Self>, entry: u32) {
        KeyedTimers(self).fire(entry);
    }
}

impl<K, V, G> Drop for Inner<K, V, G> {
    fn drop(&mut self) {
        let table = self.table.get_mut();
        for entry in table.all() {
            let (ended, name) = table.remove(entry);
            self.shard.cancel(ended.timer);
            self.shard.drop_each([ended.key]);
            self.shard.drop_each([ended.value]);
            self.shard.drop_each(name);
        }
        self.shard.drop_each(self.handler.take());
    }
}

impl<K, V, G> Clone for KeyedTimers<K, V, G> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<K, V, G> fmt::Debug for KeyedTimers<K, V, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("KeyedTimers");
        // A closure that is lent a value may print the timers.
        if let Ok(table) = self.0.table.try_borrow() {
            debug.field("len", &table.len());
        }
        debug.finish_non_exhaustive()
    }
}

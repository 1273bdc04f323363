//! Operations that wait for a key: each completes by an event or by its deadline, whichever comes
//! first.
//!
//! For servers whose requests wait until something under a key changes: a long poll, a quorum, a
//! lock. By hand it is a timer for each operation and a map of lists from keys to them. What
//! a list keeps of operations that have ended must then be swept; here an operation leaves all its
//! lists at once, for 24 bytes a key.
//!
//! ```
//! use std::cell::Cell;
//! use std::rc::Rc;
//! use std::time::Duration;
//! use corewheel_kit::purgatory::{Operation, Purgatory};
//! use corewheel::clock::ManualClock;
//! use corewheel::{Fired, TimerService};
//!
//! /// Waits until a partition has 100 bytes.
//! struct Fetch(Rc<Cell<u32>>);
//!
//! impl Operation for Fetch {
//!     fn try_complete(&mut self) -> bool {
//!         self.0.get() >= 100
//!     }
//!     fn completed(self) {
//!         println!("answered with {} bytes", self.0.get());
//!     }
//!     fn expired(self) {
//!         println!("answered with too little, as the time is up");
//!     }
//! }
//!
//! let clock = ManualClock::new();
//! let builder = TimerService::builder().shards(1).clock(&clock);
//! let service = builder.start_attached_with::<()>()?;
//! let shard = service.shards().next().unwrap();
//! let mut shard = service.attach(shard)?.into_loop(|_: Fired<()>, _: &_| {})?;
//!
//! // Two fetches, each for half a second at most. Neither is complete, so both are watched.
//! let purgatory = Purgatory::new(shard.timers());
//! let (a, b) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
//! let wait = Duration::from_millis(500);
//! let fetch = Fetch(Rc::clone(&a));
//! assert!(!purgatory.try_complete_else_watch(fetch, wait, ["partition a"])?);
//! purgatory.try_complete_else_watch(Fetch(b), wait, ["partition b"])?;
//!
//! // The code that appends to a partition checks its key.
//! a.set(150);
//! assert_eq!(purgatory.check_and_complete("partition a"), 1);
//!
//! // Nothing is appended to the other partition.
//! clock.advance(wait);
//! let _ = shard.turn();
//! let stats = purgatory.stats();
//! assert_eq!((stats.completed, stats.expired, stats.delayed), (1, 1, 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A request for data that has not arrived, a write that waits for its replicas, a client that
//! waits for a lock: the purgatory tries each operation when it comes. An operation that is not
//! complete watches the keys that it depends on. Code that changes something under a key checks the
//! key, which tries the operations that watch it, in the order in which they came. An operation
//! that is never complete expires at its deadline.
//!
//! The idea and the names are those of Kafka's purgatory. Why a list for each key, and not a future
//! for each operation: one event may concern many operations, and a check tries each of them once.
//!
//! # From other threads
//!
//! [`Handle::keep`](corewheel::Handle::keep) makes a purgatory that any thread reaches by a
//! [`Kept`](corewheel::kept::Kept). Operations that are not `Send` are made within the closures.
//!
//! ```
//! use corewheel_kit::purgatory::{Operation, Purgatory};
//! use corewheel::{TimerService, Timers};
//! use std::sync::mpsc;
//! use std::time::Duration;
//!
//! /// Waits until its key is checked.
//! struct Request(bool, mpsc::Sender<&'static str>);
//!
//! impl Operation for Request {
//!     fn try_complete(&mut self) -> bool {
//!         std::mem::replace(&mut self.0, true)
//!     }
//!     fn completed(self) {
//!         let _gone = self.1.send("answered");
//!     }
//!     fn expired(self) {
//!         let _gone = self.1.send("too late");
//!     }
//! }
//!
//! let service = TimerService::builder().shards(1).start()?;
//! let make = |timers: &Timers| Purgatory::<u32, Request>::new(timers);
//! let requests = service.handle().on(service.shard_for(0)).keep(make)?.wait()?;
//! let (sender, ended) = mpsc::channel();
//! let watch = move |requests: &Purgatory<u32, Request>| {
//!     let wait = Duration::from_secs(60);
//!     requests.try_complete_else_watch(Request(false, sender), wait, [7]).is_ok()
//! };
//! assert!(requests.try_run(watch).map_err(|refused| refused.kind())?.wait()?);
//! assert_eq!(requests.try_run(|requests| requests.check_and_complete(&7))?.wait()?, 1);
//! assert_eq!(ended.recv()?, "answered");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Or the values of a service are commands, and its handler owns the purgatory:
//!
//! ```
//! # use corewheel_kit::purgatory::{Operation, Purgatory};
//! # use corewheel::{Fired, TimerService, Timers};
//! # use std::sync::mpsc;
//! # use std::time::Duration;
//! # struct Request(bool, mpsc::Sender<&'static str>);
//! # impl Operation for Request {
//! #     fn try_complete(&mut self) -> bool {
//! #         std::mem::replace(&mut self.0, true)
//! #     }
//! #     fn completed(self) {
//! #         let _gone = self.1.send("answered");
//! #     }
//! #     fn expired(self) {
//! #         let _gone = self.1.send("too late");
//! #     }
//! # }
//! enum Command {
//!     Watch(u32, Request, Duration),
//!     Check(u32),
//!     Cancel(u32),
//! }
//!
//! let service = TimerService::builder().shards(1).start_with(|_shard| {
//!     let mut requests: Option<Purgatory<u32, Request>> = None;
//!     move |fired: Fired<Command>, timers: &Timers<Command>| {
//!         let requests = requests.get_or_insert_with(|| Purgatory::new(timers));
//!         match fired.payload {
//!             Command::Watch(key, request, wait) => {
//!                 if let Err(refused) = requests.try_complete_else_watch(request, wait, [key]) {
//!                     refused.into_value().expired();
//!                 }
//!             }
//!             Command::Check(key) => {
//!                 requests.check_and_complete(&key);
//!             }
//!             Command::Cancel(key) => {
//!                 requests.cancel_for_key(&key);
//!             }
//!         }
//!     }
//! })?;
//! let handle = service.handle();
//! let shard = handle.on(service.shard_for(0));
//! let (sender, ended) = mpsc::channel();
//! let minute = Duration::from_secs(60);
//! let commands = [
//!     Command::Watch(7, Request(false, sender.clone()), minute),
//!     Command::Watch(8, Request(false, sender), minute),
//!     Command::Cancel(7),
//!     Command::Check(8),
//! ];
//! for command in commands {
//!     shard.schedule(Duration::ZERO, command).map_err(|refused| refused.kind())?;
//! }
//! assert_eq!(ended.iter().collect::<Vec<_>>(), ["answered"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A callback of another thread reaches none: it is `Send`, and a purgatory that it makes is
//! dropped when it returns.
//!
//! # Cost
//!
//! An operation that waits takes a timer of the shard, its place in a slab and 24 bytes for each of
//! its keys. To watch, complete, expire or cancel an operation is O(its keys), and takes it out of
//! all its lists at once: there is no sweep. To check a key is O(operations that watch it). Only
//! the table of keys allocates, when it grows.

mod inner;
mod lists;
mod operation;
mod stats;

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::rc::Rc;

use corewheel::{Refused, Timers, When};

use self::inner::Inner;
use self::lists::Waiting;
pub use self::operation::Operation;
pub use self::stats::PurgatoryStats;

/// Operations of one shard that complete by an event or by their deadline, exactly once. See the
/// [module](self).
///
/// `K` is the type of the keys, `Op` that of the operations. `Hash` and `Eq` of `K` must not use
/// the purgatory. It is `!Send`; a clone shares the operations, and other threads use it by a
/// [`Kept`](corewheel::kept::Kept).
///
/// An operation expires in the turn in which its timer fires: never early, and late by no more than
/// any timer. Its timer counts for the class of the [`Timers`] that the purgatory was made with.
///
/// When the shard is shut down by `ShutdownPolicy::Fire`, all operations expire. By the other
/// policies they stay, without a deadline, until they are completed by a check, cancelled or
/// [drained](Self::drain). Dropping the last clone drops the operations and their timers.
pub struct Purgatory<K, Op>(Rc<Inner<K, Op>>);

impl<K, Op> Purgatory<K, Op>
where
    K: Hash + Eq + 'static,
    Op: Operation,
{
    /// A purgatory on this shard, for as many operations as the shard can have timers, with four
    /// keys each on average.
    pub fn new<T: Send + 'static>(timers: &Timers<T>) -> Self {
        Self(timers.add_part(|shard| Inner::new(shard, timers.capacity())))
    }

    /// Tries an operation. If it is complete, it has ended, and the result is true. If not, it
    /// watches these keys until it is due, and the result is false.
    ///
    /// A key that is given twice counts once. Without keys the operation waits for its deadline
    /// alone. If `when` has passed, the operation expires in the next turn.
    ///
    /// # Errors
    ///
    /// `Full` if the shard has no room for its timer, or if the operations watch four keys for each
    /// timer that the shard can have; `Closed`. Both with the operation, which was tried and was
    /// not complete.
    pub fn try_complete_else_watch<W: When>(
        &self,
        operation: Op,
        when: W,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<bool, Refused<Op>> {
        self.0.watch(operation, self.0.shard.deadline(when), keys)
    }

    /// Tries all operations that watch a key, in the order in which they came. Returns how many
    /// operations were completed. To be called whenever something changes that operations depend on
    /// under this key.
    ///
    /// An operation that begins to watch the key meanwhile is not tried: it was tried when it came.
    ///
    /// Operations may check keys while they run. A check by an operation that is tried or completed
    /// by another check returns 0: that one tries the operations of all keys that were checked
    /// meanwhile, too, and returns how many it has completed in all, so that the stack does not
    /// overflow. Where operations check their own keys each time that they are tried and none
    /// completes, it ends after 64 rounds, and logs that.
    pub fn check_and_complete<Q>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.0.hash(key);
        self.0.check(hash, |known| known.borrow() == key)
    }

    /// Cancels all operations that watch a key and returns them, in the order in which they came.
    /// They leave the lists of their other keys as well.
    ///
    /// An operation whose `try_complete` makes this call is not cancelled: its result decides.
    pub fn cancel_for_key<Q>(&self, key: &Q) -> Vec<Op>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.0.hash(key);
        let watchers: Vec<_> =
            self.0.lists.borrow().watchers(hash, |known| known.borrow() == key).collect();
        self.0.cancel_all(watchers)
    }

    /// Cancels all operations and returns them, in the order in which they came.
    pub fn drain(&self) -> Vec<Op> {
        let mut all: Vec<_> = {
            let lists = self.0.lists.borrow();
            let known = |(index, waiting): (usize, &Waiting<_>)| (index as u32, waiting.serial);
            lists.operations.iter().map(known).collect()
        };
        all.sort_unstable_by_key(|(_, serial)| *serial);
        self.0.cancel_all(all)
    }
}

impl<K, Op> Purgatory<K, Op> {
    /// What the purgatory holds and has counted. Costs a copy: no list is walked.
    pub fn stats(&self) -> PurgatoryStats {
        let lists = self.0.lists.borrow();
        PurgatoryStats {
            delayed: lists.operations.len() as u64,
            watched: lists.watched() as u64,
            keys: lists.keys() as u64,
            ..self.0.counts.get()
        }
    }
}

impl<K, Op> Clone for Purgatory<K, Op> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<K, Op> fmt::Debug for Purgatory<K, Op> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Purgatory").field(&self.stats()).finish()
    }
}

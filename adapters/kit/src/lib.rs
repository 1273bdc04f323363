//! What is built from the timers of [`corewheel`]: containers of many values, each with a deadline,
//! periodic callbacks, and what else servers need of timers.
//!
//! | need | module |
//! |---|---|
//! | values that are taken out when they are due | [`queue`] |
//! | timers and values by keys of your own, alone or in groups | [`keyed`] |
//! | operations that wait for a key, or their deadline | [`purgatory`] |
//! | timeouts that shrink under pressure, all at once | [`scaled`] |
//! | callbacks that run again and again | [`repeat`] |
//! | timers that do not all expire at once | [`herd`] |
//!
//! The trait [`TimersExt`] makes them, as methods of [`Timers`]. Each lives on one shard and is
//! `!Send`; any thread reaches one that [`Handle::keep`](corewheel::Handle::keep) has made. The
//! [guide] has a whole server, with a delayed job queue beside tokio.
//!
//! ```
//! use corewheel::clock::ManualClock;
//! use corewheel::TimerService;
//! use corewheel_kit::TimersExt;
//! use std::time::{Duration, Instant};
//!
//! // A shard in a loop of our own, on a clock that we move; a server starts its service instead.
//! let clock = ManualClock::new();
//! let service = TimerService::builder().shards(1).clock(&clock).start_attached()?;
//! let mut shard = service.attach(service.shard_for(0))?.into_loop(|_, _| {})?;
//!
//! let queue = shard.timers().delay_queue();
//! queue.insert("GET /a, again", Duration::from_millis(100))?;
//! let sessions = shard.timers().keyed::<u32, &str>(|ended, _sessions| {
//!     println!("session {} of {} has ended", ended.key, ended.value);
//! });
//! let _new = sessions.insert(7, "red", Duration::from_millis(100));
//!
//! clock.advance(Duration::from_millis(100));
//! let _next = shard.turn();
//! assert_eq!(queue.try_next().map(|due| due.value), Some("GET /a, again"));
//! assert!(sessions.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Why not in `corewheel` itself: they use what it and `corewheel-shard` make public. A container
//! is a [`part`](corewheel::part), as one of your own is. A server without them does not compile
//! them.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod chains;
pub mod herd;
pub mod keyed;
pub mod purgatory;
pub mod queue;
pub mod repeat;
pub mod scaled;

pub mod guide {
    #![doc = include_str!("guide.md")]
}

use std::hash::Hash;
use std::time::{Duration, Instant};

use corewheel::{ConfigError, Refused, Timers, When};

use self::keyed::KeyedTimers;
use self::purgatory::{Operation, Purgatory};
use self::queue::{DelayQueue, Expired};
use self::repeat::{Periodic, PeriodicRun, Repeat};
use self::scaled::ScaledTimeouts;

/// Makes containers and periodic callbacks on a shard, as methods of its [`Timers`].
///
/// The values and timers of a container that is made with a view
/// [of a class](Timers::of_class) count for the class.
pub trait TimersExt {
    /// The type of the shard's values.
    type Value: Send + 'static;

    /// The shard's timers.
    #[doc(hidden)]
    fn timers(&self) -> &Timers<Self::Value>;

    /// Makes a [`DelayQueue`] on this shard, for as many values as the shard can have timers. Their
    /// memory is reserved now, and touched as it comes into use.
    ///
    /// # Panics
    ///
    /// If there is no memory for that many.
    fn delay_queue<V>(&self) -> DelayQueue<V> {
        DelayQueue::new(self.timers())
    }

    /// Makes [`KeyedTimers`] on this shard, without groups. Each key has a timer of the shard, so
    /// the shard's [capacity](Timers::capacity) is also theirs.
    fn keyed<K: Hash + Eq, V>(
        &self,
        handler: impl FnMut(Expired<V, K>, &KeyedTimers<K, V>) + 'static,
    ) -> KeyedTimers<K, V> {
        self.keyed_in_groups(handler)
    }

    /// Makes [`KeyedTimers`] on this shard whose keys may be in groups with names of type `G`.
    ///
    /// ```
    /// # use corewheel::{Fired, TimerService, Timers};
    /// # use corewheel_kit::TimersExt;
    /// # use std::time::{Duration, Instant};
    /// # let service = TimerService::builder().shards(1).start_attached_with()?;
    /// # let shard = service.attach(service.shards().next().unwrap())?;
    /// # let shard = shard.into_loop(|_: Fired<()>, _: &Timers<()>| {})?;
    /// # let timers = shard.timers();
    /// // Sessions by their tokens, in groups by the numbers of their users.
    /// let sessions = timers.keyed_in_groups::<&str, (), u32>(|_expired, _sessions| {});
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
    fn keyed_in_groups<K: Hash + Eq, V, G: Hash + Eq>(
        &self,
        handler: impl FnMut(Expired<V, K>, &KeyedTimers<K, V, G>) + 'static,
    ) -> KeyedTimers<K, V, G> {
        KeyedTimers::new(self.timers(), handler)
    }

    /// A purgatory on this shard, for as many operations as the shard can have timers, with four
    /// keys each on average.
    fn purgatory<K, Op>(&self) -> Purgatory<K, Op>
    where
        K: Hash + Eq + 'static,
        Op: Operation,
    {
        Purgatory::new(self.timers())
    }

    /// Timeouts on this shard that last from `min` to `max` by the shard's
    /// [scale](Timers::set_scale), for as many values as the shard can have timers. A `max` that
    /// does not fit (584 years) means never.
    ///
    /// The handler runs on this core with nothing borrowed, and is given the timeouts too, so it
    /// may start, reset and cancel timeouts. If it panics, the shard logs and counts the panic, and
    /// the handler is called for the next timeout.
    ///
    /// # Errors
    ///
    /// `min` is more than `max`, or `max` is zero.
    fn scaled<V: 'static>(
        &self,
        min: Duration,
        max: Duration,
        handler: impl FnMut(V, &ScaledTimeouts<V>) + 'static,
    ) -> Result<ScaledTimeouts<V>, ConfigError> {
        ScaledTimeouts::new(self.timers(), min, max, handler)
    }

    /// Runs a callback periodically on this core until it is stopped: by [`PeriodicRun::stop`], or
    /// by [`Periodic::stop`]. For an example see [`crate::repeat`].
    ///
    /// It never runs within itself, and it does not run after a stop. If it panics, the panic is
    /// contained, logged and counted, and its later runs come all the same. A shutdown by
    /// [`ShutdownPolicy::Fire`](corewheel::ShutdownPolicy::Fire) runs it once more, for the last
    /// time; the other policies do not run it.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the callback. After its first run was accepted, no later run is
    /// refused.
    ///
    /// # Panics
    ///
    /// If the shard has as many [parts](Timers::add_part) as it can have.
    fn repeat<F>(&self, repeat: Repeat, call: F) -> Result<Periodic, Refused<F>>
    where
        F: FnMut(&mut PeriodicRun<'_, Self::Value>) + 'static,
    {
        repeat.begin(self.timers(), call)
    }

    /// Runs a callback when `first` is due, and then at each instant that `next` returns, until it
    /// returns `None`: a backoff, the hours of a calendar. An instant that has passed is due in the
    /// next turn.
    ///
    /// `next` is called before each run, with the instant at which that run was due, and with
    /// nothing borrowed. If it panics, the run that follows is the last.
    ///
    /// ```
    /// # use corewheel::{Fired, TimerService};
    /// # use corewheel_kit::TimersExt;
    /// # use std::time::{Duration, Instant};
    /// # let service = TimerService::builder().shards(1).start_attached_with::<()>()?;
    /// # let shard = service.attach(service.shards().next().unwrap())?;
    /// # let shard = shard.into_loop(|_: Fired<()>, _: &_| {})?;
    /// # let timers = shard.timers();
    /// // Attempts after 1, 3, 7, 15 seconds and so on, until one succeeds or a wait is too long.
    /// let mut wait = Duration::from_secs(1);
    /// let backoff = move |before: Instant| {
    ///     wait *= 2;
    ///     (wait < Duration::from_secs(60)).then(|| before + wait)
    /// };
    /// # let attempt = || true;
    /// let attempts = timers.repeat_by_plan(Duration::from_secs(1), backoff, move |run| {
    ///     if attempt() {
    ///         run.stop();
    ///     }
    /// })?;
    /// assert!(!attempts.is_over());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the callback; `next` is dropped.
    ///
    /// # Panics
    ///
    /// If the shard has as many [parts](Timers::add_part) as it can have.
    fn repeat_by_plan<W: When, F, N>(
        &self,
        first: W,
        next: N,
        call: F,
    ) -> Result<Periodic, Refused<F>>
    where
        F: FnMut(&mut PeriodicRun<'_, Self::Value>) + 'static,
        N: FnMut(Instant) -> Option<Instant> + 'static,
    {
        repeat::by_plan(self.timers(), first, next, call)
    }
}

impl<T: Send + 'static> TimersExt for Timers<T> {
    type Value = T;

    fn timers(&self) -> &Self {
        self
    }
}

/// The README's code, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

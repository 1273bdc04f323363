//! Timers that end together, and timers that end with a value.
//!
//! For connections and tenants with several timers. By hand it is a list of ids for
//! [`Handle::cancel_many`], of 12 bytes each; a group takes about 40, for which `remove` is O(1). A
//! guard is a `Drop` of your own that cancels, at the same cost.
//!
//! ```
//! use corewheel::group::TimerGroup;
//! use corewheel::clock::ManualClock;
//! use corewheel::{Fired, TimerService};
//! use std::time::Duration;
//!
//! // One shard in a loop of our own, with a clock that the example moves.
//! let clock = ManualClock::new();
//! let builder = TimerService::builder().shards(1).clock(&clock);
//! let service = builder.start_attached_with::<&str>()?;
//! let shard = service.attach(service.shards().next().unwrap())?;
//! let mut shard = shard.into_loop(|_: Fired<&str>, _: &_| panic!("all are cancelled"))?;
//! let timers = shard.timers().clone();
//!
//! let mut connection = TimerGroup::new();
//! connection.insert(timers.schedule(Duration::from_secs(5), "handshake")?);
//! connection.insert(timers.schedule(Duration::from_secs(60), "idle")?);
//! let request = timers.guard(timers.schedule(Duration::from_secs(9), "request")?);
//!
//! // The request is answered, and the connection is closed.
//! drop(request);
//! let cancelled = connection.cancel_here(&timers);
//! assert!(cancelled.len() == 2 && cancelled.iter().all(|(_, outcome)| outcome.won()));
//! clock.advance(Duration::from_secs(60));
//! let _ = shard.turn();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Why not a handle that cancels when it is dropped: a [`TimerId`] is `Copy`, goes to other
//! threads and into tables, and outlives its timer without harm. A [`TimerGuard`] is for the one
//! owner that wants the timer to end with it.
//!
//! Cost: a guard allocates nothing.

mod guard;

use std::fmt;

use hashbrown::HashMap;

pub use self::guard::TimerGuard;
use crate::face::handle::Handle;
use crate::face::handle::bulk::Outcomes;
use crate::face::reply::Reply;
use crate::face::timers::Timers;
use crate::shard::callback::Payload;
use crate::values::ids::TimerId;
use crate::values::outcome::CancelOutcome;

/// Timers, of any shards, that one call cancels: all those of a connection, of a listener, of a
/// tenant.
///
/// It holds their ids and nothing else, so it is `Send`, belongs to no shard, and leaves the
/// timers running when it is dropped. A timer that has fired or was cancelled stays in it until it
/// is [removed](Self::remove) or the group is cancelled, and does no harm.
///
/// Cancelling a group sends one message to each shard that has some of its timers, however many
/// they are; the shard takes it as that many requests, so no turn does more than its budget allows.
///
/// Cost: about 40 bytes for each timer. `insert` and `remove` are O(1), `cancel` is O(n).
#[derive(Clone, Default)]
pub struct TimerGroup {
    /// In the order of insertion, until a removal puts the last of them in a gap.
    timers: Vec<TimerId>,
    /// The index of each in `timers`.
    places: HashMap<TimerId, u32>,
}

impl TimerGroup {
    /// An empty group. It allocates nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a timer. False if it is in the group already.
    pub fn insert(&mut self, timer: TimerId) -> bool {
        let place = self.timers.len() as u32;
        if self.places.try_insert(timer, place).is_err() {
            return false;
        }
        self.timers.push(timer);
        true
    }

    /// Takes a timer out and leaves it running. False if it is not in the group.
    pub fn remove(&mut self, timer: TimerId) -> bool {
        let Some(place) = self.places.remove(&timer) else { return false };
        self.timers.swap_remove(place as usize);
        if let Some(moved) = self.timers.get(place as usize) {
            self.places.insert(*moved, place);
        }
        true
    }

    /// Whether a timer is in the group.
    pub fn contains(&self, timer: TimerId) -> bool {
        self.places.contains_key(&timer)
    }

    /// How many timers are in the group.
    pub fn len(&self) -> usize {
        self.timers.len()
    }

    /// Whether the group is empty.
    pub fn is_empty(&self) -> bool {
        self.timers.is_empty()
    }

    /// The timers, in an order that depends only on the calls of `insert` and `remove`.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = TimerId> + '_ {
        self.timers.iter().copied()
    }

    /// Cancels all timers from any thread. The reply has the outcome of each, in the order of
    /// [`iter`](Self::iter), as that of [`Handle::cancel_many`] has, also after the end of the
    /// service. The group is empty afterwards, and can be used again.
    pub fn cancel<T: Send + 'static>(&mut self, handle: Handle<T>) -> Reply<Outcomes<T>> {
        let reply = handle.cancel_many(&self.timers);
        self.clear();
        reply
    }

    /// Cancels all timers from any thread, without a reply. Each shard drops their payloads within
    /// a second, as [`Handle::cancel_detached`] says. The group is empty afterwards.
    pub fn cancel_detached<T: Send + 'static>(&mut self, handle: Handle<T>) {
        handle.cancel_many_detached(&self.timers);
        self.clear();
    }

    /// Cancels all timers from a shard's own core: those of this shard at once, with their
    /// outcomes, which are returned; those of other shards by messages without a reply. The group
    /// is empty afterwards.
    pub fn cancel_here<T: Send + 'static>(
        &mut self,
        timers: &Timers<T>,
    ) -> Vec<(TimerId, CancelOutcome<Payload<T>>)> {
        let mut cancelled = Vec::with_capacity(self.timers.len());
        let mut elsewhere = Vec::new();
        for timer in &self.timers {
            match timers.cancel(*timer) {
                CancelOutcome::Elsewhere(_) => elsewhere.push(*timer),
                outcome => cancelled.push((*timer, outcome)),
            }
        }
        self.clear();
        if !elsewhere.is_empty() {
            timers.handle().cancel_many_detached(&elsewhere);
        }
        cancelled
    }

    fn clear(&mut self) {
        self.timers.clear();
        self.places.clear();
    }
}

impl Extend<TimerId> for TimerGroup {
    fn extend<I: IntoIterator<Item = TimerId>>(&mut self, timers: I) {
        for timer in timers {
            self.insert(timer);
        }
    }
}

impl FromIterator<TimerId> for TimerGroup {
    fn from_iter<I: IntoIterator<Item = TimerId>>(timers: I) -> Self {
        let mut group = Self::new();
        group.extend(timers);
        group
    }
}

impl fmt::Debug for TimerGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(&self.timers).finish()
    }
}

//! Timers that end together.

use std::fmt;

use hashbrown::HashMap;

use crate::face::callback::{RemoteTask, Task};
use crate::face::client::Client;
use crate::face::client::many::Answers;
use crate::face::timers::Timers;
use crate::values::handle::TimerHandle;
use crate::values::outcome::CancelOutcome;

/// Timers, of any shards, that one call ends: all those of a connection, of a listener, of a
/// tenant.
///
/// It holds their names and nothing else, so it is `Send`, belongs to no shard, and leaves the
/// timers running when it is dropped. A timer that has fired or was cancelled stays in it until it
/// is [removed](Self::remove) or the group is closed, and does no harm.
///
/// Closing sends one message to each shard that has some of them, however many they are; the shard
/// takes it as that many requests, so no turn of it does more than its budget allows.
///
/// Cost: some 40 bytes a timer. Inserting and removing are O(1), closing is O(n).
///
/// ```
/// use std::time::Duration;
/// use corewheel::{Fired, ManualClock, TimerGroup, TimerService, Timers};
///
/// let clock = ManualClock::new();
/// let builder = TimerService::builder().shards(1).clock(clock.clock());
/// let service = builder.start_attached::<&str>()?;
/// let shard = service.shards().next().unwrap();
/// let mut shard = service.attach(shard)?.into_loop(|fired: Fired<&str>, _: &Timers<&str>| {
///     panic!("{} was closed before", fired.task);
/// })?;
///
/// let timers = shard.timers().clone();
/// let mut connection = TimerGroup::new();
/// connection.insert(timers.schedule(Duration::from_secs(5), "handshake")?);
/// connection.insert(timers.schedule(Duration::from_secs(60), "idle")?);
///
/// // The connection is closed.
/// let ended = connection.close_here(&timers);
/// assert!(ended.iter().all(|(_, outcome)| outcome.won()));
/// clock.advance(Duration::from_secs(60));
/// let _ = shard.turn();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct TimerGroup {
    /// In no particular order once one was removed.
    timers: Vec<TimerHandle>,
    /// Where each stands.
    places: HashMap<TimerHandle, u32>,
}

impl TimerGroup {
    /// An empty group. It allocates nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a timer. False if it is in the group already.
    pub fn insert(&mut self, timer: TimerHandle) -> bool {
        let place = self.timers.len() as u32;
        if self.places.try_insert(timer, place).is_err() {
            return false;
        }
        self.timers.push(timer);
        true
    }

    /// Takes a timer out and leaves it running. False if it is not in the group.
    pub fn remove(&mut self, timer: TimerHandle) -> bool {
        let Some(place) = self.places.remove(&timer) else { return false };
        self.timers.swap_remove(place as usize);
        if let Some(moved) = self.timers.get(place as usize) {
            self.places.insert(*moved, place);
        }
        true
    }

    /// Puts a timer in the place of another: what is to be done where one is moved to another shard
    /// and has a new name. False if the other is not in the group; the new one is added either way.
    pub fn replace(&mut self, old: TimerHandle, new: TimerHandle) -> bool {
        let was_there = self.remove(old);
        self.insert(new);
        was_there
    }

    /// Whether a timer is in the group.
    pub fn contains(&self, timer: TimerHandle) -> bool {
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

    /// The timers, in an order that depends on nothing but what was inserted and removed.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = TimerHandle> + '_ {
        self.timers.iter().copied()
    }

    /// Takes all timers out and leaves them running.
    pub fn clear(&mut self) {
        self.timers.clear();
        self.places.clear();
    }

    /// Ends all timers from any thread, and tells what became of each, in the order of
    /// [`iter`](Self::iter). The group is empty afterwards, and can be used again.
    pub fn close<T: Send + 'static>(
        &mut self,
        client: &Client<T>,
    ) -> Answers<CancelOutcome<RemoteTask<T>>> {
        let answers = client.cancel_many(&self.timers);
        self.clear();
        answers
    }

    /// The same, and asks for no answer. It does not wake the shards.
    pub fn close_detached<T: Send + 'static>(&mut self, client: &Client<T>) {
        client.cancel_many_detached(&self.timers);
        self.clear();
    }

    /// Ends all timers from a shard's own core: those of this shard at once, with what became of
    /// them; those of other shards by messages that ask for no answer.
    pub fn close_here<T: Send + 'static>(
        &mut self,
        timers: &Timers<T>,
    ) -> Vec<(TimerHandle, CancelOutcome<Task<T>>)> {
        let outcomes = timers.cancel_many(&self.timers);
        let mut ended = Vec::with_capacity(outcomes.len());
        let mut elsewhere = Vec::new();
        for (timer, outcome) in self.timers.iter().zip(outcomes) {
            if matches!(outcome, CancelOutcome::Elsewhere(_)) {
                elsewhere.push(*timer);
            } else {
                ended.push((*timer, outcome));
            }
        }
        self.clear();
        if !elsewhere.is_empty() {
            timers.client().cancel_many_detached(&elsewhere);
        }
        ended
    }
}

impl Extend<TimerHandle> for TimerGroup {
    fn extend<I: IntoIterator<Item = TimerHandle>>(&mut self, timers: I) {
        for timer in timers {
            self.insert(timer);
        }
    }
}

impl FromIterator<TimerHandle> for TimerGroup {
    fn from_iter<I: IntoIterator<Item = TimerHandle>>(timers: I) -> Self {
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

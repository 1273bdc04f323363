//! The threads whose futures wait for a shard's timers, and the slots that the shard lends them.
//!
//! The timers stay with their threads, see [`crate::link::thread_timers`]. Each has a slot of the
//! wheel lent to it, so that timers of all kinds share one capacity. The room from which threads
//! borrow holds all slots that the shard does not need at the moment; the shard takes some back
//! when it needs more. So `lent` slots of the wheel are free at any time.
//!
//! What the threads have counted comes with an act, and when the shard ends. Until then it is in no
//! statistics of the shard, and readers add it.

use std::sync::Arc;
use std::task::Waker;

use corewheel_shard::{Counters, Shard, TimerKey};

use super::stored::Stored;
use crate::directory::post::Front;
use crate::link::thread_timers::{Counts, Due, Table, ThreadTimers};

/// The most slots that the shard takes back from the room at a time, or keeps from it.
pub(super) const TAKEN_BACK_MAX: u32 = 256;

/// What a shard knows of the threads whose futures wait for its timers.
pub(super) struct Threads {
    pub(super) front: Arc<Front>,
    /// By their indices; `None` for one that is gone.
    pub(super) known: Vec<Option<Arc<ThreadTimers<Waker>>>>,
    /// The version of the table that `known` was copied from.
    pub(super) version: u64,
    /// The thread for which the next act is, if it needs one.
    first: usize,
    /// The slots that are lent: to the room, as credit, and to timers.
    pub(super) lent: u64,
    /// What the threads have counted, and how many of the timers the shard's own thread has armed.
    pub(super) counts: Counts,
    pub(super) armed_here: u64,
    /// Timers that the end of the shard has ended.
    pub(super) taken_out: u64,
    /// The threads for which the shard has acted, and whose counts it has not taken yet.
    pub(super) acted_for: Vec<u16>,
    /// The memory in which a turn keeps the timers that it fires. Empty between turns.
    pub(super) due: Vec<Due<Waker>>,
}

impl Threads {
    /// The threads of a shard that has lent all of its slots to their room.
    pub(super) fn new(front: Arc<Front>, capacity: u32) -> Self {
        Self {
            front,
            known: Vec::new(),
            version: 0,
            first: 0,
            lent: u64::from(capacity),
            counts: Counts::default(),
            armed_here: 0,
            taken_out: 0,
            acted_for: Vec::new(),
            due: Vec::new(),
        }
    }

    pub(super) fn table(&self) -> &Table<Waker> {
        &self.front.threads
    }

    /// The counts of the wheel, with the timers of threads.
    pub(super) fn counters(&self, wheel: &Counters) -> Counters {
        let mut counters = *wheel;
        counters.scheduled_local += self.armed_here;
        counters.scheduled_remote += self.counts.armed - self.armed_here;
        counters.cancelled += self.counts.ended;
        counters.fired += self.counts.fired;
        counters.returned += self.taken_out;
        counters
    }

    /// The earliest act that a thread needs.
    pub(super) fn act_by(&self) -> u64 {
        let known = self.known.iter().flatten();
        known.fold(u64::MAX, |earliest, thread_timers| earliest.min(thread_timers.act_by()))
    }

    /// The thread that is next of those that need an act by a time.
    pub(super) fn next_by(&mut self, begun: u64) -> Option<(u16, Arc<ThreadTimers<Waker>>)> {
        self.refresh();
        let count = self.known.len();
        let all = (self.first..count).chain(0..self.first.min(count));
        let mut known = all.filter_map(|index| Some((index, self.known[index].as_ref()?)));
        let needs = |act_by| act_by <= begun && act_by < u64::MAX;
        let (index, thread_timers) =
            known.find(|(_, thread_timers)| needs(thread_timers.act_by()))?;
        let found = (index as u16, Arc::clone(thread_timers));
        self.first = index + 1;
        Some(found)
    }

    /// Takes lent slots back until `count` of the wheel's are free, if the room has as many.
    #[cold]
    pub(super) fn take_back<T: 'static>(&mut self, wheel: &Shard<Stored<T>>, count: usize) -> bool {
        let free = unused_slots(wheel).saturating_sub(self.lent);
        let lacking = (count as u64).saturating_sub(free);
        if lacking > 0 {
            // More at a time, of a large room.
            let more = (wheel.capacity() as u32 / 64).min(TAKEN_BACK_MAX);
            self.lent -= u64::from(self.table().room().take_all((lacking as u32).max(more)));
        }
        unused_slots(wheel) >= self.lent + count as u64
    }

    /// Lends slots to the room.
    pub(super) fn lend(&mut self, slots: u64) {
        self.lent += slots;
        self.table().room().give(slots as u32);
    }

    /// Grants a key, if a slot of the wheel is free that no thread has borrowed.
    pub(super) fn grant_key<T: 'static>(
        &mut self,
        wheel: &mut Shard<Stored<T>>,
    ) -> Option<TimerKey> {
        if self.take_back(wheel, 1) { wheel.grant() } else { None }
    }

    /// Learns of the threads that have come and gone.
    pub(super) fn refresh(&mut self) {
        if self.table().version() != self.version {
            (self.known, self.version) = self.table().learn_all();
        }
    }
}

/// The slots of a wheel without a timer and without a key, lent ones included.
#[inline]
pub(super) fn unused_slots<T: 'static>(wheel: &Shard<Stored<T>>) -> u64 {
    (wheel.capacity() - wheel.len() - wheel.granted() - wheel.retired()) as u64
}

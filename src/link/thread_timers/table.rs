//! The timers of the threads of one owner, and the room that it lends to them.
//!
//! A thread enters its timers when it first arms a timer. The owner copies the list when its
//! version has changed, and removes those whose thread has ended when its slots are free. The
//! place of thread timers is used again with another generation, and no more after the last one.
//!
//! A timer that finds no room waits in the table. The owner takes back what other threads do not
//! use, and then `end_serving` returns what the timer carries, which the owner wakes. Why not at
//! once on the thread of the timer: only the owner can free the slots of unused keys.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use corewheel_shard::Tick;
use crossbeam_utils::CachePadded;

use super::super::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering};
use super::super::wake_up::{Doorbell, WakeUp};
use super::{ArmRefusal, Number, ThreadTimers};

/// The most threads of one owner.
const THREADS_MAX: usize = 1 << 16;
/// The keeper is woken after so many new threads, and removes those that are over.
const ENTERED_MAX: u32 = 256;
/// So many timers may wait for room, where the owner lends fewer slots.
const WAITING_MIN: usize = 64;

/// Names the timers of a thread among those of its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ThreadTimersId {
    pub(crate) index: u16,
    pub(crate) generation: u32,
}

/// How many more timers the threads of an owner may borrow.
#[derive(Debug)]
pub(crate) struct Room(AtomicU64);

impl Room {
    pub(crate) fn new(slots: u64) -> Self {
        Self(AtomicU64::new(slots))
    }

    /// Takes up to `max` slots, and leaves most of the room to others: an eighth at a time, and at
    /// least one slot if there is one.
    pub(crate) fn take(&self, max: u32) -> u32 {
        self.take_some(|free| free.min(u64::from(max)).min((free / 8).max(1)))
    }

    /// Takes up to `max` slots.
    pub(crate) fn take_all(&self, max: u32) -> u32 {
        self.take_some(|free| free.min(u64::from(max)))
    }

    fn take_some(&self, share: impl Fn(u64) -> u64) -> u32 {
        // Relaxed throughout: the number orders nothing.
        let mut free = self.0.load(Ordering::Relaxed);
        loop {
            let taken = share(free);
            let left = free - taken;
            let taking = self.0.compare_exchange(free, left, Ordering::Relaxed, Ordering::Relaxed);
            match taking {
                Ok(_) => return taken as u32,
                Err(changed) => free = changed,
            }
        }
    }

    /// How many slots are left.
    pub(crate) fn free(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn give(&self, slots: u32) {
        if slots > 0 {
            self.0.fetch_add(u64::from(slots), Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
struct Place<W> {
    generation: u32,
    /// `None` if they have been removed.
    thread_timers: Option<Arc<ThreadTimers<W>>>,
}

#[derive(Debug)]
struct Places<W> {
    all: Vec<Place<W>>,
    /// The places whose timers have been removed.
    free: Vec<u16>,
    /// How many threads have entered since the owner last copied the list.
    entered: u32,
    is_closed: bool,
    waiting: Waiting<W>,
}

/// What timers carry that have found no room, until the owner has looked for some.
#[derive(Debug)]
struct Waiting<W> {
    /// By the numbers that `ask_for_room` returns, which follow each other.
    carried: VecDeque<W>,
    /// The number of the first of `carried`, or of the next one to wait.
    first: Number,
    /// Whether the owner last found less room than was waited for.
    was_full: bool,
}

/// The timers of the threads of one owner.
#[derive(Debug)]
pub(crate) struct Table<W> {
    places: Mutex<Places<W>>,
    /// How often `places` has changed. Relaxed: a thread that enters its timers arms a timer next,
    /// and so rings the owner, whose fence orders it.
    version: AtomicU64,
    room: Arc<Room>,
    /// The most timers that wait for room: for more there cannot be any.
    waiting_max: usize,
    /// On cache lines of their own, as threads write them at each ring, and the owner reads what is
    /// beside them in each turn.
    wake_ups: CachePadded<WakeUps>,
    /// Whether a timer has found no room since the owner last began to look for some.
    is_short: AtomicBool,
}

/// How often threads have rung the owner for a look, and how many timers were refused.
#[derive(Debug, Default)]
struct WakeUps {
    made: AtomicU64,
    saved: AtomicU64,
    refused: AtomicU64,
}

impl<W> Table<W> {
    /// A table for an owner that lends so many slots.
    pub(crate) fn new(slots: u64) -> Self {
        let waiting = Waiting { carried: VecDeque::new(), first: Number::MIN, was_full: false };
        let places =
            Places { all: Vec::new(), free: Vec::new(), entered: 0, is_closed: false, waiting };
        Self {
            places: Mutex::new(places),
            version: AtomicU64::new(0),
            room: Arc::new(Room::new(slots)),
            waiting_max: usize::try_from(slots).unwrap_or(usize::MAX).max(WAITING_MIN),
            wake_ups: CachePadded::default(),
            is_short: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Places<W>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// Enters the timers of a thread. `Err(true)` if the owner has ended, `Err(false)` if there are
    /// too many.
    pub(crate) fn enter(
        &self,
        thread_timers: ThreadTimers<W>,
    ) -> Result<(ThreadTimersId, Arc<ThreadTimers<W>>), bool> {
        let mut places = self.lock();
        if places.is_closed {
            return Err(true);
        }
        let index = match places.free.pop() {
            Some(index) => index,
            None if places.all.len() == THREADS_MAX => return Err(false),
            None => {
                places.all.push(Place { generation: 0, thread_timers: None });
                (places.all.len() - 1) as u16
            }
        };
        places.entered += 1;
        let thread_timers = Arc::new(thread_timers);
        let place = &mut places.all[usize::from(index)];
        // A place whose generation is the last is not free.
        place.generation += 1;
        place.thread_timers = Some(Arc::clone(&thread_timers));
        let id = ThreadTimersId { index, generation: place.generation };
        self.note_change();
        Ok((id, thread_timers))
    }

    /// Whether so many threads have entered since the owner last copied the list that it is woken
    /// for them. A thread that ends wakes no owner. So the timers of thousands of short-lived
    /// threads would stay until the owner wakes for another reason.
    pub(crate) fn has_many_new(&self) -> bool {
        self.lock().entered >= ENTERED_MAX
    }

    /// The timers of a thread; `None` if they have been removed.
    pub(crate) fn find(&self, id: ThreadTimersId) -> Option<Arc<ThreadTimers<W>>> {
        let places = self.lock();
        let place = places.all.get(usize::from(id.index))?;
        place.thread_timers.clone().filter(|_| place.generation == id.generation)
    }

    /// Wakes the owner if it sleeps past the act that the timers of a thread want.
    #[cold]
    pub(crate) fn ring(&self, act_by: Tick, doorbell: &Doorbell) {
        // Relaxed: the counts order nothing.
        match doorbell.wake_for(|| act_by) {
            WakeUp::Made => self.wake_ups.made.fetch_add(1, Ordering::Relaxed),
            WakeUp::Saved => self.wake_ups.saved.fetch_add(1, Ordering::Relaxed),
        };
    }

    /// Has the owner look for room for a timer that has found none, and return `carried` then.
    /// `asked` is the number that the timer has from an earlier call. Returns its number: `Full` if
    /// the owner has looked since then and found less room than was waited for. Also returns what
    /// is not kept of what the timer carries, which the caller drops.
    #[cold]
    pub(crate) fn ask_for_room(
        &self,
        asked: Option<Number>,
        carried: W,
        doorbell: &Doorbell,
    ) -> (Result<Number, ArmRefusal>, Option<W>) {
        let mut places = self.lock();
        if places.is_closed {
            return (Err(ArmRefusal::Closed), Some(carried));
        }
        let waiting = &mut places.waiting;
        if let Some(number) = asked {
            let place = number.get().checked_sub(waiting.first.get());
            if let Some(known) = place.and_then(|at| waiting.carried.get_mut(at as usize)) {
                return (Ok(number), Some(std::mem::replace(known, carried)));
            }
            if waiting.was_full {
                return (Err(ArmRefusal::Full), Some(carried));
            }
        }
        if waiting.carried.len() >= self.waiting_max {
            return (Err(ArmRefusal::Full), Some(carried));
        }
        let number = waiting.first.saturating_add(waiting.carried.len() as u64);
        waiting.carried.push_back(carried);
        drop(places);
        // The owner clears the flag before it takes the lock. So a timer that it does not find in
        // `waiting` finds the flag cleared, or set again by a timer that rings.
        if !self.is_short() {
            // Relaxed: the fence of the doorbell orders it.
            self.is_short.store(true, Ordering::Relaxed);
            self.ring(Tick::ZERO, doorbell);
        }
        (Ok(number), None)
    }

    /// Counts a timer that was refused for want of room.
    #[cold]
    pub(crate) fn note_refused(&self) {
        // Relaxed: the count orders nothing.
        self.wake_ups.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a timer has found no room since the owner last began to look for some.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// The wake-ups that were made and saved, and the timers that were refused.
    pub(crate) fn counts(&self) -> [u64; 3] {
        let WakeUps { made, saved, refused } = &*self.wake_ups;
        [made, saved, refused].map(|count| count.load(Ordering::Relaxed))
    }

    /// Called under the lock.
    fn note_change(&self) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
    }
}

/// For the owner.
impl<W> Table<W> {
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    /// The owner looks for room next. Returns for how many timers.
    pub(crate) fn begin_serving(&self) -> usize {
        self.is_short.store(false, Ordering::Relaxed);
        self.lock().waiting.carried.len()
    }

    /// The owner goes on looking for room in its next turn.
    pub(crate) fn go_on_serving(&self) {
        self.is_short.store(true, Ordering::Relaxed);
    }

    /// The owner has looked for room for the first `count` timers that wait, and `was_full` if it
    /// has not found as much. Returns what they carry, to be woken.
    pub(crate) fn end_serving(&self, count: usize, was_full: bool) -> Vec<W> {
        let waiting = &mut self.lock().waiting;
        let count = count.min(waiting.carried.len());
        if count > 0 {
            waiting.was_full = was_full;
        }
        waiting.first = waiting.first.saturating_add(count as u64);
        waiting.carried.drain(..count).collect()
    }

    /// All thread timers, as [`all`](Self::all) returns them. The owner knows of them from then on.
    pub(crate) fn learn_all(&self) -> (Vec<Option<Arc<ThreadTimers<W>>>>, u64) {
        self.lock().entered = 0;
        self.all()
    }

    /// All thread timers, by their indices, and the version.
    pub(crate) fn all(&self) -> (Vec<Option<Arc<ThreadTimers<W>>>>, u64) {
        let places = self.lock();
        let all = places.all.iter().map(|place| place.thread_timers.clone()).collect();
        (all, self.version())
    }

    /// Removes timers whose thread has ended and whose slots are free.
    pub(crate) fn remove(&self, index: u16) {
        let removed = {
            let mut places = self.lock();
            self.note_change();
            let place = &mut places.all[usize::from(index)];
            let (removed, is_last) = (place.thread_timers.take(), place.generation == u32::MAX);
            if !is_last {
                places.free.push(index);
            }
            removed
        };
        drop(removed);
    }

    /// Gives a place the last generation but `left`.
    #[cfg(all(test, not(corewheel_loom)))]
    pub(super) fn age(&self, index: u16, left: u32) {
        self.lock().all[usize::from(index)].generation = u32::MAX - left;
    }

    /// Refuses all further timers, for an owner that has never been there. Returns what all timers
    /// have carried.
    pub(crate) fn close_unowned(&self) -> Vec<W> {
        let threads = self.close().into_iter().flatten();
        let carried = threads.flat_map(|thread_timers| thread_timers.close_unowned());
        carried.chain(self.end_serving(usize::MAX, false)).collect()
    }

    /// Refuses all further threads, and returns those that there are. No timer waits for room
    /// from then on but those that `end_serving` returns.
    pub(crate) fn close(&self) -> Vec<Option<Arc<ThreadTimers<W>>>> {
        self.lock().is_closed = true;
        self.all().0
    }
}

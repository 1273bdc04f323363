//! The timers of the futures of one thread, for one shard. They stay here for life.
//!
//! A thread arms, resets and ends a timer in its slot, under a lock that stays in its cache. The
//! shard's thread, the *keeper*, takes that lock only when a time has come: it fires what is due
//! and files what has aged, up to 64 timers under one lock, and wakes their tasks outside of it.
//! Why not a message to the shard for each timer: it costs both threads more than all of that.
//!
//! A timer that is due within the next ticks, some 60, is filed in the list of its tick when it is
//! armed. One that is due later is young: it lies in a list by the time that it has left, and most
//! end there. A look of the keeper files those that were armed before the look before it: in the
//! list of their tick, or in the coarser levels of the thread's [wheel], which file them again. So
//! a young timer is filed before it is due if the keeper is on time.
//!
//! A timer that is reset to later stays where it lies: only its deadline changes. When its list
//! comes up, it is filed for that deadline, or is young again. A reset to earlier moves the timer,
//! and asks for an act.
//!
//! Looks and ticks come up in one order, also after a stall, so ticks fire in order. Within a tick
//! there is no order.
//!
//! A slot is free as soon as its timer has fired or ended. A timer is named by its slot and a
//! number that no other timer of the thread has. The number is compared before a slot is touched.
//! That of the last timer of a slot that is over is read without the lock. So a future whose timer
//! has fired is dropped without it, on any thread that has read the time since.
//!
//! A timer that ends early on another thread is put on a list of such timers, so that the lock
//! stays in the cache of its thread. The thread ends those in chunks, or the keeper a second later.
//!
//! The wake-up protocol is that of [`super::wake_up`], with `act_by` as the push:
//!
//! ```text
//! thread                                keeper, about to sleep
//! ------                                ----------------------
//! lock, arm, act_by := earlier         sleeps_until := t
//! fence(SeqCst)                    ╲ ╱  fence(SeqCst)
//! read sleeps_until                ╱ ╲  read act_by of all threads
//! later? wake the keeper                earlier? another turn
//! ```
//!
//! Deadlines are in nanoseconds since the service's epoch. They are rounded up to ticks when a
//! timer is filed, so one that ends young is never rounded.
//!
//! Invariants: no code of a user runs under a lock. A lock is held for 64 timers at most, but for
//! the copy of a list that grows or shrinks: 4 bytes for each of its timers. A timer has credit
//! from the shard's capacity until it is over.
//!
//! Cost: arming and ending take a lock each, without a fence of their own. 52 bytes a timer and up
//! to 9 more, 4 for each gap of a list, and 16 more if it has a class.

#[cfg(any(test, feature = "sim"))]
mod checks;
mod classes;
mod fired;
mod lists;
mod looks;
mod numbers;
mod slots;
mod table;
#[cfg(all(test, not(corewheel_loom)))]
mod tests;
mod timers;
mod types;
mod wheel;

use std::sync::{Arc, OnceLock, PoisonError};

use crossbeam_utils::CachePadded;

use self::numbers::Numbers;
pub(crate) use self::slots::{Name, Number};
pub(crate) use self::table::{Room, Table, ThreadTimersId};
pub(crate) use self::timers::Periods;
use self::timers::{NEVER, Timers};
pub(crate) use self::types::{ArmRefusal, Arming, Counts, Due, Fate, Progress};
use super::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering};

/// The most timers for which a lock is held.
pub(crate) const TAKEN_MAX: u32 = 64;
/// The timers that may have ended on other threads before their thread ends them.
const ENDED_MAX: u64 = 256;
/// The most slots that a thread is lent at once. It begins with one, so that thousands of threads
/// with a timer each take as many slots, and is lent twice as many each time.
const LENT_MAX: u32 = 1_024;

/// The timers of a thread, which carry `W`.
#[derive(Debug)]
pub(crate) struct ThreadTimers<W> {
    timers: CachePadded<Mutex<Timers<W>>>,
    /// A copy of `Timers::act_by`, written under the lock, on a cache line that changes rarely.
    act_by: CachePadded<AtomicU64>,
    /// Which timers are over. Written under the lock.
    numbers: Numbers,
    ended: CachePadded<Ended>,
    /// Whether so many timers have ended on other threads that this thread ends them. It looks at
    /// each arming, so this has a cache line of its own that changes rarely. Written under the lock
    /// of `ended`. Relaxed: it orders nothing.
    has_many_ended: CachePadded<AtomicBool>,
    room: Arc<Room>,
    /// Whether its thread is the keeper.
    pub(crate) is_local: bool,
    /// What wakes the futures that timers guard; empty where the keeper does.
    relay: OnceLock<Arc<dyn Relay<W>>>,
}

/// The timers that have ended on other threads.
#[derive(Debug)]
struct Ended {
    /// In chunks, so that no push copies many of them. All but the last are full.
    names: Mutex<Vec<Vec<Name>>>,
    /// How many these are, or were a moment ago. Relaxed: it orders nothing.
    len: AtomicU64,
}

/// The runtime of a thread. It wakes the tasks of futures whose time may be up when it has looked
/// at its sockets, so that each decides in its first poll.
pub(crate) trait Relay<W>: std::fmt::Debug + Send + Sync {
    /// Takes over what timers carry that were due by `until`, in nanoseconds since the
    /// [first epoch](crate::clock::first_epoch). That time has passed. `Err` if the runtime has
    /// ended, and the caller wakes the tasks.
    fn take_over(&self, carried: Vec<W>, until: u64) -> Result<(), Vec<W>>;
}

/// The time past which the keeper must not sleep, if that has become earlier. The caller rings the
/// keeper's doorbell for it.
pub(crate) type Ring = Option<u64>;

/// A timer that was armed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Armed {
    pub(crate) name: Name,
    pub(crate) ring: Ring,
    /// False if its deadline may have passed already.
    pub(crate) has_time: bool,
}

/// For the threads.
impl<W> ThreadTimers<W> {
    /// The timers of a thread, which is the keeper if `is_local`.
    pub(crate) fn new(periods: Periods, classes: usize, room: Arc<Room>, is_local: bool) -> Self {
        Self::after(0, periods, classes, room, is_local)
    }

    /// The timers of a thread whose last timer had the number `last`.
    fn after(last: u64, periods: Periods, classes: usize, room: Arc<Room>, is_local: bool) -> Self {
        Self {
            timers: CachePadded::new(Mutex::new(Timers::new(periods, classes, last))),
            act_by: CachePadded::new(AtomicU64::new(NEVER)),
            numbers: Numbers::default(),
            ended: CachePadded::new(Ended {
                names: Mutex::new(Vec::new()),
                len: AtomicU64::new(0),
            }),
            has_many_ended: CachePadded::new(AtomicBool::new(false)),
            room,
            is_local,
            relay: OnceLock::new(),
        }
    }

    /// What wakes the futures that timers of this thread guard.
    pub(crate) fn relay(&self) -> Option<&Arc<dyn Relay<W>>> {
        self.relay.get()
    }

    /// Has a relay wake them from then on. The first one stays.
    pub(crate) fn set_relay(&self, relay: Arc<dyn Relay<W>>) {
        let _ = self.relay.set(relay);
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Timers<W>> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets go of the lock after timers have ended, and frees the memory that none needs any more.
    #[inline]
    fn unlock(timers: MutexGuard<'_, Timers<W>>) {
        if timers.has_unused() {
            Self::free_unused(timers);
        }
    }

    #[cold]
    fn free_unused(mut timers: MutexGuard<'_, Timers<W>>) {
        let unused = timers.take_unused();
        drop(timers);
        drop(unused);
    }

    /// Publishes an earlier act, under the lock.
    #[inline]
    fn publish(&self, timers: &Timers<W>, is_earlier: bool) -> Ring {
        if !is_earlier {
            return None;
        }
        // Relaxed: the fence of the doorbell orders it, which the caller rings next.
        self.act_by.store(timers.act_by, Ordering::Relaxed);
        Some(timers.act_by)
    }

    /// Arms a timer. `recent` returns a time that has come, and `now` the present. `Err` with the
    /// timer.
    #[inline(always)]
    pub(crate) fn arm(
        &self,
        arming: Arming<W>,
        recent: impl Fn() -> u64,
        now: impl Fn() -> u64,
    ) -> Result<Armed, (ArmRefusal, Arming<W>)> {
        let mut timers = self.lock();
        if timers.credit() == 0 {
            if let Err(refusal) = self.borrow(&mut timers) {
                return Err((refusal, arming));
            }
        }
        let (name, is_earlier, has_time) = timers.arm(&self.numbers, arming, recent, now);
        Ok(Armed { name, ring: self.publish(&timers, is_earlier), has_time })
    }

    /// Borrows credit from the shard's room.
    #[cold]
    fn borrow(&self, timers: &mut Timers<W>) -> Result<(), ArmRefusal> {
        if matches!(timers.fate, Fate::Closing | Fate::Closed) {
            return Err(ArmRefusal::Closed);
        }
        timers.lent = self.room.take((timers.lent * 2).clamp(1, LENT_MAX));
        timers.limit += timers.lent;
        if timers.lent == 0 { Err(ArmRefusal::Full) } else { Ok(()) }
    }

    /// Whether a timer is over, without the lock. One that has just fired may not show.
    #[inline]
    pub(crate) fn is_over(&self, name: Name) -> bool {
        self.numbers.is_over(name)
    }

    /// Ends a timer, for its own thread. The caller drops what it has carried; `None` if the timer
    /// is over.
    #[inline]
    pub(crate) fn end(&self, name: Name) -> Option<W> {
        let mut timers = self.lock();
        let carried = timers.end(&self.numbers, name);
        Self::unlock(timers);
        carried
    }

    /// Ends a timer, for another thread. The timer's thread or the keeper drops what it has
    /// carried. `Err` if the shard has ended: the caller calls [`end_some`](Self::end_some) then.
    pub(crate) fn end_elsewhere(&self, name: Name, now: impl Fn() -> u64) -> Result<Ring, ()> {
        let is_first = {
            let mut ended = self.ended.names.lock().unwrap_or_else(PoisonError::into_inner);
            let is_first = ended.is_empty();
            match ended.last_mut() {
                Some(chunk) if chunk.len() < TAKEN_MAX as usize => chunk.push(name),
                _ => {
                    let mut chunk = Vec::with_capacity(TAKEN_MAX as usize);
                    chunk.push(name);
                    ended.push(chunk);
                }
            }
            let full = (ended.len() as u64 - 1) * u64::from(TAKEN_MAX);
            let last = ended.last().map_or(0, Vec::len) as u64;
            self.ended.len.store(full + last, Ordering::Relaxed);
            if full + last == ENDED_MAX {
                self.has_many_ended.store(true, Ordering::Relaxed);
            }
            is_first
        };
        if !is_first {
            return Ok(None);
        }
        let mut timers = self.lock();
        if timers.fate == Fate::Closed {
            return Err(());
        }
        let is_earlier = timers.ask_to_end(now());
        Ok(self.publish(&timers, is_earlier))
    }

    /// Whether so many timers have ended on other threads that the timers' thread ends them.
    #[inline]
    pub(crate) fn has_many_ended(&self) -> bool {
        self.has_many_ended.load(Ordering::Relaxed)
    }

    /// Ends up to 64 of the timers that have ended on other threads. The caller drops what they
    /// have carried. Whether there are more of those that had ended at the first of these calls.
    #[cold]
    pub(crate) fn end_some(&self, carried: &mut Vec<W>) -> bool {
        let mut timers = self.lock();
        self.end_chunk(&mut timers, carried);
        let is_more = !timers.ended.is_empty();
        Self::unlock(timers);
        is_more
    }

    /// Ends a chunk of the timers that have ended on other threads. Returns how many.
    ///
    /// All chunks are taken at once. A thread that took the last one again and again would wait for
    /// those that add to it.
    fn end_chunk(&self, timers: &mut Timers<W>, carried: &mut Vec<W>) -> u32 {
        if timers.ended.is_empty() {
            let mut ended = self.ended.names.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut timers.ended, &mut ended);
            self.ended.len.store(0, Ordering::Relaxed);
            self.has_many_ended.store(false, Ordering::Relaxed);
        }
        let chunk = timers.ended.pop().unwrap_or_default();
        carried.extend(chunk.iter().filter_map(|name| timers.end(&self.numbers, *name)));
        // Not before: the thread may take long between two chunks, as it drops what they carry.
        if !self.has_ended(timers) {
            timers.ended_by = NEVER;
        }
        chunk.len() as u32
    }

    /// Whether timers that have ended on other threads are to be ended.
    fn has_ended(&self, timers: &Timers<W>) -> bool {
        // A thread that has asked for the end of a timer has put it on the list before.
        self.ended.len.load(Ordering::Relaxed) > 0 || !timers.ended.is_empty()
    }

    /// Gives a timer another deadline. `None` if it is over.
    pub(crate) fn reset(
        &self,
        name: Name,
        deadline: u64,
        recent: impl Fn() -> u64,
        now: impl Fn() -> u64,
    ) -> Option<Ring> {
        let mut timers = self.lock();
        let is_earlier = timers.reset(name, deadline, recent, now)?;
        Some(self.publish(&timers, is_earlier))
    }

    /// What a timer has come to. `is_same` must call no code of the user.
    #[inline]
    pub(crate) fn look_at(&self, name: Name, is_same: impl FnOnce(&W) -> bool) -> Progress {
        let mut timers = self.lock();
        let is_closed = timers.fate == Fate::Closed;
        match timers.carried(name) {
            Some(carried) if is_same(carried) => Progress::Same,
            Some(_) => Progress::Other,
            None if is_closed => Progress::Closed,
            None => Progress::Fired,
        }
    }

    /// Makes a timer carry something else, and returns what it has carried. `Err` if the timer is
    /// over.
    pub(crate) fn replace(&self, name: Name, carried: W) -> Result<W, W> {
        match self.lock().carried(name) {
            None => Err(carried),
            Some(known) => Ok(std::mem::replace(known, carried)),
        }
    }

    /// What the shard does not know yet, of each class and of all; for each class also when its
    /// oldest timer was armed. For any thread.
    pub(crate) fn unseen(&self, of_class: impl FnMut(u8, Counts, Option<u64>)) -> Counts {
        self.lock().unseen(of_class)
    }

    /// The thread has ended. Its credit goes back at once. The keeper forgets it in a turn after
    /// the last timer is over, and is not woken for it.
    pub(crate) fn leave(&self) {
        let mut timers = self.lock();
        if timers.fate != Fate::Used {
            return;
        }
        timers.fate = Fate::Left;
        self.room.give(timers.take_credit(0));
        if timers.is_over() {
            timers.act_by = 0;
            self.act_by.store(0, Ordering::Relaxed);
        }
    }
}

/// For the keeper.
impl<W> ThreadTimers<W> {
    /// When the keeper acts at the latest.
    #[inline]
    pub(crate) fn act_by(&self) -> u64 {
        // Relaxed: the keeper reads it after its fence before it sleeps.
        self.act_by.load(Ordering::Relaxed)
    }

    /// Ends timers that have ended on other threads, the first of them a second ago, or fires what
    /// is due and files what has aged, up to `max` timers: 64 at most. The caller wakes what is in
    /// `due`, and drops what is in `carried`. Returns how many timers that were, and whether there
    /// are more.
    pub(crate) fn act(
        &self,
        now: u64,
        max: u32,
        due: &mut Vec<Due<W>>,
        carried: &mut Vec<W>,
    ) -> (u32, bool) {
        let mut timers = self.lock();
        if timers.ended_by <= now {
            if self.has_ended(&timers) {
                let done = self.end_chunk(&mut timers, carried).max(1);
                Self::unlock(timers);
                return (done, true);
            }
            timers.ended_by = NEVER;
        }
        let done = timers.act(&self.numbers, now, max.min(TAKEN_MAX), due);
        self.act_by.store(timers.act_by, Ordering::Relaxed);
        Self::unlock(timers);
        done
    }

    /// Takes what was counted since the last call, for all classes and for each. Gives credit back
    /// beyond what the thread was last lent at once. Whether all is over: the thread has ended, and
    /// its timers are over.
    pub(crate) fn settle(&self, of_class: impl FnMut(u8, Counts)) -> (Counts, bool) {
        let mut timers = self.lock();
        let kept = if timers.fate == Fate::Used { timers.lent } else { 0 };
        self.room.give(timers.take_credit(kept));
        (timers.take_counts(of_class), timers.is_over())
    }

    /// How many timers are pending.
    pub(crate) fn pending(&self) -> u32 {
        self.lock().live
    }

    /// Takes all credit back that is not used, and returns how much.
    pub(crate) fn take_credit(&self) -> u32 {
        let mut timers = self.lock();
        timers.lent = 0;
        timers.take_credit(0)
    }

    /// The shard is ending: the timers that are armed from then on are refused. Ends up to 64 of
    /// the timers that have ended on other threads. Whether there are more.
    pub(crate) fn close(&self, carried: &mut Vec<W>) -> bool {
        let mut timers = self.lock();
        timers.fate = Fate::Closing;
        self.room.give(timers.take_credit(0));
        timers.limit = 0;
        self.end_chunk(&mut timers, carried);
        let has_ended = self.has_ended(&timers);
        Self::unlock(timers);
        has_ended
    }

    /// Takes up to 64 timers out, for a shard that is ending. Whether there are more. If there are
    /// none, their futures find the shard closed from then on.
    pub(crate) fn take_out(&self, out: &mut Vec<Due<W>>) -> bool {
        let mut timers = self.lock();
        if timers.take_out(&self.numbers, TAKEN_MAX, out) {
            return true;
        }
        timers.fate = Fate::Closed;
        self.act_by.store(NEVER, Ordering::Relaxed);
        Self::unlock(timers);
        false
    }

    /// Refuses all further timers, for a shard that no thread has driven. Returns what all timers
    /// have carried.
    fn close_unowned(&self) -> Vec<W> {
        let (mut carried, mut out) = (Vec::new(), Vec::new());
        while self.close(&mut carried) {}
        while self.take_out(&mut out) {}
        carried.extend(out.into_iter().map(|due| due.carried));
        carried
    }
}

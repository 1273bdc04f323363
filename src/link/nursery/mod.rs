//! A nursery holds the timers that one thread has armed for one shard while they are young.
//!
//! Most timers end long before their time. While a timer is young, its thread arms, resets and
//! cancels it in its slot, under a lock that the owner (the shard's thread) takes only to look. The
//! lock stays in the cache of its thread, and the owner knows nothing of the timer. Why not a
//! message to the owner for each timer: it costs both threads more than all of that, and the owner
//! drops what the timer carries, which belongs to a task of the other thread.
//!
//! Young timers lie in lists by the time that they have left. A list is looked at twice in its
//! least time, and a look takes over the timers that were armed before the look before it. So a
//! timer is taken over when half of that time has passed or later, but before it is due if the
//! owner is on time; one that ends before never leaves its thread. Timers with less than 12 ms have
//! no age: a look when the first of them is due takes all of them over. The owner has a timer that
//! is taken over by its slot's number, and what the timer carries stays in the slot.
//!
//! A timer that has been taken over and ends, or is due earlier, is put on a list of changed slots
//! for the owner. Later is one store, which the owner reads when the timer is due. A timer that
//! ends on another thread is put on a list of its own, so that the lock stays in the cache of its
//! thread, which ends those timers in chunks; the owner does a second later.
//!
//! The wake-up protocol is that of [`super::wake_up`], with `look_by` as the push:
//!
//! ```text
//! thread                                owner, about to sleep
//! ------                                ---------------------
//! lock, arm, look_by := earlier         sleeps_until := t
//! fence(SeqCst)                    ╲ ╱  fence(SeqCst)
//! read sleeps_until                ╱ ╲  read look_by of all nurseries
//! later? wake the owner                 earlier? another turn
//! ```
//!
//! A nursery counts in nanoseconds since the service's epoch. The owner rounds up to ticks when it
//! takes a timer over, and when it looks. So a timer that ends young is never rounded.
//!
//! Invariants: no code of a user runs under a lock. A lock is held for 64 timers at most. A timer
//! has credit from its owner, so taking over cannot fail. A slot is freed by its end alone.
//!
//! Cost: arming and ending take a lock each, without a fence of their own; 40 bytes a timer.

mod slots;
mod table;
#[cfg(all(test, not(corewheel_loom)))]
mod tests;
mod young;

use std::sync::{Arc, PoisonError};

use crossbeam_utils::CachePadded;

use self::slots::Use;
pub(crate) use self::table::{NurseryId, Room, Table};
pub(crate) use self::young::Periods;
use self::young::{NEVER, Young};
use super::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering};
use crate::values::class::LeftAt;

/// The most timers for which a lock is held.
pub(crate) const TAKEN_MAX: u32 = 64;
/// The timers that may have ended on other threads before the nursery's thread ends them.
const ENDED_MAX: u64 = 256;
/// The most slots that a nursery is lent at once. It begins with one, so that thousands of threads
/// with a timer each take as many slots, and is lent twice as many each time.
const LENT_MAX: u32 = 1_024;

/// A nursery for timers that carry `W`.
#[derive(Debug)]
pub(crate) struct Nursery<W> {
    young: CachePadded<Mutex<Young<W>>>,
    /// A copy of `Young::look_by`, written under the lock, on a cache line that changes rarely.
    look_by: CachePadded<AtomicU64>,
    ended: CachePadded<Ended>,
    /// Whether so many timers have ended on other threads that the nursery's thread ends them. It
    /// looks at each arming, so this has a cache line of its own that changes rarely. Written under
    /// the lock of `ended`. Relaxed: it orders nothing.
    has_many_ended: CachePadded<AtomicBool>,
    room: Arc<Room>,
    /// Whether its thread is the owner.
    is_local: bool,
}

/// The slots of timers that have ended on other threads.
#[derive(Debug)]
struct Ended {
    /// In chunks, so that no push copies many of them. All but the last are full.
    slots: Mutex<Vec<Vec<u32>>>,
    /// How many these are, or were a moment ago. Relaxed: it orders nothing.
    len: AtomicU64,
}

/// The thread that has taken timers over: a shard.
pub(crate) trait Owner {
    /// Takes a timer over. Returns the owner's key of it.
    fn take_over(&mut self, slot: u32, deadline: u64, class: u8) -> u64;
    /// The timer with this key has ended.
    fn cancel(&mut self, key: u64);
    /// The timer with this key is due earlier.
    fn reset(&mut self, key: u64, deadline: u64);
}

/// A timer to be armed.
#[derive(Debug)]
pub(crate) struct Arming<W> {
    pub(crate) deadline: u64,
    /// The number of its class, from 1; 0 for none.
    pub(crate) class: u8,
    pub(crate) carried: W,
}

/// A timer that was armed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Armed {
    pub(crate) slot: u32,
    /// Whether the owner looks at it twice before its deadline, if it is on time. Otherwise the
    /// deadline may have passed.
    pub(crate) has_time: bool,
    pub(crate) ring: Ring,
}

/// What a nursery has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    /// Timers that were armed.
    pub(crate) armed: u64,
    /// Timers that have ended, of which the owner does not know that they have.
    pub(crate) ended: u64,
    /// Those of them that have ended while they were young.
    pub(crate) young: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: Self) {
        self.armed += other.armed;
        self.ended += other.ended;
        self.young += other.young;
    }
}

/// What has become of the two sides of a nursery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Used,
    /// The thread has ended, and arms no timer any more.
    Left,
    /// The owner is ending: it takes all timers over, and no timer is armed any more.
    Closing,
    /// The owner has ended, and has no timers any more.
    Closed,
}

/// Why a timer cannot be armed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ArmRefusal {
    Full,
    Closed,
}

/// The time past which the owner must not sleep, if that has become earlier. The caller rings the
/// owner's doorbell for it.
pub(crate) type Ring = Option<u64>;

/// What a timer has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// It is pending, and carries what the caller asks for.
    Same,
    /// It is pending, and carries something else.
    Other,
    /// It has fired.
    Fired,
    /// The owner has ended before.
    Closed,
}

/// What an owner finds when a timer is due in its wheel.
#[derive(Debug)]
pub(crate) enum Due<W> {
    /// The timer fires.
    Fires(W),
    /// It has a later deadline, or has ended.
    NotBefore(u64),
    /// It has fired already.
    Nothing,
}

/// For the threads.
impl<W> Nursery<W> {
    /// A nursery for a thread, which is the owner if `is_local`.
    pub(crate) fn new(periods: Periods, classes: usize, room: Arc<Room>, is_local: bool) -> Self {
        Self {
            young: CachePadded::new(Mutex::new(Young::new(periods, classes))),
            look_by: CachePadded::new(AtomicU64::new(NEVER)),
            ended: CachePadded::new(Ended {
                slots: Mutex::new(Vec::new()),
                len: AtomicU64::new(0),
            }),
            has_many_ended: CachePadded::new(AtomicBool::new(false)),
            room,
            is_local,
        }
    }

    /// Whether its thread is the owner.
    pub(crate) fn is_local(&self) -> bool {
        self.is_local
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Young<W>> {
        self.young.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes an earlier look, under the lock.
    #[inline]
    fn publish(&self, young: &Young<W>, is_earlier: bool) -> Ring {
        if !is_earlier {
            return None;
        }
        // Relaxed: the fence of the doorbell orders it, which the caller rings next.
        self.look_by.store(young.look_by, Ordering::Relaxed);
        Some(young.look_by)
    }

    /// Arms a timer. `now` returns the present. `Err` with the timer.
    #[allow(clippy::inline_always, reason = "a call costs a tenth of what it does")]
    #[inline(always)]
    pub(crate) fn arm(
        &self,
        arming: Arming<W>,
        now: impl Fn() -> u64,
    ) -> Result<Armed, (ArmRefusal, Arming<W>)> {
        let mut young = self.lock();
        if young.credit() == 0 {
            if let Err(refusal) = self.borrow(&mut young) {
                return Err((refusal, arming));
            }
        }
        let (slot, has_time, is_earlier) = young.arm(arming, now);
        let ring = self.publish(&young, is_earlier);
        Ok(Armed { slot, has_time, ring })
    }

    /// Borrows credit from the owner's room.
    #[cold]
    fn borrow(&self, young: &mut Young<W>) -> Result<(), ArmRefusal> {
        if matches!(young.fate, Fate::Closing | Fate::Closed) {
            return Err(ArmRefusal::Closed);
        }
        young.lent = self.room.take((young.lent * 2).clamp(1, LENT_MAX));
        young.limit += young.lent;
        if young.lent == 0 { Err(ArmRefusal::Full) } else { Ok(()) }
    }

    /// Ends a timer, for the nursery's thread. The caller drops what it has carried.
    #[inline]
    pub(crate) fn end(&self, slot: u32, now: impl Fn() -> u64) -> (Option<W>, Ring) {
        let mut young = self.lock();
        let (carried, is_earlier) = young.end(slot, now);
        (carried, self.publish(&young, is_earlier))
    }

    /// Ends a timer, for another thread than the nursery's. The nursery's thread or the owner drops
    /// what it has carried. `Err` if the owner is gone: the caller calls
    /// [`end_some`](Self::end_some) then.
    pub(crate) fn end_elsewhere(&self, slot: u32, now: impl Fn() -> u64) -> Result<Ring, ()> {
        let is_first = {
            let mut ended = self.ended.slots.lock().unwrap_or_else(PoisonError::into_inner);
            let is_first = ended.is_empty();
            match ended.last_mut() {
                Some(chunk) if chunk.len() < TAKEN_MAX as usize => chunk.push(slot),
                _ => {
                    let mut chunk = Vec::with_capacity(TAKEN_MAX as usize);
                    chunk.push(slot);
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
        let mut young = self.lock();
        if young.fate == Fate::Closed {
            return Err(());
        }
        let is_earlier = young.ask_to_end(now());
        Ok(self.publish(&young, is_earlier))
    }

    /// Whether so many timers have ended on other threads that the nursery's thread ends them.
    #[inline]
    pub(crate) fn has_many_ended(&self) -> bool {
        self.has_many_ended.load(Ordering::Relaxed)
    }

    /// Ends up to 64 of the timers that have ended on other threads. The caller drops what they
    /// have carried. Whether there are more of those that had ended at the first of these calls.
    #[cold]
    pub(crate) fn end_some(&self, now: impl Fn() -> u64, carried: &mut Vec<W>) -> (bool, Ring) {
        let mut young = self.lock();
        let (_, is_earlier) = self.end_chunk(&mut young, now, carried);
        (!young.ended.is_empty(), self.publish(&young, is_earlier))
    }

    /// Ends a chunk of the timers that have ended on other threads. Returns how many, and whether
    /// the owner must be told of an earlier look.
    ///
    /// All chunks are taken at once. A thread that took the last one again and again would wait for
    /// those that add to it.
    fn end_chunk(
        &self,
        young: &mut Young<W>,
        now: impl Fn() -> u64,
        carried: &mut Vec<W>,
    ) -> (u32, bool) {
        if young.ended.is_empty() {
            let mut ended = self.ended.slots.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut young.ended, &mut ended);
            self.ended.len.store(0, Ordering::Relaxed);
            self.has_many_ended.store(false, Ordering::Relaxed);
        }
        let chunk = young.ended.pop().unwrap_or_default();
        let mut is_earlier = false;
        for slot in &chunk {
            young.leave_out(*slot);
            let (ended, asks) = young.end(*slot, &now);
            carried.extend(ended);
            is_earlier |= asks;
        }
        // Not before: the thread may take long between two chunks, as it drops what they carry.
        if !self.has_ended(young) {
            young.note_all_ended();
        }
        (chunk.len() as u32, is_earlier)
    }

    /// Whether timers that have ended on other threads are to be ended.
    fn has_ended(&self, young: &Young<W>) -> bool {
        // A thread that has asked for the end of a timer has put it on the list before.
        self.ended.len.load(Ordering::Relaxed) > 0 || !young.ended.is_empty()
    }

    /// Gives a timer another deadline. `None` if it has fired, else its slot, which may be another.
    pub(crate) fn reset(
        &self,
        slot: u32,
        deadline: u64,
        now: impl Fn() -> u64,
    ) -> Option<(u32, Ring)> {
        let mut young = self.lock();
        let (slot, is_earlier) = young.reset(slot, deadline, now)?;
        Some((slot, self.publish(&young, is_earlier)))
    }

    /// What a timer has come to. `is_same` must call no code of the user.
    #[inline]
    pub(crate) fn look_at(&self, slot: u32, is_same: impl FnOnce(&W) -> bool) -> Progress {
        let young = self.lock();
        match &young.slots.get(slot).carried {
            _ if young.fate == Fate::Closed => Progress::Closed,
            None => Progress::Fired,
            Some(carried) if is_same(carried) => Progress::Same,
            Some(_) => Progress::Other,
        }
    }

    /// Makes a timer carry something else, and returns what it has carried. `Err` if the timer has
    /// fired.
    pub(crate) fn replace(&self, slot: u32, carried: W) -> Result<W, W> {
        match &mut self.lock().slots.get_mut(slot).carried {
            None => Err(carried),
            Some(known) => Ok(std::mem::replace(known, carried)),
        }
    }

    /// What the owner does not know yet: the timers that were armed, and those that have ended, of
    /// each class and of all. For any thread.
    pub(crate) fn unseen(&self, of_class: impl FnMut(u8, Counts)) -> Counts {
        self.lock().unseen(of_class)
    }

    /// The thread has ended. Its credit goes back at once. The owner removes the nursery in a turn
    /// after the last timer has ended, and is not woken for it.
    pub(crate) fn leave(&self) {
        let mut young = self.lock();
        if young.fate != Fate::Used {
            return;
        }
        young.fate = Fate::Left;
        self.room.give(young.take_credit(0));
        if young.is_over() {
            young.look_by = 0;
            self.look_by.store(0, Ordering::Relaxed);
        }
    }
}

/// For the owner.
impl<W> Nursery<W> {
    /// When the owner looks at the latest.
    #[inline]
    pub(crate) fn look_by(&self) -> u64 {
        // Relaxed: the owner reads it after its fence before it sleeps.
        self.look_by.load(Ordering::Relaxed)
    }

    /// Ends the timers that have ended on other threads, sees the timers that have changed and
    /// takes over the young timers whose time has come, up to 64 of them. The caller drops what is
    /// in `carried`. Returns how many timers that were, and whether there are more.
    pub(crate) fn look(
        &self,
        now: u64,
        max: u32,
        owner: &mut impl Owner,
        carried: &mut Vec<W>,
    ) -> (u32, bool) {
        let mut young = self.lock();
        if self.has_ended(&young) {
            let (done, is_earlier) = self.end_chunk(&mut young, || now, carried);
            // The owner looks for room before a look is due, and looks again by then.
            self.publish(&young, is_earlier);
            return (done.max(1), true);
        }
        young.note_all_ended();
        let (done, more) = young.look(now, max.min(TAKEN_MAX), owner);
        self.look_by.store(young.look_by, Ordering::Relaxed);
        (done, more)
    }

    /// Takes what was counted since the last call, for all classes and for each. Gives credit back
    /// beyond what the nursery was last lent at once. Whether the nursery is over: its thread has
    /// ended, and its timers have.
    pub(crate) fn settle(&self, of_class: impl FnMut(u8, Counts, LeftAt)) -> (Counts, bool) {
        let mut young = self.lock();
        let kept = if young.fate == Fate::Used { young.lent } else { 0 };
        self.room.give(young.take_credit(kept));
        (young.take_counts(of_class), young.is_over())
    }

    /// How many timers are young.
    pub(crate) fn young(&self) -> u32 {
        self.lock().live
    }

    /// Takes all credit back that is not used, and returns how much.
    pub(crate) fn take_credit(&self) -> u32 {
        let mut young = self.lock();
        young.lent = 0;
        young.take_credit(0)
    }

    /// A timer is due at `now` in the owner's wheel.
    pub(crate) fn fire(&self, slot: u32, now: u64) -> Due<W> {
        let mut young = self.lock();
        // Once the nursery is closed, a timer that ends frees its slot at once.
        let Some(slot) = young.slots.find_mut(slot) else { return Due::Nothing };
        match slot.used_for {
            Use::Old | Use::Changed if slot.deadline > now => Due::NotBefore(slot.deadline),
            Use::Old | Use::Changed => {
                let is_listed = slot.used_for == Use::Changed;
                slot.used_for = if is_listed { Use::FiredListed } else { Use::Fired };
                slot.carried.take().map_or(Due::Nothing, Due::Fires)
            }
            // The owner is about to see that it has ended.
            Use::Ended => Due::NotBefore(NEVER),
            Use::Fired | Use::FiredListed | Use::EndedListed => Due::Nothing,
        }
    }

    /// Takes over up to 64 timers of all ages, for an owner that ends. The timers that are armed
    /// from then on are refused. Whether there are more.
    pub(crate) fn close(&self, owner: &mut impl Owner, carried: &mut Vec<W>) -> bool {
        let mut young = self.lock();
        young.fate = Fate::Closing;
        self.room.give(young.take_credit(0));
        young.limit = 0;
        if self.has_ended(&young) {
            self.end_chunk(&mut young, || 0, carried);
            return true;
        }
        if young.look_at_all(TAKEN_MAX, owner) {
            return true;
        }
        young.fate = Fate::Closed;
        young.look_by = NEVER;
        self.look_by.store(NEVER, Ordering::Relaxed);
        false
    }

    /// Refuses all further timers, for an owner that has never been there. Returns what all timers
    /// have carried, and whether there are more.
    fn close_unowned(&self) -> Vec<W> {
        struct Nobody(Vec<u32>);
        impl Owner for Nobody {
            fn take_over(&mut self, slot: u32, _: u64, _: u8) -> u64 {
                self.0.push(slot);
                0
            }
            fn cancel(&mut self, _: u64) {}
            fn reset(&mut self, _: u64, _: u64) {}
        }
        let (mut owner, mut carried) = (Nobody(Vec::new()), Vec::new());
        while self.close(&mut owner, &mut carried) {}
        for slot in owner.0 {
            let mut young = self.lock();
            carried.extend(young.slots.find_mut(slot).and_then(|slot| slot.carried.take()));
        }
        carried
    }

    /// Checks what holds between calls.
    ///
    /// # Panics
    ///
    /// If an invariant does not hold, with a sentence and the values.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn check_invariants(&self) {
        let young = self.lock();
        young.check_invariants();
        let look_by = self.look_by.load(Ordering::Relaxed);
        assert_eq!(look_by, young.look_by, "the published look differs");
    }

    /// How many timers are young, and how many slots are used.
    #[cfg(test)]
    pub(crate) fn used(&self) -> (u32, u32) {
        let young = self.lock();
        (young.live, young.slots.used())
    }
}

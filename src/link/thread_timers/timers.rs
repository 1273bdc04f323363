//! What lies behind the lock of thread timers: the timers, the lists of the young ones, the wheel
//! of the others, and the counts.
//!
//! Each method is a few instructions, or as long as its `max` says, but for the copy of a list that
//! grows or shrinks. None of them calls code of a user: what a timer carries is moved in
//! and out, and neither cloned nor dropped here.

use corewheel_shard::{Tick, TickLength};

use super::classes::{Classes, Links};
use super::lists::Lists;
use super::looks::{EVERY_MS, KINDS, Looks};
use super::numbers::Numbers;
use super::slots::{Name, Number, Place, Slot, Slots};
use super::wheel::{WINDOW, Wheel};
use super::{Arming, Counts, Fate};

/// The lists of the wheel come after those of the young timers, two for each kind.
pub(super) const OF_WHEEL: usize = WINDOW as usize;
const _: () = assert!(2 * KINDS <= OF_WHEEL);
/// The end of time.
pub(super) const NEVER: u64 = u64::MAX;
/// How long timers that have ended on other threads are left, in milliseconds.
const ENDED_FOR_MS: u64 = 1_000;
/// The length of a tick, the time between two looks at each kind, and that for which ended timers
/// are left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Periods {
    pub(super) tick: TickLength,
    /// The last tick that begins.
    last: u64,
    pub(super) every: [u64; KINDS],
    ended_for: u64,
}

impl Periods {
    /// The periods for ticks of this length. There is one look at a kind in a tick at most.
    pub(crate) fn new(tick: TickLength) -> Self {
        let at_least_a_tick = |ms: u64| (ms * 1_000_000).max(tick.nanos());
        Self {
            tick,
            last: tick.floor(NEVER).index(),
            every: EVERY_MS.map(at_least_a_tick),
            ended_for: at_least_a_tick(ENDED_FOR_MS),
        }
    }

    /// When a tick begins.
    #[inline]
    pub(super) fn start_of(&self, tick: u64) -> u64 {
        self.tick.start_of(Tick::new(tick))
    }
}

/// The timers of a thread.
#[derive(Debug)]
pub(super) struct Timers<W> {
    pub(super) slots: Slots<W>,
    /// The number of the timer that was armed last; 0 before the first.
    pub(super) last: u64,
    pub(super) lists: Lists,
    pub(super) looks: [Looks; KINDS],
    pub(super) wheel: Wheel,
    pub(super) periods: Periods,
    /// A timer that is due before is within the window of the wheel's ticks.
    pub(super) near_until: u64,
    /// The latest time that was read to plan a first look.
    pub(super) passed: u64,
    /// When the keeper acts at the latest.
    pub(super) act_by: u64,
    /// When the keeper ends the timers that have ended on other threads; [`NEVER`] if none has.
    pub(super) ended_by: u64,
    /// Chunks of them that are being ended.
    pub(super) ended: Vec<Vec<Name>>,
    /// How many timers there may be: those that there are, and those for which there is credit. 0
    /// once the shard is ending.
    pub(super) limit: u32,
    /// How many timers the shard last lent at once.
    pub(super) lent: u32,
    /// How many timers there are.
    pub(super) live: u32,
    /// What was counted since the shard last took it: of all classes, and of each.
    pub(super) counts: Counts,
    pub(super) classes: Classes,
    pub(super) fate: Fate,
}

/// Memory that no timer needs.
pub(super) struct Unused<W> {
    _slots: Vec<Vec<Slot<W>>>,
    _links: Links,
}

/// Where a timer is put, and when the keeper must act for it.
pub(super) type Put = (usize, u64);

impl<W> Timers<W> {
    /// No timers. The first one has the number after `last`.
    pub(super) fn new(periods: Periods, classes: usize, last: u64) -> Self {
        Self {
            slots: Slots::new(),
            last,
            lists: Lists::new(),
            looks: [Looks::NONE; KINDS],
            wheel: Wheel::new(),
            periods,
            near_until: 0,
            passed: 0,
            act_by: NEVER,
            ended_by: NEVER,
            ended: Vec::new(),
            limit: 0,
            lent: 0,
            live: 0,
            counts: Counts::default(),
            classes: Classes::new(classes),
            fate: Fate::Used,
        }
    }

    /// How many more timers may be armed.
    #[inline]
    pub(super) fn credit(&self) -> u32 {
        self.limit.saturating_sub(self.live)
    }

    /// Takes credit away, and returns how much that was. `kept` of it stays.
    pub(super) fn take_credit(&mut self, kept: u32) -> u32 {
        let taken = self.credit().saturating_sub(kept);
        self.limit -= taken;
        taken
    }

    /// Asks for an act at `by` at the latest. Whether that is earlier than before.
    #[inline]
    pub(super) fn ask(&mut self, by: u64) -> bool {
        if by >= self.act_by {
            return false;
        }
        self.act_by = by;
        true
    }

    /// Arms a timer, for which there is credit. `recent` returns the latest known time, and `now`
    /// the present. Also returns whether the keeper must be told of an earlier act, and whether the
    /// timer is young: its time has not come yet then.
    #[inline(always)]
    pub(super) fn arm(
        &mut self,
        numbers: &Numbers,
        arming: Arming<W>,
        recent: impl Fn() -> u64,
        now: impl Fn() -> u64,
    ) -> (Name, bool, bool) {
        let Arming { deadline, class, is_guarded, carried } = arming;
        self.last += 1;
        let number = Number::new(self.last).expect("2^64 timers take thousands of years");
        self.live += 1;
        self.counts.armed += 1;
        let (list, by) = self.place(deadline, &recent, now);
        let (slot, room) = self.slots.take(numbers);
        let place = self.lists.push(list, slot);
        *room = Slot::new(number, deadline, carried).of(class, is_guarded).lying_at(place);
        if class != 0 {
            self.classes.enter(class, slot, recent());
        }
        (Name { slot, number }, self.ask(by), list < OF_WHEEL)
    }

    /// The list of the wheel for a timer.
    #[inline]
    pub(super) fn file(&mut self, deadline: u64) -> Put {
        let next = self.wheel.file(self.tick_of(deadline));
        (OF_WHEEL + next.list, self.periods.start_of(next.tick))
    }

    /// The tick of a deadline. That of a timer that is never due is the last one that begins.
    #[inline]
    pub(super) fn tick_of(&self, deadline: u64) -> u64 {
        self.periods.tick.ceil(deadline).index().min(self.periods.last)
    }

    /// Takes a timer out of its list.
    #[inline(always)]
    fn unlink(&mut self, place: Place) {
        if self.lists.remove(place, &mut self.slots) {
            self.note_empty(usize::from(place.list));
        }
    }

    #[inline]
    pub(super) fn note_empty(&mut self, list: usize) {
        if list >= OF_WHEEL {
            self.wheel.note_empty(list - OF_WHEEL);
        }
    }

    /// Ends a timer and takes what it carries; `None` if it is over.
    #[inline]
    pub(super) fn end(&mut self, numbers: &Numbers, name: Name) -> Option<W> {
        let timer = self.slots.end(numbers, name)?;
        self.unlink(timer.place());
        self.live -= 1;
        self.counts.ended += 1;
        self.counts.young += u64::from(!timer.is_filed());
        if timer.class != 0 {
            self.classes.end(&timer, name.slot);
        }
        Some(timer.into_carried())
    }

    /// Frees the slot of a timer that is in no list. Returns the timer.
    #[inline(always)]
    pub(super) fn release(&mut self, numbers: &Numbers, slot: u32) -> Slot<W> {
        self.live -= 1;
        self.slots.release(numbers, slot)
    }

    /// Whether there is memory to give back: no timer needs it.
    #[inline]
    pub(super) fn has_unused(&self) -> bool {
        self.live == 0 && self.slots.has_many()
    }

    /// Takes the memory away that no timer needs, for the caller to free after the lock.
    #[cold]
    pub(super) fn take_unused(&mut self) -> Unused<W> {
        Unused { _slots: self.slots.take_chunks(), _links: self.classes.take_links() }
    }

    /// Gives a timer another deadline. `None` if it is over, else whether the keeper must be told
    /// of an earlier act.
    pub(super) fn reset(
        &mut self,
        name: Name,
        deadline: u64,
        recent: impl Fn() -> u64,
        now: impl Fn() -> u64,
    ) -> Option<bool> {
        let timer = self.slots.pending(name)?;
        // A later deadline is read when the list of the timer comes up.
        if deadline >= std::mem::replace(&mut timer.deadline, deadline) {
            timer.set_later(true);
            return Some(false);
        }
        timer.set_later(false);
        let place = timer.place();
        self.unlink(place);
        let (list, by) = if usize::from(place.list) < OF_WHEEL {
            self.place(deadline, recent, now)
        } else {
            self.file(deadline)
        };
        self.put(name.slot, list);
        Some(self.ask(by))
    }

    /// Puts a timer that is in no list into one.
    #[inline]
    pub(super) fn put(&mut self, slot: u32, list: usize) {
        let place = self.lists.push(list, slot);
        self.slots.at(slot).set_place(place);
    }

    /// What a pending timer carries; `None` if the timer is over.
    #[inline]
    pub(super) fn carried(&mut self, name: Name) -> Option<&mut W> {
        self.slots.pending(name)?.carried_mut()
    }

    /// Asks the keeper to end the timers that have ended on other threads, in a while.
    pub(super) fn ask_to_end(&mut self, now: u64) -> bool {
        self.ended_by = self.ended_by.min(now.saturating_add(self.periods.ended_for));
        self.ask(self.ended_by)
    }

    /// Whether the thread is gone, and all timers are over.
    pub(super) fn is_over(&self) -> bool {
        self.fate == Fate::Left && self.live == 0
    }

    /// For how many timers there is memory.
    #[cfg(all(test, not(corewheel_loom)))]
    pub(super) fn allocated(&self) -> [usize; 3] {
        [self.lists.allocated(), self.slots.allocated(), self.slots.made() as usize]
    }

    /// Where a timer lies.
    #[cfg(all(test, not(corewheel_loom)))]
    pub(super) fn place_of(&mut self, name: Name) -> Option<Place> {
        self.slots.pending(name).map(|timer| timer.place())
    }

    /// How many timers there are that are young.
    #[cfg(all(test, not(corewheel_loom)))]
    pub(super) fn young(&self) -> usize {
        let mut young = 0;
        self.lists.check_invariants(&self.slots, |list, _| young += usize::from(list < OF_WHEEL));
        young
    }
}

//! What lies behind the lock of a nursery: the timers, the lists of the young ones, the wheel of
//! the others, and the counts.
//!
//! Each method is a few instructions, or as long as its `max` says. None of them calls code of a
//! user: what a timer carries is moved in and out, and neither cloned nor dropped here.

use corewheel_shard::{Tick, TickLength};

use super::classes::Classes;
use super::lists::Lists;
use super::numbers::Numbers;
use super::slots::{Name, Number, Place, Slot, Slots};
use super::wheel::{Next, WINDOW, Wheel};
use super::{Arming, Counts, Due, Fate};

/// How many kinds of young timers there are, by the time that they have left.
const KINDS: usize = 10;
/// Milliseconds between two looks at the young timers of a kind. One that is armed has twice these
/// milliseconds left at least. Timeouts of 100, 200 and 500 ms, and of 1, 2 and 5 s, have little
/// more.
const EVERY_MS: [u64; KINDS] = [6, 12, 24, 48, 96, 240, 480, 960, 2_400, 6_000];
/// The lists of the wheel come after those of the young timers, two for each kind.
const OF_WHEEL: usize = WINDOW as usize;
const _: () = assert!(2 * KINDS <= OF_WHEEL);
/// The end of time.
pub(super) const NEVER: u64 = u64::MAX;
/// How long timers that have ended on other threads are left, in milliseconds.
const ENDED_FOR_MS: u64 = 1_000;
/// A timer that is due within so many ticks is filed when it is armed. One tick of the window has
/// begun already, and one is for the rounding.
const NEAR: u64 = WINDOW - 2;

/// When the keeper looks at the young timers of a kind.
#[derive(Clone, Copy, Debug)]
struct Looks {
    /// The next look, which files the older ones; [`NEVER`] while there are no looks.
    next: u64,
    /// The look after that, which files the timers that are armed now.
    second: u64,
    /// Which of the two lists of the kind has those that were armed since the last look.
    newer: usize,
}

/// The length of a tick, the time between two looks at each kind, and that for which ended timers
/// are left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Periods {
    tick: TickLength,
    every: [u64; KINDS],
    ended_for: u64,
}

impl Periods {
    /// The periods for ticks of this length. There is one look at a kind in a tick at most.
    pub(crate) fn new(tick: TickLength) -> Self {
        let at_least_a_tick = |ms: u64| (ms * 1_000_000).max(tick.nanos());
        Self {
            tick,
            every: EVERY_MS.map(at_least_a_tick),
            ended_for: at_least_a_tick(ENDED_FOR_MS),
        }
    }

    /// When a tick begins.
    #[inline]
    fn start_of(&self, tick: u64) -> u64 {
        self.tick.start_of(Tick::new(tick))
    }
}

/// The timers of a thread.
#[derive(Debug)]
pub(super) struct Timers<W> {
    slots: Slots<W>,
    /// The number of the timer that was armed last; 0 before the first.
    pub(super) last: u64,
    lists: Lists,
    looks: [Looks; KINDS],
    wheel: Wheel,
    periods: Periods,
    /// A timer that is due before is within the window of the wheel's ticks.
    near_until: u64,
    /// The latest time at which a timer was armed whose list was empty.
    passed: u64,
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

/// Where a timer is put, and when the keeper must act for it.
type Put = (usize, u64);

impl<W> Timers<W> {
    /// No timers. The first one has the number after `last`.
    pub(super) fn new(periods: Periods, classes: usize, last: u64) -> Self {
        Self {
            slots: Slots::new(),
            last,
            lists: Lists::new(),
            looks: [Looks { next: NEVER, second: NEVER, newer: 0 }; KINDS],
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
    fn ask(&mut self, by: u64) -> bool {
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
        let slot = self.slots.take(numbers);
        self.live += 1;
        self.counts.armed += 1;
        if class != 0 {
            self.classes.enter(class, slot, recent(), self.slots.made().next_power_of_two());
        }
        let (list, by) = self.place(deadline, recent, now);
        let place = self.lists.push(list, slot);
        *self.slots.at(slot) =
            Slot::new(number, deadline, carried).of(class, is_guarded).lying_at(place);
        (Name { slot, number }, self.ask(by), list < OF_WHEEL)
    }

    /// The list for a timer that is armed now, or is young and reset.
    #[inline(always)]
    fn place(&mut self, deadline: u64, recent: impl Fn() -> u64, now: impl Fn() -> u64) -> Put {
        if deadline < self.near_until || self.is_near(deadline, recent) {
            return self.file(deadline);
        }
        for kind in (0..KINDS).rev() {
            let Looks { next, second, newer } = self.looks[kind];
            if next < NEVER {
                if second <= deadline {
                    return (2 * kind + newer, next);
                }
            } else if self.plan_first(kind, deadline, &now) {
                // The first look files it.
                return (2 * kind + 1 - newer, self.looks[kind].next);
            }
        }
        if self.wheel.is_empty() {
            self.advance(self.passed);
        }
        self.file(deadline)
    }

    /// Whether a timer that is due later than the window of the wheel's ticks would be within that
    /// of the present. The window moves while it is empty.
    #[inline]
    fn is_near(&mut self, deadline: u64, recent: impl Fn() -> u64) -> bool {
        let recent = recent();
        if deadline.saturating_sub(recent) > NEAR * self.periods.tick.nanos() {
            return false;
        }
        if !self.wheel.is_empty() {
            return false;
        }
        self.advance(recent);
        true
    }

    /// Moves the window of the wheel's ticks to a time that has come, or up to the first list that
    /// is not empty.
    fn advance(&mut self, now: u64) {
        let first = self.wheel.next().map_or(u64::MAX, |next| next.tick);
        self.wheel.advance(self.periods.tick.floor(now).index().min(first));
        self.near_until = self.periods.start_of(self.wheel.cursor().saturating_add(NEAR));
    }

    /// Plans the first look at a kind without timers, for a timer that has so much time left.
    #[inline]
    fn plan_first(&mut self, kind: usize, deadline: u64, now: impl Fn() -> u64) -> bool {
        // A time that has passed shows of most kinds that their looks are too rare. So the clock is
        // read rarely, and not for each timer with little time.
        let every = self.periods.every[kind];
        if self.passed.saturating_add(2 * every) > deadline {
            return false;
        }
        self.passed = self.passed.max(now());
        if self.passed.saturating_add(2 * every) > deadline {
            return false;
        }
        // A lone timer that ends within its first third costs this look and no other.
        let third = ((deadline - self.passed) / 3).min(self.periods.every[KINDS - 1]);
        self.plan(kind, self.passed + every.max(third));
        true
    }

    /// Plans the next look at a kind.
    #[inline]
    fn plan(&mut self, kind: usize, next: u64) {
        let second = next.saturating_add(self.periods.every[kind]);
        (self.looks[kind].next, self.looks[kind].second) = (next, second);
    }

    /// The list of the wheel for a timer.
    #[inline]
    fn file(&mut self, deadline: u64) -> Put {
        let next = self.wheel.file(self.tick_of(deadline));
        (OF_WHEEL + next.list, self.periods.start_of(next.tick))
    }

    /// The tick of a deadline. That of a timer that is never due is the last one that begins.
    #[inline]
    fn tick_of(&self, deadline: u64) -> u64 {
        let tick = self.periods.tick;
        tick.ceil(deadline).min(tick.floor(NEVER)).index()
    }

    /// Takes a timer out of its list.
    #[inline(always)]
    fn unlink(&mut self, place: Place) {
        if self.lists.remove(place, &mut self.slots) {
            self.note_empty(usize::from(place.list));
        }
    }

    #[inline]
    fn note_empty(&mut self, list: usize) {
        if list >= OF_WHEEL {
            self.wheel.note_empty(list - OF_WHEEL);
        }
    }

    /// Takes the first timer of a list out. Returns its slot.
    #[inline]
    fn pop(&mut self, list: usize) -> Option<u32> {
        let (slot, is_empty) = self.lists.pop(list);
        if is_empty {
            self.note_empty(list);
        }
        slot
    }

    /// Ends a timer and takes what it carries; `None` if it is over. `now` returns the present, and
    /// `None` if the timer has ended before.
    #[inline]
    pub(super) fn end(
        &mut self,
        numbers: &Numbers,
        name: Name,
        now: impl Fn() -> Option<u64>,
    ) -> Option<W> {
        let place = self.slots.pending(name)?.place();
        self.unlink(place);
        let timer = self.release(numbers, name.slot);
        self.counts.ended += 1;
        self.counts.young += u64::from(!timer.is_filed());
        if timer.class != 0 {
            self.classes.end(&timer, name.slot, now);
        }
        Some(timer.into_carried())
    }

    /// Frees the slot of a timer that is in no list. Returns the timer.
    #[inline]
    fn release(&mut self, numbers: &Numbers, slot: u32) -> Slot<W> {
        self.live -= 1;
        let timer = self.slots.release(numbers, slot);
        if self.live == 0 {
            self.slots.give_back();
        }
        timer
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
    fn put(&mut self, slot: u32, list: usize) {
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

    /// Fires what is due by `now`, and files the young timers whose time has come: up to `max`
    /// timers. What fires goes into `due`, in the order of its ticks. Returns how many timers that
    /// were, and whether there are more.
    pub(super) fn act(
        &mut self,
        numbers: &Numbers,
        now: u64,
        max: u32,
        due: &mut Vec<Due<W>>,
    ) -> (u32, bool) {
        let mut done = 0;
        loop {
            let (mut kind, mut look) = (0, NEVER);
            for (at, looks) in self.looks.iter().enumerate() {
                if looks.next < look {
                    (kind, look) = (at, looks.next);
                }
            }
            let next = self.wheel.next();
            let comes_up = next.map_or(NEVER, |next| self.periods.start_of(next.tick));
            if look.min(comes_up) > now || (look == NEVER && next.is_none()) {
                self.advance(now);
                self.act_by = look.min(comes_up).min(self.ended_by);
                return (done, false);
            }
            // A look before a tick has its young timers filed that are due in that tick.
            let is_done = match next {
                Some(next) if comes_up <= look => {
                    self.wheel.advance(next.tick);
                    if next.is_tick() {
                        self.fire_list(numbers, next, max, &mut done, due)
                    } else {
                        self.file_list(OF_WHEEL + next.list, max, &mut done)
                    }
                }
                _ => {
                    self.advance(look);
                    self.look(kind, max, &mut done)
                }
            };
            if !is_done {
                return (done, true);
            }
        }
    }

    /// Fires the timers of a tick. False if `max` are done before.
    fn fire_list(
        &mut self,
        numbers: &Numbers,
        Next { tick, list }: Next,
        max: u32,
        done: &mut u32,
        due: &mut Vec<Due<W>>,
    ) -> bool {
        let (begins, list) = (self.periods.start_of(tick), OF_WHEEL + list);
        while *done < max {
            let Some(slot) = self.pop(list) else { return true };
            *done += 1;
            let deadline = self.slots.at(slot).deadline;
            // It was reset.
            if deadline > begins && self.tick_of(deadline) > tick {
                self.refile(slot);
                continue;
            }
            self.counts.fired += 1;
            let timer = self.release(numbers, slot);
            self.classes.take(timer.class, slot, true);
            let (class, is_guarded) = (timer.class, timer.is_guarded());
            due.push(Due { carried: timer.into_carried(), at: begins, class, is_guarded });
        }
        self.lists.is_empty(list)
    }

    /// Files the timers of a list of the wheel. False if `max` are done before.
    fn file_list(&mut self, list: usize, max: u32, done: &mut u32) -> bool {
        while *done < max {
            let Some(slot) = self.pop(list) else { return true };
            *done += 1;
            self.refile(slot);
        }
        self.lists.is_empty(list)
    }

    /// Files a timer that is in no list any more.
    #[inline]
    fn refile(&mut self, slot: u32) {
        let timer = self.slots.at(slot);
        timer.set_filed();
        let deadline = timer.deadline;
        let (list, _) = self.file(deadline);
        self.put(slot, list);
    }

    /// Looks at the young timers of a kind: files those that were armed before the look before. One
    /// that was reset to later since then is young again. False if `max` are done before.
    fn look(&mut self, kind: usize, max: u32, done: &mut u32) -> bool {
        let Looks { next, second, newer } = self.looks[kind];
        let older = 2 * kind + 1 - newer;
        while let Some(slot) = if *done < max { self.pop(older) } else { None } {
            *done += 1;
            let timer = self.slots.at(slot);
            if timer.is_later() {
                timer.set_later(false);
                let deadline = timer.deadline;
                let (list, _) = self.place(deadline, || next, || next);
                self.put(slot, list);
            } else {
                self.refile(slot);
            }
        }
        if !self.lists.is_empty(older) {
            return false;
        }
        self.looks[kind].newer = 1 - newer;
        // Planned from when it should have been, so that a late look makes no timer late.
        self.plan(kind, if self.lists.is_empty(2 * kind + newer) { NEVER } else { second });
        true
    }

    /// Takes up to `max` timers out, in no order, for a shard that has ended. Their future finds it
    /// closed. Whether there are more.
    pub(super) fn take_out(&mut self, numbers: &Numbers, max: u32, out: &mut Vec<Due<W>>) -> bool {
        for _ in 0..max {
            let young = (0..2 * KINDS).find(|list| !self.lists.is_empty(*list));
            let filed = || Some(OF_WHEEL + self.wheel.next()?.list);
            let Some(slot) = young.or_else(filed).and_then(|list| self.pop(list)) else {
                (0..KINDS).for_each(|kind| self.plan(kind, NEVER));
                (self.act_by, self.ended_by) = (NEVER, NEVER);
                return false;
            };
            let timer = self.release(numbers, slot);
            let (at, class) = (timer.deadline, timer.class);
            self.classes.take(class, slot, false);
            out.push(Due { carried: timer.into_carried(), at, class, is_guarded: false });
        }
        true
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

    /// Checks what holds between calls.
    ///
    /// # Panics
    ///
    /// If an invariant does not hold, with a sentence and the values.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn check_invariants(&self) {
        let mut live = 0;
        self.lists.check_invariants(&self.slots, |list, slot| {
            live += 1;
            let deadline = self.slots.known(slot).deadline;
            if list < OF_WHEEL {
                let Looks { next, second, newer } = self.looks[list / 2];
                let filed = if list % 2 == newer { second } else { next };
                assert!(filed <= deadline, "{deadline} in list {list}, {filed}");
            }
        });
        assert_eq!(live, self.live, "the count of timers is wrong");
        let slots = live + self.slots.check_free();
        assert_eq!(slots, self.slots.made(), "the timers and the free slots are not all slots");
        for Looks { next, .. } in self.looks {
            assert!(self.act_by <= next, "no look at {next}, but at {}", self.act_by);
        }
        let comes_up = self.wheel.next().map_or(NEVER, |next| self.periods.start_of(next.tick));
        assert!(self.act_by <= comes_up.min(self.ended_by), "an act at {} is late", self.act_by);
        self.wheel.check_invariants(|list| self.lists.is_empty(OF_WHEEL + list));
    }
}

//! What lies behind the lock of a nursery: the timers, the lists of the young ones, and the looks.
//!
//! Each method is a few instructions, or as long as its `max` says. None of them calls code of a
//! user: what a timer carries is moved in and out, and neither cloned nor dropped here.

use super::slots::{LISTS, NIL, Slots, Use};
use super::{Arming, Counts, Fate, Owner};
use crate::values::class::{LeftAt, tenths_left};

/// Milliseconds between two looks at a list. The first list has no looks of its own: it is looked
/// at when the first of its timers is due. A timer of another list has twice these milliseconds
/// left at least. Timeouts of 50, 100, 200 and 500 ms, and of 1, 2 and 5 s, have little more.
const EVERY_MS: [u64; LISTS] = [0, 6, 12, 24, 48, 96, 240, 480, 960, 2_400, 6_000];
/// The end of time.
pub(super) const NEVER: u64 = u64::MAX;
/// One in so many timers of a class is measured, unless one is measured already. Odd, so that both
/// kinds are measured of a program that arms timers of two kinds in turn.
const SAMPLED: u64 = 63;
/// How long the owner may leave an ended timer that it has taken over, in milliseconds. The timers
/// that end on other threads are left as long.
const ENDED_FOR_MS: u64 = 1_000;

/// When the owner looks at a list.
#[derive(Clone, Copy, Debug)]
struct Looks {
    /// The next look to begin; [`NEVER`] while the list is empty.
    next: u64,
    /// The look after that, which takes over the timers that are armed now.
    second: u64,
}

/// The time between two looks at each list, and that for which ended timers are left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Periods {
    every: [u64; LISTS],
    ended_for: u64,
}

impl Periods {
    /// The periods for an owner whose ticks have this length: it looks once in a tick at most.
    pub(crate) fn new(tick: u64) -> Self {
        let at_least_a_tick = |ms: u64| (ms * 1_000_000).max(tick);
        Self { every: EVERY_MS.map(at_least_a_tick), ended_for: at_least_a_tick(ENDED_FOR_MS) }
    }
}

/// The timers of a nursery.
#[derive(Debug)]
pub(super) struct Young<W> {
    pub(super) slots: Slots<W>,
    looks: [Looks; LISTS],
    periods: Periods,
    /// The latest time at which a timer was armed whose list was empty.
    passed: u64,
    /// When the owner looks at the latest.
    pub(super) look_by: u64,
    /// When the owner ends the timers that have ended on other threads.
    ended_by: u64,
    /// Chunks of them that are being ended.
    pub(super) ended: Vec<Vec<u32>>,
    /// The first of the slots that the owner must see: timers that it has and that have ended, or
    /// are due earlier. And when it must see them.
    changed: u32,
    changed_by: u64,
    /// How many timers may be young: those that are, and those for which there is credit. 0 once
    /// the owner is ending.
    pub(super) limit: u32,
    /// How many timers the owner last lent at once.
    pub(super) lent: u32,
    /// How many timers are young.
    pub(super) live: u32,
    /// What was counted since the owner last took it: of all classes, and of each.
    counts: Tally,
    by_class: Box<[OfClass]>,
    pub(super) fate: Fate,
}

/// What a nursery counts of a class, and the timer of it whose end is measured.
#[derive(Clone, Debug, Default)]
struct OfClass {
    counts: Tally,
    sample: Option<Sample>,
    /// The timers that have ended young since the last sample.
    unmeasured: u64,
    /// What the samples say, and the owner has not taken yet.
    ended_at: LeftAt,
}

/// A young timer whose end is measured.
#[derive(Clone, Copy, Debug)]
struct Sample {
    slot: u32,
    /// When it was armed.
    since: u64,
    deadline: u64,
}

/// What a nursery counts between two looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Tally {
    /// Timers that were armed, and that have ended while they were young.
    armed: u64,
    ended: u64,
    /// Timers that have ended after they were taken over, and those of them that the owner has
    /// seen.
    ended_old: u64,
    seen: u64,
}

impl Tally {
    /// What the owner does not know yet, or has not taken yet.
    fn unseen(&self) -> Counts {
        Counts { armed: self.armed, ended: self.ended + self.ended_old, young: self.ended }
    }

    /// Takes what the owner does not count itself.
    fn take(&mut self) -> Counts {
        let Self { armed, ended, ended_old, seen } = *self;
        *self = Self { ended_old: ended_old - seen, ..Self::default() };
        Counts { armed, ended, young: ended }
    }
}

impl OfClass {
    /// A timer was armed. Few are measured, so that most read no clock.
    #[inline]
    fn arm(&mut self, slot: u32, deadline: u64, now: impl Fn() -> u64) {
        if self.counts.armed % SAMPLED == 0 && self.sample.is_none() {
            self.sample = Some(Sample { slot, since: now(), deadline });
        }
        self.counts.armed += 1;
    }

    /// A timer has ended while it was young. A sample stands for all those since the one before.
    #[inline]
    fn end(&mut self, slot: u32, now: impl Fn() -> u64) {
        self.counts.ended += 1;
        self.unmeasured += 1;
        if let Some(sample) = self.sample.take_if(|sample| sample.slot == slot) {
            let tenths = tenths_left(sample.since, sample.deadline, now());
            self.ended_at[tenths] += std::mem::take(&mut self.unmeasured);
        }
    }

    /// A timer is not measured: when it has ended is not known, or the owner will measure it.
    #[inline]
    fn leave_out(&mut self, slot: u32) {
        let _sample = self.sample.take_if(|sample| sample.slot == slot);
    }
}

/// What is counted of a class; `None` for no class.
#[inline]
fn of_class(by_class: &mut [OfClass], class: u8) -> Option<&mut OfClass> {
    by_class.get_mut(usize::from(class).checked_sub(1)?)
}

impl<W> Young<W> {
    pub(super) fn new(periods: Periods, classes: usize) -> Self {
        Self {
            slots: Slots::new(),
            looks: [Looks { next: NEVER, second: NEVER }; LISTS],
            periods,
            passed: 0,
            look_by: NEVER,
            ended_by: NEVER,
            ended: Vec::new(),
            changed: NIL,
            changed_by: NEVER,
            limit: 0,
            lent: 0,
            live: 0,
            counts: Tally::default(),
            by_class: vec![OfClass::default(); classes].into(),
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

    /// Asks for a look at `by` at the latest. Whether that is earlier than before.
    #[inline]
    fn ask(&mut self, by: u64) -> bool {
        if by >= self.look_by {
            return false;
        }
        self.look_by = by;
        true
    }

    /// Plans the next look at a list.
    #[inline]
    fn plan(&mut self, list: usize, next: u64) {
        let second = next.saturating_add(self.periods.every[list]);
        self.looks[list] = Looks { next, second };
    }

    /// The list for a timer: the one with the rarest looks of which the second is in time.
    #[inline]
    fn list_for(&mut self, deadline: u64, now: impl Fn() -> u64) -> usize {
        let mut is_read = false;
        for list in (1..LISTS).rev() {
            let Looks { next, second } = self.looks[list];
            if second <= deadline {
                return list;
            }
            if next != NEVER {
                continue;
            }
            // A time that has passed shows of most lists that they are looked at too rarely. So the
            // clock is read once at most, and not for each timer with little time.
            let every = self.periods.every[list];
            if self.passed.saturating_add(2 * every) > deadline {
                continue;
            }
            if !is_read {
                (self.passed, is_read) = (self.passed.max(now()), true);
            }
            if self.passed.saturating_add(2 * every) <= deadline {
                // A lone timer that ends within its first third costs this look and no other.
                let third = ((deadline - self.passed) / 3).min(self.periods.every[LISTS - 1]);
                self.plan(list, self.passed + every.max(third));
                return list;
            }
        }
        let next = &mut self.looks[0].next;
        *next = deadline.min(*next);
        0
    }

    /// Arms a timer, for which there is credit. Whether it is in a list with looks of its own, and
    /// whether the owner must be told of an earlier look.
    #[allow(clippy::inline_always, reason = "a call costs a tenth of what it does")]
    #[inline(always)]
    pub(super) fn arm(&mut self, arming: Arming<W>, now: impl Fn() -> u64) -> (u32, bool, bool) {
        let Arming { deadline, class, carried } = arming;
        let list = self.list_for(deadline, &now);
        let at = self.slots.insert(list, deadline, carried, class);
        self.live += 1;
        self.counts.armed += 1;
        if let Some(of_class) = self.of_class(class) {
            of_class.arm(at, deadline, now);
        }
        (at, list > 0, self.ask(self.looks[list].next))
    }

    #[inline]
    fn of_class(&mut self, class: u8) -> Option<&mut OfClass> {
        of_class(&mut self.by_class, class)
    }

    fn count(&mut self, class: u8, count: impl Fn(&mut Tally)) {
        count(&mut self.counts);
        if let Some(of_class) = self.of_class(class) {
            count(&mut of_class.counts);
        }
    }

    /// Ends a timer and takes what it carries. Whether the owner must be told of an earlier look.
    #[inline]
    pub(super) fn end(&mut self, at: u32, now: impl Fn() -> u64) -> (Option<W>, bool) {
        let (carried, is_young, class) = self.slots.take(at);
        if !is_young {
            return (carried, self.end_old(at, now));
        }
        self.live -= 1;
        self.counts.ended += 1;
        if let Some(of_class) = self.of_class(class) {
            of_class.end(at, now);
        }
        (carried, false)
    }

    /// A timer is not measured, see [`OfClass::leave_out`].
    pub(super) fn leave_out(&mut self, at: u32) {
        let class = self.slots.get_mut(at).class;
        if let Some(of_class) = self.of_class(class) {
            of_class.leave_out(at);
        }
    }

    /// Ends a timer that is not young. Whether the owner must be told of an earlier look.
    #[inline(never)]
    fn end_old(&mut self, at: u32, now: impl Fn() -> u64) -> bool {
        let slot = self.slots.get_mut(at);
        match slot.used_for {
            Use::Fired => {
                self.slots.free(at);
                false
            }
            Use::FiredListed => {
                slot.used_for = Use::EndedListed;
                false
            }
            // Once the owner is gone it has no timers.
            Use::Old | Use::Changed if self.fate == Fate::Closed => {
                self.slots.free(at);
                false
            }
            Use::Old => {
                slot.used_for = Use::Ended;
                let class = slot.class;
                self.count(class, |counts| counts.ended_old += 1);
                let by = || now().saturating_add(self.periods.ended_for);
                let by = if self.changed_by == NEVER { by() } else { NEVER };
                self.change(at, by)
            }
            Use::Changed => {
                slot.used_for = Use::Ended;
                let class = slot.class;
                self.count(class, |counts| counts.ended_old += 1);
                false
            }
            Use::Ended | Use::EndedListed => {
                debug_assert!(false, "slot {at} has no timer that could end");
                false
            }
        }
    }

    /// What the owner does not know yet: the timers that were armed, and those that have ended, of
    /// each class and of all.
    pub(super) fn unseen(&self, mut of_class: impl FnMut(u8, Counts)) -> Counts {
        for (index, known) in self.by_class.iter().enumerate() {
            of_class(index as u8 + 1, known.counts.unseen());
        }
        self.counts.unseen()
    }

    /// Puts a slot on the list of changed ones, which the owner must see at `by`.
    fn change(&mut self, at: u32, by: u64) -> bool {
        let next = std::mem::replace(&mut self.changed, at);
        self.slots.get_mut(at).next_changed = next;
        self.changed_by = self.changed_by.min(by);
        self.ask(by)
    }

    /// Gives a timer another deadline. `None` if it has fired, else its slot, which a young timer
    /// may change, and whether the owner must be told of an earlier look.
    pub(super) fn reset(
        &mut self,
        at: u32,
        deadline: u64,
        now: impl Fn() -> u64,
    ) -> Option<(u32, bool)> {
        let slot = self.slots.get_mut(at);
        slot.carried.as_ref()?;
        let is_earlier = deadline < slot.deadline;
        slot.deadline = deadline;
        let (used_for, class) = (slot.used_for, slot.class);
        if self.slots.is_young(at) {
            let list = self.list_for(deadline, now);
            let renewed = self.slots.renew(at, list);
            if let Some(sample) = self.of_class(class).and_then(|of| of.sample.as_mut()) {
                if sample.slot == at {
                    (sample.slot, sample.deadline) = (renewed, deadline);
                }
            }
            return Some((renewed, self.ask(self.looks[list].next)));
        }
        let asks = match used_for {
            Use::Old if is_earlier => {
                self.slots.get_mut(at).used_for = Use::Changed;
                self.change(at, deadline)
            }
            Use::Changed if is_earlier => {
                self.changed_by = self.changed_by.min(deadline);
                self.ask(deadline)
            }
            // The owner reads the deadline when the timer is due.
            Use::Old | Use::Changed => false,
            _ => return None,
        };
        Some((at, asks))
    }

    /// Asks the owner to end the timers that have ended on other threads, in a while.
    pub(super) fn ask_to_end(&mut self, now: u64) -> bool {
        self.ended_by = self.ended_by.min(now.saturating_add(self.periods.ended_for));
        self.ask(self.ended_by)
    }

    /// No timer that has ended on another thread is left.
    pub(super) fn note_all_ended(&mut self) {
        self.ended_by = NEVER;
    }

    /// Takes over up to `max` timers whose time has come to be looked at, after as many changes of
    /// others. Returns how many, and whether there are more.
    pub(super) fn look(&mut self, now: u64, max: u32, owner: &mut impl Owner) -> (u32, bool) {
        let mut done = self.see_changes(max, owner);
        if done == max {
            return (done, true);
        }
        for list in 0..LISTS {
            loop {
                while self.slots.is_looked_at(list) {
                    if done == max {
                        return (done, true);
                    }
                    done += self.visit(list, max - done, list > 0, owner);
                }
                let Looks { next, second } = self.looks[list];
                if !self.slots.has_young(list) {
                    self.plan(list, NEVER);
                    break;
                }
                if next > now {
                    break;
                }
                // Planned from when it should have been, so that a late look makes no timer late.
                self.plan(list, if list == 0 { NEVER } else { second });
                self.slots.begin_look(list);
            }
        }
        let looks = self.looks.iter().map(|looks| looks.next);
        self.look_by = looks.fold(self.ended_by.min(self.changed_by), u64::min);
        (done, false)
    }

    /// Visits a chunk of a list, see [`Slots::visit`].
    fn visit(&mut self, list: usize, max: u32, have_age: bool, owner: &mut impl Owner) -> u32 {
        let Self { slots, by_class, live, limit, .. } = self;
        slots.visit(list, max, have_age, |at, slot| {
            slot.key = owner.take_over(at, slot.deadline, slot.class);
            *live -= 1;
            *limit = limit.saturating_sub(1);
            if let Some(of_class) = of_class(by_class, slot.class) {
                of_class.leave_out(at);
            }
        })
    }

    fn see_changes(&mut self, max: u32, owner: &mut impl Owner) -> u32 {
        let mut done = 0;
        while self.changed != NIL && done < max {
            let at = self.changed;
            let slot = self.slots.get_mut(at);
            self.changed = slot.next_changed;
            let key = slot.key;
            match slot.used_for {
                Use::Ended => {
                    let class = slot.class;
                    owner.cancel(key);
                    self.slots.free(at);
                    self.count(class, |counts| counts.seen += 1);
                }
                Use::FiredListed => slot.used_for = Use::Fired,
                Use::EndedListed => self.slots.free(at),
                _ => {
                    debug_assert_eq!(slot.used_for, Use::Changed, "slot {at} is listed");
                    slot.used_for = Use::Old;
                    owner.reset(key, slot.deadline);
                }
            }
            done += 1;
        }
        if self.changed == NIL {
            self.changed_by = NEVER;
        }
        done
    }

    /// Takes over up to `max` young timers, whatever their age. Returns whether there are more.
    pub(super) fn look_at_all(&mut self, max: u32, owner: &mut impl Owner) -> bool {
        let mut done = self.see_changes(max, owner);
        for list in 0..LISTS {
            while self.slots.has_young(list) {
                if done == max {
                    return true;
                }
                done += self.visit(list, max - done, false, owner);
            }
            self.plan(list, NEVER);
        }
        done == max
    }

    /// What was counted since the last call: of all classes, and of each class with its number and
    /// with what was left of the delays of timers that have ended young.
    pub(super) fn take_counts(&mut self, mut of_class: impl FnMut(u8, Counts, LeftAt)) -> Counts {
        for (index, known) in self.by_class.iter_mut().enumerate() {
            if known.counts != Tally::default() {
                let ended_at = std::mem::take(&mut known.ended_at);
                of_class(index as u8 + 1, known.counts.take(), ended_at);
            }
        }
        self.counts.take()
    }

    /// Whether the thread is gone, and all timers have ended.
    pub(super) fn is_over(&self) -> bool {
        self.fate == Fate::Left && self.slots.used() == 0
    }

    /// Checks what holds between calls.
    ///
    /// # Panics
    ///
    /// If an invariant does not hold, with a sentence and the values.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn check_invariants(&self) {
        let mut young = 0;
        self.slots.check_invariants(|list, deadline, looks| {
            let Looks { next, second } = self.looks[list];
            let until = [0, next, if list == 0 { next } else { second }][looks as usize];
            assert!(until <= deadline, "{deadline} in list {list}, until {until}");
            young += 1;
        });
        for Looks { next, .. } in self.looks {
            assert!(self.look_by <= next, "no look at {next}, but at {}", self.look_by);
        }
        assert_eq!(young, self.live, "the count of young timers is wrong");
        assert!(self.look_by <= self.changed_by.min(self.ended_by), "no look at changes");
        let is_listed = |slot: &super::slots::Slot<W>| {
            matches!(slot.used_for, Use::Changed | Use::Ended | Use::FiredListed | Use::EndedListed)
        };
        let mut changed = 0;
        let mut at = self.changed;
        while at != NIL {
            let slot = self.slots.get(at);
            assert!(is_listed(slot), "slot {at} is listed");
            changed += 1;
            at = slot.next_changed;
        }
        let marked = self.slots.old().filter(|slot| is_listed(slot)).count();
        assert_eq!(changed, marked, "changed timers and their list differ");
    }
}

//! The lists of young timers: in which of them a timer is put, and when the keeper looks at them.
//!
//! Two lists of a kind have the timers that were armed since its last look, and those from before.
//!
//! Cost: O(kinds) to arm a timer, and most compare a few numbers. A look takes O(1) a timer.

use super::timers::{NEVER, Put, Timers};
use super::wheel::WINDOW;

/// How many kinds of young timers there are, by the time that they have left.
pub(super) const KINDS: usize = 10;
/// Milliseconds between two looks at the young timers of a kind. One that is armed has these
/// milliseconds left at least, and twice as many if it is the first. Timeouts of 100, 200 and 500
/// ms, and of 1, 2 and 5 s, have little more.
pub(super) const EVERY_MS: [u64; KINDS] = [6, 12, 24, 48, 96, 240, 480, 960, 2_400, 6_000];
/// A timer that is due within so many ticks is filed when it is armed. One tick of the window has
/// begun already, and one is for the rounding.
const NEAR: u64 = WINDOW - 2;

/// When the keeper looks at the young timers of a kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looks {
    /// The next look, which files the older ones; [`NEVER`] while there are no looks.
    pub(super) next: u64,
    /// The look after that, which files the timers that are armed now.
    pub(super) second: u64,
    /// Which of the two lists of the kind has those that were armed since the last look.
    pub(super) newer: usize,
}

impl Looks {
    /// No looks.
    pub(super) const NONE: Self = Self { next: NEVER, second: NEVER, newer: 0 };
}

impl<W> Timers<W> {
    /// The list for a timer that is armed now, or is young and reset.
    #[inline(always)]
    pub(super) fn place(
        &mut self,
        deadline: u64,
        recent: impl Fn() -> u64,
        now: impl Fn() -> u64,
    ) -> Put {
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
    pub(super) fn advance(&mut self, now: u64) {
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
        // A lone timer that ends within its first third costs this look and no other, unless that
        // is longer than the time between the rarest looks.
        let third = ((deadline - self.passed) / 3).min(self.periods.every[KINDS - 1]);
        self.plan(kind, self.passed.saturating_add(every.max(third)));
        true
    }

    /// Plans the next look at a kind.
    #[inline]
    pub(super) fn plan(&mut self, kind: usize, next: u64) {
        let second = next.saturating_add(self.periods.every[kind]);
        (self.looks[kind].next, self.looks[kind].second) = (next, second);
    }

    /// Looks at the young timers of a kind: files those that were armed before the look before. One
    /// that was reset to later since then is young again. False if `max` are done before.
    pub(super) fn look(&mut self, kind: usize, max: u32, done: &mut u32) -> bool {
        let Looks { next, second, newer } = self.looks[kind];
        let is_done = self.go_over(2 * kind + 1 - newer, max, done, |timers, slot| {
            let timer = timers.slots.at(slot);
            if !timer.is_later() {
                return timers.refile(slot);
            }
            timer.set_later(false);
            let deadline = timer.deadline;
            let (list, _) = timers.place(deadline, || next, || next);
            timers.put(slot, list);
        });
        if !is_done {
            return false;
        }
        self.looks[kind].newer = 1 - newer;
        // Planned from when it should have been, so that a late look makes no timer late.
        self.plan(kind, if self.lists.is_empty(2 * kind + newer) { NEVER } else { second });
        true
    }
}

//! Checks of what holds between calls, for tests and for the simulation.

use super::ThreadTimers;
use super::looks::Looks;
use super::timers::{NEVER, OF_WHEEL, Timers};
use super::wheel::{LEVELS, WINDOW, Wheel};
use crate::link::sync::Ordering;

impl Wheel {
    /// Checks that the bits are those of the lists with timers.
    ///
    /// # Panics
    ///
    /// If an invariant does not hold, with a sentence and the values.
    fn check_invariants(&self, is_empty: impl Fn(usize) -> bool) {
        for list in 0..LEVELS * WINDOW as usize {
            let is_filled = self.filled[list / 64] >> (list % 64) & 1 == 1;
            assert_eq!(is_filled, !is_empty(list), "the bit of list {list} of the wheel");
        }
    }
}

impl<W> Timers<W> {
    /// Checks what holds between calls.
    ///
    /// # Panics
    ///
    /// If an invariant does not hold, with a sentence and the values.
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

impl<W> ThreadTimers<W> {
    /// Checks what holds between calls.
    ///
    /// # Panics
    ///
    /// If an invariant does not hold, with a sentence and the values.
    pub(crate) fn check_invariants(&self) {
        let timers = self.lock();
        timers.check_invariants();
        let act_by = self.act_by.load(Ordering::Relaxed);
        assert_eq!(act_by, timers.act_by, "the published act differs");
    }
}

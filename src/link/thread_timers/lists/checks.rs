//! Checks of the lists, for tests and for the simulation.

use super::super::slots::{Place, Slots};
use super::{Closing, GAP, GROUP, GROUPS, Lists};

impl Lists {
    /// Calls `of_timer` with the slot of each timer and its list.
    ///
    /// # Panics
    ///
    /// If a timer is not in the place that its slot has, with a sentence and the values.
    pub(in super::super) fn check_invariants<W>(
        &self,
        slots: &Slots<W>,
        mut of_timer: impl FnMut(usize, u32),
    ) {
        for list in 0..GROUPS * GROUP {
            let Some(known) = self.get(list) else { continue };
            let gaps = known.entries.iter().filter(|slot| **slot == GAP).count();
            assert_eq!(known.gaps as usize, gaps, "the gaps of list {list}");
            let ends = [known.entries.front(), known.entries.back()];
            assert!(!ends.contains(&Some(&GAP)), "list {list} has a gap at an end");
            if let Some(Closing { to, from }) = known.closing.filter(|it| it.to != it.from) {
                let at = |index: u32| index.wrapping_sub(known.first) as usize;
                let mut closed = known.entries.range(at(to)..at(from));
                assert!(closed.all(|slot| *slot == GAP), "list {list} has timers among its gaps");
            }
            for (at, slot) in known.entries.iter().enumerate() {
                if *slot == GAP {
                    continue;
                }
                let index = known.first.wrapping_add(at as u32);
                let expected = Place { list: list as u16, index };
                assert_eq!(slots.known(*slot).place(), expected, "the place of slot {slot}");
                assert!(!slots.known(*slot).is_free(), "slot {slot} has a timer");
                of_timer(list, *slot);
            }
        }
    }

    /// For how many timers there is memory.
    #[cfg(all(test, not(corewheel_loom)))]
    pub(in super::super) fn allocated(&self) -> usize {
        let lists = self.groups.iter().flatten();
        lists.map(|list| list.entries.capacity()).sum::<usize>() + self.spare.capacity()
    }
}

//! The lists in which the timers of a thread lie: the indices of their slots.
//!
//! A list is one piece of memory, so the keeper knows which timers come next before it reads their
//! slots. Why not slots that are linked: the thread has written them last, so each of them would be
//! a miss of the keeper's cache that it has to wait for before it finds the next one.
//!
//! Timers are added at the end and taken from the front. One that is removed in between leaves a
//! gap. A list closes its gaps when they are more than half of it and 64 more: a part of them at
//! each removal, so that no lock is held for all of a long list. Why does the last timer not take
//! the place of one that is removed: most timers of a list end in the order in which they were
//! armed, so those that end next lie beside it.
//!
//! Cost: O(1) to add and to remove a timer, besides the copy when a list grows or shrinks. It grows
//! by a quarter, and to twice its length below 1,024 timers. 4 bytes for a timer, up to as much
//! more as the list grows by, and as much for each gap.

#[cfg(any(test, feature = "sim"))]
mod checks;

use std::collections::VecDeque;

use super::slots::{NIL, Place, Slots};

/// The lists of a group. A group has memory for its lists up to the last that was ever used.
const GROUP: usize = 64;
const GROUPS: usize = 9;
/// A list that was gone over leaves its memory to the next one, if that is for so many timers at
/// most.
const KEPT_MAX: usize = 1_024;
/// No timer: one was taken out.
const GAP: u32 = NIL;
/// The entries that a removal moves at most, to close gaps.
const MOVED_MAX: usize = 64;

#[derive(Debug)]
struct List {
    /// The slots of its timers. Neither the first nor the last is a [`GAP`].
    entries: VecDeque<u32>,
    gaps: u32,
    /// The index of the first of `entries` in places. Indices follow each other, and wrap.
    first: u32,
    /// `None` while no gaps are closed.
    closing: Option<Closing>,
}

/// How far the gaps of a list are closed: between these indices lie gaps alone, and the entries
/// before them were moved already.
#[derive(Clone, Copy, Debug)]
struct Closing {
    to: u32,
    from: u32,
}

impl List {
    const EMPTY: Self = Self { entries: VecDeque::new(), gaps: 0, first: 0, closing: None };

    /// Takes the gaps at both ends away.
    fn trim(&mut self) {
        while self.entries.back() == Some(&GAP) {
            self.entries.pop_back();
            self.gaps -= 1;
        }
        self.forget_passed();
        self.trim_front();
    }

    #[inline]
    fn trim_front(&mut self) {
        while self.gaps > 0 && self.entries.front() == Some(&GAP) {
            self.entries.pop_front();
            self.first = self.first.wrapping_add(1);
            self.gaps -= 1;
            self.forget_passed();
        }
    }

    /// Closes no gaps any more that an end of the list has passed: others may take their places.
    #[inline]
    fn forget_passed(&mut self) {
        let len = self.entries.len();
        let at = |index: u32| index.wrapping_sub(self.first) as usize;
        if self.closing.is_some_and(|Closing { to, from }| at(to) > at(from) || at(from) > len) {
            self.closing = None;
        }
    }

    /// A timer was taken from anywhere but the ends.
    fn leave_gap<W>(&mut self, index: usize, slots: &mut Slots<W>) {
        self.entries[index] = GAP;
        self.gaps += 1;
        if self.closing.is_some() || self.gaps as usize > self.entries.len() / 2 + GROUP {
            self.close_some(slots);
        }
    }

    /// Moves the next entries over the gaps before them. With the last entry, the gaps behind it
    /// are gone.
    #[cold]
    fn close_some<W>(&mut self, slots: &mut Slots<W>) {
        let (first, len) = (self.first, self.entries.len());
        let closing = self.closing.take().unwrap_or(Closing { to: first, from: first });
        let at = |index: u32| index.wrapping_sub(first) as usize;
        let (mut to, from) = (at(closing.to), at(closing.from));
        if from > len {
            // There are no gaps between them, and an end of the list has passed them.
            return;
        }
        let until = len.min(from + MOVED_MAX);
        for entry in from..until {
            let slot = self.entries[entry];
            if slot == GAP {
                continue;
            }
            if to < entry {
                (self.entries[to], self.entries[entry]) = (slot, GAP);
                let timer = slots.at(slot);
                timer.set_place(Place { index: first.wrapping_add(to as u32), ..timer.place() });
            }
            to += 1;
        }
        if until == len {
            self.gaps -= (len - to) as u32;
            self.entries.truncate(to);
        } else {
            let index = |at: usize| first.wrapping_add(at as u32);
            self.closing = Some(Closing { to: index(to), from: index(until) });
        }
    }

    /// Makes room for one more entry.
    #[cold]
    fn grow(&mut self, spare: &mut VecDeque<u32>) {
        let len = self.entries.len();
        if self.entries.capacity() == 0 && spare.capacity() > 0 {
            std::mem::swap(&mut self.entries, spare);
        } else {
            // Twice as many at first.
            self.entries.reserve_exact((len / 4).max(len.clamp(2, KEPT_MAX)));
        }
    }
}

/// A list that is gone over.
#[derive(Debug)]
pub(super) struct Taken {
    entries: VecDeque<u32>,
}

impl Taken {
    /// The slots of its timers; `None` is a gap.
    #[inline]
    pub(super) fn slots(&self) -> impl Iterator<Item = Option<u32>> {
        self.entries.iter().map(|slot| Some(*slot).filter(|slot| *slot != GAP))
    }
}

#[derive(Debug)]
pub(super) struct Lists {
    groups: [Vec<List>; GROUPS],
    /// The memory of a list that is empty.
    spare: VecDeque<u32>,
}

impl Lists {
    pub(super) fn new() -> Self {
        Self { groups: [const { Vec::new() }; GROUPS], spare: VecDeque::new() }
    }

    #[inline]
    fn get(&self, list: usize) -> Option<&List> {
        self.groups[list / GROUP].get(list % GROUP)
    }

    #[inline]
    pub(super) fn is_empty(&self, list: usize) -> bool {
        self.get(list).is_none_or(|list| list.entries.is_empty())
    }

    /// Adds a timer at the end of a list. Returns its place, which its slot keeps.
    #[inline]
    #[must_use = "the slot of the timer keeps its place"]
    pub(super) fn push(&mut self, list: usize, slot: u32) -> Place {
        let (group, at) = (&mut self.groups[list / GROUP], list % GROUP);
        if at >= group.len() {
            group.resize_with(at + 1, || List::EMPTY);
        }
        let known = &mut group[at];
        if known.entries.len() == known.entries.capacity() {
            known.grow(&mut self.spare);
        }
        let index = known.first.wrapping_add(known.entries.len() as u32);
        known.entries.push_back(slot);
        Place { list: list as u16, index }
    }

    /// Takes the timer at a place out. Returns whether its list is empty now.
    #[inline(always)]
    pub(super) fn remove<W>(&mut self, place: Place, slots: &mut Slots<W>) -> bool {
        let list = usize::from(place.list);
        let known = &mut self.groups[list / GROUP][list % GROUP];
        let index = place.index.wrapping_sub(known.first) as usize;
        if index + 1 == known.entries.len() {
            // Of most lists, the one that was armed last.
            known.entries.pop_back();
            if known.gaps > 0 {
                known.trim();
            }
        } else if index == 0 {
            known.entries.pop_front();
            known.first = known.first.wrapping_add(1);
            known.trim_front();
        } else {
            known.leave_gap(index, slots);
        }
        let capacity = known.entries.capacity();
        if capacity > GROUP && known.entries.len() < capacity / 4 {
            known.entries.shrink_to((2 * known.entries.len()).max(GROUP / 2));
        }
        known.entries.is_empty()
    }

    /// Takes the memory of a list away, so that timers can be added to other lists while its own
    /// are gone over. [`put_back`](Self::put_back) puts it back.
    #[inline]
    pub(super) fn take(&mut self, list: usize) -> Taken {
        let known = self.groups[list / GROUP].get_mut(list % GROUP);
        Taken { entries: known.map(|known| std::mem::take(&mut known.entries)).unwrap_or_default() }
    }

    /// Puts a list back but for its first `count` entries, with so many timers. Returns whether it
    /// is empty now.
    #[inline]
    pub(super) fn put_back(&mut self, list: usize, taken: Taken, count: usize, of: u32) -> bool {
        let Taken { mut entries } = taken;
        let Some(known) = self.groups[list / GROUP].get_mut(list % GROUP) else { return true };
        debug_assert!(known.entries.is_empty(), "a timer was added to the list that is gone over");
        known.first = known.first.wrapping_add(count as u32);
        known.gaps -= count as u32 - of;
        known.closing = None;
        if count == entries.len() {
            entries.clear();
            if (self.spare.capacity()..=KEPT_MAX).contains(&entries.capacity()) {
                self.spare = entries;
            }
            return true;
        }
        entries.drain(..count);
        known.entries = entries;
        known.trim_front();
        false
    }
}

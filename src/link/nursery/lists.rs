//! The lists in which the timers of a thread lie, each in one piece of memory.
//!
//! A timer lies in its list with its deadline and all that it carries. So the keeper reads the
//! timers of a tick from one end of a piece of memory to the other. Why not slots that are linked:
//! the thread has written them last, so each of them would be a miss of the keeper's cache that it
//! has to wait for before it finds the next one.
//!
//! Timers are added at the end and taken from the front. One that is removed in between leaves a
//! gap. A list closes its gaps when they are more than its timers. Why does the last timer not take
//! the place of one that is removed: most timers of a list end in the order in which they were
//! armed, so those that end next lie beside it.
//!
//! Cost: O(1) to add and to remove a timer, besides the copy when a list grows by a quarter, or
//! closes its gaps. 32 bytes for a timer that carries a waker, up to a quarter more, and as much
//! for each gap.

use std::collections::VecDeque;

use super::slots::{Place, Slots};

/// The lists of a group. A group has memory for its lists up to the last that was ever used.
const GROUP: usize = 64;
const GROUPS: usize = 9;
/// A list that is empty leaves its memory to the next one, if that is for at most so many timers.
const KEPT_MAX: usize = 1_024;

/// A timer.
#[derive(Debug)]
pub(super) struct Entry<W> {
    pub(super) deadline: u64,
    pub(super) carried: W,
    pub(super) slot: u32,
    pub(super) class: u8,
    /// Whether the keeper has filed the timer.
    pub(super) is_filed: bool,
    /// Whether it guards a future: see [`super::Arming`].
    pub(super) is_guarded: bool,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Entry<core::task::Waker>>() == 32);

#[derive(Debug)]
struct List<W> {
    /// `None` is a gap. Neither the first nor the last is one.
    entries: VecDeque<Option<Entry<W>>>,
    gaps: usize,
    /// The index of the first of `entries` in places. Indices follow each other, and wrap.
    first: u32,
}

impl<W> List<W> {
    const EMPTY: Self = Self { entries: VecDeque::new(), gaps: 0, first: 0 };

    /// The index of an entry in `entries`, of its index in places.
    #[inline]
    fn index(&self, Place { index, .. }: Place) -> usize {
        index.wrapping_sub(self.first) as usize
    }

    /// Takes the gaps at both ends away.
    fn trim(&mut self) {
        while let Some(None) = self.entries.back() {
            self.entries.pop_back();
            self.gaps -= 1;
        }
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.first = self.first.wrapping_add(1);
            self.gaps -= 1;
        }
    }

    /// A timer was taken from anywhere but the end.
    fn leave_gap(&mut self, slots: &Slots) {
        self.gaps += 1;
        self.trim();
        if self.gaps > self.entries.len() / 2 + GROUP {
            self.close_gaps(slots);
        }
    }

    #[cold]
    fn close_gaps(&mut self, slots: &Slots) {
        self.entries.retain(Option::is_some);
        self.gaps = 0;
        for (at, entry) in self.entries.iter().flatten().enumerate() {
            let slot = slots.known(entry.slot);
            slot.set_place(Place { index: self.first.wrapping_add(at as u32), ..slot.place() });
        }
    }

    /// Makes room for one more entry.
    #[cold]
    fn grow(&mut self, spare: &mut VecDeque<Option<Entry<W>>>) {
        let len = self.entries.len();
        if self.entries.capacity() == 0 && spare.capacity() > 0 {
            std::mem::swap(&mut self.entries, spare);
        } else {
            // Twice as many at first.
            self.entries.reserve_exact((len / 4).max(len.clamp(2, GROUP)));
        }
    }
}

#[derive(Debug)]
pub(super) struct Lists<W> {
    groups: [Vec<List<W>>; GROUPS],
    /// The memory of a list that is empty.
    spare: VecDeque<Option<Entry<W>>>,
}

impl<W> Lists<W> {
    pub(super) fn new() -> Self {
        Self { groups: [const { Vec::new() }; GROUPS], spare: VecDeque::new() }
    }

    #[inline]
    fn get(&self, list: usize) -> Option<&List<W>> {
        self.groups[list / GROUP].get(list % GROUP)
    }

    #[inline]
    pub(super) fn is_empty(&self, list: usize) -> bool {
        self.get(list).is_none_or(|list| list.entries.is_empty())
    }

    /// The timer at a place.
    #[inline]
    pub(super) fn at(&mut self, place: Place) -> &mut Entry<W> {
        let list = place.list as usize;
        let known = &mut self.groups[list / GROUP][list % GROUP];
        let index = known.index(place);
        known.entries[index].as_mut().expect("a timer lies in its place")
    }

    /// Adds a timer at the end of a list. Returns its place, which its slot keeps.
    #[inline]
    #[must_use = "the slot of the timer keeps its place"]
    pub(super) fn push(&mut self, list: usize, entry: Entry<W>) -> Place {
        let (group, at) = (&mut self.groups[list / GROUP], list % GROUP);
        if at >= group.len() {
            group.resize_with(at + 1, || List::EMPTY);
        }
        let known = &mut group[at];
        if known.entries.len() == known.entries.capacity() {
            known.grow(&mut self.spare);
        }
        let index = known.first.wrapping_add(known.entries.len() as u32);
        known.entries.push_back(Some(entry));
        Place { list: list as u32, index }
    }

    /// Takes the timer at a place out. Also returns whether its list is empty now.
    #[inline(always)]
    pub(super) fn remove(&mut self, place: Place, slots: &Slots) -> (Entry<W>, bool) {
        let list = place.list as usize;
        let known = &mut self.groups[list / GROUP][list % GROUP];
        let index = known.index(place);
        let entry = if index + 1 == known.entries.len() {
            // Of most lists, the one that was armed last.
            let armed_last = known.entries.pop_back().flatten();
            if known.gaps > 0 {
                known.trim();
            }
            armed_last
        } else {
            let taken = known.entries[index].take();
            known.leave_gap(slots);
            taken
        };
        let capacity = known.entries.capacity();
        if capacity > GROUP && known.entries.len() < capacity / 4 {
            known.entries.shrink_to(capacity / 2);
        }
        (entry.expect("a timer lies in its place"), known.entries.is_empty())
    }

    /// Takes the first timer of a list out. Also returns whether the list is empty now.
    #[inline]
    pub(super) fn pop(&mut self, list: usize) -> (Option<Entry<W>>, bool) {
        let Some(known) = self.groups[list / GROUP].get_mut(list % GROUP) else {
            return (None, true);
        };
        let entry = known.entries.front_mut().and_then(Option::take);
        known.gaps += usize::from(entry.is_some());
        known.trim();
        if known.entries.is_empty() {
            let emptied = std::mem::take(&mut known.entries);
            if (self.spare.capacity()..=KEPT_MAX).contains(&emptied.capacity()) {
                self.spare = emptied;
            }
            return (entry, true);
        }
        (entry, false)
    }

    /// Calls `of_timer` with each timer and its list.
    ///
    /// # Panics
    ///
    /// If a timer is not in the place that its slot has, with a sentence and the values.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn check_invariants(
        &self,
        slots: &Slots,
        mut of_timer: impl FnMut(usize, &Entry<W>),
    ) {
        for list in 0..GROUPS * GROUP {
            let Some(known) = self.get(list) else { continue };
            let gaps = known.entries.iter().filter(|entry| entry.is_none()).count();
            assert_eq!(known.gaps, gaps, "the gaps of list {list}");
            for (at, entry) in known.entries.iter().enumerate() {
                let Some(entry) = entry else { continue };
                let index = known.first.wrapping_add(at as u32);
                let slot = slots.known(entry.slot);
                let expected = Place { list: list as u32, index };
                assert_eq!(slot.place(), expected, "the place of slot {}", entry.slot);
                assert!(!slot.is_free(), "slot {} has a timer", entry.slot);
                of_timer(list, entry);
            }
        }
    }

    /// For how many timers there is memory.
    #[cfg(all(test, not(corewheel_loom)))]
    pub(super) fn allocated(&self) -> usize {
        let lists = self.groups.iter().flatten();
        lists.map(|list| list.entries.capacity()).sum::<usize>() + self.spare.capacity()
    }
}

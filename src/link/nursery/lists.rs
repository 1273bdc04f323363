//! The lists in which the timers of a thread lie, each in one piece of memory.
//!
//! A timer lies in its list with its deadline and all that it carries. So the keeper reads the
//! timers of a tick from one end of a piece of memory to the other. Why not slots that are linked:
//! the thread has written them last, so each of them would be a miss of the keeper's cache that it
//! has to wait for before it finds the next one.
//!
//! Timers are added at the end and taken from the front. One that is removed leaves its place to
//! the last of its list. So none moves away from the front, however many are added.
//!
//! Cost: O(1) to add and to remove a timer, besides the copy when a list grows by a quarter. 32
//! bytes for a timer that carries a waker, and up to a quarter more.

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
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Entry<core::task::Waker>>() == 32);

#[derive(Debug)]
struct List<W> {
    entries: VecDeque<Entry<W>>,
    /// The index of the first of `entries` in places. Indices follow each other, and wrap.
    first: u32,
}

impl<W> List<W> {
    const EMPTY: Self = Self { entries: VecDeque::new(), first: 0 };

    /// The index of an entry in `entries`, of its index in places.
    #[inline]
    fn index(&self, Place { index, .. }: Place) -> usize {
        index.wrapping_sub(self.first) as usize
    }

    /// Makes room for one more entry.
    #[cold]
    fn grow(&mut self, spare: &mut VecDeque<Entry<W>>) {
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
    spare: VecDeque<Entry<W>>,
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
        &mut known.entries[index]
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
        known.entries.push_back(entry);
        Place { list: list as u32, index }
    }

    /// Takes the timer at a place out. Also returns whether its list is empty now.
    #[inline]
    pub(super) fn remove(&mut self, place: Place, slots: &Slots) -> (Entry<W>, bool) {
        let list = place.list as usize;
        let known = &mut self.groups[list / GROUP][list % GROUP];
        let index = known.index(place);
        let entries = &mut known.entries;
        let mut entry = entries.pop_back().expect("a timer lies in its list");
        if let Some(removed) = entries.get_mut(index) {
            slots.known(entry.slot).set_place(place);
            std::mem::swap(&mut entry, removed);
        }
        if entries.len() < entries.capacity() / 4 && entries.capacity() > GROUP {
            entries.shrink_to(entries.capacity() / 2);
        }
        (entry, entries.is_empty())
    }

    /// Takes the first timer of a list out. Also returns whether the list is empty now.
    #[inline]
    pub(super) fn pop(&mut self, list: usize) -> (Option<Entry<W>>, bool) {
        let Some(known) = self.groups[list / GROUP].get_mut(list % GROUP) else {
            return (None, true);
        };
        let entry = known.entries.pop_front();
        known.first = known.first.wrapping_add(1);
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
            for (at, entry) in known.entries.iter().enumerate() {
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

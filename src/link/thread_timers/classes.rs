//! What is counted of the timers of each class, which are in the order of arming.
//!
//! The links of the timers lie in chunks beside those of the slots. Why not in the slots: most
//! timers have no class. Why not in one table: it would be copied under the lock when it grows.
//!
//! Cost: a timer without a class costs a comparison. A chunk with a timer that has a class takes 16
//! bytes more for each of its slots.

use corewheel_shard::List;

use super::Counts;
use super::slots::{CHUNK, Slot};
use super::timers::Timers;

/// What is counted of each class, and its timers.
#[derive(Debug)]
pub(super) struct Classes {
    links: Links,
    all: Box<[OfClass]>,
}

#[derive(Clone, Default, Debug)]
struct OfClass {
    counts: Counts,
    /// The pending timers, oldest first.
    pending: List,
}

impl Classes {
    pub(super) fn new(classes: usize) -> Self {
        Self { links: Links::default(), all: vec![OfClass::default(); classes].into() }
    }

    /// A timer was armed at `since`.
    #[cold]
    pub(super) fn enter(&mut self, class: u8, slot: u32, since: u64) {
        let Some(known) = self.all.get_mut(usize::from(class) - 1) else { return };
        known.counts.armed += 1;
        self.links.put(slot, since);
        known.pending.append(&mut self.links, Links::link, slot);
    }

    /// A timer has fired, or is taken out.
    #[inline]
    pub(super) fn take(&mut self, class: u8, slot: u32, has_fired: bool) {
        if let Some(known) = self.leave(class, slot) {
            known.counts.fired += u64::from(has_fired);
        }
    }

    /// A timer of a class has ended, which had this slot.
    #[cold]
    pub(super) fn end<W>(&mut self, timer: &Slot<W>, slot: u32) {
        if let Some(known) = self.leave(timer.class, slot) {
            known.counts.ended += 1;
            known.counts.young += u64::from(!timer.is_filed());
        }
    }

    /// Takes the memory of the links away, while no timer is pending.
    pub(super) fn take_links(&mut self) -> Links {
        std::mem::take(&mut self.links)
    }

    /// Where the link of a slot lies, if there is memory for it.
    #[cfg(all(test, not(corewheel_loom)))]
    pub(super) fn address_of(&self, slot: usize) -> Option<*const ()> {
        let chunk = self.links.0.get(slot / CHUNK)?.as_ref()?;
        Some((&raw const chunk[slot % CHUNK]).cast())
    }

    /// A timer has ended or fired. `None` if it has no class.
    #[inline]
    fn leave(&mut self, class: u8, slot: u32) -> Option<&mut OfClass> {
        let known = self.all.get_mut(usize::from(class).checked_sub(1)?)?;
        known.pending.remove(&mut self.links, Links::link, slot);
        Some(known)
    }
}

/// The links of the timers that have a class.
#[derive(Default, Debug)]
pub(super) struct Links(Vec<Option<Box<[OfTimer; CHUNK]>>>);

#[derive(Clone, Copy, Default, Debug)]
struct OfTimer {
    link: [u32; 2],
    /// When the timer was armed.
    since: u64,
}

impl Links {
    /// A timer that is in no list.
    fn put(&mut self, slot: u32, since: u64) {
        let chunk = slot as usize / CHUNK;
        if chunk >= self.0.len() {
            self.0.resize(chunk + 1, None);
        }
        let links = self.0[chunk].get_or_insert_with(|| Box::new([OfTimer::default(); CHUNK]));
        links[slot as usize % CHUNK].since = since;
    }

    #[inline]
    fn at(&self, slot: u32) -> &OfTimer {
        let chunk = self.0[slot as usize / CHUNK].as_ref();
        &chunk.expect("a timer was put there")[slot as usize % CHUNK]
    }

    #[inline]
    fn link(&mut self, slot: u32) -> &mut [u32; 2] {
        let chunk = self.0[slot as usize / CHUNK].as_mut();
        &mut chunk.expect("a timer was put there")[slot as usize % CHUNK].link
    }
}

impl<W> Timers<W> {
    /// What was counted that the shard does not know, of each class and of all. For each class also
    /// when its oldest timer was armed.
    pub(super) fn unseen(&self, mut of_class: impl FnMut(u8, Counts, Option<u64>)) -> Counts {
        let Classes { links, all } = &self.classes;
        for (index, known) in all.iter().enumerate() {
            let oldest = known.pending.first().map(|first| links.at(first).since);
            of_class(index as u8 + 1, known.counts, oldest);
        }
        self.counts
    }

    /// Takes what was counted since the last call: of all classes, and of each class with its
    /// number.
    pub(super) fn take_counts(&mut self, mut of_class: impl FnMut(u8, Counts)) -> Counts {
        for (index, known) in self.classes.all.iter_mut().enumerate() {
            if known.counts != Counts::default() {
                of_class(index as u8 + 1, std::mem::take(&mut known.counts));
            }
        }
        std::mem::take(&mut self.counts)
    }
}

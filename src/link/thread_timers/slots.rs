//! The slots of a thread's timers, each with all of its timer. They lie behind the lock.
//!
//! A timer is named by its slot and a number, which counts the timers of its thread. So a name is
//! that of one timer for ever: the numbers have 64 bits, and none is used twice.
//!
//! Slots lie in chunks, so that no slot moves and no lock is held for a copy of all of them. Chunks
//! are given back when the thread has no timer left, all but a few, and freed after the lock. Why
//! not one by one: a slot in use keeps its chunk, and timers end in any order.
//!
//! Cost: 40 bytes a slot.

#[cfg(any(test, feature = "sim"))]
mod checks;

use std::num::NonZeroU64;

use super::numbers::Numbers;

/// No slot.
pub(super) const NIL: u32 = u32::MAX;
/// The slots of a chunk.
pub(super) const CHUNK: usize = 256;
/// The chunks that a thread without timers keeps.
const KEPT_MAX: usize = 3;

/// Which timer of its thread one is, counted from 1.
pub(crate) type Number = NonZeroU64;

/// Names a timer among those of its thread, for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Name {
    pub(crate) slot: u32,
    pub(crate) number: Number,
}

/// The list of a timer, and its index there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) list: u16,
    pub(super) index: u32,
}

/// The keeper has filed the timer.
const FILED: u8 = 1;
/// The timer guards a future: see [`super::Arming`].
const GUARDED: u8 = 2;
/// The timer was reset to later since it was put into a list of young timers.
const LATER: u8 = 4;

/// A timer, or a free slot.
#[derive(Debug)]
pub(super) struct Slot<W> {
    /// `None` while the slot is free.
    number: Option<Number>,
    pub(super) deadline: u64,
    /// `None` while the slot is free.
    carried: Option<W>,
    /// The index of the timer in its list, or the next free slot.
    index: u32,
    list: u16,
    pub(super) class: u8,
    marks: u8,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Slot<core::task::Waker>>() == 40);

impl<W> Slot<W> {
    /// A free slot, before the free slot `next`.
    #[inline]
    fn free(next: u32) -> Self {
        Self { number: None, deadline: 0, carried: None, index: next, list: 0, class: 0, marks: 0 }
    }

    /// A timer that lies in no list.
    #[inline]
    pub(super) fn new(number: Number, deadline: u64, carried: W) -> Self {
        Self { number: Some(number), deadline, carried: Some(carried), ..Self::free(NIL) }
    }

    /// With a class, and whether it guards a future.
    #[inline]
    pub(super) fn of(self, class: u8, is_guarded: bool) -> Self {
        Self { class, marks: if is_guarded { GUARDED } else { 0 }, ..self }
    }

    /// In a list.
    #[inline]
    pub(super) fn lying_at(self, Place { list, index }: Place) -> Self {
        Self { index, list, ..self }
    }

    #[inline]
    pub(super) fn place(&self) -> Place {
        Place { list: self.list, index: self.index }
    }

    #[inline]
    pub(super) fn set_place(&mut self, Place { list, index }: Place) {
        (self.list, self.index) = (list, index);
    }

    #[inline]
    pub(super) fn is_filed(&self) -> bool {
        self.marks & FILED != 0
    }

    #[inline]
    pub(super) fn set_filed(&mut self) {
        self.marks |= FILED;
    }

    #[inline]
    pub(super) fn is_later(&self) -> bool {
        self.marks & LATER != 0
    }

    #[inline]
    pub(super) fn set_later(&mut self, is_later: bool) {
        self.marks = self.marks & !LATER | if is_later { LATER } else { 0 };
    }

    #[inline]
    pub(super) fn is_guarded(&self) -> bool {
        self.marks & GUARDED != 0
    }

    #[inline]
    pub(super) fn carried_mut(&mut self) -> Option<&mut W> {
        self.carried.as_mut()
    }

    /// What the timer carries, for a slot that was freed.
    #[inline]
    pub(super) fn into_carried(self) -> W {
        self.carried.expect("a timer carries something")
    }
}

#[derive(Debug)]
pub(super) struct Slots<W> {
    /// They are filled one after the other; the first one grows.
    chunks: Vec<Vec<Slot<W>>>,
    /// The slot that was freed last, and how many slots were made.
    free: u32,
    made: u32,
}

impl<W> Slots<W> {
    pub(super) fn new() -> Self {
        Self { chunks: Vec::new(), free: NIL, made: 0 }
    }

    /// A slot that there is.
    #[inline]
    pub(super) fn at(&mut self, slot: u32) -> &mut Slot<W> {
        &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
    }

    /// The timer with a name; `None` if it is over.
    #[inline]
    pub(super) fn pending(&mut self, Name { slot, number }: Name) -> Option<&mut Slot<W>> {
        let chunk = self.chunks.get_mut(slot as usize / CHUNK)?;
        chunk.get_mut(slot as usize % CHUNK).filter(|slot| slot.number == Some(number))
    }

    /// The slot for the next timer, which the caller puts there: the one that was freed last, or a
    /// new one.
    #[inline]
    pub(super) fn take(&mut self, numbers: &Numbers) -> (u32, &mut Slot<W>) {
        if self.free == NIL {
            self.make(numbers);
        }
        let slot = self.free;
        let room = &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK];
        self.free = room.index;
        (slot, room)
    }

    /// Makes a free slot.
    #[cold]
    fn make(&mut self, numbers: &Numbers) {
        let slot = self.made;
        numbers.need(slot);
        let chunk = slot as usize / CHUNK;
        if chunk == self.chunks.len() {
            self.chunks.push(if chunk == 0 { Vec::new() } else { Vec::with_capacity(CHUNK) });
        }
        self.chunks[chunk].push(Slot::free(self.free));
        (self.free, self.made) = (slot, slot + 1);
    }

    /// Frees the slot of the timer with a name, as [`release`](Self::release) does; `None` if the
    /// timer is over. The caller takes it out of its list.
    #[inline]
    pub(super) fn end(&mut self, numbers: &Numbers, name: Name) -> Option<Slot<W>> {
        let Name { slot, number } = name;
        let chunk = self.chunks.get_mut(slot as usize / CHUNK)?;
        let known = chunk.get_mut(slot as usize % CHUNK)?;
        if known.number != Some(number) {
            return None;
        }
        let next = std::mem::replace(&mut self.free, slot);
        let timer = std::mem::replace(known, Slot::free(next));
        numbers.note_over(slot, number);
        Some(timer)
    }

    /// Frees the slot of a timer that is in no list, and shows as over from then on. Returns the
    /// timer.
    #[inline(always)]
    pub(super) fn release(&mut self, numbers: &Numbers, slot: u32) -> Slot<W> {
        let next = std::mem::replace(&mut self.free, slot);
        let timer = std::mem::replace(self.at(slot), Slot::free(next));
        numbers.note_over(slot, timer.number.expect("the slot has a timer"));
        timer
    }

    /// Whether there are more chunks than a thread without timers keeps.
    #[inline]
    pub(super) fn has_many(&self) -> bool {
        self.chunks.len() > KEPT_MAX
    }

    /// Takes all chunks but a few away, for the caller to free. No slot has a timer.
    #[cold]
    pub(super) fn take_chunks(&mut self) -> Vec<Vec<Slot<W>>> {
        let mut chunks = std::mem::take(&mut self.chunks);
        let kept = chunks.len().saturating_sub(KEPT_MAX);
        self.chunks.extend(chunks.drain(kept..));
        self.chunks.iter_mut().for_each(Vec::clear);
        (self.free, self.made) = (NIL, 0);
        chunks
    }
}

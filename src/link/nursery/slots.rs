//! The slots of a nursery, in chunks that are freed when they are empty.
//!
//! Why not one `Vec`: one that doubles copies megabytes while the nursery is locked, and it is as
//! long as the nursery ever was.
//!
//! Cost: 40 bytes for a slot that carries a waker, and 40 for each chunk of 128 slots. One empty
//! chunk stays.

pub(super) const NIL: u32 = u32::MAX;
/// The bits of a slot's number that are its place in its chunk.
const CHUNK_BITS: u32 = 7;
const CHUNK: u32 = 1 << CHUNK_BITS;

/// What a slot is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    /// The slot has no timer.
    Free,
    /// The timer is in a list, which is `Slot::list`.
    Young,
    /// The owner has the timer.
    Old,
    /// The owner has the timer, and the slot is on the list of changed ones.
    Changed,
    /// The timer has ended, and the slot is on the list of changed ones, as the owner has the timer
    /// still.
    Ended,
    /// The owner had the timer, which has fired.
    Fired,
    /// The timer has fired, and the slot is on the list of changed ones.
    FiredListed,
    /// The timer has fired and has ended, and the slot is on the list of changed ones.
    EndedListed,
}

/// A timer of a nursery.
#[derive(Debug)]
pub(super) struct Slot<W> {
    pub(super) deadline: u64,
    /// `None` where the timer has ended or has fired.
    pub(super) carried: Option<W>,
    /// Young: the slots before and after it in its list. Old: the owner's key. Free: the next free
    /// place of the chunk.
    link: [u32; 2],
    /// Young: the number of the look at its list before which the timer was armed. On the list of
    /// changed slots: the next of them.
    pub(super) born: u32,
    pub(super) list: u8,
    pub(super) class: u8,
    pub(super) used_for: Use,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Slot<core::task::Waker>>() == 40);

/// What a freed slot was: its neighbours in its list, the list, and the class and the deadline of
/// its timer.
pub(super) struct Freed {
    pub(super) prev: u32,
    pub(super) next: u32,
    pub(super) list: u8,
    pub(super) class: u8,
    pub(super) deadline: u64,
}

impl<W> Slot<W> {
    fn free(next: Option<u32>) -> Self {
        let link = [NIL, next.unwrap_or(NIL)];
        let (list, class, used_for) = (0, 0, Use::Free);
        Self { deadline: 0, carried: None, link, born: 0, list, class, used_for }
    }

    pub(super) fn prev(&self) -> u32 {
        self.link[0]
    }

    pub(super) fn next(&self) -> u32 {
        self.link[1]
    }

    pub(super) fn set_prev(&mut self, prev: u32) {
        self.link[0] = prev;
    }

    pub(super) fn set_next(&mut self, next: u32) {
        self.link[1] = next;
    }

    /// The owner's key of a timer that is not young.
    pub(super) fn key(&self) -> u64 {
        u64::from(self.link[0]) << 32 | u64::from(self.link[1])
    }

    pub(super) fn set_key(&mut self, key: u64) {
        self.link = [(key >> 32) as u32, key as u32];
    }
}

#[derive(Debug)]
struct Chunk<W> {
    /// None in a chunk that is freed.
    slots: Box<[Slot<W>]>,
    /// The first free place.
    free: u32,
    used: u32,
    /// The chunks before and after it in the list of chunks with room.
    prev: u32,
    next: u32,
}

/// The slots of a nursery, by their numbers.
#[derive(Debug)]
pub(super) struct Slots<W> {
    chunks: Vec<Chunk<W>>,
    /// The first chunk with room.
    roomy: u32,
    /// The numbers of chunks that are freed.
    gone: Vec<u32>,
    used: u32,
}

impl<W> Slots<W> {
    pub(super) fn new() -> Self {
        Self { chunks: Vec::new(), roomy: NIL, gone: Vec::new(), used: 0 }
    }

    /// How many slots have a timer.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// How many slots there is memory for.
    #[cfg(all(test, not(corewheel_loom)))]
    pub(super) fn allocated(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.slots.len()).sum()
    }

    #[inline]
    pub(super) fn get(&self, at: u32) -> &Slot<W> {
        &self.chunks[(at >> CHUNK_BITS) as usize].slots[(at % CHUNK) as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, at: u32) -> &mut Slot<W> {
        &mut self.chunks[(at >> CHUNK_BITS) as usize].slots[(at % CHUNK) as usize]
    }

    /// Fills a free slot, and returns its number.
    #[inline]
    pub(super) fn insert(
        &mut self,
        deadline: u64,
        carried: W,
        (prev, born): (u32, u32),
        (list, class): (u8, u8),
    ) -> u32 {
        if self.roomy == NIL {
            self.add_chunk();
        }
        let number = self.roomy;
        let chunk = &mut self.chunks[number as usize];
        let place = chunk.free;
        let slot = &mut chunk.slots[place as usize];
        chunk.free = slot.next();
        *slot = Slot {
            deadline,
            carried: Some(carried),
            link: [prev, NIL],
            born,
            list,
            class,
            used_for: Use::Young,
        };
        chunk.used += 1;
        self.used += 1;
        if chunk.used == CHUNK {
            self.unlink(number);
        }
        number << CHUNK_BITS | place
    }

    /// Takes what a timer carries. The slot of a young timer is freed; that of another one stays.
    #[inline]
    pub(super) fn take(&mut self, at: u32) -> (Option<W>, Option<Freed>) {
        let slot = self.get_mut(at);
        let carried = slot.carried.take();
        if slot.used_for != Use::Young {
            return (carried, None);
        }
        let (prev, next, deadline) = (slot.prev(), slot.next(), slot.deadline);
        let (list, class) = (slot.list, slot.class);
        self.free(at);
        (carried, Some(Freed { prev, next, list, class, deadline }))
    }

    /// Frees a slot. What it has carried is taken out already.
    #[inline(always)]
    pub(super) fn free(&mut self, at: u32) {
        let (number, place) = (at >> CHUNK_BITS, at % CHUNK);
        let chunk = &mut self.chunks[number as usize];
        let slot = &mut chunk.slots[place as usize];
        debug_assert!(slot.carried.is_none(), "slot {at} is freed with what it carries");
        slot.used_for = Use::Free;
        slot.set_next(chunk.free);
        chunk.free = place;
        chunk.used -= 1;
        self.used -= 1;
        if chunk.used == CHUNK - 1 {
            self.link(number);
        } else if chunk.used == 0 && (chunk.prev != NIL || chunk.next != NIL) {
            self.remove_chunk(number);
        }
    }

    /// Frees the memory of a chunk. Another one has room, so timers that come and go keep that one
    /// busy and not this one.
    #[cold]
    fn remove_chunk(&mut self, number: u32) {
        self.unlink(number);
        self.chunks[number as usize].slots = Box::default();
        self.gone.push(number);
    }

    #[cold]
    fn add_chunk(&mut self) {
        let slots = (0..CHUNK).map(|place| Slot::free((place + 1 < CHUNK).then_some(place + 1)));
        let chunk = Chunk { slots: slots.collect(), free: 0, used: 0, prev: NIL, next: NIL };
        let number = if let Some(number) = self.gone.pop() {
            self.chunks[number as usize] = chunk;
            number
        } else {
            self.chunks.push(chunk);
            self.chunks.len() as u32 - 1
        };
        self.link(number);
    }

    /// Puts a chunk at the head of those with room.
    #[cold]
    fn link(&mut self, number: u32) {
        let first = std::mem::replace(&mut self.roomy, number);
        let chunk = &mut self.chunks[number as usize];
        (chunk.prev, chunk.next) = (NIL, first);
        if first != NIL {
            self.chunks[first as usize].prev = number;
        }
    }

    #[cold]
    fn unlink(&mut self, number: u32) {
        let chunk = &mut self.chunks[number as usize];
        let (prev, next) = (chunk.prev, chunk.next);
        (chunk.prev, chunk.next) = (NIL, NIL);
        if prev == NIL {
            self.roomy = next;
        } else {
            self.chunks[prev as usize].next = next;
        }
        if next != NIL {
            self.chunks[next as usize].prev = prev;
        }
    }

    /// The slots with a timer, and their numbers.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Slot<W>)> {
        let chunks = self.chunks.iter().enumerate();
        let slots = chunks.flat_map(|(number, chunk)| {
            let slots = chunk.slots.iter().enumerate();
            slots.map(move |(place, slot)| ((number as u32) << CHUNK_BITS | place as u32, slot))
        });
        slots.filter(|(_, slot)| slot.used_for != Use::Free)
    }
}

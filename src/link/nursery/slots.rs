//! The slots of a nursery, in chunks that are freed when they are empty.
//!
//! Why not one `Vec`: one that doubles copies megabytes while the nursery is locked, and it is as
//! long as the nursery ever was.
//!
//! Cost: 40 bytes for a slot that carries a waker, and 24 for each chunk of 128 slots. One empty
//! chunk stays.

pub(super) const NIL: u32 = u32::MAX;
/// The bits of a slot's number that are its place in its chunk.
const CHUNK_BITS: u32 = 7;
const CHUNK: u32 = 1 << CHUNK_BITS;

/// The number of a slot's chunk.
fn chunk_of(at: u32) -> usize {
    (at >> CHUNK_BITS) as usize
}

/// The place of a slot in its chunk.
fn place_of(at: u32) -> usize {
    (at % CHUNK) as usize
}

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
    /// The first free place.
    free: u32,
    used: u32,
    /// The chunks before and after it in the list of chunks with room.
    prev: u32,
    next: u32,
    slots: [Slot<W>; CHUNK as usize],
}

impl<W> Chunk<W> {
    fn new() -> Self {
        let slot = |place| Slot::free((place + 1 < CHUNK as usize).then_some(place as u32 + 1));
        let slots = std::array::from_fn(slot);
        Self { free: 0, used: 0, prev: NIL, next: NIL, slots }
    }

    /// Frees a slot. What it has carried is taken out already.
    #[inline(always)]
    fn free(&mut self, place: usize) {
        let slot = &mut self.slots[place];
        debug_assert!(slot.carried.is_none(), "a slot is freed with what it carries");
        slot.used_for = Use::Free;
        slot.set_next(self.free);
        self.free = place as u32;
        self.used -= 1;
    }
}

/// The slots of a nursery, by their numbers.
#[derive(Debug)]
pub(super) struct Slots<W> {
    /// `None` for a chunk that is freed.
    chunks: Vec<Option<Box<Chunk<W>>>>,
    /// The first of the list of chunks with room. It stays there while it is full, so that a timer
    /// that ends and the next one, in its slot, do not take it out and put it back.
    roomy: u32,
    /// The numbers of chunks that are freed.
    gone: Vec<u32>,
}

impl<W> Slots<W> {
    pub(super) fn new() -> Self {
        Self { chunks: Vec::new(), roomy: NIL, gone: Vec::new() }
    }

    /// How many slots have a timer. O(chunks).
    pub(super) fn used(&self) -> u32 {
        self.chunks.iter().flatten().map(|chunk| chunk.used).sum()
    }

    /// How many slots there is memory for.
    #[cfg(all(test, not(corewheel_loom)))]
    pub(super) fn allocated(&self) -> usize {
        self.chunks.iter().flatten().map(|chunk| chunk.slots.len()).sum()
    }

    /// The chunk with this number.
    #[inline(always)]
    fn chunk(&self, number: usize) -> &Chunk<W> {
        self.chunks[number].as_deref().expect("a slot with a timer keeps its chunk")
    }

    #[inline(always)]
    fn chunk_mut(&mut self, number: usize) -> &mut Chunk<W> {
        self.chunks[number].as_deref_mut().expect("a slot with a timer keeps its chunk")
    }

    #[inline]
    pub(super) fn get(&self, at: u32) -> &Slot<W> {
        &self.chunk(chunk_of(at)).slots[place_of(at)]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, at: u32) -> &mut Slot<W> {
        &mut self.chunk_mut(chunk_of(at)).slots[place_of(at)]
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
        let chunk = loop {
            match self.chunks.get_mut(self.roomy as usize) {
                Some(Some(chunk)) if chunk.free != NIL => break &mut **chunk,
                _ => self.find_room(),
            }
        };
        let place = chunk.free;
        let slot = &mut chunk.slots[place_of(place)];
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
        self.roomy << CHUNK_BITS | place
    }

    /// Takes what a timer carries. The slot of a young timer is freed; that of another one stays.
    #[inline]
    pub(super) fn take(&mut self, at: u32) -> (Option<W>, Option<Freed>) {
        let chunk = self.chunk_mut(chunk_of(at));
        let slot = &mut chunk.slots[place_of(at)];
        let carried = slot.carried.take();
        if slot.used_for != Use::Young {
            return (carried, None);
        }
        let (prev, next, deadline) = (slot.prev(), slot.next(), slot.deadline);
        let (list, class) = (slot.list, slot.class);
        chunk.free(place_of(at));
        let used = chunk.used;
        self.note_freed(at, used);
        (carried, Some(Freed { prev, next, list, class, deadline }))
    }

    /// Frees a slot. What it has carried is taken out already.
    pub(super) fn free(&mut self, at: u32) {
        let chunk = self.chunk_mut(chunk_of(at));
        chunk.free(place_of(at));
        let used = chunk.used;
        self.note_freed(at, used);
    }

    /// A slot was freed, and so many of its chunk are used.
    #[inline(always)]
    fn note_freed(&mut self, at: u32, used: u32) {
        if used == CHUNK - 1 && self.roomy != at >> CHUNK_BITS {
            self.note_room(at >> CHUNK_BITS);
        } else if used == 0 {
            self.note_empty(at >> CHUNK_BITS);
        }
    }

    /// Frees the memory of an empty chunk, if another one has room: timers that come and go keep
    /// that one busy and not this one.
    #[cold]
    fn note_empty(&mut self, number: u32) {
        let chunk = self.chunk(number as usize);
        if chunk.prev == NIL && chunk.next == NIL {
            return;
        }
        self.unlink(number);
        self.chunks[number as usize] = None;
        self.gone.push(number);
    }

    /// Makes another chunk the first with room, or makes one.
    #[cold]
    fn find_room(&mut self) {
        if self.roomy != NIL {
            self.unlink(self.roomy);
        }
        if self.roomy == NIL {
            self.add_chunk();
        }
    }

    /// A chunk that was full and is not the first has room.
    #[cold]
    fn note_room(&mut self, number: u32) {
        let first = self.roomy;
        if first != NIL && self.chunk(first as usize).free == NIL {
            self.unlink(first);
        }
        self.link(number);
    }

    fn add_chunk(&mut self) {
        let chunk = Some(Box::new(Chunk::new()));
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
        let chunk = self.chunk_mut(number as usize);
        (chunk.prev, chunk.next) = (NIL, first);
        if first != NIL {
            self.chunk_mut(first as usize).prev = number;
        }
    }

    #[cold]
    fn unlink(&mut self, number: u32) {
        let chunk = self.chunk_mut(number as usize);
        let (prev, next) = (chunk.prev, chunk.next);
        (chunk.prev, chunk.next) = (NIL, NIL);
        if prev == NIL {
            self.roomy = next;
        } else {
            self.chunk_mut(prev as usize).next = next;
        }
        if next != NIL {
            self.chunk_mut(next as usize).prev = prev;
        }
    }

    /// Checks the list of chunks with room.
    ///
    /// # Panics
    ///
    /// If it lacks one, or has a full one that is not the first, or the free places of a chunk are
    /// not those that it does not use.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn check_invariants(&self) {
        let (mut at, mut prev, mut listed) = (self.roomy, NIL, 0);
        while at != NIL {
            let chunk = self.chunk(at as usize);
            assert_eq!(chunk.prev, prev, "the chunk before {at}");
            assert!(prev == NIL || chunk.free != NIL, "chunk {at} is full, and not the first");
            listed += u32::from(chunk.free != NIL);
            (prev, at) = (at, chunk.next);
        }
        let mut with_room = 0;
        for chunk in self.chunks.iter().flatten() {
            let place = |at| (at != NIL).then_some(at);
            let next = |at: &u32| place(chunk.slots[place_of(*at)].next());
            let free = std::iter::successors(place(chunk.free), next).count();
            assert_eq!(free, (CHUNK - chunk.used) as usize, "free places of a chunk");
            with_room += u32::from(free > 0);
        }
        assert_eq!(listed, with_room, "chunks with room that are listed");
    }

    /// The slots with a timer, and their numbers.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Slot<W>)> {
        let chunks = self.chunks.iter().enumerate();
        let chunks = chunks.filter_map(|(number, chunk)| Some((number, chunk.as_deref()?)));
        let slots = chunks.flat_map(|(number, chunk)| {
            let slots = chunk.slots.iter().enumerate();
            slots.map(move |(place, slot)| ((number as u32) << CHUNK_BITS | place as u32, slot))
        });
        slots.filter(|(_, slot)| slot.used_for != Use::Free)
    }
}

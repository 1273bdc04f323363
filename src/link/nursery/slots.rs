//! The slots of a nursery, in chunks that are freed when they are empty, and the lists of chunks
//! with young timers.
//!
//! A chunk has the timers of one list, and a bit for each place: whether it is free, whether its
//! timer is young, and whether a look has seen the timer. So arming and ending a timer set bits of
//! one chunk, and touch no other slot. Why not a list of slots: each timer that is armed and each
//! that ends would write to its neighbours. A look visits each chunk of its list, which is a visit
//! for 64 timers.
//!
//! Why not one `Vec`: one that doubles copies megabytes while the nursery is locked, and it is as
//! long as the nursery ever was.
//!
//! Cost: 40 bytes for a slot that carries a waker, and 56 for each chunk of 64 slots. One empty
//! chunk of each list stays.

#[cfg(any(test, feature = "sim"))]
mod check;

/// How many lists of young timers there are.
pub(super) const LISTS: usize = 11;
pub(super) const NIL: u32 = u32::MAX;
/// The bits of a slot's number that are its place in its chunk.
const CHUNK_BITS: u32 = 6;
const CHUNK: u32 = 1 << CHUNK_BITS;
/// The bits of all places of a chunk.
const ALL: u64 = u64::MAX;

const _: () = assert!(CHUNK == u64::BITS, "a bit for each place");

/// The number of a slot's chunk.
fn chunk_of(at: u32) -> usize {
    (at >> CHUNK_BITS) as usize
}

/// The place of a slot in its chunk.
fn place_of(at: u32) -> usize {
    (at % CHUNK) as usize
}

/// The bit of a slot's place.
fn bit_of(at: u32) -> u64 {
    1 << (at % CHUNK)
}

/// What has become of a timer that was taken over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
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
    /// The owner's key of a timer that it has.
    pub(super) key: u64,
    /// On the list of changed slots: the next of them.
    pub(super) next_changed: u32,
    pub(super) class: u8,
    /// Of a timer that was taken over.
    pub(super) used_for: Use,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Slot<core::task::Waker>>() == 40);

impl<W> Slot<W> {
    fn free() -> Self {
        let (next_changed, used_for) = (NIL, Use::Fired);
        Self { deadline: 0, carried: None, key: 0, next_changed, class: 0, used_for }
    }
}

/// The chunks before and after one in a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Links {
    prev: u32,
    next: u32,
}

impl Links {
    const NONE: Self = Self { prev: NIL, next: NIL };
}

/// The first and the last chunk of a list.
#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
}

/// A list of chunks.
#[derive(Clone, Copy, Debug)]
enum Chunks {
    /// Those with room for the timers of a list of young timers.
    Roomy,
    /// Those with young timers of a list, and some whose young timers have ended.
    Young,
}

#[derive(Debug)]
struct Chunk<W> {
    /// The places without a timer.
    free: u64,
    /// The places of young timers that no look has seen.
    new: u64,
    /// The places of young timers that a look has seen.
    seen: u64,
    list: u8,
    /// Whether it is in the list of chunks with young timers.
    is_listed: bool,
    /// Whether it is in the list of chunks with room.
    is_roomy: bool,
    roomy: Links,
    young: Links,
    slots: [Slot<W>; CHUNK as usize],
}

impl<W> Chunk<W> {
    fn new(list: u8) -> Self {
        let slots = std::array::from_fn(|_| Slot::free());
        let links = Links::NONE;
        Self {
            free: ALL,
            new: 0,
            seen: 0,
            list,
            is_listed: false,
            is_roomy: false,
            roomy: links,
            young: links,
            slots,
        }
    }

    /// Whether the timer in a slot of the chunk is young.
    #[inline(always)]
    fn is_young(&self, at: u32) -> bool {
        (self.new | self.seen) & bit_of(at) != 0
    }

    fn links(&mut self, chunks: Chunks) -> &mut Links {
        match chunks {
            Chunks::Roomy => &mut self.roomy,
            Chunks::Young => &mut self.young,
        }
    }
}

/// The chunks of one list of young timers.
#[derive(Clone, Copy, Debug)]
struct OfList {
    /// The first is used until it is full, and stays there then until another one is.
    roomy: Ends,
    young: Ends,
    /// The last chunk that the present look must visit; [`NIL`] between two looks.
    until: u32,
}

impl OfList {
    const EMPTY: Self = {
        let ends = Ends { head: NIL, tail: NIL };
        Self { roomy: ends, young: ends, until: NIL }
    };

    fn ends(&mut self, chunks: Chunks) -> &mut Ends {
        match chunks {
            Chunks::Roomy => &mut self.roomy,
            Chunks::Young => &mut self.young,
        }
    }
}

/// The slots of a nursery, by their numbers.
#[derive(Debug)]
pub(super) struct Slots<W> {
    /// `None` for a chunk that is freed.
    chunks: Vec<Option<Box<Chunk<W>>>>,
    of_list: [OfList; LISTS],
    /// The slots of the timers that have ended last, which are not freed: the next timer of their
    /// list has one. [`NIL`] for none. Why: the timers of a busy thread end and begin in turn, and
    /// their chunks are full. Why not one for each list: to know the list of a timer that ends, its
    /// chunk is read, which all of its end then waits for.
    spare: [u32; 2],
    /// The numbers of chunks that are freed.
    gone: Vec<u32>,
}

impl<W> Slots<W> {
    pub(super) fn new() -> Self {
        Self {
            chunks: Vec::new(),
            of_list: [OfList::EMPTY; LISTS],
            spare: [NIL; 2],
            gone: Vec::new(),
        }
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

    /// A slot; `None` if its chunk is freed.
    #[inline]
    pub(super) fn find_mut(&mut self, at: u32) -> Option<&mut Slot<W>> {
        let chunk = self.chunks.get_mut(chunk_of(at))?.as_deref_mut()?;
        Some(&mut chunk.slots[place_of(at)])
    }

    /// Fills a free slot with a young timer of a list, and returns its number.
    #[allow(clippy::inline_always, reason = "a call costs a tenth of what it does")]
    #[inline(always)]
    pub(super) fn insert(&mut self, list: usize, deadline: u64, carried: W, class: u8) -> u32 {
        let at = if self.is_of_list(self.spare[0], list) {
            std::mem::replace(&mut self.spare[0], NIL)
        } else if self.is_of_list(self.spare[1], list) {
            std::mem::replace(&mut self.spare[1], NIL)
        } else {
            self.take_free(list)
        };
        let chunk = self.chunk_mut(chunk_of(at));
        let slot = &mut chunk.slots[place_of(at)];
        (slot.deadline, slot.carried, slot.class) = (deadline, Some(carried), class);
        chunk.new |= bit_of(at);
        if !chunk.is_listed {
            self.note_young(at >> CHUNK_BITS);
        }
        at
    }

    /// Whether a slot is one of a list; false for [`NIL`].
    #[inline(always)]
    fn is_of_list(&self, at: u32, list: usize) -> bool {
        let chunk = self.chunks.get(chunk_of(at));
        matches!(chunk, Some(Some(chunk)) if usize::from(chunk.list) == list)
    }

    /// Takes a free slot for a timer of a list.
    #[inline(never)]
    fn take_free(&mut self, list: usize) -> u32 {
        let (number, chunk) = loop {
            let number = self.of_list[list].roomy.head;
            match self.chunks.get_mut(number as usize) {
                Some(Some(chunk)) if chunk.free != 0 => break (number, chunk),
                _ => self.find_room(list),
            }
        };
        let place = chunk.free.trailing_zeros();
        chunk.free ^= bit_of(place);
        number << CHUNK_BITS | place
    }

    /// Takes what a timer carries, and says whether the timer is young, and its class. The slot of
    /// a young timer is freed; that of another timer stays.
    #[inline]
    pub(super) fn take(&mut self, at: u32) -> (Option<W>, bool, u8) {
        let chunk = self.chunk_mut(chunk_of(at));
        let slot = &mut chunk.slots[place_of(at)];
        let (carried, class) = (slot.carried.take(), slot.class);
        if !chunk.is_young(at) {
            return (carried, false, class);
        }
        chunk.new &= !bit_of(at);
        chunk.seen &= !bit_of(at);
        let last = std::mem::replace(&mut self.spare[0], at);
        if last != NIL {
            self.make_spare(last);
        }
        (carried, true, class)
    }

    /// Makes a slot the second spare one, and frees the one that was.
    #[inline(never)]
    fn make_spare(&mut self, at: u32) {
        let second = std::mem::replace(&mut self.spare[1], at);
        if second != NIL {
            self.free(second);
        }
    }

    /// Frees a slot of a timer that is not young. What it has carried is taken out already.
    #[inline(never)]
    pub(super) fn free(&mut self, at: u32) {
        let chunk = self.chunk_mut(chunk_of(at));
        debug_assert!(chunk.slots[place_of(at)].carried.is_none(), "slot {at} carries something");
        chunk.free |= bit_of(at);
        if !chunk.is_roomy {
            self.note_room(at >> CHUNK_BITS);
        } else if chunk.free == ALL {
            self.note_empty(at >> CHUNK_BITS);
        }
    }

    /// Whether the owner knows nothing of a timer, which has not ended.
    #[inline]
    pub(super) fn is_young(&self, at: u32) -> bool {
        self.chunk(chunk_of(at)).is_young(at)
    }

    /// Gives a young timer the age of one that was armed now, in a list. Returns its slot, which is
    /// another one if the list is.
    pub(super) fn renew(&mut self, at: u32, list: usize) -> u32 {
        let chunk = self.chunk_mut(chunk_of(at));
        if usize::from(chunk.list) == list {
            chunk.seen &= !bit_of(at);
            chunk.new |= bit_of(at);
            return at;
        }
        let Slot { deadline, carried, class, .. } = &mut chunk.slots[place_of(at)];
        let (deadline, class) = (*deadline, *class);
        let Some(carried) = carried.take() else {
            debug_assert!(false, "the young timer in slot {at} carries nothing");
            return at;
        };
        let _ended = self.take(at);
        self.insert(list, deadline, carried, class)
    }

    /// Begins a look at a list, which visits the chunks that are listed now.
    pub(super) fn begin_look(&mut self, list: usize) {
        let of_list = &mut self.of_list[list];
        of_list.until = of_list.young.tail;
    }

    /// Whether the present look at a list must visit another chunk.
    pub(super) fn is_looked_at(&self, list: usize) -> bool {
        self.of_list[list].until != NIL
    }

    /// Whether a list may have young timers.
    pub(super) fn has_young(&self, list: usize) -> bool {
        self.of_list[list].young.head != NIL
    }

    /// Visits the first chunk of a list, and gives up to `max` timers to `take_over` that a look
    /// has seen before; those of all ages if they have none. The last visit to a chunk makes its
    /// other timers seen. Returns how many timers that were, at least 1 for the visit.
    pub(super) fn visit(
        &mut self,
        list: usize,
        max: u32,
        have_age: bool,
        mut take_over: impl FnMut(u32, &mut Slot<W>),
    ) -> u32 {
        let number = self.of_list[list].young.head;
        let chunk = self.chunk_mut(number as usize);
        if !have_age {
            chunk.seen |= std::mem::take(&mut chunk.new);
        }
        let mut taken = 0;
        while chunk.seen != 0 && taken < max {
            let place = chunk.seen.trailing_zeros();
            chunk.seen &= chunk.seen - 1;
            let slot = &mut chunk.slots[place_of(place)];
            slot.used_for = Use::Old;
            take_over(number << CHUNK_BITS | place, slot);
            taken += 1;
        }
        if chunk.seen == 0 {
            chunk.seen = std::mem::take(&mut chunk.new);
            let is_young = chunk.seen != 0;
            let is_empty = chunk.free == ALL;
            self.unlist(number);
            if is_young {
                self.note_young(number);
            } else if is_empty {
                self.note_empty(number);
            }
        }
        taken.max(1)
    }

    /// A chunk that is not in the list of chunks with young timers has one.
    #[cold]
    fn note_young(&mut self, number: u32) {
        let chunk = self.chunk_mut(number as usize);
        chunk.is_listed = true;
        let list = usize::from(chunk.list);
        let tail = self.of_list[list].young.tail;
        self.link(Chunks::Young, number, Links { prev: tail, next: NIL });
    }

    /// Takes a chunk out of the list of chunks with young timers.
    fn unlist(&mut self, number: u32) {
        let chunk = self.chunk_mut(number as usize);
        chunk.is_listed = false;
        let (list, prev) = (usize::from(chunk.list), chunk.young.prev);
        let of_list = &mut self.of_list[list];
        if of_list.until == number {
            of_list.until = prev;
        }
        self.unlink(Chunks::Young, number);
    }

    /// Frees the memory of an empty chunk, if another one of its list has room: timers that come
    /// and go keep that one busy and not this one.
    fn note_empty(&mut self, number: u32) {
        let chunk = self.chunk(number as usize);
        if chunk.roomy == Links::NONE {
            return;
        }
        if chunk.is_listed {
            self.unlist(number);
        }
        self.unlink(Chunks::Roomy, number);
        self.chunks[number as usize] = None;
        self.gone.push(number);
    }

    /// Makes another chunk the first of a list with room, or makes one.
    #[cold]
    fn find_room(&mut self, list: usize) {
        let first = self.of_list[list].roomy.head;
        if first != NIL {
            self.note_full(first);
        }
        if self.of_list[list].roomy.head == NIL {
            self.add_chunk(list);
        }
    }

    /// Puts a chunk at the head of those with room.
    fn note_room(&mut self, number: u32) {
        let chunk = self.chunk_mut(number as usize);
        chunk.is_roomy = true;
        let list = usize::from(chunk.list);
        let first = self.of_list[list].roomy.head;
        if first != NIL && self.chunk(first as usize).free == 0 {
            self.note_full(first);
        }
        let next = self.of_list[list].roomy.head;
        self.link(Chunks::Roomy, number, Links { prev: NIL, next });
    }

    /// Takes a full chunk out of those with room.
    fn note_full(&mut self, number: u32) {
        self.chunk_mut(number as usize).is_roomy = false;
        self.unlink(Chunks::Roomy, number);
    }

    fn add_chunk(&mut self, list: usize) {
        let chunk = Some(Box::new(Chunk::new(list as u8)));
        let number = if let Some(number) = self.gone.pop() {
            self.chunks[number as usize] = chunk;
            number
        } else {
            self.chunks.push(chunk);
            self.chunks.len() as u32 - 1
        };
        self.note_room(number);
    }

    /// Puts a chunk into a list, between two of its chunks or at an end.
    fn link(&mut self, chunks: Chunks, number: u32, links: Links) {
        let chunk = self.chunk_mut(number as usize);
        *chunk.links(chunks) = links;
        let list = usize::from(chunk.list);
        self.join(chunks, list, links.prev, number);
        self.join(chunks, list, number, links.next);
    }

    /// Takes a chunk out of a list.
    fn unlink(&mut self, chunks: Chunks, number: u32) {
        let chunk = self.chunk_mut(number as usize);
        let links = std::mem::replace(chunk.links(chunks), Links::NONE);
        let list = usize::from(chunk.list);
        self.join(chunks, list, links.prev, links.next);
    }

    /// Makes two chunks, or the ends of the list, neighbours.
    fn join(&mut self, chunks: Chunks, list: usize, prev: u32, next: u32) {
        if prev == NIL {
            self.of_list[list].ends(chunks).head = next;
        } else {
            self.chunk_mut(prev as usize).links(chunks).next = next;
        }
        if next == NIL {
            self.of_list[list].ends(chunks).tail = prev;
        } else {
            self.chunk_mut(next as usize).links(chunks).prev = prev;
        }
    }

    /// How many slots have a timer. O(chunks).
    pub(super) fn used(&self) -> u32 {
        let chunks = self.chunks.iter().flatten();
        let taken: u32 = chunks.map(|chunk| CHUNK - chunk.free.count_ones()).sum();
        taken - self.spare.iter().filter(|spare| **spare != NIL).count() as u32
    }

    /// How many slots there is memory for.
    #[cfg(all(test, not(corewheel_loom)))]
    pub(super) fn allocated(&self) -> usize {
        self.chunks.iter().flatten().map(|chunk| chunk.slots.len()).sum()
    }
}

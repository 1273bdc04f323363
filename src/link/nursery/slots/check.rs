//! What holds between two calls of a nursery's slots, for tests and the simulation.

use super::{CHUNK, Chunk, Chunks, Ends, LISTS, NIL, Slot, Slots, bit_of, chunk_of};

impl<W> Slots<W> {
    /// The chunks of a list, from the first to the last.
    ///
    /// # Panics
    ///
    /// If the chunk before one is another.
    fn chunks_of(&self, chunks: Chunks, list: usize) -> Vec<(u32, &Chunk<W>)> {
        let mut of_list = self.of_list[list];
        let Ends { head, tail } = *of_list.ends(chunks);
        let (mut at, mut all) = (head, Vec::new());
        while at != NIL {
            let chunk = self.chunk(at as usize);
            let links = match chunks {
                Chunks::Roomy => chunk.roomy,
                Chunks::Young => chunk.young,
            };
            let prev = all.last().map_or(NIL, |(number, _)| *number);
            assert_eq!(links.prev, prev, "the chunk before {at} in {chunks:?} of list {list}");
            assert_eq!(usize::from(chunk.list), list, "the list of chunk {at}");
            all.push((at, chunk));
            at = links.next;
        }
        assert_eq!(tail, all.last().map_or(NIL, |(number, _)| *number), "the last of {chunks:?}");
        all
    }

    /// Checks the lists of chunks and the bits of each. Calls `of_young` for each young timer: with
    /// its list, its deadline and how many more looks begin before it is taken over. That is 0 if
    /// the present look takes it over.
    ///
    /// # Panics
    ///
    /// If an invariant does not hold, with a sentence and the values.
    pub(in crate::link::nursery) fn check_invariants(
        &self,
        mut of_young: impl FnMut(usize, u64, u64),
    ) {
        let (mut listed, mut roomy) = (0, 0);
        for spare in self.spare.into_iter().filter(|spare| *spare != NIL) {
            let chunk = self.chunk(chunk_of(spare));
            let is_used = (chunk.free | chunk.new | chunk.seen) & bit_of(spare) != 0;
            assert!(!is_used, "the spare slot {spare} is free, or has a timer");
            assert!(self.get(spare).carried.is_none(), "the spare slot {spare} is empty");
        }
        for list in 0..LISTS {
            for (number, chunk) in self.chunks_of(Chunks::Roomy, list) {
                assert!(chunk.is_roomy, "chunk {number} is listed");
                let is_first = self.of_list[list].roomy.head == number;
                assert!(is_first || chunk.free != 0, "chunk {number} is full, and not the first");
                roomy += usize::from(chunk.free != 0);
            }
            let young = self.chunks_of(Chunks::Young, list);
            let until = self.of_list[list].until;
            let unvisited = young.iter().position(|(number, _)| *number == until);
            assert_eq!(unvisited.is_none(), until == NIL, "the look ends with {until}");
            for (place, (number, chunk)) in young.iter().enumerate() {
                assert!(chunk.is_listed, "chunk {number} is listed");
                let visits = u64::from(unvisited.is_none_or(|last| place > last));
                for (at, slot) in chunk.slots.iter().enumerate() {
                    let is_in = |bits: u64| bits >> at & 1 == 1;
                    if is_in(chunk.new) || is_in(chunk.seen) {
                        of_young(list, slot.deadline, visits + u64::from(is_in(chunk.new)));
                    }
                }
            }
            listed += young.len();
        }
        let chunks = || self.chunks.iter().flatten();
        assert_eq!(listed, chunks().filter(|chunk| chunk.is_listed).count(), "listed chunks");
        assert_eq!(roomy, chunks().filter(|chunk| chunk.free != 0).count(), "chunks with room");
        assert!(chunks().all(|chunk| chunk.is_roomy || chunk.free == 0), "chunks with room");
        for chunk in chunks() {
            assert_eq!(chunk.new & chunk.seen, 0, "timers of two ages");
            assert_eq!((chunk.new | chunk.seen) & chunk.free, 0, "young timers in free places");
            assert!(chunk.is_listed || chunk.new | chunk.seen == 0, "young timers are not listed");
            for (at, slot) in chunk.slots.iter().enumerate() {
                let is_in = |bits: u64| bits >> at & 1 == 1;
                assert!(!is_in(chunk.free) || slot.carried.is_none(), "a free slot is empty");
                let is_young = is_in(chunk.new | chunk.seen);
                assert!(!is_young || slot.carried.is_some(), "a young timer carries nothing");
            }
        }
    }

    /// The slots of timers that were taken over and have not been freed.
    pub(in crate::link::nursery) fn old(&self) -> impl Iterator<Item = &Slot<W>> {
        let chunks = self.chunks.iter().enumerate();
        let chunks = chunks.filter_map(|(number, chunk)| Some((number, chunk.as_deref()?)));
        chunks.flat_map(move |(number, chunk)| {
            let slots = (number as u32 * CHUNK..).zip(&chunk.slots);
            let is_old = move |at| (chunk.free | chunk.new | chunk.seen) & bit_of(at) == 0;
            slots
                .filter(move |(at, _)| !self.spare.contains(at) && is_old(*at))
                .map(|(_, slot)| slot)
        })
    }
}

//! Lists through the slots of a shard, beside its slab: by index, in both directions.
//!
//! Why not lists in the slots themselves: they would grow for every timer, for the sake of those
//! that are in a list. Why not a list of nodes of its own: an index into the slab is an index here
//! too, and nothing is allocated for a member.
//!
//! All of it is zero at first. So the system hands it out untouched, and it costs memory only where
//! members have been, however large the shard is.
//!
//! Cost: 16 bytes a slot; joining and leaving write the member and its two neighbours.

/// A slot as a member of a list: the one before it, the one after it, and 64 bits of its own.
#[derive(Default)]
pub(super) struct Links(Vec<[u64; 2]>);

/// Where a list begins and ends, as indices and one; 0 is none.
#[derive(Clone, Copy, Default)]
pub(super) struct Ends {
    first: u32,
    last: u32,
}

impl Ends {
    /// The slot that has been in the list for the longest.
    pub(super) fn first(self) -> Option<u32> {
        self.first.checked_sub(1)
    }
}

impl Links {
    /// Makes room for every slot, once.
    pub(super) fn reserve(&mut self, capacity: usize) {
        if self.0.is_empty() {
            self.0 = vec![[0; 2]; capacity];
        }
    }

    /// What a slot was given with [`append`](Self::append); 0 if it is in no list.
    #[inline]
    pub(super) fn mark(&self, index: u32) -> u64 {
        self.0.get(index as usize).map_or(0, |link| link[1])
    }

    /// Puts a slot that is in no list at the end of one. Its mark must not be 0.
    pub(super) fn append(&mut self, ends: &mut Ends, index: u32, mark: u64) {
        debug_assert!(mark != 0 && self.mark(index) == 0, "slot {index} is in one list at most");
        let this = index + 1;
        self.0[index as usize] = [pack(ends.last, 0), mark];
        match ends.last.checked_sub(1) {
            Some(last) => self.set_next(last, this),
            None => ends.first = this,
        }
        ends.last = this;
    }

    /// Takes a slot out of the list that it is in.
    pub(super) fn remove(&mut self, ends: &mut Ends, index: u32) {
        let [around, mark] = std::mem::take(&mut self.0[index as usize]);
        debug_assert!(mark != 0, "slot {index} is in a list");
        let (previous, next) = (around as u32, (around >> 32) as u32);
        match previous.checked_sub(1) {
            Some(previous) => self.set_next(previous, next),
            None => ends.first = next,
        }
        match next.checked_sub(1) {
            Some(next) => {
                let link = &mut self.0[next as usize][0];
                *link = pack(previous, (*link >> 32) as u32);
            }
            None => ends.last = previous,
        }
    }

    fn set_next(&mut self, index: u32, next: u32) {
        let link = &mut self.0[index as usize][0];
        *link = pack(*link as u32, next);
    }
}

#[inline]
fn pack(previous: u32, next: u32) -> u64 {
    u64::from(previous) | u64::from(next) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    #[test]
    fn a_list_is_what_a_vector_would_be() {
        const SLOTS: usize = 32;
        let given = std::env::var("COREWHEEL_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| fastrand::u64(..));
        let mut rng = Rng::with_seed(seed);
        let mut links = Links::default();
        links.reserve(SLOTS);
        let mut lists = [Ends::default(); 3];
        let mut twins = [const { Vec::<u32>::new() }; 3];
        for _ in 0..10_000 {
            let index = rng.u32(..SLOTS as u32);
            match links.mark(index) {
                0 => {
                    let list = rng.usize(..lists.len());
                    links.append(&mut lists[list], index, list as u64 + 1);
                    twins[list].push(index);
                }
                mark => {
                    let list = mark as usize - 1;
                    links.remove(&mut lists[list], index);
                    twins[list].retain(|known| *known != index);
                }
            }
            for (list, twin) in lists.iter().zip(&twins) {
                assert_eq!(list.first(), twin.first().copied(), "seed {seed}");
            }
        }
        for (list, twin) in lists.iter_mut().zip(&twins) {
            let mut left = Vec::new();
            while let Some(first) = list.first() {
                links.remove(list, first);
                left.push(first);
            }
            assert_eq!(left, *twin, "seed {seed}");
        }
    }
}

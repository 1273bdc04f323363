//! Doubly linked lists of nodes that have an index, such as the entries of a slab.
//!
//! Why not a list that allocates its nodes: here the index of an entry is also that of its node, so
//! a node needs no allocation and leaves its list in O(1).
//!
//! Invariants: a node is in at most one list. The link of a node that is in no list is
//! [`Link::default`], which is zero, so a table of links can begin as zeroed memory.
//!
//! Cost: 8 bytes a node. Appending and removing write the node and its neighbours.

use slab::Slab;

/// The neighbours of a node in its list, each as its index plus 1; 0 if there is none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Link {
    previous: u32,
    next: u32,
}

impl Link {
    /// The index of the next node; `None` at the end of the list.
    #[inline]
    pub(crate) fn next(self) -> Option<u32> {
        self.next.checked_sub(1)
    }

    #[inline]
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.previous) | u64::from(self.next) << 32
    }

    #[inline]
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self { previous: bits as u32, next: (bits >> 32) as u32 }
    }
}

/// A table of the links of nodes.
pub(crate) trait Links {
    fn link(&self, index: u32) -> Link;
    fn set_link(&mut self, index: u32, link: Link);
}

/// A node that holds its own link.
pub(crate) trait Node {
    fn link(&self) -> Link;
    fn set_link(&mut self, link: Link);
}

impl<N: Node> Links for Slab<N> {
    #[inline]
    fn link(&self, index: u32) -> Link {
        self[index as usize].link()
    }

    #[inline]
    fn set_link(&mut self, index: u32, link: Link) {
        self[index as usize].set_link(link);
    }
}

/// The first and the last node of a list, each as its index plus 1; 0 if the list is empty.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct List {
    first: u32,
    last: u32,
}

impl List {
    /// The node that has been in the list for the longest time; `None` if the list is empty.
    #[inline]
    pub(crate) fn first(self) -> Option<u32> {
        self.first.checked_sub(1)
    }

    /// The node that was appended last; `None` if the list is empty.
    #[inline]
    pub(crate) fn last(self) -> Option<u32> {
        self.last.checked_sub(1)
    }

    /// Appends a node that is in no list.
    #[inline]
    pub(crate) fn append(&mut self, links: &mut impl Links, index: u32) {
        debug_assert!(links.link(index) == Link::default(), "node {index} is in one list at most");
        links.set_link(index, Link { previous: self.last, next: 0 });
        match self.last() {
            Some(last) => links.set_link(last, Link { next: index + 1, ..links.link(last) }),
            None => self.first = index + 1,
        }
        self.last = index + 1;
    }

    /// Removes a node that is in this list.
    #[inline]
    pub(crate) fn remove(&mut self, links: &mut impl Links, index: u32) {
        let Link { previous, next } = links.link(index);
        links.set_link(index, Link::default());
        match previous.checked_sub(1) {
            Some(before) => links.set_link(before, Link { next, ..links.link(before) }),
            None => self.first = next,
        }
        match next.checked_sub(1) {
            Some(after) => links.set_link(after, Link { previous, ..links.link(after) }),
            None => self.last = previous,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    const SLOTS: usize = 32;

    /// For each node its list, `None` if it is in none, and its link.
    struct Table([(Option<usize>, Link); SLOTS]);

    impl Links for Table {
        fn link(&self, index: u32) -> Link {
            self.0[index as usize].1
        }

        fn set_link(&mut self, index: u32, link: Link) {
            self.0[index as usize].1 = link;
        }
    }

    #[test]
    fn list_after_random_appends_and_removals_equals_a_vector() {
        let given = std::env::var("COREWHEEL_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| fastrand::u64(..));
        let mut rng = Rng::with_seed(seed);
        let mut links = Table([(None, Link::default()); SLOTS]);
        let mut lists = [List::default(); 3];
        let mut twins = [const { Vec::<u32>::new() }; 3];
        for _ in 0..10_000 {
            let index = rng.u32(..SLOTS as u32);
            match links.0[index as usize].0.take() {
                None => {
                    let list = rng.usize(..lists.len());
                    lists[list].append(&mut links, index);
                    links.0[index as usize].0 = Some(list);
                    twins[list].push(index);
                }
                Some(list) => {
                    lists[list].remove(&mut links, index);
                    twins[list].retain(|known| *known != index);
                }
            }
            for (list, twin) in lists.iter().zip(&twins) {
                assert_eq!(list.first(), twin.first().copied(), "seed {seed}");
                assert_eq!(list.last(), twin.last().copied(), "seed {seed}");
            }
        }
        for (list, twin) in lists.iter_mut().zip(&twins) {
            let mut left = Vec::new();
            while let Some(first) = list.first() {
                list.remove(&mut links, first);
                left.push(first);
            }
            assert_eq!(left, *twin, "seed {seed}");
        }
    }
}

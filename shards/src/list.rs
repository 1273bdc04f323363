//! Doubly linked lists of nodes that have an index, such as the entries of a slab.
//!
//! For containers whose values are in an order beside that of their deadlines: since when they have
//! been there, or which came first under a key.
//!
//! Why not a list that allocates its nodes: here the index of an entry is also that of its node, so
//! a node needs no allocation and leaves its list in O(1).
//!
//! Invariants: a node is in at most one list. The link of a node that is in no list is
//! [`Link::default`], which is zero, so a table of links can begin as zeroed memory.
//!
//! Cost: 8 bytes a node. Appending and removing write the node and its neighbours.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::IndexMut;

/// The neighbours of a node in its list, each as its index plus 1; 0 if there is none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Link {
    previous: u32,
    next: u32,
}

impl Link {
    /// The index of the next node; `None` at the end of the list.
    #[inline]
    pub fn next(self) -> Option<u32> {
        self.next.checked_sub(1)
    }

    /// Both neighbours in one number, 0 for a node that is in no list.
    #[inline]
    fn to_bits(self) -> u64 {
        u64::from(self.previous) | u64::from(self.next) << 32
    }

    /// The link of which [`to_bits`](Self::to_bits) has made this number.
    #[inline]
    fn from_bits(bits: u64) -> Self {
        Self { previous: bits as u32, next: (bits >> 32) as u32 }
    }
}

/// A table of the links of nodes. Vectors, slices and slabs of [nodes](Node) are such tables.
pub trait Links {
    /// The link of a node.
    fn link(&self, index: u32) -> Link;
    /// Replaces the link of a node.
    fn set_link(&mut self, index: u32, link: Link);
}

/// A node that holds its own link, [`Link::default`] at first.
pub trait Node {
    /// The link of this node.
    fn link(&self) -> Link;
    /// Replaces the link.
    fn set_link(&mut self, link: Link);
}

impl<S> Links for S
where
    S: IndexMut<usize> + ?Sized,
    S::Output: Node,
{
    #[inline]
    fn link(&self, index: u32) -> Link {
        self[index as usize].link()
    }

    #[inline]
    fn set_link(&mut self, index: u32, link: Link) {
        self[index as usize].set_link(link);
    }
}

/// A list of nodes that have an index: its first and its last node. The nodes lie in a table of the
/// caller's, which is an argument of each method that changes the list.
///
/// ```
/// use corewheel_shard::{Link, Links, List, Node};
///
/// struct Session(&'static str, Link);
///
/// impl Node for Session {
///     fn link(&self) -> Link {
///         self.1
///     }
///     fn set_link(&mut self, link: Link) {
///         self.1 = link;
///     }
/// }
///
/// let mut sessions = ["red", "green", "blue"].map(|name| Session(name, Link::default()));
/// let mut by_age = List::default();
/// (0..3).for_each(|index| by_age.append(&mut sessions[..], index));
/// // The first is used again, and the second ends.
/// by_age.remove(&mut sessions[..], 0);
/// by_age.append(&mut sessions[..], 0);
/// by_age.remove(&mut sessions[..], 1);
///
/// let oldest = by_age.first().expect("two are left");
/// assert_eq!((oldest, by_age.last()), (2, Some(0)));
/// // A slice of nodes is a table of links.
/// assert_eq!(Links::link(&sessions[..], 2).next(), Some(0));
/// assert_eq!(sessions[oldest as usize].0, "blue");
/// ```
///
/// Cost: 8 bytes a node. Each method is O(1).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct List {
    first: u32,
    last: u32,
}

impl List {
    /// The node that has been in the list for the longest time; `None` if the list is empty.
    #[inline]
    pub fn first(self) -> Option<u32> {
        self.first.checked_sub(1)
    }

    /// The node that was appended last; `None` if the list is empty.
    #[inline]
    pub fn last(self) -> Option<u32> {
        self.last.checked_sub(1)
    }

    /// Appends a node that is in no list.
    #[inline]
    pub fn append(&mut self, links: &mut (impl Links + ?Sized), index: u32) {
        debug_assert!(links.link(index) == Link::default(), "node {index} is in one list at most");
        links.set_link(index, Link { previous: self.last, next: 0 });
        match self.last() {
            Some(last) => links.set_link(last, Link { next: index + 1, ..links.link(last) }),
            None => self.first = index + 1,
        }
        self.last = index + 1;
    }

    /// Removes a node that is in this list. The caller answers for that: the node of another list
    /// would mix up both.
    #[inline]
    pub fn remove(&mut self, links: &mut (impl Links + ?Sized), index: u32) {
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

/// A table of links with a mark of 64 bits for each, for nodes of which few are in a list, or which
/// must not grow.
///
/// The table is zero at first. The system maps zeroed memory only when it is written, so the table
/// takes memory only for nodes that were in a list, however large it is.
///
/// ```
/// use corewheel_shard::{List, MarkedLinks};
///
/// // Since when three sessions have been there.
/// let (mut since, mut by_age) = (MarkedLinks::default(), List::default());
/// since.reserve(3);
/// for (index, seconds) in [(2, 7), (0, 8), (1, 9)] {
///     since.set_mark(index, seconds);
///     by_age.append(&mut since, index);
/// }
/// by_age.remove(&mut since, 2);
/// assert_eq!(by_age.first().map(|oldest| since.mark(oldest)), Some(8));
/// ```
///
/// Cost: 16 bytes a node.
#[derive(Default, Debug)]
pub struct MarkedLinks(Vec<[u64; 2]>);

impl MarkedLinks {
    /// Makes the table as large as `len` nodes at least. O(nodes), so `len` should double.
    #[inline]
    pub fn reserve(&mut self, len: usize) {
        if self.0.len() < len {
            self.grow(len);
        }
    }

    #[cold]
    fn grow(&mut self, len: usize) {
        let mut grown = vec![[0; 2]; len];
        grown[..self.0.len()].copy_from_slice(&self.0);
        self.0 = grown;
    }

    /// The mark of a node: 0 if none was set, also if the table has no such node yet.
    #[inline]
    pub fn mark(&self, index: u32) -> u64 {
        self.0.get(index as usize).map_or(0, |node| node[1])
    }

    /// Replaces the mark of a node.
    ///
    /// # Panics
    ///
    /// If the table has no such node.
    #[inline]
    pub fn set_mark(&mut self, index: u32, mark: u64) {
        self.0[index as usize][1] = mark;
    }
}

impl Links for MarkedLinks {
    #[inline]
    fn link(&self, index: u32) -> Link {
        Link::from_bits(self.0[index as usize][0])
    }

    #[inline]
    fn set_link(&mut self, index: u32, link: Link) {
        self.0[index as usize][0] = link.to_bits();
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use fastrand::Rng;

    const SLOTS: usize = 32;

    #[test]
    fn list_after_random_appends_and_removals_equals_a_vector() {
        let given = std::env::var("COREWHEEL_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| fastrand::u64(..));
        let mut rng = Rng::with_seed(seed);
        // The mark of a node is the number of its list from 1 on, or 0 if it is in none.
        let mut links = MarkedLinks::default();
        assert_eq!(links.mark(7), 0);
        let mut lists = [List::default(); 3];
        let mut twins = [const { Vec::<u32>::new() }; 3];
        for _ in 0..10_000 {
            let index = rng.u32(..SLOTS as u32);
            links.reserve(index as usize + 1);
            match (links.mark(index) as usize).checked_sub(1) {
                None => {
                    let list = rng.usize(..lists.len());
                    lists[list].append(&mut links, index);
                    links.set_mark(index, list as u64 + 1);
                    twins[list].push(index);
                }
                Some(list) => {
                    lists[list].remove(&mut links, index);
                    links.set_mark(index, 0);
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

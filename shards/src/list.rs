//! Doubly linked lists of nodes that have an index, such as the entries of a slab.
//!
//! For containers whose values are in an order beside that of their deadlines: since when they have
//! been there, or which came first under a key.
//!
//! Why not a list that allocates its nodes: here the index of an entry is also that of its node, so
//! a node needs no allocation and leaves its list in O(1).
//!
//! Invariants: a node is in at most one list. The link of a node that is in no list is `[0; 2]`, so
//! a table of nodes can begin as zeroed memory.
//!
//! Cost: 8 bytes a node. Appending and removing write the node and its neighbours.

use core::mem;

/// A list of nodes that have an index: its first and its last node.
///
/// The nodes lie in a table of the caller's. A node has a link: its neighbours in the list, each as
/// its index plus 1, or 0 if there is none. Each method that changes the list takes the table, and
/// a function that borrows the link of a node in it.
///
/// ```
/// use corewheel_shard::List;
///
/// type Session = (&'static str, [u32; 2]);
///
/// fn link(sessions: &mut [Session; 3], index: u32) -> &mut [u32; 2] {
///     &mut sessions[index as usize].1
/// }
///
/// let mut sessions = ["red", "green", "blue"].map(|name| (name, [0; 2]));
/// let mut by_age = List::default();
/// (0..3).for_each(|index| by_age.append(&mut sessions, link, index));
/// // The first is used again, and the second ends.
/// by_age.remove(&mut sessions, link, 0);
/// by_age.append(&mut sessions, link, 0);
/// by_age.remove(&mut sessions, link, 1);
///
/// let oldest = by_age.first().expect("two are left");
/// assert_eq!((oldest, by_age.last()), (2, Some(0)));
/// let (name, link) = sessions[oldest as usize];
/// assert_eq!((name, List::next(link)), ("blue", Some(0)));
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

    /// The node after the one with this link; `None` at the end of the list.
    #[inline]
    pub fn next(link: [u32; 2]) -> Option<u32> {
        link[1].checked_sub(1)
    }

    /// Appends a node that is in no list.
    #[inline]
    pub fn append<N: ?Sized>(
        &mut self,
        nodes: &mut N,
        link: impl Fn(&mut N, u32) -> &mut [u32; 2],
        index: u32,
    ) {
        let own = link(nodes, index);
        debug_assert!(*own == [0; 2], "node {index} is in one list at most");
        *own = [self.last, 0];
        match self.last() {
            Some(last) => link(nodes, last)[1] = index + 1,
            None => self.first = index + 1,
        }
        self.last = index + 1;
    }

    /// Removes a node that is in this list. The caller answers for that: the node of another list
    /// would mix up both.
    #[inline]
    pub fn remove<N: ?Sized>(
        &mut self,
        nodes: &mut N,
        link: impl Fn(&mut N, u32) -> &mut [u32; 2],
        index: u32,
    ) {
        let [previous, next] = mem::take(link(nodes, index));
        match previous.checked_sub(1) {
            Some(before) => link(nodes, before)[1] = next,
            None => self.first = next,
        }
        match next.checked_sub(1) {
            Some(after) => link(nodes, after)[0] = previous,
            None => self.last = previous,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use fastrand::Rng;
    use std::vec::Vec;

    /// Of each node its link, and the number of its list from 1 on, or 0 if it is in none.
    type Nodes = [([u32; 2], usize); 32];

    fn link(nodes: &mut Nodes, index: u32) -> &mut [u32; 2] {
        &mut nodes[index as usize].0
    }

    #[test]
    fn list_after_random_appends_and_removals_equals_a_vector() {
        let given = std::env::var("COREWHEEL_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| fastrand::u64(..));
        let mut rng = Rng::with_seed(seed);
        let mut nodes = Nodes::default();
        let mut lists = [List::default(); 3];
        let mut twins = [const { Vec::<u32>::new() }; 3];
        for _ in 0..10_000 {
            let index = rng.u32(..nodes.len() as u32);
            match nodes[index as usize].1.checked_sub(1) {
                None => {
                    let list = rng.usize(..lists.len());
                    lists[list].append(&mut nodes, link, index);
                    nodes[index as usize].1 = list + 1;
                    twins[list].push(index);
                }
                Some(list) => {
                    lists[list].remove(&mut nodes, link, index);
                    nodes[index as usize].1 = 0;
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
                list.remove(&mut nodes, link, first);
                left.push(first);
            }
            assert_eq!(left, *twin, "seed {seed}");
        }
    }
}

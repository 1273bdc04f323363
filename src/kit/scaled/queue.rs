//! Values in the order in which they came or were last moved, each with when that was.
//!
//! Whatever the timeouts of a class last at present, they last equally long, so this is also the
//! order in which they are due: no change of the scale changes it.
//!
//! Cost: 32 bytes and the value for each. Everything but draining is O(1).

use slab::Slab;

use crate::values::list;
use crate::values::list::{Link, List};

pub(super) struct Queue<V> {
    nodes: Slab<Node<V>>,
    list: List,
    /// How many have come.
    serial: u64,
    /// When the last one came or was moved, in nanoseconds.
    latest: u64,
}

struct Node<V> {
    value: V,
    serial: u64,
    /// In nanoseconds.
    start: u64,
    link: Link,
}

impl<V> list::Node for Node<V> {
    fn link(&self) -> Link {
        self.link
    }

    fn set_link(&mut self, link: Link) {
        self.link = link;
    }
}

impl<V> Queue<V> {
    pub(super) fn new() -> Self {
        Self { nodes: Slab::new(), list: List::default(), serial: 0, latest: 0 }
    }

    /// Adds a value at the end. What it is known by.
    pub(super) fn push(&mut self, value: V, now: u64) -> (u32, u64) {
        let serial = self.serial;
        self.serial += 1;
        let start = self.start(now);
        let node = Node { value, serial, start, link: Link::default() };
        let index = self.nodes.insert(node) as u32;
        self.list.append(&mut self.nodes, index);
        (index, serial)
    }

    /// Moves a value to the end. False if it is not there.
    pub(super) fn restart(&mut self, index: u32, serial: u64, now: u64) -> bool {
        if self.get(index, serial).is_none() {
            return false;
        }
        let start = self.start(now);
        self.list.remove(&mut self.nodes, index);
        self.nodes[index as usize].start = start;
        self.list.append(&mut self.nodes, index);
        true
    }

    pub(super) fn remove(&mut self, index: u32, serial: u64) -> Option<V> {
        self.get(index, serial)?;
        self.list.remove(&mut self.nodes, index);
        Some(self.nodes.remove(index as usize).value)
    }

    /// Takes the first one out. When it started, and the value.
    pub(super) fn pop(&mut self) -> Option<(u64, V)> {
        let index = self.list.first()?;
        self.list.remove(&mut self.nodes, index);
        let Node { start, value, .. } = self.nodes.remove(index as usize);
        Some((start, value))
    }

    /// All values, in no order.
    pub(super) fn into_values(self) -> impl Iterator<Item = V> {
        self.nodes.into_iter().map(|(_, node)| node.value)
    }

    /// When the first one started.
    #[inline]
    pub(super) fn first_start(&self) -> Option<u64> {
        self.list.first().map(|first| self.nodes[first as usize].start)
    }

    /// When it started.
    pub(super) fn get(&self, index: u32, serial: u64) -> Option<u64> {
        let node = self.nodes.get(index as usize).filter(|node| node.serial == serial)?;
        Some(node.start)
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Clocks go forward, but this is what the order rests on.
    fn start(&mut self, now: u64) -> u64 {
        self.latest = self.latest.max(now);
        self.latest
    }
}

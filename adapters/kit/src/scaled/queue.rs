//! Values in the order in which they came or were last restarted, each with the time of that, in
//! nanoseconds since an epoch of the caller's.
//!
//! All timeouts of a queue last equally long at any time, so this is also the order in which they
//! are due: no change of the scale changes it.
//!
//! Cost: 32 bytes and the value for each. Every method is O(1).

use corewheel_shard::{Link, List};
use slab::Slab;

pub(super) struct Queue<V> {
    nodes: Slab<Node<V>>,
    list: List,
    /// The serial of the next value.
    serial: u64,
    /// When a value last came or was restarted, in nanoseconds.
    latest: u64,
}

struct Node<V> {
    value: V,
    serial: u64,
    /// When it came or was last restarted, in nanoseconds.
    start: u64,
    link: Link,
}

impl<V> corewheel_shard::Node for Node<V> {
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

    /// Adds a value at the end. Returns its index and serial.
    pub(super) fn push(&mut self, value: V, now: u64) -> (u32, u64) {
        let serial = self.serial;
        self.serial += 1;
        let start = self.start(now);
        let node = Node { value, serial, start, link: Link::default() };
        let index = self.nodes.insert(node) as u32;
        self.list.append(&mut self.nodes, index);
        (index, serial)
    }

    /// Puts a value at the end. False if it is not in the queue.
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

    /// Takes a value out, with its start.
    pub(super) fn remove(&mut self, index: u32, serial: u64) -> Option<(u64, V)> {
        self.get(index, serial)?;
        self.list.remove(&mut self.nodes, index);
        let Node { start, value, .. } = self.nodes.remove(index as usize);
        Some((start, value))
    }

    /// Takes the first value out, with its start.
    pub(super) fn pop(&mut self) -> Option<(u64, V)> {
        let index = self.list.first()?;
        let serial = self.nodes[index as usize].serial;
        self.remove(index, serial)
    }

    /// All values with their starts, in no order.
    pub(super) fn into_values(self) -> impl Iterator<Item = (u64, V)> {
        self.nodes.into_iter().map(|(_, node)| (node.start, node.value))
    }

    /// The start of the first value.
    #[inline]
    pub(super) fn first_start(&self) -> Option<u64> {
        self.list.first().map(|first| self.nodes[first as usize].start)
    }

    /// The start of a value. `None` if it is not in the queue.
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

    /// The start of a value that comes `now`. Starts never decrease, whatever the clock does: the
    /// order of the queue rests on that.
    fn start(&mut self, now: u64) -> u64 {
        self.latest = self.latest.max(now);
        self.latest
    }
}

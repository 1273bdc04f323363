//! A binary heap with lazy deletion: a timer that is cancelled or reset leaves its entry in the
//! heap, to be dropped when it comes to the top, or all at once when they outnumber the live ones.
//!
//! Entries are 16 bytes and refer to a slab, so that a cancel needs no search. Dropping them all
//! at once costs O(n) in one operation, which a mean does not show.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::{Payload, Timers};

/// In this order: by deadline, then by arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    deadline: u64,
    /// Unique for 2³² schedules, which is more than a run makes.
    sequence: u32,
    index: u32,
}

struct Node {
    payload: Option<Payload>,
    /// Of the entry that counts.
    sequence: u32,
}

/// Names a timer by its slot, and the sequence of its entry.
type HeapHandle = (u32, u32);

/// Timers in a binary heap.
pub struct Heap {
    entries: BinaryHeap<Reverse<Entry>>,
    nodes: Vec<Node>,
    free: Vec<u32>,
    sequence: u32,
}

impl Timers for Heap {
    const NAME: &'static str = "binary heap";
    const FIFO: bool = true;
    type Handle = HeapHandle;

    fn with_capacity(capacity: usize) -> Self {
        let (entries, nodes) = (BinaryHeap::with_capacity(capacity), Vec::with_capacity(capacity));
        Self { entries, nodes, free: Vec::new(), sequence: 0 }
    }

    fn schedule(&mut self, deadline: u64, payload: Payload) -> HeapHandle {
        let index = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(Node { payload: None, sequence: 0 });
            self.nodes.len() as u32 - 1
        });
        self.nodes[index as usize].payload = Some(payload);
        self.file(index, deadline)
    }

    fn cancel(&mut self, handle: HeapHandle) -> Payload {
        let index = self.find(handle);
        self.vacate(index)
    }

    fn reset(&mut self, handle: HeapHandle, deadline: u64) -> HeapHandle {
        let index = self.find(handle);
        self.file(index, deadline)
    }

    fn advance(&mut self, now: u64, mut fired: impl FnMut(Payload)) {
        while let Some(Reverse(first)) = self.entries.peek().copied()
            && first.deadline <= now
        {
            self.entries.pop();
            if counts(&self.nodes, first) {
                fired(self.vacate(first.index));
            }
        }
    }

    fn next_deadline(&mut self) -> Option<u64> {
        while let Some(Reverse(first)) = self.entries.peek().copied() {
            if counts(&self.nodes, first) {
                return Some(first.deadline);
            }
            self.entries.pop();
        }
        None
    }

    fn pending(&self) -> usize {
        self.nodes.len() - self.free.len()
    }
}

impl Heap {
    fn find(&self, (index, sequence): HeapHandle) -> u32 {
        let node = &self.nodes[index as usize];
        assert_eq!(node.sequence, sequence, "the handle names this timer");
        index
    }

    fn file(&mut self, index: u32, deadline: u64) -> HeapHandle {
        if self.entries.len() > 2 * self.pending() + 512 {
            let nodes = &self.nodes;
            self.entries.retain(|Reverse(entry)| counts(nodes, *entry));
        }
        let sequence = self.sequence;
        self.sequence += 1;
        self.nodes[index as usize].sequence = sequence;
        self.entries.push(Reverse(Entry { deadline, sequence, index }));
        (index, sequence)
    }

    fn vacate(&mut self, index: u32) -> Payload {
        self.free.push(index);
        self.nodes[index as usize].payload.take().expect("it is pending")
    }
}

fn counts(nodes: &[Node], entry: Entry) -> bool {
    let node = &nodes[entry.index as usize];
    node.sequence == entry.sequence && node.payload.is_some()
}

//! Values in the order in which they came or were last restarted, each with the time of that.
//!
//! All timeouts of a queue last equally long at any time, so this is also the order in which they
//! are due: no change of the scale changes it.
//!
//! Cost: 32 bytes and the value for each. Every method is O(1).

use std::time::Duration;

use slab::Slab;

use super::ScaledTimeout;
use crate::ages::Ages;

pub(super) struct Queue<V> {
    /// The values with their serials.
    values: Slab<(u64, V)>,
    /// When each value came or was last restarted, by the handle's
    /// [`since_start`](corewheel::part::PartHandle::since_start).
    starts: Ages,
    /// The serial of the next value.
    serial: u64,
}

impl<V> Queue<V> {
    pub(super) fn new() -> Self {
        Self { values: Slab::new(), starts: Ages::default(), serial: 0 }
    }

    /// Adds a value at the end.
    pub(super) fn push(&mut self, value: V, now: Duration) -> ScaledTimeout {
        let serial = self.serial;
        self.serial += 1;
        let index = self.values.insert((serial, value)) as u32;
        self.starts.reserve(self.values.capacity());
        self.starts.begin(index, now);
        ScaledTimeout { serial, index }
    }

    /// Puts a value at the end. False if it is not in the queue.
    pub(super) fn restart(&mut self, timeout: ScaledTimeout, now: Duration) -> bool {
        let is_there = self.has(timeout);
        if is_there {
            self.starts.end(timeout.index);
            self.starts.begin(timeout.index, now);
        }
        is_there
    }

    /// Takes a value out.
    pub(super) fn remove(&mut self, timeout: ScaledTimeout) -> Option<V> {
        self.has(timeout).then(|| self.take(timeout.index).1)
    }

    /// Takes the first value out, with its start.
    pub(super) fn pop(&mut self) -> Option<(Duration, V)> {
        let first = self.starts.first()?;
        Some(self.take(first))
    }

    /// Takes all values out, in order.
    pub(super) fn drain(&mut self) -> Vec<V> {
        std::iter::from_fn(|| self.pop()).map(|(_, value)| value).collect()
    }

    fn take(&mut self, index: u32) -> (Duration, V) {
        let (_, value) = self.values.remove(index as usize);
        self.starts.end(index);
        (self.starts.since(index), value)
    }

    /// The start of the first value.
    #[inline]
    pub(super) fn first_start(&self) -> Option<Duration> {
        self.starts.oldest()
    }

    /// The start of a value. `None` if it is not in the queue.
    pub(super) fn get(&self, timeout: ScaledTimeout) -> Option<Duration> {
        self.has(timeout).then(|| self.starts.since(timeout.index))
    }

    fn has(&self, timeout: ScaledTimeout) -> bool {
        let value = self.values.get(timeout.index as usize);
        value.is_some_and(|(serial, _)| *serial == timeout.serial)
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

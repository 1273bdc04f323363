//! Values in the order in which they came or were last restarted, each with the time of that.
//!
//! All timeouts of a queue last equally long at any time, so this is also the order in which they
//! are due: no change of the scale changes it.
//!
//! Cost: 32 bytes and the value for each. Every method is O(1).

use std::time::Duration;

use corewheel_shard::List;
use slab::Slab;

use super::ScaledTimeout;
use crate::chains::Linked;

pub(super) struct Queue<V> {
    values: Slab<Linked<Started<V>>>,
    order: List,
    /// The latest start, in nanoseconds; a clock that goes back changes no order.
    latest: u64,
    /// The serial of the next value.
    serial: u64,
}

struct Started<V> {
    value: V,
    serial: u64,
    /// When it was started, in nanoseconds.
    start: u64,
}

impl<V> Queue<V> {
    pub(super) fn new() -> Self {
        Self { values: Slab::new(), order: List::default(), latest: 0, serial: 0 }
    }

    /// Adds a value at the end.
    pub(super) fn push(&mut self, value: V, now: Duration) -> ScaledTimeout {
        let (serial, start) = (self.serial, self.start(now));
        self.serial += 1;
        let started = Linked::new(Started { value, serial, start });
        let index = self.values.insert(started) as u32;
        self.order.append(&mut self.values, index);
        ScaledTimeout { serial, index }
    }

    /// Puts a value at the end. False if it is not in the queue.
    pub(super) fn restart(&mut self, timeout: ScaledTimeout, now: Duration) -> bool {
        let is_there = self.get(timeout).is_some();
        if is_there {
            self.order.remove(&mut self.values, timeout.index);
            self.values[timeout.index as usize].item.start = self.start(now);
            self.order.append(&mut self.values, timeout.index);
        }
        is_there
    }

    /// Takes a value out.
    pub(super) fn remove(&mut self, timeout: ScaledTimeout) -> Option<V> {
        self.get(timeout)?;
        Some(self.take(timeout.index))
    }

    /// Takes the first value out.
    pub(super) fn pop(&mut self) -> Option<V> {
        let first = self.order.first()?;
        Some(self.take(first))
    }

    fn take(&mut self, index: u32) -> V {
        self.order.remove(&mut self.values, index);
        self.values.remove(index as usize).item.value
    }

    fn start(&mut self, now: Duration) -> u64 {
        self.latest =
            self.latest.max(now.as_secs() * 1_000_000_000 + u64::from(now.subsec_nanos()));
        self.latest
    }

    /// The start of the first value.
    #[inline]
    pub(super) fn first(&self) -> Option<Duration> {
        let first = self.order.first()?;
        Some(Duration::from_nanos(self.values[first as usize].item.start))
    }

    /// The start of a value. `None` if it is not in the queue.
    pub(super) fn get(&self, timeout: ScaledTimeout) -> Option<Duration> {
        let known = &self.values.get(timeout.index as usize)?.item;
        (known.serial == timeout.serial).then(|| Duration::from_nanos(known.start))
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }
}

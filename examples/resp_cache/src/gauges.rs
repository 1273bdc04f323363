//! Numbers that one core writes and any thread reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number. A change of it needs no atomic addition, as only one thread makes changes.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicU64);

// Relaxed: no other data is read by these numbers.
impl Gauge {
    pub(crate) fn new(value: u64) -> Self {
        Self(value.into())
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, more: u64) {
        self.set(self.get().wrapping_add(more));
    }
}

/// The numbers of one core. On lines of their own, so that no two cores write to one line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Gauges {
    pub(crate) keys: Gauge,
    pub(crate) with_deadline: Gauge,
    pub(crate) memory: Gauge,
    pub(crate) expired: Gauge,
    pub(crate) evicted: Gauge,
    pub(crate) commands: Gauge,
    /// Clients of this core that have subscribed to something.
    pub(crate) subscribers: Gauge,
    /// The bytes of requests, replies and messages of clients.
    pub(crate) client_memory: Gauge,
    /// Clients that were ended as the clients took too much memory.
    pub(crate) clients_evicted: Gauge,
    /// Clients that were ended as too many messages waited for them.
    pub(crate) clients_slow: Gauge,
    /// Clients that were refused.
    pub(crate) clients_refused: Gauge,
    /// Messages for other cores that were dropped, as too many waited.
    pub(crate) dropped: Gauge,
}

//! Numbers that one core writes and any thread reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number. A change of it needs no atomic addition, as only one thread makes changes.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    value: AtomicU64,
    /// The value at the last reset, which any thread sets.
    at_reset: AtomicU64,
}

// Relaxed: no other data is read by these numbers.
impl Gauge {
    pub(crate) fn new(value: u64) -> Self {
        Self { value: value.into(), ..Self::default() }
    }

    pub(crate) fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, value: u64) {
        self.value.store(value, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, more: u64) {
        self.set(self.get().wrapping_add(more));
    }

    /// How much was added since the last reset.
    pub(crate) fn since_reset(&self) -> u64 {
        self.get().wrapping_sub(self.at_reset.load(Ordering::Relaxed))
    }

    fn reset(&self) {
        self.at_reset.store(self.get(), Ordering::Relaxed);
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

impl Gauges {
    /// Sets to zero what `INFO` shows as statistics.
    pub(crate) fn reset_stats(&self) {
        let Self { expired, evicted, commands, clients_evicted, clients_slow, .. } = self;
        let stats = [expired, evicted, commands, clients_evicted, clients_slow];
        let all = stats.into_iter().chain([&self.clients_refused, &self.dropped]);
        all.for_each(Gauge::reset);
    }
}

//! Numbers that one core writes and any thread reads.

use crossbeam_utils::atomic::AtomicCell;

pub(crate) type Gauge = AtomicCell<u64>;

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
    /// Messages for other cores that were dropped, as too many waited.
    pub(crate) dropped: Gauge,
}

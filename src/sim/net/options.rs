//! The settings of a simulated network.

use std::time::Duration;

/// See the methods of [`Net`](super::Net).
pub(super) struct Options {
    pub(super) send_buffer: usize,
    pub(super) receive_buffer: usize,
    pub(super) portion_max: usize,
    pub(super) latency_max: Duration,
    pub(super) segment: usize,
    pub(super) ack_delay: Duration,
    pub(super) not_sent_lowat: usize,
}

impl Options {
    /// The segments are those of a loopback device.
    pub(super) const DEFAULT: Self = Self {
        send_buffer: 65_536,
        receive_buffer: 65_536,
        portion_max: 0,
        latency_max: Duration::ZERO,
        segment: 65_483,
        ack_delay: Duration::ZERO,
        not_sent_lowat: 0,
    };
}

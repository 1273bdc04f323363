//! The settings of a simulated network and of its runtimes.

use std::time::Duration;

/// The settings of a [`Net`](super::Net).
///
/// ```
/// use corewheel::sim::net::NetOptions;
/// use std::time::Duration;
///
/// // A write is accepted in parts of up to 100 bytes, and bytes come up to 20 ms later.
/// let latency_max = Duration::from_millis(20);
/// let options = NetOptions { portion_max: 100, latency_max, ..NetOptions::default() };
/// assert_eq!(options.receive_buffer, 65_536);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetOptions {
    /// How many bytes the send buffer of a socket holds, at least 1. A byte stays in it until the
    /// peer has acknowledged it. A socket that was full is ready for a write when a third of them
    /// is free.
    pub send_buffer: usize,
    /// How many bytes the receive buffer of a socket holds, at least 1.
    pub receive_buffer: usize,
    /// The most bytes that one write accepts while there is room for more: each accepts a random
    /// part of it. 0 for no such limit.
    pub portion_max: usize,
    /// The longest way of a byte. Each connection has a random part of it, which it keeps. A reset
    /// comes at once.
    pub latency_max: Duration,
    /// How many bytes a segment has at most, at least 1. A receive buffer that was full gives a
    /// window when there is room for a segment, or for half of the buffer.
    pub segment: usize,
    /// For how long a socket keeps the acknowledgement of one segment back. It acknowledges more
    /// than a segment at once.
    pub ack_delay: Duration,
    /// A socket takes no byte while so many were accepted and not sent, and is ready for a write
    /// when there are less than half as many: `TCP_NOTSENT_LOWAT`. 0 for no such limit.
    pub not_sent_lowat: usize,
}

impl Default for NetOptions {
    /// 64 KiB for each buffer, no limit for a portion and no latency, and the segments of a
    /// loopback device, which are acknowledged at once.
    fn default() -> Self {
        Self {
            send_buffer: 65_536,
            receive_buffer: 65_536,
            portion_max: 0,
            latency_max: Duration::ZERO,
            segment: 65_483,
            ack_delay: Duration::ZERO,
            not_sent_lowat: 0,
        }
    }
}

/// The settings of a [`Runtime`](super::Runtime).
///
/// ```
/// use corewheel::sim::net::RuntimeOptions;
///
/// let options = RuntimeOptions { events_max: 2, ..RuntimeOptions::default() };
/// assert_eq!((options.workers, options.budget), (2, 128));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RuntimeOptions {
    /// How many threads run its tasks, at least 1. Each poll is on any of them.
    pub workers: usize,
    /// How many events one look at the sockets takes, at least 1.
    pub events_max: usize,
    /// How many reads and writes a task may do in one poll. Then its sockets say that they are not
    /// ready, and wake it.
    pub budget: u32,
    /// Whether other workers may run tasks while one is in a read. All of them are one thread of
    /// the test. So a server whose tasks read under a lock, as the two halves of
    /// `tokio::io::split` do, would wait for itself.
    pub reads_long: bool,
}

impl Default for RuntimeOptions {
    /// Two workers, and the numbers of tokio: 1,024 events, and a budget of 128. Reads are short.
    fn default() -> Self {
        Self { workers: 2, events_max: 1_024, budget: 128, reads_long: false }
    }
}

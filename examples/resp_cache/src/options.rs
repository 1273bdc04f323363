//! The command line.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use humantime::parse_duration;

use crate::notify::Flags;

/// A cache that speaks RESP2 and RESP3, with one thread for each core. Each key expires at its
/// time. It keeps nothing on disk.
#[derive(Parser, Clone, Debug)]
#[command(version)]
pub(crate) struct Options {
    /// The address for clients; port 0 takes a free port.
    #[arg(long, default_value = "127.0.0.1:6380", value_name = "ADDRESS")]
    pub(crate) listen: SocketAddr,

    /// The address of the statistics, over HTTP.
    #[arg(long, default_value = "127.0.0.1:9920", value_name = "ADDRESS")]
    pub(crate) stats: SocketAddr,

    /// What the cores run on: current-thread tokio runtimes, or glommio executors, which need
    /// `io_uring`.
    #[arg(long, default_value = "tokio", value_parser = ["tokio", "glommio"])]
    pub(crate) runtime: String,

    /// How many cores [default: all that the process may use].
    #[arg(long, value_name = "COUNT")]
    pub(crate) cores: Option<usize>,

    /// The most clients. Each core has timers for all of them.
    #[arg(long, default_value_t = 10_000, value_name = "COUNT")]
    #[arg(value_parser = RangedU64ValueParser::<u64>::new().range(1..=1 << 28))]
    pub(crate) clients_max: u64,

    /// A client that takes none of its replies for so long is disconnected; 0s is never. The system
    /// of a client that reads 10 kB/s may say nothing for 12 seconds.
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) write_timeout: Duration,

    /// The most bytes of requests, replies and messages of all clients, divided among the cores; 0
    /// is no limit. Beyond it, the clients that take the most are disconnected.
    #[arg(long, default_value_t = 1 << 30, value_name = "BYTES")]
    pub(crate) clients_memory_max: u64,

    /// The most bytes of events that wait for one subscriber; it is disconnected beyond.
    #[arg(long, default_value_t = 32 << 20, value_name = "BYTES")]
    pub(crate) output_max: usize,

    /// The most bytes of one request, and of one value.
    #[arg(long, default_value_t = 64 << 20, value_name = "BYTES")]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1 << 10..=512 << 20))]
    pub(crate) request_max: usize,

    /// The most bytes of keys, values and timers, divided among the cores; 0 is no limit. Beyond
    /// it, keys with a short time to live are evicted.
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    pub(crate) memory_max: u64,

    /// The most keys with a time to live on one core.
    #[arg(long, default_value_t = 1 << 22, value_name = "COUNT")]
    #[arg(value_parser = RangedU64ValueParser::<u32>::new().range(1..=1 << 29))]
    pub(crate) timers_max: u32,

    /// Which keyspace events are published, as redis names them: "Ex" for expired keys, "Exe" for
    /// evicted ones too.
    #[arg(long, default_value = "", value_name = "LETTERS", value_parser = Flags::parse)]
    pub(crate) notify_keyspace_events: Flags,
}

/// The timers that each core reserves beside those of keys and clients: for its housekeeping, and
/// for refusals of clients.
const TIMERS_RESERVED: u64 = 1 << 10;

impl Options {
    /// The timers of a core: those of keys, which keys cannot exceed, and those that the server
    /// needs to live.
    pub(crate) fn capacity(&self) -> u32 {
        let capacity = u64::from(self.timers_max) + self.clients_max + TIMERS_RESERVED;
        u32::try_from(capacity).expect("the ranges of the options leave it below 2³⁰")
    }
}

//! The proxy's command line.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use clap::{Args, Parser, ValueEnum};
use humantime::parse_duration;

/// An HTTP reverse proxy that gives each step of a request, and each connection, a time.
#[derive(Parser, Debug)]
#[command(name = "reverse_proxy", version)]
pub(crate) struct Options {
    /// The address for clients; port 0 takes a free port.
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    pub(crate) listen: SocketAddr,

    /// The server to which requests are forwarded.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) upstream: Option<SocketAddr>,

    /// Start a small upstream server in this process, and forward requests to it.
    #[arg(long, conflicts_with = "upstream")]
    pub(crate) demo_upstream: bool,

    /// The address of the statistics, over HTTP.
    #[arg(long, default_value = "127.0.0.1:9920", value_name = "ADDRESS")]
    pub(crate) stats: SocketAddr,

    /// Which threads serve the connections.
    #[arg(long, default_value = "multi-thread")]
    pub(crate) mode: Mode,

    /// The timers behind the timeouts.
    #[arg(long, default_value = "corewheel")]
    pub(crate) timer: TimerKind,

    /// How many threads serve connections [default: one for each cpu that the process may use].
    #[arg(long, value_name = "COUNT")]
    pub(crate) threads: Option<NonZeroUsize>,

    /// Accept HTTP/2 without TLS beside HTTP/1.1.
    #[arg(long)]
    pub(crate) h2c: bool,

    /// The kernel's send buffer of each connection of a client [default: the kernel's choice].
    #[arg(long, value_name = "BYTES")]
    pub(crate) send_buffer: Option<usize>,

    /// How long the requests in progress have at a shutdown. With corewheel's timers, the
    /// connections are told one after another in this time. The exit code is 3 if a request was
    /// cut.
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) drain: Duration,

    #[command(flatten)]
    pub(crate) limits: Limits,
}

/// The timeouts. Zero turns one off.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// A request's head must be complete this long after its first byte, and so must the preface
    /// of HTTP/2. With tokio's timers, hyper counts this time from the connection or the previous
    /// response.
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) header: Duration,

    /// The first byte must come this long after the connection [corewheel].
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) first_byte: Duration,

    /// The longest wait for the next bytes of the body of a request [corewheel].
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) read_idle: Duration,

    /// The longest wait for a client to take bytes of a response. The system of a client that reads
    /// 10 kB/s without a pause may say nothing for 12 seconds [corewheel].
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) write_stall: Duration,

    /// The most bytes that the system has for a client that reads slowly, beyond what it has sent;
    /// 0 for no limit [corewheel].
    #[arg(long, default_value_t = corewheel::conn::UNSENT_MAX, value_name = "BYTES")]
    pub(crate) unsent_max: u32,

    /// The longest wait for the next request of a connection, whatever an HTTP/2 client sends
    /// meanwhile [corewheel].
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) keep_alive: Duration,

    /// How long a client of HTTP/1 that has shut its side down is answered; zero takes that for its
    /// departure [corewheel].
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) half_close: Duration,

    /// The greatest age of a connection [corewheel].
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) max_age: Duration,

    /// Up to this much is added to each connection's greatest age, at random [corewheel].
    #[arg(long, default_value = "5m", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) max_age_jitter: Duration,

    /// How long the requests in progress have at the greatest age of their connection [corewheel].
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) max_age_grace: Duration,

    /// The least bytes in a second of the body of a request, while the proxy waits for it
    /// [corewheel].
    #[arg(long, default_value_t = 64, value_name = "BYTES")]
    pub(crate) read_rate: u64,

    /// The least bytes in a second that a client takes, while the proxy waits for it [corewheel].
    #[arg(long, default_value_t = 64, value_name = "BYTES")]
    pub(crate) write_rate: u64,

    /// How long a client may be slower than the least rates at first.
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) rate_grace: Duration,

    /// The time to connect to the upstream server.
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) connect: Duration,

    /// The time from the end of a request to the head of its response. With tokio's timers, it
    /// counts from the head of the request.
    #[arg(long, default_value = "20s", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) response: Duration,

    /// The longest wait for the upstream server to take the next bytes of a request, or to send the
    /// next bytes of a response [corewheel].
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) upstream_stall: Duration,

    /// How long an unused connection to the upstream server is kept.
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) upstream_idle: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub(crate) enum Mode {
    /// A multi-thread tokio runtime, with the timers beside it.
    MultiThread,
    /// A current-thread tokio runtime with a shard and a listener on each core.
    PerCore,
    /// No proxy: only the small upstream server, for tests and measurements.
    Upstream,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub(crate) enum TimerKind {
    /// All timeouts, by this crate.
    Corewheel,
    /// Those that hyper and `tokio::time` bring: head, connect, response, upstream idle.
    Tokio,
    /// No timeouts.
    None,
}

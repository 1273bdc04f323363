//! The command line.

use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Parser, ValueEnum};
use corewheel::Runtime;
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

    /// What the cores run on.
    #[arg(long, default_value = "tokio")]
    pub(crate) runtime: RuntimeChoice,

    /// How many cores [default: all that the process may use].
    #[arg(long, value_name = "COUNT")]
    pub(crate) cores: Option<usize>,

    /// The length of a tick of the timers: keys are removed late by up to one more.
    #[arg(long, default_value = "250us", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) tick: Duration,

    /// The most clients; 0 is no limit.
    #[arg(long, default_value_t = 10_000, value_name = "COUNT")]
    pub(crate) clients_max: u64,

    /// A client that sends nothing for so long is disconnected; 0s is never. Subscribers stay.
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) idle: Duration,

    /// A client that takes none of its replies for so long is disconnected; 0s is never.
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) write_timeout: Duration,

    /// The most bytes of messages that wait for one subscriber; it is disconnected beyond.
    #[arg(long, default_value_t = 32 << 20, value_name = "BYTES")]
    pub(crate) output_max: usize,

    /// The most bytes of one request, and of one value.
    #[arg(long, default_value_t = 64 << 20, value_name = "BYTES")]
    pub(crate) request_max: usize,

    /// The most bytes of keys, values and timers, divided among the cores; 0 is no limit. Beyond
    /// it, keys with a short time to live are evicted.
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    pub(crate) memory_max: u64,

    /// The most keys with a time to live on one core.
    #[arg(long, default_value_t = 1 << 22, value_name = "COUNT")]
    pub(crate) timers_max: u32,

    /// Which keyspace events are published, as redis names them: "Ex" for expired keys.
    #[arg(long, default_value = "", value_name = "LETTERS", value_parser = parse_flags)]
    pub(crate) notify_keyspace_events: Flags,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub(crate) enum RuntimeChoice {
    /// Current-thread tokio runtimes.
    Tokio,
    /// Glommio executors, which need `io_uring`.
    Glommio,
}

impl From<RuntimeChoice> for Runtime {
    fn from(choice: RuntimeChoice) -> Self {
        match choice {
            RuntimeChoice::Tokio => Self::Tokio,
            RuntimeChoice::Glommio => Self::Glommio,
        }
    }
}

/// Why the server did not run: one line, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) line: String,
}

impl Failure {
    /// An option is wrong.
    pub(crate) fn usage(line: impl Into<String>) -> Self {
        Self { code: 2, line: line.into() }
    }

    /// The host does not allow what the options ask for.
    pub(crate) fn host(line: impl fmt::Display) -> Self {
        Self { code: 1, line: line.to_string() }
    }
}

const REQUEST_MIN: usize = 1 << 10;
const REQUEST_MAX: usize = 512 << 20;

/// The options of this process; `None` if the command line asks for help only.
pub(crate) fn parse() -> Result<Option<Options>, Failure> {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
                // A closed standard output is no error.
                let _ = write!(io::stdout(), "{error}");
                return Ok(None);
            }
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            return Err(Failure::usage(line.trim_start_matches("error: ")));
        }
    };
    if !(REQUEST_MIN..=REQUEST_MAX).contains(&options.request_max) {
        return Err(Failure::usage(format!(
            "--request-max {}: it must be between {REQUEST_MIN} and {REQUEST_MAX}",
            options.request_max
        )));
    }
    if options.runtime == RuntimeChoice::Glommio && !cfg!(feature = "glommio") {
        return Err(Failure::usage("--runtime glommio: this build lacks the feature `glommio`"));
    }
    Ok(Some(options))
}

fn parse_flags(letters: &str) -> Result<Flags, String> {
    let refused = "use letters of g$xentdKEmolshzA, with K or E, as in \"Ex\"";
    Flags::parse(letters.as_bytes()).ok_or_else(|| refused.to_owned())
}

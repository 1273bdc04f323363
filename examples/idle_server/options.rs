//! The server's command line.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Parser, ValueEnum};
use corewheel::ConnLimits;
use humantime::parse_duration;

use crate::Failure;

/// A TCP echo server, one listener for each core, that closes idle and old connections.
#[derive(Parser, Debug)]
#[command(name = "idle_server", version)]
pub(crate) struct Options {
    /// The address for clients; port 0 takes a free port.
    #[arg(long, default_value = "127.0.0.1:7070", value_name = "ADDRESS")]
    pub(crate) listen: SocketAddr,

    /// The address of the statistics, over HTTP.
    #[arg(long, default_value = "127.0.0.1:9920", value_name = "ADDRESS")]
    pub(crate) stats: SocketAddr,

    /// Close a connection from which nothing was received for this long; 0 for never.
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = parse_duration)]
    read_idle: Duration,

    /// Send PING to a connection to which nothing was written for this long; 0 for never.
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = parse_duration)]
    heartbeat: Duration,

    /// Close a connection at this age, whatever it does; 0 for never.
    #[arg(long, default_value = "0", value_name = "TIME", value_parser = parse_duration)]
    max_age: Duration,

    /// How many shards [default: one for each cpu that the process may use].
    #[arg(long, value_name = "COUNT")]
    pub(crate) shards: Option<usize>,

    /// The length of a tick, 100us to 1s.
    #[arg(long, default_value = "1ms", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) tick: Duration,

    /// The runtime of the shards.
    #[arg(long, default_value = "auto")]
    pub(crate) runtime: Runtime,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
pub(crate) enum Runtime {
    /// Glommio where `io_uring` works, else tokio.
    Auto,
    Glommio,
    Tokio,
}

impl From<Runtime> for corewheel::Runtime {
    fn from(runtime: Runtime) -> Self {
        match runtime {
            Runtime::Auto => Self::GlommioOrTokio,
            Runtime::Glommio => Self::Glommio,
            Runtime::Tokio => Self::Tokio,
        }
    }
}

impl Options {
    pub(crate) fn limits(&self) -> ConnLimits {
        let limits = ConnLimits::default().read_idle(self.read_idle);
        limits.heartbeat(self.heartbeat).max_age(self.max_age)
    }
}

/// The options of this process; `None` if the command line asks for help only.
pub(crate) fn parse() -> Result<Option<Options>, Failure> {
    match Options::try_parse() {
        Ok(options) => Ok(Some(options)),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                // A closed standard output is no error.
                let _ = write!(io::stdout(), "{error}");
                Ok(None)
            }
            _ => Err(Failure::usage(one_line(&error.to_string()))),
        },
    }
}

/// The first line of clap's message, which names the option, without the general advice after it.
fn one_line(message: &str) -> String {
    let mut message = message.trim_start_matches("error: ");
    for advice in ["\n\nUsage:", "\n\nFor more information"] {
        message = message.split(advice).next().unwrap_or_default();
    }
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

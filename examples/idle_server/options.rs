//! The server's command line.

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use corewheel::ConnLimits;
use corewheel::conn::UNSENT_MAX;
use corewheel::host::Engine;
use corewheel_glommio::Runtime;
use humantime::parse_duration;
use lexopt::prelude::{Long, Short};

use crate::host::process::Failure;

const HELP: &str = "\
A TCP echo server, one listener for each core, that closes idle and old connections

Usage: idle_server [OPTIONS]

Options:
      --listen <ADDRESS>  The address for clients; port 0 takes a free port
                          [default: 127.0.0.1:7070]
      --stats <ADDRESS>   The address of the statistics, over HTTP [default: 127.0.0.1:9920]
      --read-idle <TIME>  Close a connection from which nothing was received for this long; 0 for
                          never [default: 30s]
      --heartbeat <TIME>  Send PING to a connection to which nothing was written for this long; 0
                          for never [default: 10s]
      --write-timeout <TIME>
                          Reset a connection whose client took nothing for this long of what it was
                          sent; 0 for never [default: 30s]
      --max-age <TIME>    Close a connection at this age, whatever it does; 0 for never
                          [default: 0]
      --drain <TIME>      At SIGTERM or SIGINT, end the connections one after another over this
                          long; those that still work on a request are cut then [default: 1s]
      --shards <COUNT>    How many shards [default: one for each cpu that the process may use]
      --tick <TIME>       The length of a tick, 100us to 1s [default: 1ms]
      --runtime <NAME>    The runtime of the shards: glommio, tokio, auto for glommio where
                          io_uring works, else tokio, or compio in a build with the feature of
                          this name [default: auto]
  -h, --help              Print this help
  -V, --version           Print the version
";

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) listen: SocketAddr,
    pub(crate) stats: SocketAddr,
    pub(crate) limits: ConnLimits,
    /// The window in which the connections end when the server does.
    pub(crate) drain: Duration,
    /// One for each cpu that the process may use if this is `None`.
    pub(crate) shards: Option<usize>,
    pub(crate) tick: Duration,
    pub(crate) runtime: Arc<dyn Engine>,
}

/// The options of this process; `None` if the command line asks for help only.
pub(crate) fn parse() -> Result<Option<Options>, Failure> {
    parse_from(lexopt::Parser::from_env()).map_err(|error| Failure::usage(one_line(&*error)))
}

fn parse_from(mut arguments: lexopt::Parser) -> Result<Option<Options>, Box<dyn Error>> {
    let mut options = Options {
        listen: SocketAddr::from(([127, 0, 0, 1], 7_070)),
        stats: SocketAddr::from(([127, 0, 0, 1], 9_920)),
        limits: ConnLimits::default(),
        drain: Duration::from_secs(1),
        shards: None,
        tick: Duration::from_millis(1),
        runtime: Arc::new(Runtime::GlommioOrTokio),
    };
    let mut read_idle = Duration::from_secs(30);
    let mut heartbeat = Duration::from_secs(10);
    let mut write_timeout = Duration::from_secs(30);
    let mut max_age = Duration::ZERO;
    let mut given = Vec::new();
    while let Some(argument) = arguments.next()? {
        let name = match argument {
            Short('h') | Long("help") => {
                print(HELP);
                return Ok(None);
            }
            Short('V') | Long("version") => {
                print(concat!("idle_server ", env!("CARGO_PKG_VERSION"), "\n"));
                return Ok(None);
            }
            Long(name) => name.to_owned(),
            other => return Err(other.unexpected().into()),
        };
        if given.contains(&name) {
            return Err(format!("'--{name}' is given twice; give it once").into());
        }
        let mut value = || arguments.value();
        match name.as_str() {
            "listen" => options.listen = parsed(&name, value()?, str::parse)?,
            "stats" => options.stats = parsed(&name, value()?, str::parse)?,
            "read-idle" => read_idle = parsed(&name, value()?, parse_duration)?,
            "heartbeat" => heartbeat = parsed(&name, value()?, parse_duration)?,
            "write-timeout" => write_timeout = parsed(&name, value()?, parse_duration)?,
            "max-age" => max_age = parsed(&name, value()?, parse_duration)?,
            "drain" => options.drain = parsed(&name, value()?, parse_duration)?,
            "shards" => options.shards = Some(parsed(&name, value()?, str::parse)?),
            "tick" => options.tick = parsed(&name, value()?, parse_duration)?,
            "runtime" => options.runtime = parsed(&name, value()?, runtime)?,
            _ => return Err(Long(&name).unexpected().into()),
        }
        given.push(name);
    }
    options.limits = options.limits.read_idle(read_idle).heartbeat(heartbeat).max_age(max_age);
    options.limits = options.limits.write_timeout(write_timeout).unsent_max(UNSENT_MAX);
    Ok(Some(options))
}

/// The value of an option. An error names the option and the value.
fn parsed<T, E: ToString>(
    option: &str,
    value: OsString,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<T, String> {
    let value = value.to_string_lossy();
    parse(&value)
        .map_err(|error| format!("invalid value '{value}' for '--{option}': {}", error.to_string()))
}

fn runtime(name: &str) -> Result<Arc<dyn Engine>, &'static str> {
    match name {
        "auto" => Ok(Arc::new(Runtime::GlommioOrTokio)),
        "glommio" => Ok(Arc::new(Runtime::Glommio)),
        "tokio" => Ok(Arc::new(Runtime::Tokio)),
        #[cfg(feature = "compio")]
        "compio" => Ok(Arc::new(corewheel_compio::Compio)),
        #[cfg(not(feature = "compio"))]
        "compio" => Err("build the server with `--features compio` for it"),
        _ => Err("possible values: auto, compio, glommio, tokio"),
    }
}

fn print(text: &str) {
    // A closed standard output is no error.
    let _ = write!(io::stdout(), "{text}");
}

/// The message with a space in place of each line break that a value has brought.
fn one_line(error: &dyn Error) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

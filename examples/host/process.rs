//! The process of a server: its exit code, its log, its signals and its limits.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use env_logger::Env;
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

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

/// The exit code of a server; a failure is printed first.
pub(crate) fn exit(name: &str, outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // A closed standard error leaves the exit code.
            let _ = writeln!(io::stderr(), "{name}: {}", failure.line);
            ExitCode::from(failure.code)
        }
    }
}

/// Starts the server, and returns it after the first signal, also if that came during the start.
pub(crate) fn run<R>(
    start: impl FnOnce() -> Result<R, Failure>,
    introduce: impl FnOnce(&R),
) -> Result<R, Failure> {
    log_to_stderr();
    let mut signals = listen_to_signals()
        .map_err(|error| Failure::host(format!("signals cannot be handled: {error}")))?;
    raise_file_limit();
    let running = start()?;
    introduce(&running);
    let signal = signals.forever().next();
    tracing::info!(signal, "shutting down");
    Ok(running)
}

/// Prints a line.
pub(crate) fn say(line: impl fmt::Display) {
    // A closed standard output must not end the server.
    let _ = writeln!(io::stdout(), "{line}");
}

/// Logs warnings, or what `RUST_LOG` asks for: a level, or a list like `warn,corewheel=debug`.
fn log_to_stderr() {
    let filter = Env::default().default_filter_or("warn");
    env_logger::Builder::from_env(filter).init();
}

/// The returned iterator gives the first SIGINT or SIGTERM. A second signal ends the process at
/// once, with the exit code that shells give to a process that the signal killed.
fn listen_to_signals() -> io::Result<Signals> {
    let again = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The signal's handler runs these two in this order.
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&again))?;
        flag::register(signal, Arc::clone(&again))?;
    }
    Signals::new([SIGINT, SIGTERM])
}

/// Raises the limit of open files, and so of connections, to the greatest that the host allows.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

//! The process of a server: its exit code, its log, its signals and its limits.

use std::fmt;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::thread;

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

/// An event that the main thread waits for.
#[derive(Debug)]
enum Event<R> {
    Started(Result<R, Failure>),
    Signal(Option<i32>),
}

/// Starts the server on a thread of its own, so that a signal ends the process also while the
/// server starts. No connection is open then. A server that has started is returned after the
/// first signal; `None` if that came before.
pub(crate) fn run<R: Send + 'static>(
    start: impl FnOnce() -> Result<R, Failure> + Send + 'static,
    introduce: impl FnOnce(&R),
) -> Result<Option<R>, Failure> {
    log_to_stderr();
    let mut signals = listen_to_signals()
        .map_err(|error| Failure::host(format!("signals cannot be handled: {error}")))?;
    raise_file_limit();
    let (sender, events) = mpsc::channel();
    let from_signals = sender.clone();
    // The receiver is gone when the process is about to end. Then neither message matters.
    let wait = move || drop(from_signals.send(Event::Signal(signals.forever().next())));
    let start = move || {
        let panicked = |_| Err(Failure::host("the thread that starts the server has panicked"));
        let started = catch_unwind(AssertUnwindSafe(start)).unwrap_or_else(panicked);
        drop(sender.send(Event::Started(started)));
    };
    spawn("signals", wait)?;
    spawn("start", start)?;
    let next = || events.recv().map_err(|_| Failure::host("no signal can come any more"));
    match next()? {
        Event::Signal(signal) => {
            tracing::info!(signal, "ended before it served");
            Ok(None)
        }
        Event::Started(running) => {
            let running = running?;
            introduce(&running);
            if let Event::Signal(signal) = next()? {
                tracing::info!(signal, "shutting down");
            }
            Ok(Some(running))
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(body);
    let failure = |error| Failure::host(format!("a thread cannot be started: {error}"));
    spawned.map(drop).map_err(failure)
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

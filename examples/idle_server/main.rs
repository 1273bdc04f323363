//! A TCP echo server with a listener on every core, whose connections are served and timed on the
//! core that accepted them.
//!
//! A connection is closed when nothing was received from it for `--read-idle`, is sent the line
//! `PING` when nothing was written to it for `--heartbeat`, and is closed at `--max-age`. The three
//! deadlines are one timer of the shard on its core, and each read or write is one store.
//!
//! ```text
//! cargo run --release -p idle_server -- --read-idle 5s --heartbeat 1s
//! nc 127.0.0.1 7070
//! ```
//!
//! Copy into a server of your own: [`connection`], which does not depend on the runtime, and either
//! `on_glommio` or `on_tokio`.

mod acceptor;
mod connection;
#[cfg(target_os = "linux")]
mod on_glommio;
mod on_tokio;
mod options;
mod ports;

use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::thread;

use corewheel::endpoint::StatsEndpoint;
use corewheel::stats::ShardCounts;
use corewheel::{Reply, ShardId, ShutdownPolicy, StartError, TimerService, Timers};
use env_logger::Env;
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use tokio::sync::watch;

use acceptor::Acceptor;
use options::Options;

/// Why the server did not run: one line, and the exit code.
#[derive(Debug)]
struct Failure {
    code: u8,
    line: String,
}

impl Failure {
    /// An option is wrong.
    fn usage(line: impl Into<String>) -> Self {
        Self { code: 2, line: line.into() }
    }

    /// The host does not allow what the options ask for.
    fn host(line: impl Into<String>) -> Self {
        Self { code: 1, line: line.into() }
    }
}

fn main() -> ExitCode {
    match options::parse().and_then(|options| options.map_or(Ok(()), run)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // A closed standard error leaves the exit code.
            let _ = writeln!(io::stderr(), "idle_server: {}", failure.line);
            ExitCode::from(failure.code)
        }
    }
}

/// A server that accepts connections.
#[derive(Debug)]
struct Running {
    service: TimerService,
    acceptors: Vec<Reply<()>>,
    endpoint: StatsEndpoint,
    address: SocketAddr,
    /// Its drop ends the acceptors, which close their listeners.
    stop: watch::Sender<()>,
}

/// An event that the main thread waits for.
#[derive(Debug)]
enum Event {
    Started(Result<Running, Failure>),
    Signal(Option<i32>),
}

/// Starts the server on a thread of its own, so that a signal ends the process also while the
/// server starts. No connection is open then.
fn run(options: Options) -> Result<(), Failure> {
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
        let started = catch_unwind(AssertUnwindSafe(|| start(&options))).unwrap_or_else(panicked);
        drop(sender.send(Event::Started(started)));
    };
    spawn("signals", wait)?;
    spawn("start", start)?;
    let next = || events.recv().map_err(|_| Failure::host("no signal can come any more"));
    match next()? {
        Event::Signal(signal) => {
            tracing::info!(signal, "ended before it served");
            Ok(())
        }
        Event::Started(running) => {
            let running = running?;
            running.introduce();
            if let Event::Signal(signal) = next()? {
                tracing::info!(signal, "shutting down");
            }
            running.shut_down()
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(body);
    let failure = |error| Failure::host(format!("a thread cannot be started: {error}"));
    spawned.map(drop).map_err(failure)
}

fn start(options: &Options) -> Result<Running, Failure> {
    let port = ports::reserve(options.listen).map_err(|e| busy("--listen", options.listen, &e))?;
    ports::check(options.stats).map_err(|e| busy("--stats", options.stats, &e))?;
    let address = port.address();
    let service = start_service(options)?;
    let (stop, stopped) = watch::channel(());
    let acceptors = start_acceptors(&service, options, address, &stopped)?;
    let endpoint = StatsEndpoint::builder(service.stats_source())
        .listen(options.stats)
        .start()
        .map_err(|error| Failure::host(format!("--stats: {error}")))?;
    Ok(Running { service, acceptors, endpoint, address, stop })
}

impl Running {
    /// Prints the addresses of the server.
    fn introduce(&self) {
        let (service, address) = (&self.service, self.address);
        let shards = self.acceptors.len();
        say(format_args!("listening on {address} (shards: {shards}, each with a listener)"));
        let runtime = service.stats().runtime;
        say(format_args!("runtime: {runtime} ({})", service.runtime_reason()));
        say(format_args!("statistics: http://{}/", self.endpoint.local_addr()));
        say(format_args!("try it: nc {} {}", reachable(address), address.port()));
    }

    fn shut_down(self) -> Result<(), Failure> {
        drop(self.stop);
        for acceptor in self.acceptors {
            // An acceptor whose shard has died has stopped too; the report below names the shard.
            let _ = acceptor.wait();
        }
        let report = self
            .service
            .shutdown(ShutdownPolicy::Return)
            .map_err(|error| Failure::host(error.to_string()))?;
        for shard in &report.shards {
            say(summary(shard.shard, &shard.counts));
        }
        self.endpoint.stop();
        match report.dead.as_slice() {
            [] => Ok(()),
            dead => Err(Failure::host(format!("these shards had died before: {dead:?}"))),
        }
    }
}

fn start_service(options: &Options) -> Result<TimerService, Failure> {
    let mut builder =
        TimerService::builder().name("idle_server").runtime(options.runtime).tick(options.tick);
    if let Some(shards) = options.shards {
        builder = builder.shards(shards);
    }
    builder.start().map_err(|error| match error {
        StartError::Config(error) => Failure::usage(format!("--{}: {error}", error.field())),
        error => Failure::host(error.to_string()),
    })
}

/// Starts an acceptor on each shard, and waits until all of them listen.
fn start_acceptors(
    service: &TimerService,
    options: &Options,
    address: SocketAddr,
    stopped: &watch::Receiver<()>,
) -> Result<Vec<Reply<()>>, Failure> {
    let (ready, listening) = mpsc::channel();
    let mut acceptors = Vec::new();
    for shard in service.shards() {
        let limits = options.limits;
        let (ready, stopped) = (ready.clone(), stopped.clone());
        let acceptor = Acceptor { address, limits, ready, stopped };
        let spawned = match service.runtime() {
            #[cfg(target_os = "linux")]
            Some(corewheel::Runtime::Glommio) => service.spawn_on(shard, move |timers: Timers| {
                acceptor.run::<glommio::net::TcpListener>(timers)
            }),
            _ => service.spawn_on(shard, move |timers: Timers| {
                acceptor.run::<tokio::net::TcpListener>(timers)
            }),
        };
        acceptors.push(spawned.map_err(|error| Failure::host(error.to_string()))?);
    }
    drop(ready);
    for _ in &acceptors {
        match listening.recv() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(busy("--listen", address, &error)),
            Err(_) => return Err(Failure::host("a shard ended before it could listen")),
        }
    }
    Ok(acceptors)
}

fn busy(option: &str, address: SocketAddr, error: &io::Error) -> Failure {
    Failure::host(format!("{option} {address}: {error}"))
}

/// The counts of a shard in a line. The last three add up to the first.
fn summary(shard: ShardId, counts: &ShardCounts) -> String {
    let scheduled = counts.scheduled_local + counts.scheduled_remote;
    let ShardCounts { fired, cancelled, returned, .. } = counts;
    format!(
        "shard {shard}: {scheduled} scheduled, {fired} fired, {cancelled} cancelled, {returned} \
         returned"
    )
}

/// A host name for clients; the listen address may stand for all addresses of the host.
fn reachable(address: SocketAddr) -> String {
    if address.ip().is_unspecified() { "localhost".to_owned() } else { address.ip().to_string() }
}

/// Prints a line.
fn say(line: impl fmt::Display) {
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

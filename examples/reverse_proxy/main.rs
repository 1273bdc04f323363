//! An HTTP reverse proxy in which each step of a request, and each connection, has a time.
//!
//! | timeout | by |
//! |---|---|
//! | first byte, head, stalled writes, least rate of writes, idle connections, age | `TimedIo` |
//! | each body: the next bytes from and to the client and the upstream server | `TimedHttp` |
//! | the response of the upstream server | `StreamControl::timeout`, until the stream was read |
//! | to connect to the upstream server | `Handle::timeout` |
//! | connections to the upstream server that no request uses | the timer of hyper's pool |
//!
//! A client that is too slow gets 408 where an answer is still possible, and a client of an
//! upstream server that is too slow gets 504. `--timer tokio` has what hyper and `tokio::time`
//! bring instead, and `--timer none` no timeouts, so that the three can be compared.
//!
//! ```text
//! cargo run --release --example reverse_proxy -- --demo-upstream
//! curl http://127.0.0.1:8080/
//! ```
//!
//! Copy into a server of your own: [`timers`], [`connection`] and [`connect`].

mod connect;
mod connection;
mod forward;
mod heads;
mod options;
mod preface;
mod server;
mod socket;
mod spawn;
mod timers;
mod upstream;

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use std::{fmt, thread};

use corewheel::stats::ShardCounts;
use corewheel::{Runtime, ShardId, ShutdownPolicy, StartError, TimerService};
use corewheel_stats::StatsEndpoint;
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use options::{Mode, Options, TimerKind};
use server::{CutRequest, Server, Shutdown};
use spawn::Spawner;
use timers::Timers;

/// How long the connections take to close their sockets after the drain.
const CLOSING_MAX: Duration = Duration::from_secs(5);

/// Why the proxy did not run: one line, and the exit code.
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

    fn address(option: &str, address: SocketAddr, error: &io::Error) -> Self {
        Self::host(format!("{option} {address}: {error}"))
    }
}

fn main() -> ExitCode {
    match options::parse().and_then(|options| options.map_or(Ok(()), run)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // A closed standard error leaves the exit code.
            let _ = writeln!(io::stderr(), "reverse_proxy: {}", failure.line);
            ExitCode::from(failure.code)
        }
    }
}

fn run(options: Options) -> Result<(), Failure> {
    log_to_stderr();
    let mut signals = listen_to_signals()
        .map_err(|error| Failure::host(format!("signals cannot be handled: {error}")))?;
    raise_file_limit();
    if options.mode == Mode::Upstream {
        let address = start_upstream(&options, options.listen, "--listen")?;
        say(format_args!("listening on {address} (upstream)"));
        signals.forever().next();
        return Ok(());
    }
    let proxy = Proxy::start(&options)?;
    proxy.introduce(&options);
    let signal = signals.forever().next();
    tracing::info!(signal, "shutting down");
    proxy.shut_down(&options)
}

/// A proxy that accepts connections.
#[derive(Debug)]
struct Proxy {
    service: TimerService,
    /// The runtime of the connections; `None` where each shard has its own.
    runtime: Option<tokio::runtime::Runtime>,
    endpoint: StatsEndpoint,
    address: SocketAddr,
    upstream: SocketAddr,
    /// Its drop begins the shutdown.
    begin_shutdown: watch::Sender<()>,
    /// Tells each request that is cut, and has lost all senders when no connection and no acceptor
    /// is left.
    open: mpsc::Receiver<CutRequest>,
}

impl Proxy {
    fn start(options: &Options) -> Result<Self, Failure> {
        let threads = options.threads.map_or_else(thread::available_parallelism, |threads| {
            threads.try_into().map_err(io::Error::other)
        });
        let threads = threads.map_err(|error| Failure::host(error.to_string()))?.get();
        let listeners = if options.mode == Mode::PerCore { threads } else { 1 };
        let (mut listeners, address) =
            server::listen(options.listen, listeners, options.send_buffer)
                .map_err(|error| Failure::address("--listen", options.listen, &error))?;
        let upstream = match (options.upstream, options.demo_upstream) {
            (Some(upstream), _) => upstream,
            (None, true) => {
                let address = (Ipv4Addr::LOCALHOST, 0).into();
                start_upstream(options, address, "--demo-upstream")?
            }
            (None, false) => {
                return Err(Failure::usage("--upstream or --demo-upstream is needed"));
            }
        };
        let service = start_service(options.mode, threads)?;
        let endpoint = StatsEndpoint::builder(service.stats_source())
            .listen(options.stats)
            .start()
            .map_err(|error| Failure::host(format!("--stats: {error}")))?;
        let (begin_shutdown, begun) = watch::channel(());
        let (opened, open) = mpsc::channel();
        let shutdown = Shutdown { begun, open: opened };
        let timers = Timers::new(options.timer, service.handle());
        let server = |spawner| {
            Server::new(options, upstream, timers, spawner)
                .map_err(|error| Failure::usage(format!("--upstream {upstream}: {error}")))
        };
        let mut runtime = None;
        if options.mode == Mode::PerCore {
            for (shard, listener) in service.shards().zip(listeners) {
                let (server, shutdown) = (server(Spawner::ThisThread)?, shutdown.clone());
                let run = move |_timers| server.run(listener, shutdown);
                let spawned = service.spawn_on(shard, run);
                // The acceptor needs no reply: its end shows as that of its `Shutdown`.
                drop(spawned.map_err(|error| Failure::host(error.to_string()))?);
            }
        } else {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            let started = builder.worker_threads(threads).enable_all().build();
            let started = started.map_err(|error| Failure::host(error.to_string()))?;
            let server = server(Spawner::AllThreads)?;
            started.spawn(server.run(listeners.remove(0), shutdown));
            runtime = Some(started);
        }
        Ok(Self { service, runtime, endpoint, address, upstream, begin_shutdown, open })
    }

    /// Prints the addresses of the proxy.
    fn introduce(&self, options: &Options) {
        let (mode, timer) = (options.mode, options.timer);
        say(format_args!("listening on {} ({mode:?}, {timer:?})", self.address));
        say(format_args!("upstream: {}", self.upstream));
        say(format_args!("statistics: http://{}/", self.endpoint.local_addr()));
        say(format_args!("try it: curl http://{}/", self.address));
    }

    /// Drains the connections, cuts off those that are left, and then ends the timers. An error
    /// with a code of its own if a request was cut.
    fn shut_down(self, options: &Options) -> Result<(), Failure> {
        drop(self.begin_shutdown);
        self.service.drain(options.drain);
        // The drain of the service cuts no connection of other timers.
        let closing =
            if options.timer == TimerKind::Corewheel { CLOSING_MAX } else { Duration::ZERO };
        let end = Instant::now() + options.drain + closing;
        let mut cut = 0;
        let is_open = loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.open.recv_timeout(left) {
                Ok(CutRequest) => cut += 1,
                Err(error) => break error == mpsc::RecvTimeoutError::Timeout,
            }
        };
        if is_open {
            tracing::warn!(after = ?options.drain, "connections that are still open are cut off");
        }
        drop(self.runtime);
        let report = self
            .service
            .shutdown(ShutdownPolicy::Drop)
            .map_err(|error| Failure::host(error.to_string()))?;
        for shard in &report.shards {
            say(summary(shard.shard, &shard.counts));
        }
        self.endpoint.stop();
        match report.dead.as_slice() {
            [] if cut > 0 => {
                let line = format!("requests that were cut at the end of the drain: {cut}");
                Err(Failure { code: 3, line })
            }
            [] if is_open => {
                let line = "connections were open at the end of the drain, and cut off".to_owned();
                Err(Failure { code: 3, line })
            }
            [] => Ok(()),
            dead => Err(Failure::host(format!("these shards had died before: {dead:?}"))),
        }
    }
}

fn start_upstream(
    options: &Options,
    address: SocketAddr,
    option: &str,
) -> Result<SocketAddr, Failure> {
    let failure = |error| Failure::address(option, address, &error);
    let listening = server::listen(address, 1, options.send_buffer);
    let (mut listeners, _) = listening.map_err(failure)?;
    upstream::start(listeners.remove(0)).map_err(failure)
}

/// The timer service: a shard on each core that serves, or a thread beside the runtime.
fn start_service(mode: Mode, threads: usize) -> Result<TimerService, Failure> {
    let builder = match mode {
        Mode::PerCore => TimerService::builder().shards(threads).runtime(Runtime::Tokio),
        Mode::MultiThread | Mode::Upstream => TimerService::beside_runtime(),
    };
    let builder = builder.name("proxy");
    let started = builder.classes([timers::CONNECTION, timers::UPSTREAM]).start();
    started.map_err(|error| match error {
        StartError::Config(error) => Failure::usage(error.to_string()),
        error => Failure::host(error.to_string()),
    })
}

/// The counts of a shard in a line. The last three add up to the first.
fn summary(shard: ShardId, counts: &ShardCounts) -> String {
    let scheduled = counts.scheduled_local + counts.scheduled_remote;
    let ShardCounts { fired, cancelled, dropped, .. } = counts;
    format!(
        "shard {shard}: {scheduled} scheduled, {fired} fired, {cancelled} cancelled, {dropped} \
         dropped"
    )
}

/// Prints a line.
fn say(line: impl fmt::Display) {
    // A closed standard output must not end the proxy.
    let _ = writeln!(io::stdout(), "{line}");
}

/// Logs warnings, or what `RUST_LOG` asks for.
fn log_to_stderr() {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into());
    tracing_subscriber::fmt()
        .with_env_filter(filter.from_env_lossy())
        .with_writer(io::stderr)
        .init();
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

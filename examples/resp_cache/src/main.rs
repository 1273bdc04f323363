//! A cache that speaks RESP2 and RESP3, with one thread for each core, whose keys expire when they
//! should.
//!
//! ```text
//! cargo run --release -p corewheel-resp-cache -- --notify-keyspace-events Ex
//! redis-cli -p 6380 set greeting hello px 1500
//! ```
//!
//! Each key lives on one core, in state that only the core's thread touches, with a timer of the
//! core's shard. The timer removes the key within some milliseconds of its deadline; until then, an
//! access finds that the deadline has passed, and the key is not answered. It keeps nothing on disk
//! and is no replacement for redis.
//!
//! From the bottom up: [`protocol`], [`keyspace`], [`commands`], [`core`], [`session`],
//! [`connection`], [`acceptor`], and this.

mod acceptor;
mod commands;
mod config;
mod connection;
mod core;
mod gauges;
mod glob;
mod keyspace;
mod notify;
#[cfg(all(feature = "glommio", target_os = "linux"))]
mod on_glommio;
mod on_tokio;
mod options;
mod protocol;
mod pubsub;
mod remote;
mod session;
mod wall;

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use corewheel::endpoint::StatsEndpoint;
use corewheel::settings::TurnBudget;
use corewheel::{Fired, Reply, ShutdownPolicy, StartError, TimerService, Timers};
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::acceptor::Acceptor;
use crate::core::{Core, Inboxes, Shared};
use crate::options::{Failure, Options};

/// It gives memory back when keys have expired, and takes no header for each value.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The keys that one turn of a shard removes. Many may be due at one instant, and their events are
/// sent when the turn has ended.
const EXPIRED_MAX: u32 = 1 << 10;

fn main() -> ExitCode {
    match options::parse().and_then(|options| options.map_or(Ok(()), run)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // A closed standard error leaves the exit code.
            let _ = writeln!(io::stderr(), "resp_cache: {}", failure.line);
            ExitCode::from(failure.code)
        }
    }
}

fn run(options: Options) -> Result<(), Failure> {
    log_to_stderr();
    let mut signals = listen_to_signals()
        .map_err(|error| Failure::host(format!("signals cannot be handled: {error}")))?;
    raise_file_limit();
    let running = start(options)?;
    running.introduce();
    let signal = signals.forever().next();
    tracing::info!(signal, "shutting down");
    running.shut_down()
}

/// A server that accepts clients.
#[derive(Debug)]
struct Running {
    service: TimerService<u32>,
    acceptors: Vec<Reply<()>>,
    endpoint: StatsEndpoint,
    address: SocketAddr,
    /// Its drop ends the acceptors, which close their listeners.
    stop: watch::Sender<()>,
}

fn start(options: Options) -> Result<Running, Failure> {
    let listen = options.listen;
    let (address, _reserved) = reserve(listen).map_err(|e| busy("--listen", listen, &e))?;
    let stats = options.stats;
    let mut builder = TimerService::builder()
        .name("resp_cache")
        .runtime(options.runtime.into())
        .tick(options.tick)
        .budget(TurnBudget { expired_max: EXPIRED_MAX, ..TurnBudget::default() })
        .capacity(options.timers_max);
    let cores = match options.cores {
        Some(cores) => cores,
        None => std::thread::available_parallelism().map_err(Failure::host)?.get(),
    };
    builder = builder.shards(cores);
    let (shared, inboxes) = Shared::new(options, cores);
    let shared = Arc::new(shared);
    let service = builder
        .start_with(move |shard| {
            let core = Core::open(shard, &shared);
            move |fired: Fired<u32>, timers: &Timers<u32>| core.fired(timers, &fired)
        })
        .map_err(refused)?;
    let (stop, stopped) = watch::channel(());
    let acceptors = start_acceptors(&service, inboxes, address, &stopped)?;
    let endpoint = StatsEndpoint::builder(service.stats_source())
        .listen(stats)
        .start()
        .map_err(|error| Failure::host(format!("--stats: {error}")))?;
    Ok(Running { service, acceptors, endpoint, address, stop })
}

fn refused(error: StartError) -> Failure {
    let StartError::Config(error) = error else { return Failure::host(error) };
    let option = match error.field() {
        "shards" => "cores",
        "capacity" => "timers-max",
        field => field,
    };
    Failure::usage(format!("--{option}: {error}"))
}

/// A port that no other server listens on, and that the cores' listeners can share.
fn reserve(address: SocketAddr) -> io::Result<(SocketAddr, Socket)> {
    const ANSWER_MAX: Duration = Duration::from_secs(1);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    let address = socket.local_addr()?.as_socket().unwrap_or(address);
    // Another server of the same user would silently share the clients. Its listener answers.
    if TcpStream::connect_timeout(&address, ANSWER_MAX).is_ok() {
        return Err(ErrorKind::AddrInUse.into());
    }
    Ok((address, socket))
}

/// Starts an acceptor on each core, and waits until all of them listen.
fn start_acceptors(
    service: &TimerService<u32>,
    inboxes: Inboxes,
    address: SocketAddr,
    stopped: &watch::Receiver<()>,
) -> Result<Vec<Reply<()>>, Failure> {
    let (ready, listening) = mpsc::channel();
    let mut acceptors = Vec::new();
    for (shard, inbox) in service.shards().zip(inboxes) {
        let (ready, stopped) = (ready.clone(), stopped.clone());
        let acceptor = Acceptor { address, inbox, ready, stopped };
        let spawned = match service.runtime() {
            #[cfg(all(feature = "glommio", target_os = "linux"))]
            Some(corewheel::Runtime::Glommio) => {
                service.spawn_on(shard, |timers| acceptor.run::<glommio::net::TcpListener>(timers))
            }
            _ => service.spawn_on(shard, |timers| acceptor.run::<tokio::net::TcpListener>(timers)),
        };
        acceptors.push(spawned.map_err(Failure::host)?);
    }
    drop(ready);
    for _ in &acceptors {
        match listening.recv() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(busy("--listen", address, &error)),
            Err(_) => return Err(Failure::host("a core ended before it could listen")),
        }
    }
    Ok(acceptors)
}

impl Running {
    /// Prints the addresses of the server.
    fn introduce(&self) {
        let cores = self.acceptors.len();
        say(format_args!("listening on {} (cores: {cores})", self.address));
        say(format_args!("runtime: {}", self.service.stats().runtime));
        say(format_args!("statistics: http://{}/", self.endpoint.local_addr()));
    }

    fn shut_down(self) -> Result<(), Failure> {
        drop(self.stop);
        for acceptor in self.acceptors {
            // An acceptor whose shard has died has stopped too; the report below names the shard.
            let _ = acceptor.wait();
        }
        let report = self.service.shutdown(ShutdownPolicy::Drop).map_err(Failure::host)?;
        self.endpoint.stop();
        match report.dead.as_slice() {
            [] => Ok(()),
            dead => Err(Failure::host(format!("these shards had died before: {dead:?}"))),
        }
    }
}

fn busy(option: &str, address: SocketAddr, error: &io::Error) -> Failure {
    Failure::host(format!("{option} {address}: {error}"))
}

/// Prints a line.
fn say(line: impl fmt::Display) {
    // A closed standard output must not end the server.
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

/// Raises the limit of open files, and so of clients, to the greatest that the host allows.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

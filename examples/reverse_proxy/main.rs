//! An HTTP reverse proxy in which each step of a request, and each connection, has a time.
//!
//! | timeout | by |
//! |---|---|
//! | first byte, head, stalled writes, idle connections, age, bodies | [`Server`] |
//! | the response of the upstream server | `StreamControl::timeout`, until the stream was read |
//! | to connect to the upstream server | `TimedConnector` |
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
//! To try: send half of a head by `nc 127.0.0.1 8080`, and wait ten seconds for the `408`.
//!
//! [`Server`]: corewheel_http::server::Server

mod begun;
mod forward;
mod heads;
mod options;
#[path = "../host/process.rs"]
mod process;
mod serve;
mod upstream;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use corewheel::class::TimerClass;
use corewheel::stats::ShardCounts;
use corewheel::{Runtime, ShutdownPolicy, TimerService};
use corewheel_stats::StatsEndpoint;
use tokio::sync::watch;

use options::{Mode, Options, TimerKind};
use process::{Failure, say};
use serve::{Acceptor, Shutdown, listen};

/// The deadlines of connections and of their bodies.
const CONNECTION: TimerClass = TimerClass::new("connection");
/// Times for the upstream server: to connect, and of unused connections.
const UPSTREAM: TimerClass = TimerClass::new("upstream");
/// How long the connections take to close their sockets after the drain.
const CLOSING_MAX: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    process::exit("reverse_proxy", run(&Options::parse()))
}

fn run(options: &Options) -> Result<(), Failure> {
    if options.mode == Mode::Upstream {
        let start = || start_upstream(options, options.listen, "--listen");
        let introduce = |address: &_| say(format_args!("listening on {address} (upstream)"));
        return process::run(start, introduce).map(drop);
    }
    process::run(|| Proxy::start(options), |_| ())?.shut_down(options)
}

/// A proxy that accepts connections.
struct Proxy {
    service: TimerService,
    /// The runtime of the connections; `None` where each shard has its own.
    runtime: Option<tokio::runtime::Runtime>,
    endpoint: StatsEndpoint,
    /// Its drop begins the shutdown.
    begin_shutdown: watch::Sender<()>,
    /// Tells each request that is cut, and has lost all senders when no connection and no acceptor
    /// is left.
    open: mpsc::Receiver<()>,
}

impl Proxy {
    /// Starts the proxy, and prints its addresses.
    fn start(options: &Options) -> Result<Self, Failure> {
        let threads = options.threads.map_or_else(thread::available_parallelism, Ok);
        let (threads, mode) = (threads.map_err(Failure::host)?.get(), options.mode);
        let count = if mode == Mode::PerCore { threads } else { 1 };
        let (mut listeners, address) =
            listen(options, options.listen, count).map_err(in_use("--listen", options.listen))?;
        let upstream = match options.upstream {
            Some(upstream) => upstream,
            None if options.demo_upstream => {
                start_upstream(options, (Ipv4Addr::LOCALHOST, 0).into(), "--demo-upstream")?
            }
            None => return Err(Failure::usage("--upstream or --demo-upstream is needed")),
        };
        // A shard on each core that serves, or a thread beside the runtime.
        let service = match mode {
            Mode::PerCore => TimerService::builder().shards(threads).runtime(Runtime::Tokio),
            Mode::MultiThread | Mode::Upstream => TimerService::beside_runtime(),
        };
        let service = service.name("proxy").classes([CONNECTION, UPSTREAM]).start();
        let service = service.map_err(Failure::host)?;
        let endpoint = StatsEndpoint::start(service.stats_source(), options.stats);
        let endpoint = endpoint.map_err(|error| Failure::host(format_args!("--stats: {error}")))?;
        let (begin_shutdown, begun) = watch::channel(());
        let (opened, open) = mpsc::channel();
        let shutdown = Shutdown { begun, open: opened };
        let of_class = |class| service.handle().of_class(class).expect("the service has the class");
        let timers = [CONNECTION, UPSTREAM].map(of_class);
        let mut runtime = None;
        if mode == Mode::PerCore {
            for (shard, listener) in service.shards().zip(listeners) {
                let acceptor = Acceptor::new(options, upstream, timers);
                let shutdown = shutdown.clone();
                let run = move |_timers| acceptor.run(listener, shutdown);
                // The acceptor needs no reply: its end shows as that of its `Shutdown`.
                drop(service.spawn_on(shard, run).map_err(Failure::host)?);
            }
        } else {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            let started =
                builder.worker_threads(threads).enable_all().build().map_err(Failure::host)?;
            let acceptor = Acceptor::new(options, upstream, timers);
            started.spawn(acceptor.run(listeners.remove(0), shutdown));
            runtime = Some(started);
        }
        say(format_args!("listening on {address} ({mode:?}, {:?})", options.timer));
        say(format_args!("upstream: {upstream}"));
        say(format_args!("statistics: http://{}/", endpoint.local_addr()));
        say(format_args!("try it: curl http://{address}/"));
        Ok(Self { service, runtime, endpoint, begin_shutdown, open })
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
            match self.open.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(()) => cut += 1,
                Err(error) => break error == mpsc::RecvTimeoutError::Timeout,
            }
        };
        drop(self.runtime);
        let report = self.service.shutdown(ShutdownPolicy::Drop).map_err(Failure::host)?;
        for shard in &report.shards {
            let ShardCounts { fired, cancelled, dropped, .. } = shard.counts;
            let scheduled = shard.counts.scheduled_local + shard.counts.scheduled_remote;
            // The last three add up to the first.
            let ended = format!("{fired} fired, {cancelled} cancelled, {dropped} dropped");
            say(format_args!("shard {}: {scheduled} scheduled, {ended}", shard.shard));
        }
        drop(self.endpoint);
        if !report.dead.is_empty() {
            return Err(Failure::host(format_args!("shards had died before: {:?}", report.dead)));
        }
        let line = match (cut, is_open) {
            (0, false) => return Ok(()),
            (0, true) => "connections were open at the end of the drain, and cut off".to_owned(),
            _ => format!("requests that were cut at the end of the drain: {cut}"),
        };
        Err(Failure { code: 3, line })
    }
}

fn start_upstream(options: &Options, at: SocketAddr, option: &str) -> Result<SocketAddr, Failure> {
    let (mut listeners, _) = listen(options, at, 1).map_err(in_use(option, at))?;
    upstream::start(listeners.remove(0)).map_err(Failure::host)
}

/// The failure of a listener.
fn in_use(option: &str, address: SocketAddr) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::host(format_args!("{option} {address}: {error}"))
}

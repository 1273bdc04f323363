//! A TCP echo server with a listener on every core, whose connections are served and timed on the
//! core that accepted them.
//!
//! A connection is closed when nothing was received from it for `--read-idle`, is sent the line
//! `PING` when nothing was written to it for `--heartbeat`, and is closed at `--max-age`. The three
//! deadlines are one timer of the shard on its core, and each read or write is one store.
//!
//! At SIGTERM or SIGINT the server accepts no more, and its connections end one after another
//! within `--drain`, each when it has answered its request. The exit code is 3 if a request was
//! cut.
//!
//! ```text
//! cargo run --release -p idle_server -- --read-idle 5s --heartbeat 1s
//! nc 127.0.0.1 7070
//! ```
//!
//! To try: say nothing, and see a `PING` each second, and the close after five.
//!
//! Copy into a server of your own: [`connection`], which does not depend on the runtime, and of the
//! folder `host`, which the example servers share, the part that you need.

mod connection;
#[path = "../host/mod.rs"]
mod host;
mod options;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use corewheel::stats::ShardCounts;
use corewheel::{ConnLimits, ShardId, ShutdownPolicy, StartError, TimerService, Timers};
use tokio::sync::watch;

use connection::{Cut, End};
use host::acceptor::Site;
use host::network::Network;
use host::process::{self, Failure, say};
use host::server::{Addresses, Running};
use options::Options;

/// How long the connections take to close their sockets after the drain.
const CLOSING_MAX: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    process::exit("idle_server", options::parse().and_then(|options| options.map_or(Ok(()), run)))
}

fn run(options: Options) -> Result<(), Failure> {
    let (window, (sender, open)) = (options.drain, mpsc::channel());
    let introduce = |running: &Running<Infallible>| {
        running.introduce();
        let address = running.address;
        say(format_args!("try it: nc {} {}", reachable(address), address.port()));
    };
    let running = process::run(|| start(&options, sender), introduce)?;
    let mut cut = 0;
    let drain = |service: &TimerService| cut = drain(service, window, &open);
    running.shut_down(ShutdownPolicy::Return, drain, |report| {
        for shard in &report.shards {
            say(summary(shard.shard, &shard.counts));
        }
    })?;
    if cut == 0 {
        return Ok(());
    }
    let line = format!("requests that were cut at the end of the drain: {cut}");
    Err(Failure { code: 3, line })
}

/// Drains the connections, and waits until all of them have ended. Returns how many requests were
/// cut.
fn drain(service: &TimerService, window: Duration, open: &mpsc::Receiver<Cut>) -> usize {
    service.drain(window);
    let end = Instant::now() + window + CLOSING_MAX;
    let left = || end.saturating_duration_since(Instant::now());
    std::iter::from_fn(|| open.recv_timeout(left()).ok()).count()
}

fn start(options: &Options, open: mpsc::Sender<Cut>) -> Result<Running<Infallible>, Failure> {
    let addresses = Addresses::reserve(options.listen, options.stats)?;
    let mut builder = TimerService::builder()
        .name("idle_server")
        .runtime(Arc::clone(&options.runtime))
        .tick(options.tick);
    if let Some(shards) = options.shards {
        builder = builder.shards(shards);
    }
    let service = builder.start().map_err(|error| match error {
        StartError::Config(error) => Failure::usage(format!("--{}: {error}", error.field())),
        error => Failure::host(error),
    })?;
    Running::start(service, addresses, std::iter::repeat(Echo { limits: options.limits, open }))
}

/// Each client of a shard has a task that serves it, with these limits.
#[derive(Clone, Debug)]
struct Echo {
    limits: ConnLimits,
    /// Each connection that is open holds a clone.
    open: mpsc::Sender<Cut>,
}

impl Site<Infallible> for Echo {
    fn open<N: Network>(
        self,
        timers: Timers,
        stopped: watch::Receiver<()>,
    ) -> impl FnMut(N::Stream) {
        move |stream| {
            let (site, timers, stopped) = (self.clone(), timers.clone(), stopped.clone());
            N::spawn(async move {
                let end = connection::serve(stream, &timers, site.limits, &stopped).await;
                tracing::debug!(shard = %timers.shard_id(), %end, "a connection ended");
                if let End::Cut(cut) = end {
                    // The receiver is gone when the process is about to end.
                    let _ = site.open.send(cut);
                }
            });
        }
    }
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

//! A cache that speaks RESP2 and RESP3, with one thread for each core, whose keys expire when they
//! should.
//!
//! ```text
//! cargo run --release -p corewheel-resp-cache -- --notify-keyspace-events Ex
//! redis-cli -p 6380 set greeting hello px 1500
//! ```
//!
//! To try: `redis-cli -p 6380 psubscribe '*'` beside it, which is told when the key expires.
//!
//! Each key lives on one core, in state that only the core's thread touches, with a timer of the
//! core's shard. The timer removes the key within some milliseconds of its deadline; until then, an
//! access finds that the deadline has passed, and the key is not answered. It keeps nothing on disk
//! and is no replacement for redis.
//!
//! From the bottom up: [`protocol`], [`keyspace`], [`commands`], [`client`], [`core`], [`session`],
//! [`remote`], [`connection`], and this; [`host`] is shared with other examples.

mod client;
mod commands;
mod connection;
mod core;
mod glob;
#[path = "../../host/mod.rs"]
mod host;
mod keyspace;
mod notify;
mod options;
mod protocol;
mod remote;
mod session;

use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use corewheel::settings::TurnBudget;
use corewheel::{Fired, ShutdownPolicy, StartError, TimerService, Timers};
use corewheel_glommio::Runtime;
use tokio::sync::watch;

use crate::core::{Core, Inbox, Shared};
use crate::host::acceptor::Site;
use crate::host::network::Network;
use crate::host::process::{self, Failure};
use crate::host::server::{Addresses, Running};
use crate::options::Options;

/// It gives memory back when keys have expired, and takes no header for each value.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The keys that one turn of a shard removes. Many may be due at one instant, and their events are
/// sent when the turn has ended. With fewer, an access waits less meanwhile, but a core that is
/// busy with pipelines, which takes few turns, does not keep up with what expires.
const EXPIRED_MAX: u32 = 1 << 10;
/// Keys are removed late by up to one tick more.
const TICK: Duration = Duration::from_micros(250);

fn main() -> ExitCode {
    process::exit("resp_cache", run(Options::parse()))
}

fn run(options: Options) -> Result<(), Failure> {
    let running = process::run(|| start(options), Running::introduce)?;
    running.shut_down(ShutdownPolicy::Drop, |_| {}, |_| {})
}

/// Declines huge pages for this process, as redis does. The kernel fills one with zeros when its
/// first byte is touched: some milliseconds for 2 MiB, in the middle of a turn.
fn decline_huge_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::warn!(%error, "huge pages stay: keys may be removed some milliseconds later");
    }
}

fn start(options: Options) -> Result<Running<u32>, Failure> {
    decline_huge_pages();
    let addresses = Addresses::reserve(options.listen, options.stats)?;
    let all = || std::thread::available_parallelism().map(usize::from);
    let cores = options.cores.map_or_else(all, Ok).map_err(Failure::host)?;
    let service = TimerService::builder()
        .name("resp_cache")
        .runtime(if options.runtime == "tokio" { Runtime::Tokio } else { Runtime::Glommio })
        .shards(cores)
        .tick(TICK)
        .budget(TurnBudget { expired_max: EXPIRED_MAX, ..TurnBudget::default() })
        .capacity(options.capacity())
        .start_with(|_| |fired: Fired<u32>, _: &Timers<u32>| core::fired(&fired))
        .map_err(refused)?;
    let (shared, inboxes) = Shared::new(options, cores);
    let shared = Arc::new(shared);
    let sites = inboxes.into_iter().map(|inbox| Cache { inbox, shared: Arc::clone(&shared) });
    Running::start(service, addresses, sites)
}

fn refused(error: StartError) -> Failure {
    match error {
        StartError::Config(error) if error.field() == "capacity" => {
            Failure::usage(format!("--timers-max, --clients-max: {error}"))
        }
        StartError::Config(error) => Failure::usage(format!("--cores: {error}")),
        // Each core has slots for all timers from the start.
        error => Failure::host(format!(
            "{error}; if it is for want of memory, lower --timers-max, --clients-max or --cores"
        )),
    }
}

/// A core before it runs.
struct Cache {
    inbox: Inbox,
    shared: Arc<Shared>,
}

impl Site<u32> for Cache {
    fn open<N: Network>(
        self,
        timers: Timers<u32>,
        _: watch::Receiver<()>,
    ) -> impl FnMut(N::Stream) {
        let core = Core::open(timers, self.shared);
        N::spawn(Rc::clone(&core).serve_inbox(self.inbox));
        move |stream| N::spawn(connection::serve(stream, Rc::clone(&core)))
    }
}

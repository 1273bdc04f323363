//! A server with a listener on every shard.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc;

use corewheel::shutdown::ShutdownReport;
use corewheel::{Reply, ShutdownPolicy, TimerService, Timers};
use corewheel_stats::StatsEndpoint;
use tokio::sync::watch;

use super::acceptor::{Acceptor, Site};
#[cfg(feature = "compio")]
use super::network::on_compio::Compio;
#[cfg(target_os = "linux")]
use super::network::on_glommio::Glommio;
use super::network::on_tokio::Tokio;
use super::ports::{self, Reserved};
use super::process::{Failure, say};

/// The addresses of a server, which are free.
#[derive(Debug)]
pub(crate) struct Addresses {
    listen: Reserved,
    stats: SocketAddr,
}

impl Addresses {
    /// Reserves the port for clients and checks that of the statistics.
    pub(crate) fn reserve(listen: SocketAddr, stats: SocketAddr) -> Result<Self, Failure> {
        let reserved = ports::reserve(listen).map_err(|e| busy("--listen", listen, &e))?;
        ports::check(stats).map_err(|e| busy("--stats", stats, &e))?;
        Ok(Self { listen: reserved, stats })
    }
}

/// A server that accepts connections.
#[derive(Debug)]
pub(crate) struct Running<T: Send + 'static> {
    service: TimerService<T>,
    acceptors: Vec<Reply<()>>,
    endpoint: StatsEndpoint,
    pub(crate) address: SocketAddr,
    /// Its drop ends the acceptors, which close their listeners.
    stop: watch::Sender<()>,
}

impl<T: Send + 'static> Running<T> {
    /// Starts an acceptor on each shard, waits until all of them listen, and starts the statistics.
    /// `sites` gives as many sites as there are shards.
    pub(crate) fn start<S: Site<T>>(
        service: TimerService<T>,
        addresses: Addresses,
        sites: impl IntoIterator<Item = S>,
    ) -> Result<Self, Failure> {
        let address = addresses.listen.address();
        let (stop, stopped) = watch::channel(());
        let (ready, listening) = mpsc::channel();
        let mut acceptors = Vec::new();
        for (shard, site) in service.shards().zip(sites) {
            let (ready, stopped) = (ready.clone(), stopped.clone());
            let acceptor = Acceptor { address, site, ready, stopped };
            let spawned = match service.runtime() {
                #[cfg(feature = "compio")]
                Some("compio") => {
                    service.spawn_on(shard, |timers: Timers<T>| acceptor.run::<Compio, T>(timers))
                }
                #[cfg(target_os = "linux")]
                Some("glommio") => {
                    service.spawn_on(shard, |timers: Timers<T>| acceptor.run::<Glommio, T>(timers))
                }
                _ => service.spawn_on(shard, |timers: Timers<T>| acceptor.run::<Tokio, T>(timers)),
            };
            acceptors.push(spawned.map_err(Failure::host)?);
        }
        drop(ready);
        for _ in &acceptors {
            match listening.recv() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(busy("--listen", address, &error)),
                Err(_) => return Err(Failure::host("a shard ended before it could listen")),
            }
        }
        let endpoint = StatsEndpoint::builder(service.stats_source())
            .listen(addresses.stats)
            .start()
            .map_err(|error| Failure::host(format!("--stats: {error}")))?;
        Ok(Self { service, acceptors, endpoint, address, stop })
    }

    /// Prints the addresses of the server.
    pub(crate) fn introduce(&self) {
        let (service, address) = (&self.service, self.address);
        let shards = self.acceptors.len();
        say(format_args!("listening on {address} (shards: {shards}, each with a listener)"));
        let runtime = service.stats().runtime;
        say(format_args!("runtime: {runtime} ({})", service.runtime_reason()));
        say(format_args!("statistics: http://{}/", self.endpoint.local_addr()));
    }

    /// Ends the server: calls `drain` when no connection is accepted any more, and `report` with
    /// the counts of its shards.
    pub(crate) fn shut_down(
        self,
        policy: ShutdownPolicy,
        drain: impl FnOnce(&TimerService<T>),
        report: impl FnOnce(&ShutdownReport<T>),
    ) -> Result<(), Failure> {
        drop(self.stop);
        for acceptor in self.acceptors {
            // An acceptor whose shard has died has stopped too; the report below names the shard.
            let _ = acceptor.wait();
        }
        drain(&self.service);
        let ended = self.service.shutdown(policy).map_err(Failure::host)?;
        report(&ended);
        self.endpoint.stop();
        match ended.dead.as_slice() {
            [] => Ok(()),
            dead => Err(Failure::host(format!("these shards had died before: {dead:?}"))),
        }
    }
}

fn busy(option: &str, address: SocketAddr, error: &io::Error) -> Failure {
    Failure::host(format!("{option} {address}: {error}"))
}

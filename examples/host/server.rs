//! A server with a listener on every shard.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use corewheel::shutdown::ShutdownReport;
use corewheel::{Reply, ShutdownPolicy, TimerService, Timers};
use corewheel_stats::StatsEndpoint;
use socket2::{Domain, Socket, Type};
use tokio::sync::watch;

use super::acceptor::{Acceptor, Site};
#[cfg(feature = "compio")]
use super::network::on_compio::Compio;
#[cfg(target_os = "linux")]
use super::network::on_glommio::Glommio;
use super::network::on_tokio::Tokio;
use super::process::{Failure, say};

/// How long a server waits for a port that is in use. The kernel closes the listeners of a killed
/// server some time after its end, since the ring of `io_uring` holds them.
const PORT_PATIENCE: Duration = Duration::from_secs(2);
const PORT_PAUSE: Duration = Duration::from_millis(20);
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// The addresses of a server.
#[derive(Debug)]
pub(crate) struct Addresses {
    listen: SocketAddr,
    stats: SocketAddr,
    /// Until it is dropped, no other program gets the port.
    _reserved: Socket,
}

impl Addresses {
    /// Reserves the port for clients; waits for up to two seconds for a port that is in use.
    pub(crate) fn reserve(listen: SocketAddr, stats: SocketAddr) -> Result<Self, Failure> {
        let start = Instant::now();
        let reserved = loop {
            match bind(listen) {
                Err(error)
                    if error.kind() == ErrorKind::AddrInUse && start.elapsed() < PORT_PATIENCE =>
                {
                    thread::sleep(PORT_PAUSE);
                }
                bound => break bound,
            }
        };
        let reserved = reserved.map_err(|error| busy("--listen", listen, &error))?;
        let address = reserved.local_addr().map_err(Failure::host)?;
        let listen = address.as_socket().unwrap_or(listen);
        Ok(Self { listen, stats, _reserved: reserved })
    }
}

/// Binds a port that is shared with the listeners of the shards, and with no other server.
fn bind(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_port(true)?;
    // Connections that another program has ended keep its port for a minute, unless both set this.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    let address = socket.local_addr()?.as_socket().unwrap_or(address);
    // The bind succeeds beside another server with `SO_REUSEPORT`, which would take half of the
    // clients. A listener with a full backlog lets clients wait.
    match TcpStream::connect_timeout(&address, ANSWER_MAX) {
        Err(error) if error.kind() != ErrorKind::TimedOut => Ok(socket),
        _ => Err(ErrorKind::AddrInUse.into()),
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
        let address = addresses.listen;
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
        let endpoint = StatsEndpoint::start(service.stats_source(), addresses.stats)
            .map_err(|error| busy("--stats", addresses.stats, &error))?;
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
        drop(self.endpoint);
        match ended.dead.as_slice() {
            [] => Ok(()),
            dead => Err(Failure::host(format!("these shards had died before: {dead:?}"))),
        }
    }
}

fn busy(option: &str, address: SocketAddr, error: &impl fmt::Display) -> Failure {
    Failure::host(format!("{option} {address}: {error}"))
}

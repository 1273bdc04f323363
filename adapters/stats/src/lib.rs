//! The statistics of a service over HTTP: as a page, as JSON and for Prometheus. A [`watchdog`]
//! finds shards that are stuck.
//!
//! ```
//! use corewheel::TimerService;
//! use corewheel_stats::StatsEndpoint;
//!
//! let service = TimerService::builder().shards(1).start()?;
//! let endpoint = StatsEndpoint::start(service.stats_source(), "127.0.0.1:0")?;
//! assert!(endpoint.local_addr().ip().is_loopback());
//! drop(endpoint);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The endpoint runs on a thread and a runtime of its own rather than on a shard's executor, so
//! that no client takes time from a timer. It reads what the shards publish and sends them nothing.
//! Every client that can connect can read: the endpoint has no password, no encryption and no route
//! that changes anything. A page of another site cannot read it through a browser: requests must
//! name an allowed host.
//!
//! Absent by design: a file system, any other route than those of [`StatsEndpoint`], a second
//! request on a connection, a body that is read.
//!
//! Cost: one thread that sleeps until a client connects; an answer costs a reading of all shards.
//!
//! # Features
//!
//! None is on by default.
//!
//! | feature | brings | costs |
//! |---|---|---|
//! | `axum` | `StatsRoutes::router` | axum |
#![forbid(unsafe_code)]

mod collector;
mod host;
mod metrics;
mod mount;
mod reasons;
mod routes;
mod server;
pub mod watchdog;

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use tokio::sync::oneshot;

pub use self::collector::register;
pub use self::mount::StatsRoutes;

/// Serves the statistics of one service over HTTP/1, until it is dropped.
///
/// | route | answer |
/// |---|---|
/// | `/` | a page that says what needs attention, and draws what happens meanwhile |
/// | `/stats.json` | [`ServiceStats`](corewheel::stats::ServiceStats) and all warnings, as JSON |
/// | `/metrics` | every count of each shard and class, and its histograms, for Prometheus |
/// | `/ready` | 200 while the server may get connections, else 503 with the reasons |
/// | `/live` | 200 while the process answers |
///
/// `/ready` is 503 while a shard does not run or is stuck. From a
/// [`drain`](corewheel::TimerService::drain) on it is 503 with `draining`, since the service is
/// about to end. A server adds a reason of its own by
/// [`ready_unless`](StatsRoutes::ready_unless).
///
/// The methods are `GET` and `HEAD`; other methods get 405, other paths 404. A head of more than
/// 16 KiB or 100 headers gets 431, and a body of more than a kilobyte 413. A body of a length that
/// is not stated and a request that is not HTTP get 400.
///
/// It has 64 connections at a time. When as many are open, the next one takes the place of the
/// oldest, which has had its place for 25 ms or longer. So a client that sends its request at once
/// and reads the answer is answered, however many idle or slow connections are held. A client that
/// has not sent the whole head of its request after 5 s is cut off without an answer. One whose
/// answer is not with the system's network buffers after 10 s loses what it has not read.
///
/// `/metrics` is `OpenMetrics` 1.0.0 for every client. Prometheus reads it from version 2.5 on.
///
/// Each sample has a label `service`, the service's [name](corewheel::TimerServiceBuilder::name),
/// so that services of different names share a Prometheus server. Most have a label `shard`. A
/// service of S shards and C classes has 11 + S × (272 + 13 × C) series. Of these, 2 × S are those
/// of the shards' threads, where the system tells their times. Each
/// [kind](corewheel::DeadlineKind) of deadlines of connections adds two.
///
/// A request must name, in its `Host` header, `localhost`, a name that ends in `.localhost`, an IP
/// address, or a name that [`allow_host`](StatsRoutes::allow_host) was given; other names
/// get 421. So a page from elsewhere cannot read the statistics by letting its own name point to
/// this machine. A `Host` that is missing, repeated or malformed gets 400; only a request of
/// HTTP/1.0 may leave it out.
///
/// Its drop stops listening, cuts off every connection, and returns when the thread has ended. It
/// waits for no client, and takes as long as the answer that is being made up, if any. So a task
/// may drop it, too: that blocks its worker for so long.
///
/// It outlives the [`TimerService`](corewheel::TimerService), and then reports the shards as
/// closed. See the [module](self) for an example.
#[derive(Debug)]
#[must_use = "the endpoint stops when it is dropped"]
pub struct StatsEndpoint {
    address: SocketAddr,
    /// Dropped, it stops the thread.
    running: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StatsEndpoint {
    /// Binds the address and starts the thread. For a function that reads the statistics, as
    /// [`stats_source`](corewheel::TimerService::stats_source) returns one, the routes have their
    /// defaults; [`StatsRoutes`] sets what is to be different. The endpoint answers when this
    /// returns.
    ///
    /// A name is resolved here, which blocks the calling thread while the system asks its name
    /// servers; a task passes an address. Of several addresses the first that works is taken. Port
    /// 0 lets the system choose. Every client that can reach the address can read the statistics;
    /// an address that is not loopback is logged as a warning.
    ///
    /// # Errors
    ///
    /// An address that is in use or cannot be bound, with a text that names it and a remedy, or
    /// what keeps the thread from running. No thread and no socket is left, and the service runs
    /// on.
    pub fn start(
        routes: impl Into<StatsRoutes>,
        address: impl ToSocketAddrs,
    ) -> io::Result<StatsEndpoint> {
        let (listener, address) = bind(address.to_socket_addrs()?)?;
        let (running, stop) = oneshot::channel();
        let (ready, started) = mpsc::channel();
        let routes = Arc::new(routes.into());
        let name = format!("{}-http", (routes.source)().name);
        let run = move || {
            if let Err(error) = server::run(listener, routes, stop, &ready) {
                let _ = ready.send(Err(error));
            }
        };
        let thread = thread::Builder::new().name(name).spawn(run)?;
        // From here on, dropping the endpoint joins the thread.
        let endpoint = Self { address, running: Some(running), thread: Some(thread) };
        started.recv().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))?;
        if address.ip().is_loopback() {
            tracing::info!(
                name: "endpoint-listens",
                target: "corewheel::endpoint",
                %address, "the statistics endpoint listens"
            );
        } else {
            tracing::warn!(
                name: "endpoint-reachable",
                target: "corewheel::endpoint",
                %address,
                "the statistics endpoint can be reached from other machines, without a password"
            );
        }
        Ok(endpoint)
    }

    /// Where it listens: with the port that the system chose, if it was asked to.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for StatsEndpoint {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            // Connections run as tasks, which keep their panics; the thread has none to report.
            let _ = thread.join();
        }
    }
}

/// Listens on the first of the addresses that can be bound.
fn bind(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<(TcpListener, SocketAddr)> {
    let listen = |address| {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    let mut failure =
        io::Error::new(io::ErrorKind::InvalidInput, "there is no address to listen on");
    for address in addresses {
        let error: io::Error = match listen(address) {
            Ok(bound) => return Ok(bound),
            Err(error) => error,
        };
        let text = format!(
            "the statistics endpoint cannot listen on {address}: {error}; name an address of this \
             machine and a free port that this process may bind, or port 0"
        );
        failure = io::Error::new(error.kind(), text);
    }
    Err(failure)
}

/// The README's code, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

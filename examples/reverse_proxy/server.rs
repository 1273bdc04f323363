//! A listener and the connections that it accepts: one for the whole proxy, or one for each core.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use hyper::http::uri::InvalidUri;
use hyper::server::conn::{http1, http2};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::connection;
use crate::forward::Forwarder;
use crate::options::{Limits, Options};
use crate::spawn::Spawner;
use crate::timers::Timers;

/// The most connections that wait to be accepted.
const BACKLOG: i32 = 4_096;
/// How long the acceptor waits after a failed attempt. Most likely all file descriptors are in use,
/// and a connection must end first.
const BACK_OFF: Duration = Duration::from_millis(100);

/// What all connections of a listener share.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) forwarder: Forwarder,
    pub(crate) http: Http,
    pub(crate) timers: Timers,
    pub(crate) limits: Limits,
    spawner: Spawner,
}

/// How the versions of HTTP that a client may use are served.
#[derive(Debug)]
pub(crate) struct Http {
    pub(crate) one: http1::Builder,
    /// `None` if clients may use HTTP/1.1 only.
    pub(crate) two: Option<http2::Builder<Spawner>>,
}

/// The end of the drain has cut a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CutRequest;

/// Says when a connection is to end. Each connection holds one until it has ended.
#[derive(Clone, Debug)]
pub(crate) struct Shutdown {
    /// Loses its sender when the shutdown begins.
    pub(crate) begun: watch::Receiver<()>,
    /// Shows the main thread that a connection is open, and each request that is cut.
    pub(crate) open: mpsc::Sender<CutRequest>,
}

impl Shutdown {
    /// Waits until the shutdown begins.
    pub(crate) async fn begun(&mut self) {
        // Nothing is sent, so this is the end of the sender.
        let _ = self.begun.changed().await;
    }

    /// The end of the drain has cut a request of the connection.
    pub(crate) fn has_cut(&self) {
        // The receiver is gone when the process is about to end.
        let _ = self.open.send(CutRequest);
    }
}

impl Server {
    pub(crate) fn new(
        options: &Options,
        upstream: SocketAddr,
        timers: Timers,
        spawner: Spawner,
    ) -> Result<Self, InvalidUri> {
        let limits = &options.limits;
        let one = timers.http1(limits);
        let two = options.h2c.then(|| Timers::http2(spawner));
        let http = Http { one, two };
        let forwarder = Forwarder::new(upstream, timers, limits, options.h2c, spawner)?;
        Ok(Self { forwarder, http, timers, limits: options.limits, spawner })
    }

    /// Accepts clients until the shutdown begins.
    pub(crate) async fn run(self, listener: std::net::TcpListener, shutdown: Shutdown) {
        let listener = match TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "the runtime refuses the listener"),
        };
        let server = Arc::new(self);
        let mut own = shutdown.clone();
        let mut begun = pin!(own.begun());
        let mut has_failed = false;
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut begun => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, client)) => {
                    has_failed = false;
                    let (server, shutdown) = (Arc::clone(&server), shutdown.clone());
                    let spawner = server.spawner;
                    spawner.spawn(connection::serve(server, stream, client.ip(), shutdown));
                }
                // The client has left before it was accepted.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if !has_failed {
                        tracing::warn!(%error, again = ?BACK_OFF, "no connection can be accepted");
                    }
                    has_failed = true;
                    tokio::time::sleep(BACK_OFF).await;
                }
            }
        }
    }
}

/// Listeners on one address, which share the clients if there are several. Port 0 takes a free
/// port.
pub(crate) fn listen(
    address: SocketAddr,
    count: usize,
    send_buffer: Option<usize>,
) -> io::Result<(Vec<std::net::TcpListener>, SocketAddr)> {
    // A port that another server has is not shared with it, although that has `SO_REUSEPORT` too.
    let first = bind(address, false, send_buffer)?;
    if count == 1 {
        let address = first.local_addr()?;
        return Ok((vec![first], address));
    }
    if address.port() != 0 {
        drop(first);
    }
    let mut listeners = vec![bind(address, true, send_buffer)?];
    let address = listeners[0].local_addr()?;
    while listeners.len() < count {
        listeners.push(bind(address, true, send_buffer)?);
    }
    Ok((listeners, address))
}

fn bind(
    address: SocketAddr,
    is_shared: bool,
    send_buffer: Option<usize>,
) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A port whose old connections are in `TIME_WAIT` is free.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(is_shared)?;
    if let Some(bytes) = send_buffer {
        // The connections that it accepts inherit this.
        socket.set_send_buffer_size(bytes)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

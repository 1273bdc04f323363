//! A check whether ports are free, before anything is started.
//!
//! Listeners with `SO_REUSEPORT`, as the shards' are, share their port with every other such
//! listener of the same user, so two servers would silently split the clients between them. Binding
//! the port does not show that; a connection that is answered does.
//!
//! A server that was killed under `io_uring` still answers for a short time: the kernel tears its
//! ring down after the process has ended, and the ring holds the listeners. So a port that is in
//! use is tried again for [`PATIENCE`].

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

/// How long the server waits for a port that is in use. A killed server's listeners are gone within
/// half a second.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// A port that the shards' listeners share and no other user can take, until this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    address: SocketAddr,
    _socket: Socket,
}

impl Reserved {
    /// The address, with the port that the system chose for port 0.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Binds a port without listening there; waits for up to two seconds for a port that is in use.
pub(crate) fn reserve(address: SocketAddr) -> io::Result<Reserved> {
    wait_while_in_use(address, reserve_now)
}

/// Whether a server could listen there, without `SO_REUSEPORT`; waits for up to two seconds for a
/// port that is in use.
pub(crate) fn check(address: SocketAddr) -> io::Result<()> {
    wait_while_in_use(address, |address| TcpListener::bind(address).map(drop))
}

/// Tries until the port is free, or another error comes, or [`PATIENCE`] is over.
fn wait_while_in_use<T>(
    address: SocketAddr,
    attempt: impl Fn(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let start = Instant::now();
    let mut is_first = true;
    loop {
        match attempt(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && start.elapsed() < PATIENCE => {
                if is_first {
                    tracing::info!(%address, patience = ?PATIENCE, "waiting for a port in use");
                    is_first = false;
                }
                thread::sleep(PAUSE);
            }
            outcome => {
                if outcome.is_ok() && !is_first {
                    let waited = start.elapsed();
                    tracing::warn!(%address, ?waited, "the port was in use, and is free now");
                }
                return outcome;
            }
        }
    }
}

fn reserve_now(address: SocketAddr) -> io::Result<Reserved> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_port(true)?;
    // Connections that another program has ended keep its port for a minute, unless both set this.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    let address = socket.local_addr()?.as_socket().unwrap_or(address);
    if is_answered(address) {
        return Err(ErrorKind::AddrInUse.into());
    }
    Ok(Reserved { address, _socket: socket })
}

fn is_answered(address: SocketAddr) -> bool {
    const ANSWER_MAX: Duration = Duration::from_secs(1);
    match TcpStream::connect_timeout(&address, ANSWER_MAX) {
        Ok(_) => true,
        // A listener with a full backlog lets clients wait.
        Err(error) => error.kind() == ErrorKind::TimedOut,
    }
}

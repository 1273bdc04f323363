//! Whether ports are free, found out before anything is started.
//!
//! Listeners with `SO_REUSEPORT`, as the shards' are, share their port with every other such
//! listener of the same user, so two servers would silently split the clients between them. Binding
//! the port does not tell; whether somebody answers there does.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

/// A port that the shards' listeners can share and nobody else can take, as long as this lives.
#[derive(Debug)]
pub(crate) struct Reserved {
    address: SocketAddr,
    _socket: Socket,
}

impl Reserved {
    /// The address, with the port that was chosen if any would do.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Binds a port without listening there.
pub(crate) fn reserve(address: SocketAddr) -> io::Result<Reserved> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    let address = socket.local_addr()?.as_socket().unwrap_or(address);
    if is_answered(address) {
        return Err(ErrorKind::AddrInUse.into());
    }
    Ok(Reserved { address, _socket: socket })
}

/// Whether a server could listen there, without `SO_REUSEPORT`.
pub(crate) fn check(address: SocketAddr) -> io::Result<()> {
    TcpListener::bind(address).map(drop)
}

fn is_answered(address: SocketAddr) -> bool {
    const PATIENCE: Duration = Duration::from_secs(1);
    match TcpStream::connect_timeout(&address, PATIENCE) {
        Ok(_) => true,
        // A listener that is overrun lets clients wait.
        Err(error) => error.kind() == ErrorKind::TimedOut,
    }
}

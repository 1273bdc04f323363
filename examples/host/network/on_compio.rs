//! Connections on compio's runtimes, by the readiness of their sockets.
//!
//! Why not by compio's own streams: a read of theirs owns its buffer until it is done. Where an
//! event of the connection comes first, it has to be cancelled, and what it has read is lost.

use std::future::{Future, poll_fn};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use compio::runtime::fd::PollFd;
use corewheel::ConnTimers;
use corewheel::conn::{PeerSocket, Raced, UNSENT_MAX};
use socket2::{Domain, Socket, Type};

use super::{BACKLOG, Network, Stream};

/// Sockets of the standard library, for whose readiness compio waits.
#[derive(Debug)]
pub(crate) struct Compio;

/// A socket that does not block.
fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

impl Network for Compio {
    type Listener = PollFd<TcpListener>;
    type Stream = PollFd<TcpStream>;

    fn bind(address: SocketAddr) -> io::Result<PollFd<TcpListener>> {
        let socket = socket(address)?;
        socket.set_reuse_port(true)?;
        // For a server that takes the port next, beside connections that this one has ended.
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        let _has_it = socket.set_unsent_max(UNSENT_MAX);
        socket.listen(i32::try_from(BACKLOG).unwrap_or(i32::MAX))?;
        PollFd::new(socket.into())
    }

    fn address(listener: &PollFd<TcpListener>) -> io::Result<SocketAddr> {
        listener.local_addr()
    }

    async fn accept(listener: &PollFd<TcpListener>) -> io::Result<PollFd<TcpStream>> {
        let accepted = poll_fn(|cx| listener.poll_accept_with(cx, TcpListener::accept)).await;
        let (stream, _) = accepted?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        PollFd::new(stream)
    }

    async fn connect(address: SocketAddr) -> io::Result<PollFd<TcpStream>> {
        let socket = socket(address)?;
        socket.set_tcp_nodelay(true)?;
        // It goes on connecting.
        if let Err(error) = socket.connect(&address.into())
            && error.raw_os_error() != Some(libc::EINPROGRESS)
        {
            return Err(error);
        }
        let stream = PollFd::new(TcpStream::from(socket))?;
        stream.connect_ready().await?;
        match stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(stream),
        }
    }

    fn spawn(task: impl Future<Output = ()> + 'static) {
        compio::runtime::spawn(task).detach();
    }
}

impl Stream for PollFd<TcpStream> {
    fn peer(&self) -> Option<SocketAddr> {
        self.peer_addr().ok()
    }

    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_read(cx, buffer)).await
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_write(cx, bytes)).await
    }

    async fn race_write(&mut self, conn: &ConnTimers, bytes: &[u8]) -> Raced<io::Result<usize>> {
        conn.race_write(self, poll_fn(|cx| self.poll_write(cx, bytes))).await
    }

    async fn close(self) {
        // It fails if the peer has closed the connection first.
        let _ = self.shutdown(Shutdown::Both);
    }
}

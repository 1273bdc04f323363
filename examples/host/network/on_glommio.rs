//! Connections on glommio's executors.

use std::future::Future;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd;
use std::pin::pin;

use corewheel::ConnTimers;
use corewheel::conn::{PeerSocket, Raced, UNSENT_MAX};
use corewheel_glommio::SocketOf;
use futures_lite::future::yield_now;
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::GlommioError;
use glommio::net::{TcpListener, TcpStream};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};

use super::{Network, Stream};

/// How often a connection lets the core's other tasks run and looks into its socket, before it asks
/// the ring to wait.
///
/// The ring interrupts the thread for each socket that becomes ready, which takes as much time as a
/// short request. On a core with many busy connections, the next request is mostly there after some
/// turns of the others. A connection that waits has cost these system calls for nothing.
const LOOKS: usize = 4;

/// Glommio's sockets.
#[derive(Debug)]
pub(crate) struct Glommio;

impl Network for Glommio {
    type Listener = TcpListener;
    type Stream = TcpStream;

    fn bind(address: SocketAddr) -> io::Result<TcpListener> {
        // Glommio sets SO_REUSEPORT on every listener.
        TcpListener::bind(address).map_err(into_io)
    }

    fn address(listener: &TcpListener) -> io::Result<SocketAddr> {
        listener.local_addr().map_err(into_io)
    }

    async fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
        // The first read finds a client that has left at once.
        let stream = listener.accept().await.map_err(into_io)?;
        stream.set_nodelay(true).map_err(into_io)?;
        // Glommio lends no descriptor of its listener.
        let _has_it = SocketOf::new(&stream).set_unsent_max(UNSENT_MAX);
        Ok(stream)
    }

    async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(address).await.map_err(into_io)?;
        stream.set_nodelay(true).map_err(into_io)?;
        Ok(stream)
    }

    fn spawn(task: impl Future<Output = ()> + 'static) {
        glommio::spawn_local(task).detach();
    }
}

impl Stream for TcpStream {
    fn peer(&self) -> Option<SocketAddr> {
        self.peer_addr().ok()
    }

    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        for _ in 0..LOOKS {
            // Also for a peer that sends without a pause, which would never let others run.
            yield_now().await;
            match recv(self.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
                Err(Errno::EAGAIN) => {}
                received => return Ok(received?),
            }
        }
        AsyncReadExt::read(self, buffer).await
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        AsyncWriteExt::write(self, bytes).await
    }

    async fn race_write(&mut self, conn: &ConnTimers, bytes: &[u8]) -> Raced<io::Result<usize>> {
        let socket = SocketOf::new(self);
        conn.race_write(&socket, pin!(AsyncWriteExt::write(self, bytes))).await
    }

    async fn close(mut self) {
        // It fails if the peer has closed the connection first.
        let _ = self.shutdown(Shutdown::Both).await;
        // The shutdown ends a read that waits in the ring. A drop would cancel it instead, for
        // which the kernel searches the reads of all connections, in a table of a few lists only.
        let _ = AsyncReadExt::read(&mut self, &mut [0]).await;
    }
}

fn into_io(error: GlommioError<()>) -> io::Error {
    match error {
        GlommioError::IoError(error) => error,
        error => io::Error::other(error.to_string()),
    }
}

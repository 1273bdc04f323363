//! Connections on tokio's current-thread runtimes.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;

use corewheel::ConnTimers;
use corewheel::conn::{PeerSocket, Raced, UNSENT_MAX};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::{BACKLOG, Network, Stream};

/// Tokio's sockets.
#[derive(Debug)]
pub(crate) struct Tokio;

impl Network for Tokio {
    type Listener = TcpListener;
    type Stream = TcpStream;

    fn bind(address: SocketAddr) -> io::Result<TcpListener> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseport(true)?;
        // For a server that takes the port next, beside connections that this one has ended.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let _has_it = socket.set_unsent_max(UNSENT_MAX);
        socket.listen(BACKLOG)
    }

    fn address(listener: &TcpListener) -> io::Result<SocketAddr> {
        listener.local_addr()
    }

    async fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn spawn(task: impl Future<Output = ()> + 'static) {
        tokio::task::spawn_local(task);
    }
}

impl Stream for TcpStream {
    fn peer(&self) -> Option<SocketAddr> {
        self.peer_addr().ok()
    }

    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        AsyncReadExt::read(self, buffer).await
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        AsyncWriteExt::write(self, bytes).await
    }

    async fn race_write(&mut self, conn: &ConnTimers, bytes: &[u8]) -> Raced<io::Result<usize>> {
        let (reader, mut writer) = self.split();
        conn.race_write(reader.as_ref(), pin!(writer.write(bytes))).await
    }

    async fn close(mut self) {
        // It fails if the peer has closed the connection first.
        let _ = self.shutdown().await;
    }
}

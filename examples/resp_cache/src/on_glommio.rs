//! Connections on glommio's executors.

use std::future::Future;
use std::io;
use std::net::{Shutdown, SocketAddr};

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::GlommioError;
use glommio::net::{TcpListener, TcpStream};

use crate::acceptor::Listener;
use crate::connection::Stream;

impl Listener for TcpListener {
    type Stream = TcpStream;

    fn bind(address: SocketAddr) -> io::Result<Self> {
        // Glommio sets SO_REUSEPORT on every listener.
        Self::bind(address).map_err(into_io)
    }

    async fn accept(&self) -> io::Result<TcpStream> {
        // The first read finds a client that has left at once.
        let stream = self.accept().await.map_err(into_io)?;
        stream.set_nodelay(true).map_err(into_io)?;
        Ok(stream)
    }

    fn spawn(task: impl Future<Output = ()> + 'static) {
        glommio::spawn_local(task).detach();
    }
}

impl Stream for TcpStream {
    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Data that is there already is read without a wait, so a client that sends without a pause
        // would never let the core's other tasks run.
        glommio::yield_if_needed().await;
        AsyncReadExt::read(self, buffer).await
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        AsyncWriteExt::write(self, bytes).await
    }

    async fn close(self) {
        // It fails if the client has closed the connection first.
        let _ = self.shutdown(Shutdown::Both).await;
    }
}

fn into_io(error: GlommioError<()>) -> io::Error {
    match error {
        GlommioError::IoError(error) => error,
        error => io::Error::other(error.to_string()),
    }
}

//! Connections on glommio's executors.

use std::future::Future;
use std::io;
use std::net::{Shutdown, SocketAddr};

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::GlommioError;
use glommio::net::{TcpListener, TcpStream};

use crate::connection::{Network, Stream};

/// Glommio's sockets.
#[derive(Debug)]
pub(crate) struct Glommio;

impl Network for Glommio {
    type Listener = TcpListener;
    type Stream = TcpStream;

    fn listen() -> io::Result<(TcpListener, SocketAddr)> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(into_io)?;
        let address = listener.local_addr().map_err(into_io)?;
        Ok((listener, address))
    }

    async fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
        let stream = listener.accept().await.map_err(into_io)?;
        stream.set_nodelay(true).map_err(into_io)?;
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
    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Bytes that are there already are read without a wait, so without this a peer that sends
        // all the time would keep the core's other tasks from running.
        glommio::yield_if_needed().await;
        AsyncReadExt::read(self, buffer).await
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        AsyncWriteExt::write(self, bytes).await
    }

    async fn close(self) {
        // It fails if the peer has closed the connection first.
        let _ = self.shutdown(Shutdown::Both).await;
    }
}

fn into_io(error: GlommioError<()>) -> io::Error {
    match error {
        GlommioError::IoError(error) => error,
        error => io::Error::other(error.to_string()),
    }
}

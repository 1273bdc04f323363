//! The socket of a client, which finds out that the client has left also while hyper does not read.
//!
//! hyper reads on while it works on a request of HTTP/1, and so finds the end of what the client
//! sends. Where a part of the next request came with that request, it does not read before it has
//! answered: a client that has sent two requests and left would hold the first one until a limit.
//!
//! Why not a read of one byte in advance: what the client has sent after the second request may lie
//! before the end, and would have to be kept.
//!
//! Cost: an allocation for each connection, and another one for each poll of a connection in which
//! hyper does not read.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The socket of a client.
pub(crate) struct ClientSocket {
    socket: Arc<TcpStream>,
    /// Whether the end of the client is of interest while nothing is read.
    is_watched: bool,
    /// Whether the last read was ready, so that none waits.
    was_ready: bool,
    /// Done when the client has left. It shares the socket, so it is `None` in reads and writes.
    left: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl ClientSocket {
    pub(crate) fn new(socket: TcpStream) -> Self {
        Self { socket: Arc::new(socket), is_watched: false, was_ready: false, left: None }
    }

    /// A flush fails from now on if no read waits and the client has left.
    pub(crate) fn watch(&mut self) {
        self.is_watched = true;
    }

    /// The socket itself; `None` never comes, as the socket is shared with its own future only.
    pub(crate) fn into_inner(mut self) -> Option<TcpStream> {
        self.left = None;
        Arc::into_inner(self.socket)
    }

    fn project(&mut self) -> Pin<&mut TcpStream> {
        self.left = None;
        Pin::new(Arc::get_mut(&mut self.socket).expect("no future shares the socket"))
    }
}

/// Waits until a client has closed its side, also where bytes lie in the socket before that end.
#[cfg(target_os = "linux")]
async fn has_left(socket: Arc<TcpStream>) {
    // No urgent data is asked for, so only the end of what the client sends is left of this. An
    // error says that the runtime ends.
    let _ = socket.ready(tokio::io::Interest::PRIORITY).await;
}

/// Other systems do not tell the end before the bytes are read.
#[cfg(not(target_os = "linux"))]
async fn has_left(_: Arc<TcpStream>) {
    std::future::pending().await
}

impl AsyncRead for ClientSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.project().poll_read(cx, buf);
        self.was_ready = read.is_ready();
        read
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.project().poll_write(cx, buf)
    }

    /// hyper flushes in each poll of its connection, after it has read what it wants to read.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.is_watched && this.was_ready {
            let watch = || Box::pin(has_left(Arc::clone(&this.socket))) as Pin<Box<_>>;
            if this.left.get_or_insert_with(watch).as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
        }
        // A socket has nothing to flush.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.project().poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

impl fmt::Debug for ClientSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.fmt(f)
    }
}

//! TLS by rustls, for axum's `serve` of this package and for a loop of the program's own.
//!
//! Why not a handshake in the `accept` of a listener: one client that connects and sends nothing
//! holds it, and all other clients wait. Here the handshake is a part of the first read of a
//! connection, so its task does it, and the time of the first byte is its time.
//!
//! Invariants: `accept` does nothing of a handshake. No byte goes around TLS.
//!
//! Cost: that of a stream of `tokio-rustls`. A handshake has no timer of its own.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
#[cfg(feature = "axum")]
use std::sync::Arc;
use std::task::{Context, Poll, ready};

#[cfg(feature = "axum")]
use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
#[cfg(feature = "axum")]
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

/// A listener whose clients speak TLS, for [`serve`](crate::axum::serve).
///
/// It accepts a connection as the listener within does, and its stream is a [`TlsIo`]: the task of
/// the connection does the handshake. A client has `first_byte` of the
/// [limits](crate::server::Server#limits) for the handshake and for its first byte after that, 10
/// seconds unless the server sets another time. Then its connection is closed, as it is where the
/// handshake fails. A graceful shutdown closes a connection whose handshake goes on, and a drain of
/// the timers' service does so, too, after a second.
///
/// The client chooses HTTP/2 by ALPN: if the configuration names no protocols, they are `h2` and
/// `http/1.1`.
///
/// [`guide::tls`](crate::guide::tls) has a whole program.
///
/// ```no_run
/// use axum::{Router, routing::get};
/// use corewheel_http::axum::serve;
/// use corewheel_http::tls::TlsListener;
/// use tokio::net::TcpListener;
/// use tokio_rustls::rustls::ServerConfig;
///
/// async fn run(config: ServerConfig) -> std::io::Result<()> {
///     let app = Router::new().route("/", get(|| async { "hello" }));
///     let listener = TcpListener::bind("0.0.0.0:443").await?;
///     serve(TlsListener::new(listener, config), app).await
/// }
/// ```
#[cfg(feature = "axum")]
pub struct TlsListener<L> {
    listener: L,
    acceptor: TlsAcceptor,
}

#[cfg(feature = "axum")]
impl<L: Listener> TlsListener<L> {
    /// A listener whose connections are those of `listener`, with TLS.
    pub fn new(listener: L, config: impl Into<Arc<ServerConfig>>) -> Self {
        let mut config = config.into();
        if config.alpn_protocols.is_empty() {
            let protocols = &mut Arc::make_mut(&mut config).alpn_protocols;
            protocols.extend([b"h2".to_vec(), b"http/1.1".to_vec()]);
        }
        Self { listener, acceptor: config.into() }
    }
}

#[cfg(feature = "axum")]
impl<L> Listener for TlsListener<L>
where
    L: Listener<Io: AsyncRead + AsyncWrite>,
{
    type Io = TlsIo<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, L::Addr) {
        let (io, address) = self.listener.accept().await;
        (TlsIo::new(&self.acceptor, io), address)
    }

    fn local_addr(&self) -> io::Result<L::Addr> {
        self.listener.local_addr()
    }
}

#[cfg(feature = "axum")]
debug_fields!([L: fmt::Debug] TlsListener<L>, |it| listener: it.listener);

/// A stream of TLS, whose handshake is done by its first reads and writes.
///
/// With a [`Server`](crate::server::Server), a loop of the program's own gives
/// `TlsIo::new(&acceptor, socket)` to [`stream`](crate::server::Server::stream), and sets the
/// protocols of ALPN itself.
///
/// # Errors
///
/// A read or a write returns the error of the handshake, once, and then
/// [`NotConnected`](io::ErrorKind::NotConnected).
pub struct TlsIo<S>(State<S>);

enum State<S> {
    Handshake(Accept<S>),
    Open(TlsStream<S>),
    Failed,
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsIo<S> {
    /// The side of the server on a stream that was accepted. Nothing is read or written yet.
    pub fn new(acceptor: &TlsAcceptor, stream: S) -> Self {
        Self(State::Handshake(acceptor.accept(stream)))
    }

    /// Does what is left of the handshake.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut TlsStream<S>>>> {
        if let State::Handshake(accept) = &mut self.0 {
            let opened = ready!(Pin::new(accept).poll(cx));
            self.0 = State::Failed;
            self.0 = State::Open(opened?);
        }
        Poll::Ready(match &mut self.0 {
            State::Open(stream) => Ok(Pin::new(stream)),
            _ => Err(io::ErrorKind::NotConnected.into()),
        })
    }
}

impl<S> TlsIo<S> {
    /// The stream below TLS; `None` when the handshake has failed.
    pub fn get_ref(&self) -> Option<&S> {
        match &self.0 {
            State::Handshake(accept) => accept.get_ref(),
            State::Open(stream) => Some(stream.get_ref().0),
            State::Failed => None,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_open(cx))?.poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(cx))?.poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(cx))?.poll_flush(cx)
    }

    /// Does not wait for a handshake that goes on.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let State::Handshake(accept) = &mut self.0 {
            if let Some(stream) = accept.get_mut() {
                return Pin::new(stream).poll_shutdown(cx);
            }
        }
        ready!(self.poll_open(cx))?.poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(cx))?.poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

debug_fields!([S: fmt::Debug] TlsIo<S>, |it| stream: it.get_ref());

//! Connections to the upstream server.
//!
//! hyper does not end a connection over which a part of a request has gone while the upstream
//! server reads no more of it. So each connection can be cut from outside.

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use atomic_waker::AtomicWaker;
use hyper::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::net::TcpStream;
use tower::Service;

use crate::timers::{Late, Timers};

/// Connects to the upstream server, whatever the URI of the request, within a time.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    pub(crate) upstream: SocketAddr,
    pub(crate) timers: Timers,
    pub(crate) time: Duration,
}

impl Service<Uri> for Connector {
    type Response = Upstream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Upstream>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { upstream, timers, time } = *self;
        Box::pin(async move {
            match timers.timeout(time, TcpStream::connect(upstream)).await {
                Ok(connected) => {
                    let stream = connected?;
                    stream.set_nodelay(true)?;
                    Ok(Upstream { stream: TokioIo::new(stream), cut: Cut::default() })
                }
                Err(late @ Late::TimeUp) => Err(io::Error::new(io::ErrorKind::TimedOut, late)),
                Err(late @ (Late::NoTimer(_) | Late::Closed)) => Err(io::Error::other(late)),
            }
        })
    }
}

/// Cuts a connection to the upstream server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cut(Arc<CutState>);

#[derive(Debug, Default)]
struct CutState {
    is_cut: AtomicBool,
    /// The task of the connection, which reads and writes.
    task: AtomicWaker,
}

impl Cut {
    pub(crate) fn cut(&self) {
        // Release: pairs with the load in `poll`, whose task is registered before.
        self.0.is_cut.store(true, Ordering::Release);
        self.0.task.wake();
    }
}

/// A connection to the upstream server, until it is cut.
#[derive(Debug)]
pub(crate) struct Upstream {
    stream: TokioIo<TcpStream>,
    cut: Cut,
}

impl Upstream {
    /// Polls the stream. What would wait for it fails if the connection was cut.
    fn poll<V>(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut TokioIo<TcpStream>>, &mut Context<'_>) -> Poll<io::Result<V>>,
    ) -> Poll<io::Result<V>> {
        let polled = poll(Pin::new(&mut self.stream), cx);
        if polled.is_pending() {
            self.cut.0.task.register(cx.waker());
            if self.cut.0.is_cut.load(Ordering::Acquire) {
                // The server does not read: a reset leaves nothing for it in the kernel.
                let socket = SockRef::from(self.stream.inner());
                let _ = socket.set_linger(Some(Duration::ZERO));
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
        }
        polled
    }
}

impl Read for Upstream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll(cx, |stream, cx| stream.poll_read(cx, buf))
    }
}

impl Write for Upstream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll(cx, |stream, cx| stream.poll_write(cx, buf))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(cx, Write::poll_flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(cx, Write::poll_shutdown)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll(cx, |stream, cx| stream.poll_write_vectored(cx, bufs))
    }
}

impl Connection for Upstream {
    fn connected(&self) -> Connected {
        Connected::new().extra(self.cut.clone())
    }
}

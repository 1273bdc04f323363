//! The first bytes of a connection, which say whether it is one of HTTP/2.
//!
//! Why not hyper-util's server that detects the version: it gives no access to its HTTP/1
//! connection, whose last answer needs the socket, and does not say which version it has found,
//! without which the limits are not known.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::Bytes;
use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::oneshot;

/// With these bytes an HTTP/2 connection begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Reads until the version is known. Returns what was read, and whether it is the preface.
pub(crate) async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<(Bytes, bool)> {
    let mut read = Vec::with_capacity(PREFACE.len());
    while PREFACE.starts_with(&read) && read.len() < PREFACE.len() {
        let mut part = [0; PREFACE.len()];
        let count = stream.read(&mut part[read.len()..]).await?;
        if count == 0 {
            break;
        }
        let begin = read.len();
        read.extend_from_slice(&part[begin..begin + count]);
    }
    let is_http2 = read == PREFACE;
    Ok((read.into(), is_http2))
}

/// A stream of which some bytes were read before. Its drop gives it back to its owner, as hyper's
/// HTTP/2 connection does not.
#[derive(Debug)]
pub(crate) struct Rewound<S> {
    read: Bytes,
    /// `None` when it was given back.
    stream: Option<S>,
    back: Option<oneshot::Sender<S>>,
}

impl<S> Rewound<S> {
    /// Also returns where the stream is when this is dropped.
    pub(crate) fn new(read: Bytes, stream: S) -> (Self, oneshot::Receiver<S>) {
        let (back, given_back) = oneshot::channel();
        (Self { read, stream: Some(stream), back: Some(back) }, given_back)
    }

    fn stream(&mut self) -> Pin<&mut S>
    where
        S: Unpin,
    {
        Pin::new(self.stream.as_mut().expect("it is given back by the drop"))
    }
}

impl<S> Drop for Rewound<S> {
    fn drop(&mut self) {
        if let (Some(stream), Some(back)) = (self.stream.take(), self.back.take()) {
            // An owner that is gone closes the stream.
            let _ = back.send(stream);
        }
    }
}

impl<S: Read + Unpin> Read for Rewound<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read.is_empty() {
            return self.stream().poll_read(cx, buf);
        }
        let count = self.read.len().min(buf.remaining());
        buf.put_slice(&self.read.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl<S: Write + Unpin> Write for Rewound<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(Write::is_write_vectored)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write_vectored(cx, bufs)
    }
}

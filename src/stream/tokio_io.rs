//! tokio's traits.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::TimedIo;
use crate::conn::Side;

impl<S: AsyncRead, M: Side> AsyncRead for TimedIo<S, M> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.project();
        let io = this.io;
        this.deadlines.read(cx, |cx| {
            let before = buf.filled().len();
            let read = io.poll_read(cx, buf);
            read.map_ok(|()| ((), buf.filled().len() - before))
        })
    }
}

impl<S: AsyncWrite, M: Side> AsyncWrite for TimedIo<S, M> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        let io = this.io;
        this.deadlines.write(cx, |cx| io.poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        let io = this.io;
        this.deadlines.flush(cx, |cx| io.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        let io = this.io;
        this.deadlines.shutdown(cx, |cx| io.poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        let io = this.io;
        this.deadlines.write(cx, |cx| io.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.get_ref().is_write_vectored()
    }
}

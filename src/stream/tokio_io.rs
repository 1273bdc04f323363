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

timed_writes!(AsyncWrite);

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
        self.judged(|deadlines, io| {
            let before = buf.filled().len();
            let read = deadlines
                .read(cx, |cx| io.poll_read(cx, buf).map_ok(|()| buf.filled().len() - before));
            if read.is_ready() {
                deadlines.note_read(&buf.filled()[before..]);
            }
            read.map_ok(|_| ())
        })
    }
}

timed_writes!(AsyncWrite);

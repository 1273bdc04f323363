//! hyper's traits.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};

use super::TimedIo;
use crate::conn::Side;

impl<S: Read, M: Side> Read for TimedIo<S, M> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.judged(|deadlines, io| {
            let is_measured = deadlines.is_read_measured();
            let read = deadlines.read(cx, |cx| {
                if is_measured {
                    return read_counted(io, cx, buf);
                }
                // The stream keeps the cursor, so the end of the data counts as a byte, too. No
                // byte is read after it.
                let count = usize::from(buf.remaining() > 0);
                io.poll_read(cx, buf).map_ok(|()| count)
            });
            if read.is_ready() {
                // The bytes are in a cursor, which does not show them.
                deadlines.note_read(&[]);
            }
            read.map_ok(|_| ())
        })
    }
}

/// How many bytes a read that is counted reads at most.
const PART: usize = 8 * 1024;

/// Reads through a buffer of its own, as a cursor that was given away says no number of bytes.
fn read_counted<S: Read>(
    io: Pin<&mut S>,
    cx: &mut Context<'_>,
    mut buf: ReadBufCursor<'_>,
) -> Poll<io::Result<usize>> {
    let mut part = [const { MaybeUninit::uninit() }; PART];
    let mut part = ReadBuf::uninit(&mut part[..buf.remaining().min(PART)]);
    io.poll_read(cx, part.unfilled()).map_ok(|()| {
        buf.put_slice(part.filled());
        part.filled().len()
    })
}

timed_writes!(Write);

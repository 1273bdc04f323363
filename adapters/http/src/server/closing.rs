//! The stream of a connection while hyper has it, and its close.
//!
//! hyper reads no more while a service works on a request of HTTP/1 and a part of the next one is
//! there. So a client that has sent two requests and left would hold the first until a limit. Where
//! hyper reads, it takes the end of a client for its departure. So one that has shut its side down
//! would lose its answer. Therefore this stream reads ahead while hyper does not read.
//!
//! A socket that is closed while bytes lie unread in it is reset, and so is one to which bytes come
//! after that. A reset takes back what lies in the system's send buffer. So the writing side is
//! shut down first, and what the client still sends is read, until the client closes or the time is
//! up.
//!
//! Why the drop gives the stream back: hyper's connection drops it with itself.
//!
//! Invariants: a stream to which nothing was written is closed at once, unless a `408` tells its
//! client that its head was too slow. So is one whose client does not take what is sent, which
//! [`TimedIo`] resets. hyper gets each byte that was read ahead in its order, and the end after the
//! last. No more than [`AHEAD_MAX`] bytes are kept.
//!
//! Cost: no allocation for a client that sends nothing before its answer.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use corewheel::AnyHandle;
use corewheel::fallback::InfallibleSleep;
use corewheel::stream::StreamTimeout::{
    AgeGrace, Drained, FirstByte, Head, MaxAge, WriteRate, WriteStall,
};
use corewheel::stream::TimedIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use super::connection::set_http2;
use crate::hyper::Told;

/// How much is read at once of what hyper does not ask for.
const PART: usize = 4 << 10;

/// What a client of HTTP/1 gets whose request does not become complete in time.
const HEAD_TOO_SLOW: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n\
    content-length: 0\r\n\r\n";

/// Ends a response in chunks.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// The most bytes that are kept. The end behind more than these is found when hyper reads on.
const AHEAD_MAX: usize = 64 << 10;

/// What was read ahead.
#[derive(Default)]
struct Ahead {
    /// What hyper has not read.
    read: VecDeque<u8>,
    /// Whether the last read of hyper's was ready, so that none waits.
    is_wanted: bool,
    /// The time of a client that has closed its side.
    left: Option<InfallibleSleep>,
}

impl Ahead {
    /// Hands over what was read before. False if there is nothing.
    #[inline]
    fn hand_over(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let has_any = !self.read.is_empty();
        if has_any {
            self.hand_over_next(buf);
        }
        has_any
    }

    #[cold]
    fn hand_over_next(&mut self, buf: &mut ReadBuf<'_>) {
        let (next, _) = self.read.as_slices();
        let count = buf.remaining().min(next.len());
        buf.put_slice(&next[..count]);
        self.read.drain(..count);
        if self.read.is_empty() {
            self.read = VecDeque::new();
        }
    }

    /// Whether a client that has closed its side has waited for so long.
    fn is_over(&mut self, timers: AnyHandle, time: Duration, cx: &mut Context<'_>) -> bool {
        let new = || InfallibleSleep::after(timers, time);
        time.is_zero() || Pin::new(self.left.get_or_insert_with(new)).poll(cx).is_ready()
    }
}

/// What has gone over a connection.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// Whether something was written.
    is_written: bool,
    /// Whether the last chunk may follow: a stream of events is in progress, and all that hyper
    /// has begun to write of it was written.
    is_between_events: bool,
    /// Whether the client has closed its side.
    has_left: bool,
}

/// What a server says about a stream.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    pub(super) timers: AnyHandle,
    /// Whether clients may use HTTP/2.
    pub(super) has_http2: bool,
    /// Whether responses of HTTP/2 have limits for what the client takes of each.
    pub(super) limits_windows: bool,
    /// How long a client whose side is closed waits for its answer.
    pub(super) half_close: Duration,
}

/// A stream that hyper has. Its drop gives it back to the owner of the connection, if that waits.
pub(super) struct ServedIo<S> {
    /// `None` when it is given back.
    stream: Option<TimedIo<S>>,
    terms: Terms,
    ahead: Ahead,
    told: Arc<Told>,
    seen: Seen,
    back: Option<oneshot::Sender<EndedIo<S>>>,
}

/// A stream that hyper has given back.
pub(super) struct EndedIo<S> {
    stream: TimedIo<S>,
    seen: Seen,
}

impl<S> ServedIo<S> {
    /// Also returns where the stream is when this is dropped.
    pub(super) fn new(
        mut stream: TimedIo<S>,
        terms: Terms,
        told: Arc<Told>,
    ) -> (Self, oneshot::Receiver<EndedIo<S>>) {
        stream.begin_protocol();
        let (back, given_back) = oneshot::channel();
        let (ahead, seen) = (Ahead::default(), Seen::default());
        let (stream, back) = (Some(stream), Some(back));
        (Self { stream, terms, ahead, told, seen, back }, given_back)
    }

    fn stream(&mut self) -> Pin<&mut TimedIo<S>>
    where
        S: Unpin,
    {
        Pin::new(self.stream.as_mut().expect("it is given back by the drop"))
    }

    /// Notes that something was read, or the end. An error if clients may not use this version of
    /// HTTP.
    fn note_read(&mut self, is_end: bool) -> io::Result<()> {
        self.seen.has_left |= is_end;
        let stream = self.stream.as_ref().expect("it is given back by the drop");
        if stream.is_http2() == Some(true) && !self.told.is_http2.get() {
            if !self.terms.has_http2 {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.told.is_http2.set(true);
            set_http2(&stream.control(), self.terms.limits_windows);
        }
        Ok(())
    }

    fn note_written(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if matches!(written, Poll::Ready(Ok(1..))) {
            (self.seen.is_written, self.seen.is_between_events) = (true, false);
        }
        written
    }
}

impl<S: AsyncRead + Unpin> ServedIo<S> {
    /// Finds the end of what a client of HTTP/1 sends, while no read of hyper's waits. An error if
    /// the client has left.
    fn look_ahead(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let may_leave = self.told.has_request.get() && !self.told.is_tunnel.get();
        let stream = self.stream.as_mut().expect("it is given back by the drop");
        if stream.is_http2() != Some(false) || !self.ahead.is_wanted || !may_leave {
            return Ok(());
        }
        while !self.seen.has_left && self.ahead.read.len() < AHEAD_MAX {
            let mut part = [const { MaybeUninit::uninit() }; PART];
            let mut part = ReadBuf::uninit(&mut part);
            let Poll::Ready(read) = Pin::new(&mut *stream).poll_read(cx, &mut part) else {
                return Ok(());
            };
            read?;
            self.seen.has_left = part.filled().is_empty();
            self.ahead.read.extend(part.filled());
        }
        let Terms { timers, half_close, .. } = self.terms;
        if self.seen.has_left && self.ahead.is_over(timers, half_close, cx) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }
}

impl<S> Drop for ServedIo<S> {
    fn drop(&mut self) {
        if let (Some(stream), Some(back)) = (self.stream.take(), self.back.take()) {
            // An owner that is gone closes the stream.
            let _ = back.send(EndedIo { stream, seen: self.seen });
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ServedIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.hand_over(buf) || self.seen.has_left {
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let polled = self.stream().poll_read(cx, buf);
        self.ahead.is_wanted = polled.is_ready();
        ready!(polled)?;
        if buf.capacity() > before {
            self.note_read(buf.filled().len() == before)?;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ServedIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream().poll_write(cx, buf);
        self.note_written(written)
    }

    /// hyper flushes in each poll of its connection, after it has read what it wants to read.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.stream().poll_flush(cx))?;
        // hyper has written its whole buffer before, which ends with a whole chunk.
        self.seen.is_between_events = self.told.has_events.get();
        Poll::Ready(self.look_ahead(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream().poll_write_vectored(cx, bufs);
        self.note_written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> EndedIo<S> {
    /// Closes the stream within a time.
    pub(super) async fn close(self, handle: AnyHandle, time: Duration) {
        let reached = self.stream.control().limit_reached();
        // A head of HTTP/1 has begun. What may become a preface is none.
        let is_head_late =
            self.stream.is_http2() == Some(false) && matches!(reached, Some(Head(_)));
        let is_answered = !matches!(reached, Some(FirstByte(_) | WriteStall(_) | WriteRate(_)));
        let is_written = self.seen.is_written || is_head_late;
        if self.seen.has_left || !is_answered || !is_written || time.is_zero() {
            return;
        }
        // Without its deadlines, one of which has come.
        let mut socket = self.stream.into_inner();
        let is_told = matches!(reached, Some(AgeGrace(_) | Drained | MaxAge(_)));
        let mut last_words: &[u8] = match () {
            () if is_head_late => HEAD_TOO_SLOW,
            () if is_told && self.seen.is_between_events => LAST_CHUNK,
            () => b"",
        };
        let (mut sleep, mut is_shut) = (InfallibleSleep::after(handle, time), false);
        poll_fn(|cx| {
            match poll_close(Pin::new(&mut socket), &mut last_words, &mut is_shut, cx) {
                // An error says that the client has left.
                Poll::Ready(_) => Poll::Ready(()),
                Poll::Pending => Pin::new(&mut sleep).poll(cx),
            }
        })
        .await;
    }
}

/// Writes the rest of what is said, shuts the writing side down, and reads to the end of what the
/// client sends.
fn poll_close<S>(
    mut socket: Pin<&mut S>,
    last_words: &mut &[u8],
    is_shut: &mut bool,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>>
where
    S: AsyncRead + AsyncWrite,
{
    while !last_words.is_empty() {
        let count = ready!(socket.as_mut().poll_write(cx, last_words))?;
        if count == 0 {
            return Poll::Ready(Ok(()));
        }
        *last_words = &last_words[count..];
    }
    if !*is_shut {
        ready!(socket.as_mut().poll_shutdown(cx))?;
        *is_shut = true;
    }
    let mut part = [const { MaybeUninit::uninit() }; PART];
    loop {
        let mut part = ReadBuf::uninit(&mut part);
        ready!(socket.as_mut().poll_read(cx, &mut part))?;
        if part.filled().is_empty() {
            return Poll::Ready(Ok(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_ahead_are_handed_over_in_parts_and_in_order() {
        let mut ahead = Ahead::default();
        ahead.read.extend(b"first");
        ahead.read.extend(b"second");
        let (mut all, mut room) = (Vec::new(), [0; 4]);
        loop {
            let mut buf = ReadBuf::new(&mut room);
            if !ahead.hand_over(&mut buf) {
                break;
            }
            all.extend_from_slice(buf.filled());
        }
        assert_eq!(all, b"firstsecond");
    }
}

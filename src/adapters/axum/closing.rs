//! The close of a connection that a limit has ended.
//!
//! A socket that is closed while bytes lie unread in it is reset, and so is one to which bytes come
//! after that. A reset takes back what lies in the system's send buffer. So the writing side is
//! shut down first, and what the client still sends is read, until the client closes or the time is
//! up.
//!
//! Why in the drop: hyper has the stream, and drops it with its connection when a read or a write
//! has returned the error of a limit. `axum::serve` gives back neither.
//!
//! Invariants: a stream whose client does not take what is sent, or to which nothing was written,
//! is closed at once.
//!
//! Cost: a connection that a limit ends costs a task for at most the time of the close.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime;

use crate::face::handle::AnyHandle;
use crate::fallback::SleepOrKept;
use crate::stream::{StreamControl, StreamTimeout, TimedIo};

/// How much is read at once of what a client sends to a connection that is closed.
const PART: usize = 4 << 10;

/// A stream of a [`TimedListener`](super::TimedListener), with its timeouts.
///
/// It reads and writes as a [`TimedIo`] does. When it is dropped after a limit was reached, a task
/// of its runtime closes it: it shuts the writing side down, and reads and forgets what the client
/// still sends. So the client receives what lies in the system's send buffer, which a reset would
/// take back. The task ends when the client closes its side, and at the latest after the
/// [`close_time`](super::TimedListener::close_time) of the listener.
///
/// The stream is closed at once instead where
///
/// - [`write_stall`](crate::stream::StreamLimits::write_stall) or
///   [`min_write_rate`](crate::stream::StreamLimits::min_write_rate) was reached, as the client
///   does not take what is sent,
/// - nothing was written to it,
/// - the server has ended it without a limit, or no tokio runtime runs where it is dropped.
///
/// A graceful shutdown of `axum::serve` does not wait for these tasks; the runtime's end ends them.
///
/// # Cost
///
/// A connection that a limit has ended keeps its socket and a task for as long, which take no timer
/// unless the client has not closed at once. It counts no longer among the connections of the
/// service.
pub struct ServedIo<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    /// `None` when it is dropped.
    stream: Option<TimedIo<S>>,
    handle: AnyHandle,
    close_time: Duration,
    /// Whether something was written.
    is_written: bool,
}

impl<S> ServedIo<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    pub(super) fn new(stream: TimedIo<S>, handle: AnyHandle, close_time: Duration) -> Self {
        Self { stream: Some(stream), handle, close_time, is_written: false }
    }

    fn timed(&self) -> &TimedIo<S> {
        self.stream.as_ref().expect("it is there until the drop")
    }

    fn timed_mut(&mut self) -> &mut TimedIo<S> {
        self.stream.as_mut().expect("it is there until the drop")
    }

    fn project(self: Pin<&mut Self>) -> Pin<&mut TimedIo<S>> {
        Pin::new(self.get_mut().timed_mut())
    }

    /// The control of the stream; see [`TimedIo::control`].
    pub fn control(&self) -> StreamControl {
        self.timed().control()
    }

    /// The stream. What is read or written past this type counts as nothing.
    pub fn get_ref(&self) -> &S {
        self.timed().get_ref()
    }

    /// The stream; see [`get_ref`](Self::get_ref).
    pub fn get_mut(&mut self) -> &mut S {
        self.timed_mut().get_mut()
    }

    /// Notes whether something was written.
    fn note(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.is_written |= matches!(written, Poll::Ready(Ok(1..)));
        written
    }
}

impl<S> Drop for ServedIo<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    fn drop(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        let is_to_close = match stream.control().limit_reached() {
            None | Some(StreamTimeout::WriteStall(_) | StreamTimeout::WriteRate(_)) => false,
            Some(_) => self.is_written && !self.close_time.is_zero(),
        };
        if is_to_close && let Ok(runtime) = runtime::Handle::try_current() {
            // Without its deadlines, one of which has come.
            let (socket, handle) = (stream.into_inner(), self.handle);
            runtime.spawn(close(socket, handle, self.close_time));
        }
    }
}

/// Closes a stream within a time.
async fn close<S>(mut socket: S, handle: AnyHandle, time: Duration)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut sleep = SleepOrKept::after(handle, time);
    let mut is_shut = false;
    poll_fn(|cx| match poll_close(Pin::new(&mut socket), &mut is_shut, cx) {
        // An error says that the client has left.
        Poll::Ready(_) => Poll::Ready(()),
        Poll::Pending => sleep.poll(cx),
    })
    .await;
}

/// Shuts the writing side down, and reads to the end of what the client sends.
fn poll_close<S>(
    mut socket: Pin<&mut S>,
    is_shut: &mut bool,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>>
where
    S: AsyncRead + AsyncWrite,
{
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

impl<S> AsyncRead for ServedIo<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.project().poll_read(cx, buf)
    }
}

impl<S> AsyncWrite for ServedIo<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.as_mut().project().poll_write(cx, buf);
        self.note(written)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.as_mut().project().poll_write_vectored(cx, bufs);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.timed().is_write_vectored()
    }
}

impl<S> fmt::Debug for ServedIo<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + fmt::Debug + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedIo")
            .field("stream", self.timed())
            .field("close_time", &self.close_time)
            .finish_non_exhaustive()
    }
}

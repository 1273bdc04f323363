//! A stream with its timeouts.
//!
//! [`TimedIo`] wraps a stream and keeps all its limits by one timer of the connection: until the
//! first byte, for the head of a message, for a read or a write that waits, while nothing happens,
//! and for the whole connection. It implements tokio's traits where the stream does, with the
//! feature `tokio`, and hyper's, with the feature `hyper`. So whatever reads and writes the stream,
//! a codec, a TLS library or hyper, finds a peer that is too slow as an [`io::Error`] of kind
//! [`TimedOut`](io::ErrorKind::TimedOut).
//!
//! Why not a timeout around each read and each write: each costs a timer, the code that reads has
//! to know of it, and a peer that sends one byte before each deadline is never found.
//!
//! Invariants: a read, write, flush or shutdown that waits has a timer, or returns an error.
//!
//! Cost: see [`TimedIo`].
//!
//! # Below an HTTP library
//!
//! A library that reads and writes a stream knows where messages begin and which requests are in
//! progress, and does not say so. The package `corewheel-http` tells the stream for hyper. An
//! adapter for another library tells it by the [`StreamControl`] of the connection, for each
//! request:
//!
//! 1. [`begin_message`](StreamControl::begin_message) before the library reads the first head of a
//!    connection of HTTP/1.
//! 2. When the head is complete, before the library reads on:
//!    [`hold_request`](StreamControl::hold_request). Then the message goes on by
//!    [`head_complete`](StreamControl::head_complete), if it is one of HTTP/1 with a body, or ends
//!    by [`message_ends_with_line`](StreamControl::message_ends_with_line). Under HTTP/2 it is
//!    [`message_complete`](StreamControl::message_complete).
//! 3. Where a read of the body waits that has no limit of its own, the request is
//!    [released](StreamControl::release_request) until the wait ends. So the idle times find a peer
//!    that sends no more.
//! 4. [`message_ends_at`](StreamControl::message_ends_at) with the body of a request of HTTP/1. Its
//!    end follows from [`take_head_end`](StreamControl::take_head_end) and the length of the body.
//!    A body in chunks [ends with a line](StreamControl::message_ends_with_line), and one that is
//!    broken off is [complete](StreamControl::message_complete).
//! 5. [`begin_piece`](StreamControl::begin_piece) for each part of a response of HTTP/2, which
//!    the library keeps until its peer has a window for it,
//!    [`take_piece`](StreamControl::take_piece) for what it has written of a part, and
//!    [`end_piece`](StreamControl::end_piece).
//! 6. [`end_request_at_flush`](StreamControl::end_request_at_flush) or
//!    [`end_request_at_write`](StreamControl::end_request_at_write) when the library has taken the
//!    last of the response. The idle times then count from the time at which the socket has
//!    accepted it.
//! 7. [`begin_tunnel`](StreamControl::begin_tunnel) when the response to a CONNECT of HTTP/2
//!    succeeds.
//! 8. [`begin_message`](StreamControl::begin_message) when both bodies of HTTP/1 have ended, unless
//!    the connection belongs to another protocol now.
//!
//! A limit for a body is a timer of the adapter's own. When it has passed,
//! [`SharedControl::decide`] says when what lay in the socket has reached the body.
//!
//! ```
//! # #[cfg(feature = "tokio")] {
//! use corewheel::stream::{StreamLimits, TimedIo};
//! use std::io;
//! use std::time::Duration;
//! use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
//!
//! /// Serves requests of one line each.
//! async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: TimedIo<S>) -> io::Result<()> {
//!     let control = stream.control();
//!     let (mut stream, mut line) = (BufReader::new(stream), String::new());
//!     loop {
//!         control.begin_message();
//!         if stream.read_line(&mut line).await? == 0 {
//!             return Ok(());
//!         }
//!         control.hold_request();
//!         control.message_complete();
//!         // However long that takes, the connection is not idle.
//!         let answer = line.to_uppercase();
//!         line.clear();
//!         stream.write_all(answer.as_bytes()).await?;
//!         control.end_request_at_flush();
//!         stream.flush().await?;
//!     }
//! }
//! # use tokio::io::AsyncReadExt;
//! # let service = corewheel::TimerService::beside_runtime().start().unwrap();
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//! # runtime.block_on(async {
//! # let (stream, mut client) = tokio::io::duplex(64);
//! let limits = StreamLimits::default()
//!     .head(Duration::from_millis(20))
//!     .write_stall(Duration::from_secs(30))
//!     .idle(Duration::from_secs(60));
//! let served = serve(TimedIo::new(stream, service.handle(), limits));
//! # let client = async {
//! #     client.write_all(b"one\n").await.unwrap();
//! #     let mut answer = [0; 4];
//! #     client.read_exact(&mut answer).await.unwrap();
//! #     assert_eq!(&answer, b"ONE\n");
//! #     client.write_all(b"tw").await.unwrap();
//! #     std::future::pending::<()>().await;
//! # };
//! // The client sends a line, and half of another one when it has its answer.
//! # let served = async { tokio::select! { ended = served => ended, () = client => Ok(()) } };
//! let error = served.await.unwrap_err();
//! assert_eq!(error.to_string(), "a message's head was not complete within 20ms");
//! # });
//! # }
//! ```

/// The methods for writing, which tokio's trait and hyper's have in common.
macro_rules! timed_writes {
    ($write:ident) => {
        impl<S: $write, M: Side> $write for TimedIo<S, M> {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.judged(|deadlines, io| deadlines.write([buf], cx, |cx| io.poll_write(cx, buf)))
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.judged(|deadlines, io| deadlines.flush(cx, |cx| io.poll_flush(cx)))
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.judged(|deadlines, io| deadlines.shutdown(cx, |cx| io.poll_shutdown(cx)))
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.judged(|deadlines, io| {
                    let bytes = bufs.iter().map(|buf| &**buf);
                    deadlines.write(bytes, cx, |cx| io.poll_write_vectored(cx, bufs))
                })
            }

            fn is_write_vectored(&self) -> bool {
                self.get_ref().is_write_vectored()
            }
        }
    };
}
mod behind;
mod control;
mod deadlines;
mod framework;
mod http2;
#[cfg(feature = "hyper")]
mod hyper_io;
mod limits;
mod notes;
mod proof;
mod socket;
#[cfg(feature = "tokio")]
mod tokio_io;
mod unsent;
mod waiter;

use std::fmt;
use std::io;
use std::marker::PhantomData;
#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::Poll;

use pin_project_lite::pin_project;

pub use self::control::StreamControl;
use self::deadlines::Deadlines;
pub use self::framework::SharedControl;
use self::http2::Protocol;
pub use self::limits::{StreamLimits, StreamTimeout};
use self::socket::Ask;
pub(crate) use self::socket::Socket;
use crate::conn::{ConnTimers, Side};
use crate::face::handle::Handle;
use crate::face::timers::Timers;
use crate::values::refused::Refused;

pin_project! {
    /// A stream with its timeouts.
    ///
    /// It reads and writes as the stream `S` does, until one of its [`StreamLimits`] is reached.
    /// `M` says where the stream may be used, and its [`timers`](Self::timers) with it:
    ///
    /// - [`Handle`], made by [`new`](Self::new): it is `Send` and `Sync` if the stream is, for
    ///   tasks of a multi-thread runtime.
    /// - [`Timers`], made by [`on_shard`](Self::on_shard): it stays on the thread of a shard, and
    ///   a touch takes a quarter of the instructions (callgrind, x86-64).
    ///
    /// The owner of a stream is the code that has made it. After the owner has given the stream to
    /// hyper or to a codec, it uses [`control`](Self::control). By it the owner says where heads
    /// end and which requests are in flight, and learns when to write a heartbeat.
    ///
    /// # What comes first
    ///
    /// What the stream can do at once is done, whatever the time is: data that has come before it
    /// is read is in time, and so is a write that is accepted. Only a read, write or flush that
    /// must wait is ended by a limit. [`max_age`](StreamLimits::max_age) and
    /// [`max_age_grace`](StreamLimits::max_age_grace) alone end a stream that is always ready, with
    /// its first read, write or flush after the timer has expired.
    ///
    /// A limit that has passed first lets the runtime look at its sockets, as
    /// [`corewheel::Timeout`](crate::Timeout#in-time) does, and reads once more after that. So a
    /// peer whose bytes lay in the socket in time is not cut where the runtime was held up.
    ///
    /// The limits of a read end a read that waits, and the limit of a write ends a write, a flush
    /// or a shutdown that waits. [`idle`](StreamLimits::idle) ends a read, and a write if no read
    /// waits. A read that was dropped while it waited counts as waiting until the next read, and so
    /// does a write.
    ///
    /// A write that waits is bounded by [`write_stall`](StreamLimits::write_stall) and
    /// [`min_write_rate`](StreamLimits::min_write_rate). Where one of them is set, neither `idle`
    /// nor `read_idle` ends the stream meanwhile: a peer that takes a long response is not idle,
    /// although the system accepts its bytes in large portions. Where none is, `idle` bounds it.
    ///
    /// [`read_idle`](StreamLimits::read_idle) begins again with each byte that is read, and when a
    /// write that had to wait goes on: the peer has taken bytes. Bytes that are accepted at once
    /// say nothing of the peer.
    ///
    /// A limit that is reached ends the stream. The read or write that waits returns an error of
    /// kind [`TimedOut`](io::ErrorKind::TimedOut), whose inner error is a [`StreamTimeout`]; so
    /// does every later read, write and flush. A shutdown is tried nevertheless, and returns the
    /// error only if it must wait for too long itself.
    ///
    /// # When there is no timer
    ///
    /// The deadlines need one timer of a shard. Where there is none, what the stream can do at once
    /// is done, and what would wait returns an error whose inner error is a
    /// [`RefusedKind`](crate::RefusedKind):
    ///
    /// - `Full`, of kind [`ResourceBusy`](io::ErrorKind::ResourceBusy): the shard has no room for
    ///   the timer. The next read or write tries again. A server closes the connection, or pauses
    ///   and goes on.
    /// - `Closed` or `NoSuchShard`, of kind [`Other`](io::ErrorKind::Other): the service
    ///   has ended, the [timers](Self::timers) were closed, or the handle names no shard. An error
    ///   of this kind stays.
    ///
    /// # Two tasks
    ///
    /// One task may read and another write, with halves as `tokio::io::split` makes them: a limit
    /// that is reached wakes both, and both receive the error. One task reads at a time, and one
    /// writes, as with every stream.
    ///
    /// # How late
    ///
    /// An error never comes early. It comes as late as the events of the [timers](ConnTimers). On a
    /// shard, after 8 reads or writes in a row that were ready at once, of all connections of the
    /// shard together, the task returns to its executor, as in [`ConnTimers::race`].
    ///
    /// # Cost
    ///
    /// A write that is ready costs a touch of the timers and a few branches, sends nothing and
    /// allocates nothing. So does a read; of reads in a row that are ready, one in eight touches
    /// the timers, and [`deadline`](ConnTimers::deadline) shows the others with the next wait. The
    /// first read that must wait polls the timers, which takes the connection's lock on any thread,
    /// and so does the first one after the timer has expired. A read that must wait costs a touch
    /// otherwise, and one that is measured two readings of the clock more. A write that must wait
    /// costs as much as such a read, and the first allocates some 300 bytes for the connection. A
    /// stream takes what its timers take, and some 420 bytes.
    ///
    /// On any thread, a stream without a limit forwards each call, and stamps the connection. It
    /// watches from then on when it gets a limit, is told to end, or a write has to wait.
    ///
    /// ```
    /// # #[cfg(feature = "tokio")] {
    /// use corewheel::TimerService;
    /// use corewheel::stream::{StreamLimits, StreamTimeout, TimedIo};
    /// use std::time::Duration;
    /// use tokio::io::{AsyncReadExt, AsyncWriteExt};
    ///
    /// let service = TimerService::beside_runtime().start().unwrap();
    /// # let runtime = tokio::runtime::Builder::new_multi_thread().enable_io().build().unwrap();
    /// # runtime.block_on(async {
    /// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    /// let address = listener.local_addr().unwrap();
    /// let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
    ///
    /// let (stream, _) = listener.accept().await.unwrap();
    /// let limits = StreamLimits::default().read_idle(Duration::from_millis(20));
    /// let mut stream = TimedIo::new(stream, service.handle(), limits);
    /// client.write_all(b"hello").await.unwrap();
    /// let mut received = Vec::new();
    /// // The client sends nothing more, and does not close the connection.
    /// let error = stream.read_to_end(&mut received).await.unwrap_err();
    /// assert_eq!((&received[..], error.kind()), (&b"hello"[..], std::io::ErrorKind::TimedOut));
    /// let timeout = error.get_ref().unwrap().downcast_ref::<StreamTimeout>();
    /// assert_eq!(timeout, Some(&StreamTimeout::ReadIdle(Duration::from_millis(20))));
    /// # });
    /// # }
    /// ```
    #[project = Projected]
    pub struct TimedIo<S, M = Handle>
    where
        M: Side,
    {
        #[pin]
        io: S,
        deadlines: Deadlines<M>,
        socket: Socket<S>,
    }
}

impl<S> TimedIo<S> {
    /// A stream with its timeouts, for tasks on any thread. Its connection begins now.
    ///
    /// Nothing is sent to the service before the first read or write, and that is where a
    /// [refusal](Self#when-there-is-no-timer) shows.
    pub fn new<T: 'static>(stream: S, handle: Handle<T>, limits: StreamLimits) -> Self {
        let timers = handle.connection(limits.of_conn());
        let deadlines = Deadlines::new(timers, handle.untyped(), limits.head);
        Self { io: stream, deadlines, socket: Socket::None(PhantomData) }
    }
}

impl<S> TimedIo<S, Timers> {
    /// A stream with its timeouts, for a task on the thread of a shard. Its connection begins now.
    ///
    /// # Errors
    ///
    /// `Full` if the shard has no room for another timer, `Closed` if it is shut down, with the
    /// stream.
    pub fn on_shard<T: Send + 'static>(
        stream: S,
        timers: &Timers<T>,
        limits: StreamLimits,
    ) -> Result<Self, Refused<S>> {
        match timers.connection(limits.of_conn()) {
            Ok(conn) => {
                let (service, shard) = (timers.core().directory().service, timers.core().id());
                let handle = Handle::new(service).on(shard).with_class(timers.class());
                let deadlines = Deadlines::new(conn, handle, limits.head);
                Ok(Self { io: stream, deadlines, socket: Socket::None(PhantomData) })
            }
            Err(refused) => Err(refused.of(stream)),
        }
    }
}

impl<S, M: Side> TimedIo<S, M> {
    /// Judges writes by what the peer has acknowledged: a function says which TCP socket lies below
    /// the stream, if there is one. Without it, writes are judged by what the stream accepts, and
    /// the system accepts the bytes of a slow reader in lumps of up to a megabyte: a reader of
    /// 30 kB/s goes without one for half a minute.
    ///
    /// A peer is cut only if its kernel has acknowledged nothing for
    /// [`write_stall`](StreamLimits::write_stall), or less than
    /// [`min_write_rate`](StreamLimits::min_write_rate) with room for a lump, see
    /// [`DataRate`](crate::conn::DataRate). The socket is looked at four times in the stall, so a
    /// peer that takes nothing is cut up to a quarter of it later. Its close resets the connection
    /// then, and the system forgets what the peer has not taken.
    ///
    /// Bytes that are not acknowledged are a write that waits, although the system has accepted
    /// them. Where one of these two limits is set, a peer that takes no answer reaches it while a
    /// read waits for the next request. Idle times count only while the peer has all. Without a
    /// socket, such a peer is idle.
    ///
    /// What a response has of an HTTP/2 client that gives no window for it is judged by the window.
    ///
    /// With [`unsent_max`](StreamLimits::unsent_max), the system has no more than that for a peer
    /// that takes slowly, and what the peer's own system takes.
    ///
    /// A system call now, or two with that bound, and one at each look: when a part of a limit of
    /// writing or an idle time has passed since bytes were accepted. The first write of a
    /// connection allocates some 300 bytes for its time. Changes nothing where the system does not
    /// say what was acknowledged: see [`PeerSocket`](crate::conn::PeerSocket).
    ///
    /// ```
    /// # #[cfg(feature = "tokio")] {
    /// use corewheel::Handle;
    /// use corewheel::stream::{StreamLimits, TimedIo};
    /// use std::os::fd::AsFd;
    /// use std::time::Duration;
    /// use tokio::net::TcpStream;
    ///
    /// fn timed<T: 'static>(socket: TcpStream, timers: Handle<T>) -> TimedIo<TcpStream> {
    ///     let limits = StreamLimits::default().write_stall(Duration::from_secs(30));
    ///     // Of a stream of TLS, the socket is that of `stream.get_ref().0`.
    ///     TimedIo::new(socket, timers, limits).with_socket(|socket| Some(socket.as_fd()))
    /// }
    /// # }
    /// ```
    #[cfg(unix)]
    #[must_use]
    pub fn with_socket(self, find: fn(&S) -> Option<BorrowedFd<'_>>) -> Self {
        self.judged_by_socket(Socket::System(find))
    }

    /// Judges writes by what a socket says.
    #[cfg(unix)]
    pub(crate) fn judged_by_socket(mut self, socket: Socket<S>) -> Self {
        if let Some(sent) = socket.ask(&self.io, Ask::Sent) {
            self.deadlines.set_sent(sent);
            self.socket = socket;
            if let Some(bound) = self.deadlines.take_bound() {
                self.socket.ask(&self.io, Ask::UnsentMax(bound));
            }
        }
        self
    }

    /// Reads, writes, flushes or shuts down by `call`, judged by the socket if there is one.
    #[inline]
    fn judged<V>(
        self: Pin<&mut Self>,
        call: impl FnOnce(&mut Deadlines<M>, Pin<&mut S>) -> Poll<io::Result<V>>,
    ) -> Poll<io::Result<V>> {
        let Projected { mut io, deadlines, socket } = self.project();
        deadlines.look_at_socket(|| socket.ask(&io, Ask::Sent));
        let polled = call(deadlines, io.as_mut());
        if deadlines.is_reset_by(&polled) {
            socket.ask(&io, Ask::Reset);
        }
        if let Some(bound) = deadlines.take_bound() {
            socket.ask(&io, Ask::UnsentMax(bound));
        }
        polled
    }

    /// The control of the stream. The owner makes it before it gives the stream away. By it the
    /// owner tells the stream about messages and requests, and learns when limits are reached.
    pub fn control(&self) -> StreamControl<M> {
        self.deadlines.control()
    }

    /// The timers of the connection. Its other deadlines may be armed, and its limits changed:
    /// every event except a heartbeat ends the stream. Closing them ends it as well, from any task:
    /// what waits returns an error. The deadline `Request` is the stream's own.
    ///
    /// The stream takes the events. No other task may poll for them.
    pub fn timers(&self) -> &ConnTimers<M> {
        &self.deadlines.timers
    }

    /// The next byte that is read is the first of a protocol. Before the first read, nothing need
    /// say so; behind what the owner has read itself, as the header of a proxy, the adapter does.
    pub fn begin_protocol(&mut self) {
        self.deadlines.http2 = Protocol::NEW;
    }

    /// Whether the protocol is HTTP/2, by its preface. `None` while too little was read, and of a
    /// stream that is read by hyper's traits.
    pub fn is_http2(&self) -> Option<bool> {
        self.deadlines.http2.is_known()
    }

    /// The stream. What is read or written past this type counts as nothing.
    pub fn get_ref(&self) -> &S {
        &self.io
    }

    /// The stream; see [`get_ref`](Self::get_ref).
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.io
    }

    /// The stream without its timeouts. Its timers are closed.
    pub fn into_inner(self) -> S {
        self.io
    }
}

debug_fields!([S: fmt::Debug, M: Side] TimedIo<S, M>, |it| stream: it.io, control: it.control());

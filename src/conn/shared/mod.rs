//! Connection timers for tasks that go from thread to thread.
//!
//! All deadlines of a connection lie on the caller's side, beside its stamps, and one sleep of a
//! shard serves them all. So nothing of the connection is bound to a thread.
//!
//! Why not connection timers on a shard, reached by messages: a message for each packet costs more
//! than all that a deadline does, and a task would learn of a deadline by another message.
//!
//! Invariants: the events are those of `ConnTimers`, by the same rules. A touch takes no lock and
//! wakes no task.
//!
//! Cost: see [`SharedConnTimers`].

mod in_progress;
mod inner;
mod limits;
mod stamp;
mod transfer;

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_core::Stream;

pub use self::in_progress::SharedInProgress;
use self::inner::{Inner, Owner, Wakes};
pub use self::transfer::SharedTransfer;
use super::limits::{ArmError, ConnEvent, ConnLimits, DeadlineKind};
use super::measured::Direction;
use super::rules::{self, NEVER};
use super::timers::Raced;
use crate::clock::when::When;
use crate::face::handle::Handle;
use crate::values::refused::RefusedKind;

/// The deadlines of one connection whose tasks run on any thread, such as those of a multi-thread
/// tokio runtime; made by [`Handle::connection`].
///
/// It is `Send`, `Sync` and `'static`, and does what [`ConnTimers`](crate::ConnTimers) does on one
/// shard's thread: the same kinds of deadlines, and the same events. A deadline that comes is an
/// event: a task awaits it with [`next`](Self::next), or beside a read or a write with
/// [`race`](Self::race). An idle deadline is armed again before its event is delivered. An event
/// that has come and was not taken is withdrawn if the connection is active meanwhile.
///
/// There is no `on_event` and no `pack`: a callback runs on the thread of a shard, and what is on
/// no shard need not go to another.
///
/// A clone is another handle of the same connection. When the last handle is dropped, the
/// connection is closed, and its timer is cancelled. [`close`](Self::close) does that at once.
///
/// # When there is no timer
///
/// The deadlines need one timer of a shard, which the first poll for events takes. Where there is
/// none, `next` and `race` say so with an error, and no deadline is lost in silence:
///
/// - `Full` and `Busy`: the shard has no room, or takes no request at present. The deadlines stay,
///   and the next poll tries again. A server closes the connection, or pauses and goes on.
/// - `Closed`: the service has ended. The connection is closed, and the error comes once.
///
/// # How late
///
/// An event never comes early. It comes late by at most the lateness of every timer of the shard, a
/// tick and the time for which the thread is held up, and by the time until the task is polled. A
/// stamp adds nothing: it is a reading of the calling thread's clock, which is at most some
/// microseconds ahead.
///
/// The deadlines are looked at in polls for events only. A task that works for longer than a limit
/// finds one event of each kind that is due, at its next poll, and idle times are counted on from
/// there.
///
/// After the whole process was stopped or held up until after a deadline, the event may come before
/// the runtime has found the data that lay in a socket meanwhile: the runtime decides which of its
/// tasks runs first. A shard with connections of its own lets its executor read the sockets before,
/// see [`ConnTimers`](crate::ConnTimers).
///
/// # Cost
///
/// A touch is a reading of the thread's near clock and one atomic maximum of 8 bytes; it takes no
/// lock, sends nothing and wakes no task. The beginning and the end of a read or a request take a
/// lock that only the connection's own tasks take. A poll for events takes it, too, reads the near
/// clock, and sends a message to the shard when the first deadline has become earlier than the
/// timer. A timer that expires while the connection was active is put off by another message, once
/// for each time that the limit takes. A connection takes some 280 bytes and a timer; a connection
/// whose idle events come, or that uses deadlines beside those that its limits arm, takes some 200
/// bytes more. A handle is 8 bytes.
///
/// ```
/// use corewheel::conn::Raced;
/// use corewheel::{ConnLimits, DeadlineKind, SharedConnTimers, TimerService};
/// use std::time::Duration;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// use tokio::net::{TcpListener, TcpStream};
///
/// type Served = Result<&'static str, Box<dyn std::error::Error + Send + Sync>>;
///
/// /// Makes the answer to a request, which may take longer than the idle limit.
/// async fn work(request: &[u8]) -> Vec<u8> {
///     request.to_vec()
/// }
///
/// /// Answers what comes, and sends a PING to a peer that is quiet.
/// async fn serve(mut stream: TcpStream, conn: SharedConnTimers) -> Served {
///     let mut buffer = [0; 1024];
///     loop {
///         match conn.race(stream.read(&mut buffer)).await? {
///             Raced::Done(count) => {
///                 let count = count?;
///                 if count == 0 {
///                     return Ok("closed by the peer");
///                 }
///                 conn.touch_read();
///                 // The connection is not idle while the server works.
///                 let in_flight = conn.begin_request();
///                 let answer = work(&buffer[..count]).await;
///                 drop(in_flight);
///                 stream.write_all(&answer).await?;
///                 conn.touch_write();
///             }
///             Raced::Event(event) if event.kind == DeadlineKind::Heartbeat => {
///                 stream.write_all(b"PING").await?;
///                 conn.touch_write();
///             }
///             Raced::Event(_) => return Ok("idle"),
///             Raced::Closed => return Ok("closed here"),
///         }
///     }
/// }
///
/// let service = TimerService::builder().shards(1).start()?;
/// let timers = service.handle();
/// let runtime = tokio::runtime::Builder::new_multi_thread().enable_io().build()?;
/// let (ended, received) = runtime.block_on(async move {
///     let listener = TcpListener::bind("127.0.0.1:0").await?;
///     let mut client = TcpStream::connect(listener.local_addr()?).await?;
///     let (stream, _) = listener.accept().await?;
///     let limits = ConnLimits::default()
///         .heartbeat(Duration::from_millis(20))
///         .read_idle(Duration::from_millis(50));
///     let served = tokio::spawn(serve(stream, timers.connection(limits)));
///     client.write_all(b"hello").await?;
///     // This client sends nothing more.
///     let mut received = Vec::new();
///     client.read_to_end(&mut received).await?;
///     Ok::<_, std::io::Error>((served.await, received))
/// })?;
/// assert_eq!(ended?.unwrap(), "idle");
/// assert!(received.starts_with(b"hello"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the connection is closed when its last handle is dropped"]
#[derive(Clone)]
pub struct SharedConnTimers {
    owner: Arc<Owner>,
}

impl Handle {
    /// The deadlines of a connection that begins now, for tasks on any thread. Nothing is sent
    /// before the first poll for events, and that is where a refusal shows.
    pub fn connection(self, limits: ConnLimits) -> SharedConnTimers {
        SharedConnTimers { owner: Arc::new(Owner(Inner::new(self, limits))) }
    }
}

impl SharedConnTimers {
    #[inline]
    fn conn(&self) -> &Arc<Inner> {
        &self.owner.0
    }
}

/// Activity. A stamp never goes back, whatever the order in which threads store theirs.
impl SharedConnTimers {
    /// Something was read.
    #[inline]
    pub fn touch_read(&self) {
        self.conn().read.set(self.conn().now());
    }

    /// Something was written, or a long write has made progress.
    #[inline]
    pub fn touch_write(&self) {
        self.conn().written.set(self.conn().now());
    }

    /// Something happened that counts as a read and as a write: all idle times begin again.
    #[inline]
    pub fn touch(&self) {
        let now = self.conn().now();
        self.conn().read.set(now);
        self.conn().written.set(now);
    }

    /// Something was read at a known time, such as a loop's present time. The time must not be
    /// before the read, nor in the future. A time before the present stamp changes nothing. Reads
    /// no clock.
    ///
    /// A time before the last idle event can make the next one earlier, and only then this takes
    /// the connection's lock and wakes the task that waits.
    #[inline]
    pub fn touch_read_at(&self, now: Instant) {
        self.conn().stamp_at(&self.conn().read, now);
    }

    /// Something was written at a known time; see [`touch_read_at`](Self::touch_read_at).
    #[inline]
    pub fn touch_write_at(&self, now: Instant) {
        self.conn().stamp_at(&self.conn().written, now);
    }

    /// A read is in progress until the returned guard is dropped. Meanwhile neither
    /// [`ReadIdle`](DeadlineKind::ReadIdle) nor [`AllIdle`](DeadlineKind::AllIdle) comes, however
    /// long the read takes. Its end counts as a read.
    ///
    /// Any number may be in progress at a time.
    ///
    /// # Panics
    ///
    /// There are 2³² guards, of which nearly all were forgotten.
    pub fn begin_read(&self) -> SharedInProgress {
        SharedInProgress::read(self.conn())
    }

    /// A write is in progress until the returned guard is dropped. It must end within
    /// [`ConnLimits::write_timeout`]; its end counts as a write. It holds back no idle deadline: a
    /// write that makes progress calls [`touch_write`](Self::touch_write).
    ///
    /// Takes the connection's lock. O(1); where there is such a limit, the end of a write is
    /// O(writes in progress).
    pub fn begin_write(&self) -> SharedInProgress {
        SharedInProgress::write(self.conn(), Wakes::Task)
    }

    /// A request is in flight until the returned guard is dropped: the server works, and the peer
    /// waits. Meanwhile the connection is not idle: none of
    /// [`ReadIdle`](DeadlineKind::ReadIdle), [`WriteIdle`](DeadlineKind::WriteIdle) and
    /// [`AllIdle`](DeadlineKind::AllIdle) comes. Idle times begin again when the last request has
    /// ended.
    ///
    /// All other deadlines come, [`Heartbeat`](DeadlineKind::Heartbeat) too. The end of a request
    /// does not count as a write, so the server touches what it writes.
    ///
    /// Any number may be in flight at a time.
    ///
    /// # Panics
    ///
    /// There are 2³² guards, of which nearly all were forgotten.
    pub fn begin_request(&self) -> SharedInProgress {
        SharedInProgress::request(self.conn())
    }
}

/// Least data rates.
impl SharedConnTimers {
    /// A read whose rate is measured, until the returned guard is dropped: the peer must send at
    /// [`ConnLimits::min_read_rate`]. Each read [adds](SharedTransfer::add) its bytes, and counts
    /// as a read. [`ReadRate`](DeadlineKind::ReadRate) comes when the bytes so far would have been
    /// transferred at that rate, counted from the beginning, and the grace period has passed.
    ///
    /// Time for which the server itself [does not read](SharedTransfer::pause) does not count. No
    /// event comes meanwhile.
    ///
    /// The event comes once. An event that was not taken is withdrawn when the transfer ends, and
    /// also when bytes are added that give the transfer more time: then it may come again.
    ///
    /// There is one measured read at a time. Another one takes its place, and the guard before has
    /// no effect on a deadline any more. A transfer keeps the rate that the limits had at its
    /// beginning; if they had none, it has no deadline.
    ///
    /// Takes the connection's lock. O(1). The first transfer of each direction allocates, and the
    /// next ones do not.
    pub fn begin_measured_read(&self) -> SharedTransfer {
        SharedTransfer::begin(self.conn(), Direction::Read, Wakes::Task)
    }

    /// A write whose rate is measured, until the returned guard is dropped: the peer must take the
    /// bytes at [`ConnLimits::min_write_rate`], or else [`WriteRate`](DeadlineKind::WriteRate)
    /// comes. The rules are those of [`begin_measured_read`](Self::begin_measured_read).
    pub fn begin_measured_write(&self) -> SharedTransfer {
        SharedTransfer::begin(self.conn(), Direction::Write, Wakes::Task)
    }
}

/// Deadlines. A change that makes the first deadline earlier wakes the task that waits, on
/// whichever thread the change is made.
impl SharedConnTimers {
    /// Arms a deadline that comes once: max age, handshake, request or a custom one. A deadline
    /// that is armed already is reset.
    ///
    /// # Errors
    ///
    /// Deadlines of this kind are set by the limits, there is no such deadline, or the connection
    /// is closed.
    pub fn arm<W: When>(&self, kind: DeadlineKind, when: W) -> Result<(), ArmError> {
        let due = self.conn().nanos_of(when);
        self.conn().arm(rules::armed_kind(kind)?, due, Wakes::Task).map(drop)
    }

    /// Disarms a deadline that comes once. Its event does not come afterwards. Returns true if it
    /// would have come, or had come and was not taken.
    ///
    /// # Errors
    ///
    /// The errors of [`arm`](Self::arm).
    pub fn disarm(&self, kind: DeadlineKind) -> Result<bool, ArmError> {
        self.conn().arm(rules::armed_kind(kind)?, NEVER, Wakes::Task)
    }

    /// The connection's limits.
    pub fn limits(&self) -> ConnLimits {
        self.conn().limits()
    }

    /// Changes the limits. Idle times count from the connection's last activity, and its age from
    /// its beginning. What was armed or disarmed stays so, and writes in progress and measured
    /// transfers keep their limit.
    pub fn set_limits(&self, limits: ConnLimits) {
        self.conn().set_limits(limits);
    }

    /// When a deadline is due; `None` if it is off. Activity makes an idle deadline later, and
    /// while a read or a request is in progress, the deadline that it holds back counts from this
    /// call.
    pub fn deadline(&self, kind: DeadlineKind) -> Option<Instant> {
        self.conn().deadline(kind.index()?)
    }

    /// Closes the connection for all its handles: cancels its timer, and wakes the task that waits,
    /// which receives `None`. False if the connection is closed already.
    pub fn close(&self) -> bool {
        self.conn().close()
    }

    /// Whether the connection is closed: by [`close`](Self::close), or by a poll that has found the
    /// service ended.
    pub fn is_closed(&self) -> bool {
        self.conn().is_closed()
    }
}

/// Events. `next` is for a task that only waits, `race` for a task that reads or writes meanwhile,
/// `poll_next` for a future of the caller's own, and the `Stream` for its combinators.
impl SharedConnTimers {
    /// Waits for the next event; `None` when the connection is closed.
    ///
    /// May be dropped and called again, on another thread too, and no event is lost. One task waits
    /// for a connection at a time: the last that has called this on any of the handles.
    ///
    /// # Errors
    ///
    /// `Full` or `Busy` if the shard has no room for the connection's timer, `Closed` if the
    /// service has ended: see [above](Self#when-there-is-no-timer).
    pub async fn next(&self) -> Result<Option<ConnEvent>, RefusedKind> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Polls for the next event, as [`next`](Self::next) does.
    ///
    /// # Errors
    ///
    /// The errors of [`next`](Self::next).
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Result<Option<ConnEvent>, RefusedKind>> {
        self.conn().poll(cx)
    }

    /// Waits for a future, such as a read or a write, or for the next event.
    ///
    /// A value that is ready at the same time as a deadline wins, and so it does if there is no
    /// timer. Only [`MaxAge`](DeadlineKind::MaxAge) comes before it, as otherwise a connection that
    /// never pauses would never reach its greatest age. The future is dropped if an event comes
    /// first.
    ///
    /// # Errors
    ///
    /// The errors of [`next`](Self::next). The future is dropped.
    pub async fn race<F: Future>(&self, future: F) -> Result<Raced<F::Output>, RefusedKind> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if let Some(age) = self.conn().take_max_age() {
                return Poll::Ready(Ok(Raced::Event(age)));
            }
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(Raced::Done(value)));
            }
            let event = self.conn().poll(cx);
            event.map(|event| event.map(|event| event.map_or(Raced::Closed, Raced::Event)))
        })
        .await
    }
}

/// For a stream, whose reads and writes look at their own deadlines only.
#[cfg(any(feature = "hyper", feature = "tokio"))]
impl SharedConnTimers {
    /// Polls for the next event of the wanted kinds. The waker is woken for events of other kinds
    /// too: they stay, and another poll takes them.
    pub(crate) fn poll_kinds(
        &self,
        cx: &mut Context<'_>,
        wanted: impl Fn(DeadlineKind) -> bool,
    ) -> Poll<Result<Option<ConnEvent>, RefusedKind>> {
        let (polled, is_other_found) = self.conn().poll_kinds(cx, wanted);
        if is_other_found {
            self.conn().wake_task();
        }
        polled
    }

    /// Does what [`touch_read`](Self::touch_read) does, and returns the time that it has stamped,
    /// in nanoseconds since the clock's epoch.
    #[inline]
    pub(crate) fn touch_read_now(&self) -> u64 {
        let now = self.conn().now();
        self.conn().read.set(now);
        now
    }

    /// When a time is, in nanoseconds since the clock's epoch.
    pub(crate) fn nanos_of<W: When>(&self, when: W) -> u64 {
        self.conn().nanos_of(when)
    }

    /// Does what [`arm`](Self::arm) does, for a time in nanoseconds since the clock's epoch, and
    /// wakes no task: the caller polls for events before it waits.
    pub(crate) fn arm_unwoken(&self, kind: DeadlineKind, due: u64) -> Result<(), ArmError> {
        self.conn().arm(rules::armed_kind(kind)?, due, Wakes::Nothing).map(drop)
    }

    /// Does what [`begin_write`](Self::begin_write) does, and wakes no task: the caller polls for
    /// events before it waits.
    pub(crate) fn begin_write_unwoken(&self) -> SharedInProgress {
        SharedInProgress::write(self.conn(), Wakes::Nothing)
    }

    /// Does what [`begin_measured_read`](Self::begin_measured_read) does, and wakes no task: the
    /// caller polls for events before it waits.
    pub(crate) fn begin_measured_read_unwoken(&self) -> SharedTransfer {
        SharedTransfer::begin(self.conn(), Direction::Read, Wakes::Nothing)
    }

    /// Does what [`begin_measured_write`](Self::begin_measured_write) does, and wakes no task: the
    /// caller polls for events before it waits.
    pub(crate) fn begin_measured_write_unwoken(&self) -> SharedTransfer {
        SharedTransfer::begin(self.conn(), Direction::Write, Wakes::Nothing)
    }
}

impl Stream for SharedConnTimers {
    type Item = Result<ConnEvent, RefusedKind>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.conn().poll(cx).map(Result::transpose)
    }
}

impl fmt::Debug for SharedConnTimers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedConnTimers")
            .field("limits", &self.limits())
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

/// Its handles and guards go from thread to thread.
const _: () = {
    const fn is_shared<T: Send + Sync + 'static>() {}
    is_shared::<SharedConnTimers>();
    is_shared::<SharedInProgress>();
    is_shared::<SharedTransfer>();
};

//! The deadlines of a connection: idle times, heartbeat, handshake, request, age, the user's own.
//!
//! Nearly every packet of a server moves a deadline, and nearly none of these deadlines is ever
//! reached. So what a connection does is noted by one store, without a clock reading and without a
//! word to the wheel; all of a connection's deadlines are one entry there, and it finds out what
//! has become of them when it comes up.
//!
//! Why not a [`Sleep`](crate::Sleep) for each deadline: moving one takes a clock reading and a miss
//! on its timer, and there would be five timers a connection.
//!
//! The semantics are those of Netty's `IdleStateHandler` and of its read and write timeouts, under
//! one roof.

mod activity;
mod limits;
mod marks;
mod part;
mod record;

use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_core::Stream;

pub use self::limits::{ArmError, ConnLimits, DeadlineKind, IdleEvent};
use self::part::{Connections, Refused};
use self::record::{Block, NEVER, Packed, Record, slot_of};
use crate::clock::nanos_after;
use crate::face::classed::Classed;
use crate::face::timers::Timers;
use crate::values::class::ClassId;

/// The deadlines of one connection, on the shard where it lives; made by [`Timers::connection`].
///
/// What the connection does is noted with [`touch_read`](Self::touch_read) and
/// [`touch_write`](Self::touch_write). What it has not done in time is awaited with
/// [`next`](Self::next), raced against reading and writing with [`race`](Self::race), or told to a
/// callback, see [`on_event`](Self::on_event). A deadline that comes again is armed again before
/// it is told.
///
/// A connection does not time out early. A note made without a moment counts as up to 10 ms and a
/// tick later than it is, and later only by as much as the thread was held up, so an idle event
/// comes that much later than it might; one that is made [`_at`](Self::touch_read_at) a moment
/// counts as of that. Events are as late as timers are otherwise.
///
/// Data that lay in a socket before the deadline is activity, also where the process was stopped or
/// held up until after the deadline: on glommio and tokio a shard that runs more than 10 ms late
/// has the executor read its sockets, and the tasks of the shard's queue run, before it delivers
/// anything. In a loop of your own the order is yours, see [`ShardLoop`](crate::ShardLoop).
///
/// A value and its deadline at once: the value wins. An idle event that has come and not been told
/// is withdrawn if the connection does something before it is asked for.
///
/// Closing cancels everything at once, in O(1); so does dropping. Where the shard is shut down, the
/// connection is closed.
///
/// # Cost
///
/// A touch is a load, a comparison and a store; one touch in 8 ms, of all connections of a shard
/// together, reads the clock. One `_at` a moment also reads what was noted before, so that a moment
/// that is past takes nothing back. A connection is a timer, 48 bytes and this handle; one whose
/// idle events come, or that uses deadlines beside those which its limits arm, is some 200 bytes
/// more. A [`race`](Self::race) adds one to a count, and one in 16 reads the clock. While
/// connections of a shard are active it takes a turn every 8 ms, and none when they are
/// quiet. A turn that comes too late looks through some of the connections, one of 256.
///
/// ```
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
/// use std::time::Duration;
/// use corewheel::{ConnLimits, DeadlineKind, Fired, IdleEvent, ManualClock, TimerService, Timers};
///
/// let clock = ManualClock::new();
/// let builder = TimerService::builder().shards(1).clock(clock.clock());
/// let service: TimerService<u64> = builder.start_attached()?;
/// let shard = service.attach(service.shards().next().unwrap())?;
/// let mut shard = shard.into_loop(|_: Fired<u64>, _: &Timers<u64>| {})?;
///
/// // Thirty seconds without a byte, and the peer is given up; ten, and it is asked.
/// let connection = shard.timers().connection(ConnLimits {
///     read_idle: Duration::from_secs(30),
///     heartbeat: Duration::from_secs(10),
///     ..ConnLimits::default()
/// })?;
/// let mut told = Vec::new();
/// for second in 0..42 {
///     if second == 8 {
///         connection.touch_read();
///     }
///     let _ = shard.turn();
///     let mut cx = Context::from_waker(Waker::noop());
///     while let Poll::Ready(Some(event)) = connection.poll_next(&mut cx) {
///         told.push((second, event.kind, event.first));
///     }
///     clock.advance(Duration::from_secs(1));
/// }
/// use DeadlineKind::{Heartbeat, ReadIdle};
/// assert_eq!(told[..3], [(10, Heartbeat, true), (20, Heartbeat, false), (30, Heartbeat, false)]);
/// assert_eq!(told[3..], [(39, ReadIdle, true), (40, Heartbeat, false)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ConnTimers<T: Send + 'static = std::convert::Infallible> {
    connections: Rc<Connections<T>>,
    block: Block,
    index: u32,
}

impl<T: Send + 'static> Timers<T> {
    /// The deadlines of a connection that begins now.
    ///
    /// # Errors
    ///
    /// `Full` if the shard has no room for another timer, `Closed` if it is shut down.
    pub fn connection(&self, limits: ConnLimits) -> Result<ConnTimers<T>, ConnError> {
        self.begin_connection(limits, ClassId::NONE)
    }

    fn begin_connection(
        &self,
        limits: ConnLimits,
        class: ClassId,
    ) -> Result<ConnTimers<T>, ConnError> {
        let packed = Packed::new(limits, class, self.core().nanos_near());
        self.open(&packed).map_err(|refused| match refused {
            Refused::Full => ConnError::Full,
            Refused::Closed => ConnError::Closed,
        })
    }

    /// Takes in the deadlines of a connection that comes from another shard of this service: they
    /// are due when they were due there.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with what was to be taken in.
    pub fn adopt(&self, connection: PackedConn) -> Result<ConnTimers<T>, AdoptError> {
        self.open(&connection.0).map_err(|refused| match refused {
            Refused::Full => AdoptError::Full(connection),
            Refused::Closed => AdoptError::Closed(connection),
        })
    }

    /// How many connections there are on this shard; of those that are closed, the ones that are
    /// not dropped yet.
    pub fn connections(&self) -> usize {
        self.core().parts().get::<Connections<T>>().map_or(0, |connections| connections.len())
    }

    fn open(&self, packed: &Packed) -> Result<ConnTimers<T>, Refused> {
        if self.core().is_closed() {
            return Err(Refused::Closed);
        }
        let connections = Connections::of(self);
        let (block, index) = connections.open(packed)?;
        Ok(ConnTimers { connections, block, index })
    }
}

impl<T: Send + 'static> Classed<'_, T> {
    /// As [`Timers::connection`]. The class is that of the connection's one timer, which fires and
    /// is scheduled again with each deadline that comes; on another shard it stays what it is.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`.
    pub fn connection(&self, limits: ConnLimits) -> Result<ConnTimers<T>, ConnError> {
        self.timers().begin_connection(limits, self.id())
    }
}

/// What a connection does.
impl<T: Send + 'static> ConnTimers<T> {
    #[inline]
    fn record(&self) -> &Record {
        &self.block[slot_of(self.index)]
    }

    /// Something was read. One store.
    #[inline]
    pub fn touch_read(&self) {
        self.record().read.set(self.connections.stamp());
    }

    /// Something was written, or a write got on: the progress of a long write is activity. One
    /// store.
    #[inline]
    pub fn touch_write(&self) {
        self.record().written.set(self.connections.stamp());
    }

    /// Something happened that counts as both: all idle times begin anew.
    #[inline]
    pub fn touch(&self) {
        let stamp = self.connections.stamp();
        self.record().read.set(stamp);
        self.record().written.set(stamp);
    }

    /// Something was read at this moment, which must not be earlier than it was, nor yet to come: a
    /// loop's present moment. One before what was noted already changes nothing.
    #[inline]
    pub fn touch_read_at(&self, now: Instant) {
        self.note_at(&self.record().read, now);
    }

    /// Something was written at this moment; see [`touch_read_at`](Self::touch_read_at).
    #[inline]
    pub fn touch_write_at(&self, now: Instant) {
        self.note_at(&self.record().written, now);
    }

    #[inline]
    fn note_at(&self, note: &Cell<u64>, now: Instant) {
        let (connections, at) = (&self.connections, self.nanos_at(now));
        note.set(connections.later_stamp(note.get(), at));
        connections.refile_stamped(self.index, self.record(), at);
    }

    /// A read is in progress until what this returns is dropped: meanwhile the connection is not
    /// idle for reading, however long it takes, nor for both. Its end counts as a read. Of more
    /// than 1,023 at a time the first ones are counted, and for the others only their ends.
    pub fn begin_read(&self) -> ReadInProgress<'_, T> {
        ReadInProgress { conn: self, is_counted: self.record().begin_read() }
    }

    /// A write is in progress until what this returns is dropped. It must be done within
    /// [`ConnLimits::write_timeout`]; its end counts as a write.
    ///
    /// O(1), and where there is such a limit O(writes in progress) when one ends.
    pub fn begin_write(&self) -> WriteInProgress<'_, T> {
        WriteInProgress { conn: self, write: self.connections.begin_write(self.index) }
    }

    #[inline]
    fn nanos_at(&self, now: Instant) -> u64 {
        self.timers().core().time().nanos_at(now)
    }
}

/// Its deadlines.
impl<T: Send + 'static> ConnTimers<T> {
    /// Arms a deadline that comes once: max age, handshake, request or one of the user's own, to
    /// come in `delay` from now. One that is armed already is moved.
    ///
    /// # Errors
    ///
    /// The kind is one that the limits set, is not there, or the connection is closed.
    pub fn arm(&self, kind: DeadlineKind, delay: Duration) -> Result<(), ArmError> {
        let due = nanos_after(self.timers().core().nanos_near(), delay);
        self.set(kind, due).map(drop)
    }

    /// The same, to come at a moment. One that has passed comes in the next turn.
    ///
    /// # Errors
    ///
    /// As for [`arm`](Self::arm).
    pub fn arm_at(&self, kind: DeadlineKind, at: Instant) -> Result<(), ArmError> {
        self.set(kind, self.nanos_at(at)).map(drop)
    }

    /// Disarms a deadline that comes once. Afterwards it is not told, even if it has come. Tells
    /// whether it would have been.
    ///
    /// # Errors
    ///
    /// As for [`arm`](Self::arm).
    pub fn disarm(&self, kind: DeadlineKind) -> Result<bool, ArmError> {
        self.set(kind, NEVER)
    }

    fn set(&self, kind: DeadlineKind, due: u64) -> Result<bool, ArmError> {
        use DeadlineKind::{AllIdle, Heartbeat, ReadIdle, WriteIdle, WriteTimeout};
        let index = kind.index().ok_or(ArmError::NoSuchDeadline(kind))?;
        if matches!(kind, ReadIdle | WriteIdle | AllIdle | Heartbeat | WriteTimeout) {
            return Err(ArmError::ByLimits(kind));
        }
        if self.is_closed() {
            return Err(ArmError::Closed);
        }
        Ok(self.connections.arm(self.index, index, due))
    }

    /// What the connection is allowed.
    pub fn limits(&self) -> ConnLimits {
        self.connections.limits(self.index)
    }

    /// Sets other limits. They count from what the connection last did, and from when it began;
    /// what was armed or disarmed stays so, and writes in progress keep theirs.
    pub fn set_limits(&self, limits: ConnLimits) {
        self.connections.set_limits(self.index, limits);
    }

    /// When a deadline is due; `None` if it is off. The connection may put it off before.
    ///
    /// It is as the shard last saw it: while a read is in progress, or when the thread was held up,
    /// the next turn makes the deadline of an idle time later, never earlier.
    pub fn deadline(&self, kind: DeadlineKind) -> Option<Instant> {
        let due = self.connections.due(self.index, kind.index()?);
        (due < NEVER && !self.is_closed()).then(|| self.timers().core().time().instant_of(due))
    }

    /// Cancels all deadlines, for good. False if that has been done before.
    ///
    /// What the connection does afterwards is without effect, and a task that waits for an event is
    /// told that none will come.
    pub fn close(&self) -> bool {
        self.connections.close(self.index, self.record())
    }

    /// Whether it is closed, by [`close`](Self::close) or with its shard.
    pub fn is_closed(&self) -> bool {
        self.record().key().is_none()
    }

    /// Takes the deadlines off this shard, to go with their connection to another, where
    /// [`Timers::adopt`] takes them in. Events that have come and were not told go along, a
    /// callback stays behind. `None` if it is closed.
    pub fn pack(self) -> Option<PackedConn> {
        (!self.is_closed()).then(|| PackedConn(Box::new(self.connections.pack(self.index))))
    }

    /// The timers of the shard that it is on.
    pub fn timers(&self) -> &Timers<T> {
        self.connections.timers()
    }
}

/// What it is told, in one of five ways. Each serves a caller that the others do not: `next` a task
/// that only waits, `race` a task that reads or writes meanwhile (which must hand the value out
/// before the deadline), `poll_next` a future of the caller's own, the `Stream` its combinators,
/// and `on_event` code without a task, in a loop of its own. All of them take events from one
/// place.
impl<T: Send + 'static> ConnTimers<T> {
    /// Waits for the next deadline that comes; `None` when the connection is closed.
    ///
    /// May be dropped and called again without an event being lost. One task waits at a time: the
    /// last to have asked.
    pub async fn next(&self) -> Option<IdleEvent> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The same as a plain poll.
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<IdleEvent>> {
        self.timers().core().count_poll();
        self.connections.poll(self.index, self.record(), cx, |_| true)
    }

    /// Waits for a future, such as a read or a write, or for the next deadline that comes.
    ///
    /// A value that is ready at the same time as a deadline wins; only old age comes before it, or
    /// a connection that never pauses would never be too old. The future is dropped if a deadline
    /// comes first.
    ///
    /// After 8 values in a row that were ready at once, of all connections of a shard together, the
    /// task returns to its executor and goes on when the other tasks have had their turn, so that a
    /// peer that sends without a pause holds up neither timers nor other connections. One call in
    /// 16 reads the clock, and wakes the shard's driver if its time has come.
    pub async fn race<F: Future>(&self, future: F) -> Raced<F::Output> {
        let (connections, core) = (&self.connections, self.timers().core());
        let mut future = pin!(future);
        let mut is_first = true;
        poll_fn(|cx| {
            let at_once = std::mem::replace(&mut is_first, false);
            ready!(core.begin_poll(at_once, cx));
            let is_age = |kind| kind == DeadlineKind::MaxAge;
            let age = connections.poll(self.index, self.record(), cx, is_age);
            if let Poll::Ready(Some(age)) = age {
                return Poll::Ready(Raced::Event(age));
            }
            let value = future.as_mut().poll(cx);
            core.note_ready(at_once, value.is_ready());
            if let Poll::Ready(value) = value {
                return Poll::Ready(Raced::Done(value));
            }
            let event = connections.poll(self.index, self.record(), cx, |_| true);
            event.map(|event| event.map_or(Raced::Closed, Raced::Event))
        })
        .await
    }

    /// Has a callback told of each deadline that comes, in the turn in which it does, instead of
    /// a task that waits. Replaces the callback before. Deadlines that have come and were not
    /// told yet are told in the next turn.
    ///
    /// Nothing is borrowed while it runs: it may close the connection, drop it, arm and schedule
    /// whatever it likes. If it panics that is counted, and the next deadline calls it again. A
    /// callback that holds the connection keeps it from being dropped; let it hold a
    /// [`Weak`](std::rc::Weak).
    pub fn on_event(&self, call: impl FnMut(&Timers<T>, IdleEvent) + 'static) {
        if !self.is_closed() {
            self.connections.set_on_event(self.index, Some(Box::new(call)));
        }
    }

    /// Drops the callback. A task that waits is told again, also of deadlines that have come and
    /// were not told yet.
    pub fn clear_on_event(&self) {
        self.connections.set_on_event(self.index, None);
    }
}

impl<T: Send + 'static> Stream for ConnTimers<T> {
    type Item = IdleEvent;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<IdleEvent>> {
        ConnTimers::poll_next(&self, cx)
    }
}

impl<T: Send + 'static> Drop for ConnTimers<T> {
    fn drop(&mut self) {
        self.connections.close(self.index, self.record());
        self.connections.vacate(self.index);
    }
}

impl<T: Send + 'static> fmt::Debug for ConnTimers<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnTimers")
            .field("shard", &self.timers().shard_id())
            .field("limits", &self.limits())
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

/// What came first; see [`ConnTimers::race`].
#[must_use = "it says whether the future is done"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Raced<V> {
    /// The future is done.
    Done(V),
    /// A deadline has come.
    Event(IdleEvent),
    /// The connection's timers are closed, and the future is not done.
    Closed,
}

/// A read that is in progress; made by [`ConnTimers::begin_read`].
#[must_use = "the read is over when this is dropped"]
pub struct ReadInProgress<'a, T: Send + 'static> {
    conn: &'a ConnTimers<T>,
    is_counted: bool,
}

impl<T: Send + 'static> Drop for ReadInProgress<'_, T> {
    fn drop(&mut self) {
        if self.is_counted {
            self.conn.record().end_read();
        }
        self.conn.touch_read();
    }
}

impl<T: Send + 'static> fmt::Debug for ReadInProgress<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadInProgress(..)")
    }
}

/// A write that is in progress; made by [`ConnTimers::begin_write`].
#[must_use = "the write is over when this is dropped"]
pub struct WriteInProgress<'a, T: Send + 'static> {
    conn: &'a ConnTimers<T>,
    write: Option<u32>,
}

impl<T: Send + 'static> WriteInProgress<'_, T> {
    /// It got on. That is activity, but does not give it more time.
    pub fn progress(&self) {
        self.conn.touch_write();
    }

    /// It is done. False if its time was up before, as of the last turn: one that is overdue is
    /// still in time if no turn has found it so, and then there is no event.
    pub fn finish(mut self) -> bool {
        let ConnTimers { connections, index, .. } = self.conn;
        self.write.take().is_none_or(|write| connections.end_write(*index, write))
    }
}

impl<T: Send + 'static> Drop for WriteInProgress<'_, T> {
    fn drop(&mut self) {
        if let Some(write) = self.write.take() {
            self.conn.connections.end_write(self.conn.index, write);
        }
        self.conn.touch_write();
    }
}

impl<T: Send + 'static> fmt::Debug for WriteInProgress<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WriteInProgress(..)")
    }
}

/// The deadlines of a connection on their way to another shard; made by [`ConnTimers::pack`].
///
/// `Send`, and some 300 bytes in a box. Dropped, the connection has no deadlines any more.
#[must_use = "the connection has no deadlines until a shard adopts them"]
pub struct PackedConn(Box<Packed>);

impl PackedConn {
    /// What the connection is allowed.
    pub fn limits(&self) -> ConnLimits {
        self.0.limits
    }
}

impl fmt::Debug for PackedConn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackedConn").field("limits", &self.0.limits).finish_non_exhaustive()
    }
}

/// A connection has no deadlines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnError {
    /// The shard holds as many timers as it may.
    Full,
    /// The shard is shut down.
    Closed,
}

impl fmt::Display for ConnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => FULL,
            Self::Closed => CLOSED,
        })
    }
}

impl std::error::Error for ConnError {}

const FULL: &str =
    "the shard has no room for a connection's timer; raise its capacity, or shed load";
const CLOSED: &str = "the shard is shut down or dead";

/// A shard could not take in the deadlines of a connection; they come back.
#[derive(Debug)]
pub enum AdoptError {
    /// The shard holds as many timers as it may.
    Full(PackedConn),
    /// The shard is shut down.
    Closed(PackedConn),
}

impl AdoptError {
    /// What was to be taken in.
    pub fn into_connection(self) -> PackedConn {
        match self {
            Self::Full(connection) | Self::Closed(connection) => connection,
        }
    }
}

impl fmt::Display for AdoptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => FULL,
            Self::Closed(_) => CLOSED,
        })
    }
}

impl std::error::Error for AdoptError {}

//! The handle of a connection's deadlines.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use futures_core::Stream;

use super::in_progress::InProgress;
use super::limits::{ArmError, ConnEvent, ConnLimits, DeadlineKind};
use super::measured::Direction;
use super::part::Connections;
use super::record::{RecordRef, add_one, take_one};
use super::rules::{self, NEVER};
use super::table::Packed;
use super::transfer::Transfer;
use crate::clock::when::When;
use crate::face::timers::Timers;
use crate::values::refused::{Refused, RefusedKind};

/// The deadlines of one connection, on the shard where the connection lives; made by
/// [`Timers::connection`]. The [module](super) has an example.
///
/// [`touch_read`](Self::touch_read) and [`touch_write`](Self::touch_write) stamp what the
/// connection does. A deadline that comes is an event: a task awaits it with [`next`](Self::next),
/// or beside a read or a write with [`race`](Self::race); a callback receives it with
/// [`on_event`](Self::on_event). An idle deadline is armed again before its event is delivered. An
/// event that has come and was not taken is withdrawn if the connection is active meanwhile.
///
/// A clone is another handle of the same connection. When the last handle is dropped, the
/// connection is closed: all its deadlines are cancelled, in O(1). [`close`](Self::close) does that
/// at once, and so does the end of the shard.
///
/// # How late
///
/// An event never comes early. It comes late by at most the sum of
///
/// - the lateness of every timer of the shard: a tick, and the time for which the thread is held
///   up;
/// - for an idle deadline, 10 ms and a tick, because a touch, or the end of a read, a write or a
///   request, reads no clock: its stamp is a time that is later by up to that much. If the thread
///   is held up, the stamp is later by that time, too. [`touch_read_at`](Self::touch_read_at) and
///   [`touch_write_at`](Self::touch_write_at) stamp a time that the caller knows, and add nothing.
///
/// Data that lay in a socket before the deadline is activity, also where the process was stopped or
/// held up until after the deadline: on glommio and tokio, a shard that runs more than 10 ms late
/// lets the executor read its sockets, and the tasks of the shard's queue run, before it delivers
/// anything. In a loop of your own the order is yours, see [`ShardLoop`](crate::attach::ShardLoop).
///
/// # Cost
///
/// A touch is a load, a comparison and a store; one touch in 8 ms, of all connections of a shard
/// together, reads the clock. A touch with a known time also reads the stamp before, so that a time
/// that has passed takes nothing back. A connection takes 72 bytes and a timer; a connection whose
/// idle events come, or that uses deadlines beside those that its limits arm, takes some 200 bytes
/// more. A handle is 24 bytes. While connections of a shard are active, the shard takes a turn
/// every 8 ms, and none when they are quiet. A turn that comes too late reads the stamps of one
/// connection in 256.
///
/// ```
/// use std::task::{Context, Poll, Waker};
/// use std::time::Duration;
/// use corewheel::clock::ManualClock;
/// use corewheel::{ConnLimits, DeadlineKind, Fired, TimerService, Timers};
///
/// # let clock = ManualClock::new();
/// # let builder = TimerService::builder().shards(1).clock(&clock);
/// # let service: TimerService<u64> = builder.start_attached_with()?;
/// # let shard = service.attach(service.shards().next().unwrap())?;
/// # let mut shard = shard.into_loop(|_: Fired<u64>, _: &Timers<u64>| {})?;
/// let seconds = Duration::from_secs;
/// let limits = ConnLimits::default().read_idle(seconds(30)).heartbeat(seconds(10));
/// let conn = shard.timers().connection(limits)?;
/// let mut events = Vec::new();
/// for second in 0..42 {
///     if second == 8 {
///         conn.touch_read();
///     }
///     let _ = shard.turn();
///     let mut cx = Context::from_waker(Waker::noop());
///     while let Poll::Ready(Some(event)) = conn.poll_next(&mut cx) {
///         events.push((second, event.kind, event.first));
///     }
///     clock.advance(seconds(1));
/// }
/// use DeadlineKind::{Heartbeat, ReadIdle};
/// assert_eq!(events[..2], [(10, Heartbeat, true), (20, Heartbeat, false)]);
/// assert_eq!(events[2..4], [(30, Heartbeat, false), (39, ReadIdle, true)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ConnTimers {
    conn: RecordRef,
}

impl<T: Send + 'static> Timers<T> {
    /// The deadlines of a connection that begins now. Its timer is of this view's class.
    ///
    /// # Errors
    ///
    /// `Full` if the shard has no room for another timer, `Closed` if it is shut down.
    pub fn connection(&self, limits: ConnLimits) -> Result<ConnTimers, RefusedKind> {
        self.open(|connections| {
            let (now, salt) = (self.core().nanos_near(), connections.next_salt());
            connections.open(&Packed::new(limits, self.class(), now, salt))
        })
    }

    /// Takes in the deadlines of a connection that comes from another shard of this service. They
    /// are due when they were due there, and keep their class.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the packed connection.
    pub fn adopt(&self, connection: PackedConn) -> Result<ConnTimers, Refused<PackedConn>> {
        let opened = self.open(|connections| connections.open(&connection.0));
        opened.map_err(|kind| kind.of(connection))
    }

    fn open(
        &self,
        open: impl FnOnce(Rc<Connections>) -> Result<ConnTimers, RefusedKind>,
    ) -> Result<ConnTimers, RefusedKind> {
        if self.core().is_closed() {
            return Err(self.core().why_closed());
        }
        open(Connections::of(self))
    }
}

impl ConnTimers {
    /// The first handle of a connection.
    pub(super) fn new(conn: RecordRef) -> Self {
        let handle = Self { conn };
        handle.count();
        handle
    }

    /// Calls `call` with a handle that does not keep the connection open. A clone of it does.
    pub(super) fn lend(conn: RecordRef, call: impl FnOnce(&Self)) {
        let handle = Self { conn };
        call(&handle);
        // Its drop counts it.
        handle.count();
    }

    /// Counts this handle among those that keep the connection open.
    fn count(&self) {
        let owners = &self.conn.usage().owners;
        add_one(owners);
        if owners.get() == 1 {
            self.conn.connections().count_handled(1);
        }
    }
}

/// Activity.
impl ConnTimers {
    /// Something was read. One store.
    #[inline]
    pub fn touch_read(&self) {
        self.conn.record().read.set(self.conn.connections().stamp());
    }

    /// Something was written, or a long write has made progress. One store.
    #[inline]
    pub fn touch_write(&self) {
        self.conn.record().written.set(self.conn.connections().stamp());
    }

    /// Something happened that counts as a read and as a write: all idle times begin again.
    #[inline]
    pub fn touch(&self) {
        let stamp = self.conn.connections().stamp();
        self.conn.record().read.set(stamp);
        self.conn.record().written.set(stamp);
    }

    /// Something was read at a known time, such as a loop's present time. The time must not be
    /// before the read, nor in the future. A time before the present stamp changes nothing.
    #[inline]
    pub fn touch_read_at(&self, now: Instant) {
        let (conn, record) = (&self.conn, self.conn.record());
        conn.connections().stamp_at(conn.index(), record, &record.read, now);
    }

    /// Something was written at a known time; see [`touch_read_at`](Self::touch_read_at).
    #[inline]
    pub fn touch_write_at(&self, now: Instant) {
        let (conn, record) = (&self.conn, self.conn.record());
        conn.connections().stamp_at(conn.index(), record, &record.written, now);
    }

    /// A read is in progress until the returned guard is dropped. Meanwhile neither
    /// [`ReadIdle`](DeadlineKind::ReadIdle) nor [`AllIdle`](DeadlineKind::AllIdle) comes, however
    /// long the read takes. Its end counts as a read.
    ///
    /// Any number may be in progress at a time.
    pub fn begin_read(&self) -> InProgress {
        InProgress::read(&self.conn)
    }

    /// A write is in progress until the returned guard is dropped. It must end within
    /// [`ConnLimits::write_timeout`]; its end counts as a write. It holds back no idle deadline: a
    /// write that makes progress calls [`touch_write`](Self::touch_write).
    ///
    /// O(1); where there is such a limit, the end of a write is O(writes in progress).
    pub fn begin_write(&self) -> InProgress {
        InProgress::write(&self.conn)
    }

    /// A request is in flight until the returned guard is dropped: the server works, and the peer
    /// waits. Meanwhile the connection is not idle: none of
    /// [`ReadIdle`](DeadlineKind::ReadIdle), [`WriteIdle`](DeadlineKind::WriteIdle) and
    /// [`AllIdle`](DeadlineKind::AllIdle) comes. Idle times begin again when the last request has
    /// ended.
    ///
    /// All other deadlines come. [`Heartbeat`](DeadlineKind::Heartbeat) does, as a peer that waits
    /// for an answer is the one that needs to know that the server is there; the end of a request
    /// does not count as a write either, so the server touches what it writes.
    ///
    /// Any number may be in flight at a time. A deadline of a request's own is a timer, or
    /// [`DeadlineKind::Request`] where requests come one by one.
    ///
    /// ```
    /// # use corewheel::clock::ManualClock;
    /// # use corewheel::{ConnLimits, DeadlineKind, Fired, TimerService, Timers};
    /// # use std::time::Duration;
    /// # let clock = ManualClock::new();
    /// # let builder = TimerService::builder().shards(1).clock(&clock);
    /// # let service: TimerService<u64> = builder.start_attached_with()?;
    /// # let shard = service.attach(service.shards().next().unwrap())?;
    /// # let mut shard = shard.into_loop(|_: Fired<u64>, _: &Timers<u64>| {})?;
    /// let limits = ConnLimits::default().all_idle(Duration::from_secs(30));
    /// let conn = shard.timers().connection(limits)?;
    /// let idle_at = || conn.deadline(DeadlineKind::AllIdle).unwrap();
    /// let request = conn.begin_request();
    /// let answer = async move {
    ///     // The answer is worked out here, in a task of its own.
    ///     drop(request);
    /// };
    /// clock.advance(Duration::from_secs(40));
    /// let _ = shard.turn();
    /// assert_eq!(idle_at(), clock.now() + Duration::from_secs(30));
    /// # drop(answer);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin_request(&self) -> InProgress {
        InProgress::request(&self.conn)
    }
}

/// Least data rates.
impl ConnTimers {
    /// A read whose rate is measured, until the returned guard is dropped: the peer must send at
    /// [`ConnLimits::min_read_rate`]. Each read [adds](Transfer::add) its bytes, and counts as a
    /// read. [`ReadRate`](DeadlineKind::ReadRate) comes when the bytes so far would have been
    /// transferred at that rate, counted from the beginning, and the grace period has passed.
    ///
    /// Time for which the server itself [does not read](Transfer::pause) does not count. No event
    /// comes meanwhile.
    ///
    /// The event comes once. An event that was not taken is withdrawn when the transfer ends, and
    /// also when bytes are added that give the transfer more time: then it may come again.
    ///
    /// There is one measured read at a time. Another one takes its place, and the guard before has
    /// no effect on a deadline any more. A transfer keeps the rate that the limits had at its
    /// beginning; if they had none, it has no deadline.
    ///
    /// O(1). The first transfer of each direction allocates, and the next ones do not.
    ///
    /// ```
    /// # use corewheel::clock::ManualClock;
    /// # use corewheel::{ConnLimits, DeadlineKind, Fired, TimerService, Timers};
    /// # use corewheel::conn::DataRate;
    /// # use std::time::Duration;
    /// # let clock = ManualClock::new();
    /// # let builder = TimerService::builder().shards(1).clock(&clock);
    /// # let service: TimerService<u64> = builder.start_attached_with()?;
    /// # let shard = service.attach(service.shards().next().unwrap())?;
    /// # let shard = shard.into_loop(|_: Fired<u64>, _: &Timers<u64>| {})?;
    /// let rate = DataRate::new(240, Duration::from_secs(5));
    /// let conn = shard.timers().connection(ConnLimits::default().min_read_rate(rate))?;
    /// let due_in = || conn.deadline(DeadlineKind::ReadRate).map(|due| due - clock.now());
    ///
    /// // The body of a request begins.
    /// let body = conn.begin_measured_read();
    /// body.add(500);
    /// assert_eq!(due_in(), Some(Duration::from_secs(5)));
    /// body.add(1_900);
    /// assert_eq!(due_in(), Some(Duration::from_secs(10)));
    /// // The server stores what it has read, and does not read for a while.
    /// body.pause();
    /// clock.advance(Duration::from_mins(1));
    /// assert_eq!(due_in(), None);
    /// body.resume();
    /// assert_eq!(due_in(), Some(Duration::from_secs(10)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin_measured_read(&self) -> Transfer {
        Transfer::begin(&self.conn, Direction::Read)
    }

    /// A write whose rate is measured, until the returned guard is dropped: the peer must take the
    /// bytes at [`ConnLimits::min_write_rate`], or else [`WriteRate`](DeadlineKind::WriteRate)
    /// comes. The rules are those of [`begin_measured_read`](Self::begin_measured_read).
    pub fn begin_measured_write(&self) -> Transfer {
        Transfer::begin(&self.conn, Direction::Write)
    }
}

/// Deadlines.
impl ConnTimers {
    /// Arms a deadline that comes once: max age, handshake, request or a custom one. A deadline
    /// that is armed already is reset.
    ///
    /// # Errors
    ///
    /// Deadlines of this kind are set by the limits, there is no such deadline, or the connection
    /// is closed.
    pub fn arm<W: When>(&self, kind: DeadlineKind, when: W) -> Result<(), ArmError> {
        self.set(kind, self.nanos_of(when)).map(drop)
    }

    /// When a time is, in nanoseconds since the clock's epoch.
    pub(crate) fn nanos_of<W: When>(&self, when: W) -> u64 {
        let connections = self.conn.connections();
        connections.time().nanos_of(when, || connections.shard().nanos_near())
    }

    /// Disarms a deadline that comes once. Its event does not come afterwards. Returns true if it
    /// would have come, or had come and was not taken.
    ///
    /// # Errors
    ///
    /// The errors of [`arm`](Self::arm).
    pub fn disarm(&self, kind: DeadlineKind) -> Result<bool, ArmError> {
        self.set(kind, NEVER)
    }

    fn set(&self, kind: DeadlineKind, due: u64) -> Result<bool, ArmError> {
        let kind_index = rules::armed_kind(kind)?;
        if self.is_closed() {
            return Err(ArmError::Closed);
        }
        Ok(self.conn.connections().arm(self.conn.index(), kind_index, due))
    }

    /// The connection's limits.
    pub fn limits(&self) -> ConnLimits {
        self.conn.connections().limits(self.conn.index())
    }

    /// Changes the limits. Idle times count from the connection's last activity, and its age from
    /// its beginning. What was armed or disarmed stays so, and writes in progress and measured
    /// transfers keep their limit.
    pub fn set_limits(&self, limits: ConnLimits) {
        self.conn.connections().set_limits(self.conn.index(), limits);
    }

    /// When a deadline is due; `None` if it is off. Activity makes an idle deadline later.
    ///
    /// The answer is as of the shard's last turn: while a read or a request is in progress, or when
    /// the thread was held up, the next turn makes an idle deadline later, never earlier.
    pub fn deadline(&self, kind: DeadlineKind) -> Option<Instant> {
        let connections = self.conn.connections();
        let due = connections.due(self.conn.index(), kind.index()?);
        (due < NEVER && !self.is_closed()).then(|| connections.time().instant_of(due))
    }

    /// Closes the connection for all its handles: cancels all deadlines, drops the callback, and
    /// wakes a task that waits, which receives `None`. False if the connection is closed already.
    pub fn close(&self) -> bool {
        self.conn.connections().close(self.conn.index(), self.conn.record())
    }

    /// Whether the connection is closed, by [`close`](Self::close), by [`pack`](Self::pack) or with
    /// its shard.
    pub fn is_closed(&self) -> bool {
        !self.conn.record().is_open()
    }

    /// Takes the deadlines off this shard, to go with their connection to another, where
    /// [`Timers::adopt`] takes them in. Here the connection is closed. `None` if it was closed
    /// before.
    ///
    /// Events that have come and were not taken go along. The callback stays behind, and so do
    /// reads, writes and requests in progress and measured transfers: they end here, and have no
    /// effect there.
    pub fn pack(self) -> Option<PackedConn> {
        if self.is_closed() {
            return None;
        }
        let packed = self.conn.connections().pack(self.conn.index());
        self.close();
        Some(PackedConn(Box::new(packed)))
    }
}

/// Events. There are five ways to them, and an event goes to the first that takes it. `next` is for
/// a task that only waits, `race` for a task that reads or writes meanwhile, `poll_next` for a
/// future of the caller's own, the `Stream` for its combinators, and `on_event` for a loop without
/// tasks.
impl ConnTimers {
    /// Waits for the next event; `None` when the connection is closed.
    ///
    /// May be dropped and called again, and no event is lost. One task waits for a connection at a
    /// time: the last that has called this on any of the handles.
    pub async fn next(&self) -> Option<ConnEvent> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Polls for the next event, as [`next`](Self::next) does.
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<ConnEvent>> {
        let connections = self.conn.connections();
        connections.shard().count_poll();
        connections.poll(self.conn.index(), self.conn.record(), cx, |_| true)
    }

    /// Waits for a future, such as a read or a write, or for the next event.
    ///
    /// A value that is ready at the same time as a deadline wins. Only
    /// [`MaxAge`](DeadlineKind::MaxAge) comes before it, as otherwise a connection that never
    /// pauses would never reach its greatest age. The future is dropped if an event comes first.
    ///
    /// After 8 values in a row that were ready at once, of all connections of a shard together, the
    /// task returns to its executor and goes on when the other tasks have run, so that a peer that
    /// sends without a pause delays neither timers nor other connections. One call in 16 reads the
    /// clock, and wakes the shard's driver if its time has come.
    pub async fn race<F: Future>(&self, future: F) -> Raced<F::Output> {
        let (connections, shard) = (self.conn.connections(), self.conn.connections().shard());
        let (index, record) = (self.conn.index(), self.conn.record());
        let mut future = pin!(future);
        let mut is_first = true;
        poll_fn(|cx| {
            let at_once = std::mem::replace(&mut is_first, false);
            ready!(shard.begin_poll(at_once, cx));
            let is_age = |kind| kind == DeadlineKind::MaxAge;
            if let Poll::Ready(Some(age)) = connections.poll(index, record, cx, is_age) {
                return Poll::Ready(Raced::Event(age));
            }
            let value = future.as_mut().poll(cx);
            shard.note_ready(at_once, value.is_ready());
            if let Poll::Ready(value) = value {
                return Poll::Ready(Raced::Done(value));
            }
            let event = connections.poll(index, record, cx, |_| true);
            event.map(|event| event.map_or(Raced::Closed, Raced::Event))
        })
        .await
    }

    /// Sets a callback that the shard calls for each event, in the turn in which it comes, instead
    /// of waking a task. It replaces the callback before. Events that have come and were not taken
    /// are delivered in the next turn.
    ///
    /// The callback is given the connection, so it need not hold a handle. A callback that holds
    /// one keeps its connection open, until [`close`](Self::close) or
    /// [`clear_on_event`](Self::clear_on_event) drops the callback.
    ///
    /// Nothing is borrowed while the callback runs: it may close the connection, drop its handles,
    /// arm and schedule. A panic of it is counted, and the next event calls it again.
    pub fn on_event(&self, call: impl FnMut(&ConnTimers, ConnEvent) + 'static) {
        if !self.is_closed() {
            self.conn.connections().set_on_event(self.conn.index(), Some(Box::new(call)));
        }
    }

    /// Drops the callback. Events go to a task again, also those that have come and were not taken.
    pub fn clear_on_event(&self) {
        self.conn.connections().set_on_event(self.conn.index(), None);
    }
}

/// For a stream, whose reads and writes look at their own deadlines only.
#[cfg(any(feature = "hyper", feature = "tokio"))]
impl ConnTimers {
    /// Polls for the next event of the wanted kinds. The waker is woken for events of other kinds
    /// too: they stay, and another poll takes them.
    pub(crate) fn poll_kinds(
        &self,
        cx: &mut Context<'_>,
        wanted: impl Fn(DeadlineKind) -> bool,
    ) -> Poll<Option<ConnEvent>> {
        self.conn.connections().poll(self.conn.index(), self.conn.record(), cx, wanted)
    }

    /// Does what [`arm`](Self::arm) does, for a time in nanoseconds since the clock's epoch.
    pub(crate) fn arm_at(&self, kind: DeadlineKind, due: u64) -> Result<(), ArmError> {
        self.set(kind, due).map(drop)
    }

    /// Begins a poll for a result, `is_first` if it is the first for that result. Pending if the
    /// task must return to its executor first; its waker has been woken then.
    #[inline]
    pub(crate) fn begin_poll(&self, is_first: bool, cx: &Context<'_>) -> Poll<()> {
        self.conn.connections().shard().begin_poll(is_first, cx)
    }

    /// A poll for a result has ended.
    #[inline]
    pub(crate) fn note_ready(&self, is_first: bool, is_ready: bool) {
        self.conn.connections().shard().note_ready(is_first, is_ready);
    }
}

impl Stream for ConnTimers {
    type Item = ConnEvent;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ConnEvent>> {
        ConnTimers::poll_next(&self, cx)
    }
}

impl Clone for ConnTimers {
    fn clone(&self) -> Self {
        Self::new(self.conn.clone())
    }
}

impl Drop for ConnTimers {
    fn drop(&mut self) {
        let (connections, owners) = (self.conn.connections(), &self.conn.usage().owners);
        take_one(owners);
        if owners.get() == 0 {
            connections.close(self.conn.index(), self.conn.record());
            connections.count_handled(-1);
        }
    }
}

impl fmt::Debug for ConnTimers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnTimers")
            .field("shard", &self.conn.connections().shard().id())
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
    /// A deadline has come, and the future was dropped.
    Event(ConnEvent),
    /// The connection is closed, and the future was dropped.
    Closed,
}

/// The deadlines of a connection on their way to another shard; made by [`ConnTimers::pack`].
///
/// It is `Send`, and takes some 300 bytes in a box. When it is dropped, the connection has no
/// deadlines any more.
#[must_use = "the connection has no deadlines until a shard adopts them"]
pub struct PackedConn(Box<Packed>);

impl fmt::Debug for PackedConn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackedConn").field("limits", &self.0.limits).finish_non_exhaustive()
    }
}

//! The handle of a connection's deadlines.

use std::time::Instant;

use super::in_progress::InProgress;
use super::kinds::{DeadlineKind, Direction, WRITES, rate};
use super::limits::{ConnLimits, NEVER};
use super::rules::{self, Held};
use super::side::{Connection, Side, Wakes};
use crate::clock::Timeline;
use crate::clock::when::When;
use crate::face::timers::Timers;
use crate::values::error::ConfigError;

/// The deadlines of one connection. The [module](super) has an example.
///
/// [`Timers::connection`](crate::Timers::connection) makes those of a connection that lives on a
/// shard, whose tasks stay on the shard's thread. [`Handle::connection`](crate::Handle::connection)
/// makes a `ConnTimers<Handle>`, for tasks that go from thread to thread: it is `Send` and `Sync`.
/// The side, [`Timers`] or [`Handle`](crate::Handle), decides where the deadlines lie and what a
/// wait returns, [`Side::Polled`]. The kinds of deadlines and their events are the same.
///
/// [`touch_read`](Self::touch_read) and [`touch_write`](Self::touch_write) stamp what the
/// connection does. A deadline that comes is an event: a task awaits it with [`next`](Self::next),
/// or beside a read with [`race`](Self::race), and beside a write with
/// [`race_write`](Self::race_write), which does not cut a peer that reads slowly. A callback
/// receives it with [`on_event`](Self::on_event). An idle deadline is armed again before its event
/// is delivered. An event that has come and was not taken is withdrawn if the connection is active
/// meanwhile.
///
/// A clone is another handle of the same connection. When the last handle is dropped, the
/// connection is closed: all its deadlines are cancelled, in O(1). [`close`](Self::close) does that
/// at once, and so does the end of the shard.
///
/// # On any thread: when there is no timer
///
/// On any thread, the deadlines need one [`Sleep`](crate::Sleep), which the first poll for events
/// arms. Where it gets no timer, `next` and `race` say so with its error, and no deadline is lost
/// in silence:
///
/// - `Full`: the shard has no room. The deadlines stay, and the next poll tries again. A server
///   closes the connection, or pauses and goes on. `NoSuchShard` is such an error, too.
/// - `Closed`: the service has ended. The connection is closed, and the error comes
///   once.
///
/// # How late
///
/// An event never comes early. On a shard, it comes late by at most the sum of
///
/// - the lateness of every timer of the shard: a tick, and the time for which the thread is held
///   up;
/// - for an idle deadline, 10 ms and a tick, because a touch, or the end of a read, a write or a
///   request, reads no clock: its stamp is a time that is later by up to that much. If the thread
///   is held up, the stamp is later by that time, too.
///
/// Data that lay in a socket before the deadline is activity, also where the process was stopped or
/// held up until after the deadline: on glommio and tokio, a shard delivers what was due when the
/// executor last read its sockets. For anything later it has them read first, and lets the tasks
/// of its queue run. In a loop of your own the order is yours, see
/// [`ShardLoop`](crate::attach::ShardLoop).
///
/// On any thread, an event comes late by at most the lateness of every timer of the shard, and by
/// the time until the task is polled. That lateness is a tick and the time for which the thread is
/// held up. A stamp
/// adds nothing: it is a reading of the calling thread's clock, which is at most some microseconds
/// ahead. The deadlines are looked at in polls for events only. A task that works for longer than a
/// limit finds one event of each kind that is due at its next poll. Idle times are counted on
/// from there.
///
/// On any thread, an event that data in a socket may refute waits for a pass of the runtime over
/// its sockets, as [`corewheel::Timeout`](crate::Timeout#in-time) does. The task polls its
/// read after that. Activity that the read finds withdraws the event. [`race`](Self::race) knows
/// the read. [`next`](Self::next) does not, and is pending in two more polls: a `select!` begins at
/// a random branch, and polls the read in one of them. The heartbeat and the age wait for no pass.
///
/// # Cost on a shard
///
/// A touch is a load, a comparison and a store, 17 instructions with the call by callgrind on
/// x86-64, and [`touch`](Self::touch) 18. One touch in 8 ms, of all connections of a shard
/// together, reads the clock. A connection takes 72 bytes and a timer; a connection whose
/// idle events come, or that uses deadlines beside those that its limits arm, takes some 200 bytes
/// more. A handle is 24 bytes. While connections of a shard are active, the shard takes a turn
/// every 8 ms, and none when they are quiet. A turn that comes too late reads the stamps of one
/// connection in 256.
///
/// # Cost on any thread
///
/// A touch is a reading of the thread's near clock and one atomic maximum of 8 bytes, some 70
/// instructions on x86-64, and [`touch`](Self::touch) two maxima and some 80; it takes no lock,
/// sends nothing and wakes no task. The beginning and the end of a read or a request take the
/// connection's lock, which its own tasks take, and the shard when it visits its connections.
/// A poll for events takes it, too, reads the near clock, and resets the connection's
/// [`Sleep`](crate::Sleep#cost) when the first deadline has become earlier than that. A sleep that
/// is over while the connection was active wakes the task, whose poll puts it off, once for each
/// time that the limit takes. A connection takes some 280 bytes and a timer; a connection
/// whose idle events come, or that uses deadlines beside those that its limits arm, takes some 200
/// bytes more. A handle is 8 bytes.
///
/// # Examples
///
/// On a shard:
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
///
/// On any thread:
///
/// ```
/// use corewheel::conn::Raced;
/// use corewheel::{Handle, ConnLimits, ConnTimers, DeadlineKind, TimerService};
/// use std::pin::pin;
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
/// async fn serve(mut stream: TcpStream, conn: ConnTimers<Handle>) -> Served {
///     let mut buffer = [0; 1024];
///     loop {
///         let read = conn.race(pin!(stream.read(&mut buffer))).await?;
///         match read {
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
pub struct ConnTimers<S: Side = Timers> {
    conn: S::Conn,
}

impl<S: Side> ConnTimers<S> {
    /// The first handle of a connection.
    pub(super) fn new(conn: S::Conn) -> Self {
        conn.add_owner();
        Self { conn }
    }

    /// Calls `call` with a handle that does not keep the connection open. A clone of it does.
    pub(super) fn lend(conn: S::Conn, call: impl FnOnce(&Self)) {
        let handle = Self { conn };
        call(&handle);
        // Its drop counts it.
        handle.conn.add_owner();
    }

    #[inline]
    pub(super) fn conn(&self) -> &S::Conn {
        &self.conn
    }
}

/// Activity. On any thread a stamp never goes back, whatever the order in which threads store
/// theirs.
impl<S: Side> ConnTimers<S> {
    /// Something was read.
    #[inline]
    pub fn touch_read(&self) {
        self.conn.touch(Direction::Read, None);
    }

    /// Something was written, or a long write has made progress.
    #[inline]
    pub fn touch_write(&self) {
        self.conn.touch(Direction::Write, None);
    }

    /// Something happened that counts as a read and as a write: all idle times begin again. A write
    /// that had to wait for the peer and goes on is one, see
    /// [what counts as idle](super#what-counts-as-idle).
    ///
    /// Cost: one stamp more than [`touch_read`](Self::touch_read). Drains and pressure add nothing.
    #[inline]
    pub fn touch(&self) {
        let stamp = self.conn.touch(Direction::Read, None);
        self.conn.stamp(Direction::Write, stamp);
    }

    /// A read is in progress until the returned guard is dropped, or the server does not read until
    /// then, because it is busy or its buffers are full. Meanwhile neither
    /// [`ReadIdle`](DeadlineKind::ReadIdle) nor [`AllIdle`](DeadlineKind::AllIdle) comes, however
    /// long it takes. The end counts as a read.
    ///
    /// Any number may be in progress at a time. A measured read is paused by its own
    /// [`pause`](InProgress::pause).
    ///
    /// # Panics
    ///
    /// There are 2³² guards, of which nearly all were forgotten.
    pub fn begin_read(&self) -> InProgress<S> {
        InProgress::begin(&self.conn, Held::Read)
    }

    /// A write is in progress until the returned guard is dropped. It must end within
    /// [`ConnLimits::write_timeout`]; its end counts as a write.
    ///
    /// With that limit, the write holds back [`ReadIdle`](DeadlineKind::ReadIdle),
    /// [`WriteIdle`](DeadlineKind::WriteIdle) and [`AllIdle`](DeadlineKind::AllIdle) until its time
    /// is up: a peer that takes what is sent is not idle. A time of reads that would be over at the
    /// end of the write begins again there; otherwise it goes on, as a write that is accepted at
    /// once says nothing of the peer. Without that limit, idle times alone bound the write, and a
    /// write that makes progress calls [`touch_write`](Self::touch_write).
    ///
    /// A peer that takes slowly, and makes progress within the limit, is cut unless the write is
    /// raced with its socket: see [`race_write`](Self::race_write).
    ///
    /// O(1); where there is such a limit, O(writes in progress), and the first write of a
    /// connection allocates.
    pub fn begin_write(&self) -> InProgress<S> {
        InProgress::transfer(&self.conn, WRITES)
    }

    /// A request is in flight until the returned guard is dropped: the server works, and the peer
    /// waits. Meanwhile the connection is not idle: none of
    /// [`ReadIdle`](DeadlineKind::ReadIdle), [`WriteIdle`](DeadlineKind::WriteIdle),
    /// [`AllIdle`](DeadlineKind::AllIdle) and [`RequestIdle`](DeadlineKind::RequestIdle) comes.
    /// Idle times begin again when the last request has
    /// ended.
    ///
    /// All other deadlines come. [`Heartbeat`](DeadlineKind::Heartbeat) does, as a peer that waits
    /// for an answer is the one that needs to know that the server is there; the end of a request
    /// does not count as a write either, so the server touches what it writes.
    ///
    /// Any number may be in flight at a time. A deadline of a request's own is a timer, or
    /// [`DeadlineKind::Request`] where requests come one by one.
    ///
    /// # Panics
    ///
    /// There are 2³² guards, of which nearly all were forgotten.
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
    pub fn begin_request(&self) -> InProgress<S> {
        InProgress::begin(&self.conn, Held::Request)
    }
}

/// Least data rates.
impl<S: Side> ConnTimers<S> {
    /// A read whose rate is measured, until the returned guard is dropped: the peer must send at
    /// [`ConnLimits::min_read_rate`]. Each read [adds](InProgress::add) its bytes, and counts as a
    /// read. [`ReadRate`](DeadlineKind::ReadRate) comes when the bytes so far would have been
    /// transferred at that rate, counted from the beginning, and the grace period has passed.
    ///
    /// Time for which the server itself [does not read](InProgress::pause) does not count. No event
    /// comes meanwhile.
    ///
    /// The event comes once. An event that was not taken is withdrawn when the transfer ends, and
    /// also when bytes are added that give the transfer more time: then it may come again.
    ///
    /// There is one measured read at a time. Another one takes its place, and the guard before has
    /// no effect on a deadline any more. A transfer keeps the rate that the limits had at its
    /// beginning; if they had none, it has no deadline.
    ///
    /// On any thread, takes the connection's lock. O(1). The first transfer of each direction
    /// allocates, and the next ones do not. A pause and its end take no lock as long as the timer
    /// does not expire meanwhile.
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
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(due_in(), None);
    /// body.resume();
    /// assert_eq!(due_in(), Some(Duration::from_secs(10)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin_measured_read(&self) -> InProgress<S> {
        InProgress::transfer(&self.conn, rate(Direction::Read))
    }

    /// A write whose rate is measured, until the returned guard is dropped: the peer must take the
    /// bytes at [`ConnLimits::min_write_rate`], or else [`WriteRate`](DeadlineKind::WriteRate)
    /// comes. The rules are those of [`begin_measured_read`](Self::begin_measured_read). What the
    /// peer takes is what the socket accepts, which lies far ahead of what the peer has read, or
    /// what the peer acknowledges, by [`race_write`](Self::race_write).
    pub fn begin_measured_write(&self) -> InProgress<S> {
        InProgress::transfer(&self.conn, rate(Direction::Write))
    }
}

/// Deadlines. On any thread, a change that makes the first deadline earlier resets the timer of the
/// connection in its slot, on whichever thread the change is made, and wakes no task.
impl<S: Side> ConnTimers<S> {
    /// Arms a deadline that comes once: max age, its grace, handshake, request or a custom one. A
    /// deadline that is armed already is reset. Returns false if the connection is closed.
    ///
    /// # Errors
    ///
    /// Deadlines of this kind are set by the limits, or there is no such deadline.
    pub fn arm<W: When>(&self, kind: DeadlineKind, when: W) -> Result<bool, ConfigError> {
        Ok(self.arm_at(kind, self.nanos_of(when), Wakes::Task)?.is_some())
    }

    /// Disarms a deadline that comes once. Its event does not come afterwards. Returns true if it
    /// would have come, or had come and was not taken.
    ///
    /// # Errors
    ///
    /// The errors of [`arm`](Self::arm).
    pub fn disarm(&self, kind: DeadlineKind) -> Result<bool, ConfigError> {
        Ok(self.arm_at(kind, NEVER, Wakes::Task)? == Some(true))
    }

    /// The connection's limits.
    pub fn limits(&self) -> ConnLimits {
        self.conn.with_limits(|limits| *limits)
    }

    /// Changes the limits. Idle times count from the connection's last activity, and its age from
    /// its beginning. What was armed or disarmed stays so, and writes in progress and measured
    /// transfers keep their limit.
    pub fn set_limits(&self, limits: ConnLimits) {
        self.conn.store_limits(limits);
        self.conn.change(Wakes::Task, |facts| (rules::limits_changed(facts), 0));
    }

    /// When a deadline is due; `None` if it is off. Activity makes an idle deadline later.
    ///
    /// On a shard, the answer is as of the shard's last turn: while a read or a request is in
    /// progress, or when the thread was held up, the next turn makes an idle deadline later, never
    /// earlier. On any thread, a deadline that something in progress holds back counts from this
    /// call.
    pub fn deadline(&self, kind: DeadlineKind) -> Option<Instant> {
        let due = self.conn.due(kind.index()?);
        let time = self.conn.time()?;
        (due < NEVER).then(|| time.instant_of(due))
    }

    /// Closes the connection for all its handles: cancels all deadlines, drops the callback, and
    /// wakes the task that waits, which receives `None`. False if the connection is closed already.
    pub fn close(&self) -> bool {
        self.conn.close()
    }

    /// Whether the connection is closed: by [`close`](Self::close); on a shard by
    /// [`pack`](ConnTimers::pack) or with the shard; on any thread by a poll that has found the
    /// service ended.
    pub fn is_closed(&self) -> bool {
        !self.conn.look(|facts| facts.is_open)
    }
}

/// What the caller does about wake-ups is a parameter: the public methods wake the task that waits,
/// and a stream polls its timers before it waits.
impl<S: Side> ConnTimers<S> {
    /// When a time is, in nanoseconds since the clock's epoch.
    pub(crate) fn nanos_of<W: When>(&self, when: W) -> u64 {
        let nanos = |time: &Timeline| time.nanos_of(when, || self.conn.now());
        self.conn.time().map_or(NEVER, nanos)
    }

    /// Whether the deadline was armed, or had come and was not taken; `None` if the connection is
    /// closed.
    pub(crate) fn arm_at(
        &self,
        kind: DeadlineKind,
        due: u64,
        wakes: Wakes,
    ) -> Result<Option<bool>, ConfigError> {
        let kind = rules::armed_kind(kind)?;
        Ok(self.conn.change(wakes, |facts| {
            let was_armed = facts.is_open.then(|| rules::arm(facts, kind, due));
            (was_armed, if facts.is_open { due } else { NEVER })
        }))
    }
}

impl<S: Side> Clone for ConnTimers<S> {
    fn clone(&self) -> Self {
        Self::new(self.conn.clone())
    }
}

impl<S: Side> Drop for ConnTimers<S> {
    fn drop(&mut self) {
        self.conn.drop_owner();
    }
}

debug_fields!([S: Side] ConnTimers<S>, |it| limits: it.limits(), closed: it.is_closed());

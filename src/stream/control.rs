//! What a stream and its owner share, after the stream was given away.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::behind::Behind;
use super::http2::Streams;
use super::limits::{StreamTimeout, no_timer};
use super::notes::{CONNECTION, MESSAGE, Notes, UNTIMED};
use super::proof::Deadline;
use super::socket::Looks;
use super::unsent::Unsent;
use super::waiter::{TaskWaker, Waiter};
use crate::clock::when::When;
use crate::conn::{AtomicMoment, ConnTimers, DeadlineKind, Direction, InProgress, Moment, Side};
use crate::face::handle::{AnyHandle, Handle};
use crate::link::sync::{AtomicBool, Ordering};
use crate::pass::{Guarded, SocketReader};
use crate::values::error::TimeoutError;

/// The tasks that wait for a stream, and what its owner has said. It is the waker of the
/// connection's timer, and refers to no timer itself.
pub(super) struct Shared {
    /// For a read, and for a write, a flush or a shutdown.
    waiting: [TaskWaker; 2],
    heartbeat: Waiter,
    pub(super) request_idle: Waiter,
    pub(super) aged: Waiter,
    /// For timers beside that of the connection.
    pub(super) handle: AnyHandle,
    /// A deadline may have come, so the next read or write looks.
    is_woken: AtomicBool,
    /// The stream was dropped.
    is_dropped: AtomicBool,
    /// When a read or a write last moved bytes, or one of the few before that: of reads that did
    /// not wait, one in eight is noted.
    moved: AtomicMoment,
    /// The tasks that ask for a read.
    pub(super) reads: SocketReader,
    /// What the next read takes note of.
    pub(super) notes: Notes,
    /// Whether the last read has bytes behind a message.
    pub(super) behind: Behind,
    /// What of responses the stream has not accepted.
    pub(super) unsent: Unsent,
    /// Looks at the socket.
    pub(super) looks: Looks,
    /// Of a connection of HTTP/2.
    pub(super) streams: Streams,
    /// Whether one thread polls all tasks of the stream.
    pub(super) is_on_shard: bool,
    /// The limit for the head of a message; zero if it is off.
    pub(super) head: Duration,
    /// The limit that has ended the stream.
    pub(super) timeout: OnceLock<StreamTimeout>,
}

impl Shared {
    pub(super) fn new(handle: AnyHandle, head: Duration, is_on_shard: bool) -> Self {
        Self {
            is_on_shard,
            waiting: Default::default(),
            heartbeat: Waiter::new(),
            request_idle: Waiter::new(),
            aged: Waiter::new(),
            handle,
            is_woken: AtomicBool::new(true),
            is_dropped: AtomicBool::new(false),
            moved: AtomicMoment::default(),
            reads: SocketReader::default(),
            notes: Notes::new(CONNECTION | MESSAGE),
            behind: Behind::default(),
            unsent: Unsent::default(),
            looks: Looks::default(),
            streams: Streams::default(),
            head,
            timeout: OnceLock::new(),
        }
    }

    #[inline]
    pub(super) fn is_woken(&self) -> bool {
        // Relaxed: the flag carries no data. A read that waits has registered its waker before, so
        // it sees the flag, or is woken.
        self.is_woken.load(Ordering::Relaxed)
    }

    pub(super) fn set_woken(&self, is_woken: bool) {
        // Relaxed: see `is_woken`.
        self.is_woken.store(is_woken, Ordering::Relaxed);
    }

    /// A read or a write has moved bytes.
    #[inline]
    pub(super) fn set_moved(&self, at: Moment) {
        // `SocketReader` publishes it, by an answer, or when a read waits no more.
        self.moved.set(at);
    }

    /// Whether one has moved bytes at or after a time, in nanoseconds of the service.
    pub(super) fn has_moved_since(&self, at: u64) -> bool {
        self.moved.get().is_some_and(|moved| moved.nanos() >= at)
    }

    /// Whether the stream has reached a limit, or was dropped.
    pub(super) fn has_ended(&self) -> bool {
        self.timeout.get().is_some() || self.is_dropped()
    }

    /// The task that waits for a read, or for a write, a flush or a shutdown.
    #[inline]
    pub(super) fn waiting(&self, direction: Direction) -> &TaskWaker {
        &self.waiting[direction as usize]
    }

    pub(super) fn is_dropped(&self) -> bool {
        // Relaxed: the flag carries no data.
        self.is_dropped.load(Ordering::Relaxed)
    }

    pub(super) fn set_dropped(&self) {
        self.is_dropped.store(true, Ordering::Relaxed);
    }

    /// Wakes what waits in a direction, so that it looks.
    pub(super) fn wake_waiting(&self, direction: Direction) {
        self.waiting(direction).wake(|| self.set_woken(true));
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_waiting(Direction::Read);
        self.wake_waiting(Direction::Write);
        self.heartbeat.wake();
        self.request_idle.wake();
        self.aged.wake();
    }
}

/// What the owner of a [`TimedIo`](super::TimedIo) says and learns after it has given the stream
/// away, for instance to hyper; made by [`TimedIo::control`](super::TimedIo::control).
///
/// A clone is another control of the same stream, and costs a few counts of references. With
/// [`Handle`] it is `Send` and `Sync`, so the function that serves a request may hold one. It does
/// not keep the stream, and the drop of the stream ends its deadlines.
///
/// # Messages
///
/// The limit for a [head](super::StreamLimits::head) and the least rate of
/// [reads](super::StreamLimits::min_read_rate) need to know where messages begin and end, and only
/// the owner knows. Under hyper, `TimedHttp` of the package `corewheel-http` says it all.
///
/// - The first byte of the connection begins a message. It has the deadline of a head, and is not
///   measured unless the owner has called [`begin_message`](Self::begin_message) before it: an
///   owner that does not say where it ends would lose a peer that only waits for an answer.
/// - [`head_complete`](Self::head_complete) disarms the deadline of the head.
/// - [`message_complete`](Self::message_complete) ends the measurement.
/// - [`begin_message`](Self::begin_message) lets the next byte begin a message. Of an owner that
///   never says so, only the first head has a deadline.
#[derive(Clone)]
pub struct StreamControl<M: Side = Handle> {
    pub(super) timers: ConnTimers<M>,
    pub(super) shared: Arc<Shared>,
}

impl<M: Side> StreamControl<M> {
    /// The head of the present message is complete, so its deadline does not come. Without a
    /// message, or for the second time, it changes nothing.
    ///
    /// One compare-and-exchange. If a read has waited for the head, it takes the lock of the
    /// connection's timers on any thread, and wakes the task that reads.
    pub fn head_complete(&self) {
        let is_armed = self.shared.notes.complete_head();
        self.disarm_head(is_armed);
        if is_armed {
            // A read that waits already is measured from now on.
            self.shared.wake_waiting(Direction::Read);
        }
    }

    /// The present message has been read to its end: its head is complete, and its rate is not
    /// measured any more. Without a message, or for the second time, it changes nothing.
    ///
    /// The cost is that of [`head_complete`](Self::head_complete).
    pub fn message_complete(&self) {
        self.complete_message(false);
    }

    pub(super) fn complete_message(&self, is_behind: bool) {
        let is_armed = self.shared.notes.complete_message(is_behind);
        self.disarm_head(is_armed);
    }

    /// The next byte that is read begins a message: the deadline of its head counts from there, and
    /// its rate is measured from there, or from the end of a head that has a deadline. A message
    /// before has ended, and its head, too.
    ///
    /// Bytes that were read after [`message_complete`](Self::message_complete) belong to the next
    /// message, which then begins with this call, as a pipelined request does. Bytes that came with
    /// the end of the message before, in one read, are not told from it: until more is read, only
    /// the idle times end a peer that sends no more of such a head. Under hyper they are told, but
    /// for those behind a body of a stated length whose head came in one read with the request
    /// before.
    ///
    /// Call it when the message before has been read to its end, and not in a protocol in which the
    /// peer may send other bytes than messages, such as HTTP/2.
    pub fn begin_message(&self) {
        let is_armed = self.shared.notes.begin_message(!self.shared.head.is_zero());
        self.disarm_head(is_armed);
        if self.shared.notes.has(UNTIMED) {
            // A read that waits already arms the deadline of the head that came ahead.
            self.shared.wake_waiting(Direction::Read);
        }
    }

    #[inline]
    fn disarm_head(&self, is_armed: bool) {
        if is_armed {
            // An error says that the connection is closed, so nothing is armed.
            let _ = self.timers.disarm(DeadlineKind::Request);
        }
    }

    /// A request is in flight until the returned guard is dropped: the server works, and the peer
    /// waits. Meanwhile neither [`read_idle`](super::StreamLimits::read_idle) nor
    /// [`idle`](super::StreamLimits::idle) ends the stream. Idle times begin again when the last
    /// request has ended.
    ///
    /// A write that waits holds them back as well, if
    /// [`write_stall`](super::StreamLimits::write_stall) or
    /// [`min_write_rate`](super::StreamLimits::min_write_rate) bounds it. So the guard may be
    /// dropped when the answer is handed to the stream.
    ///
    /// A server that sends its answer while it holds the guard sets
    /// [`write_stall`](super::StreamLimits::write_stall), or a peer that does not read stays for
    /// ever.
    ///
    /// ```
    /// # #[cfg(feature = "tokio")] {
    /// use corewheel::TimerService;
    /// use corewheel::stream::{StreamLimits, TimedIo};
    /// use std::time::Duration;
    /// use tokio::io::{AsyncReadExt, AsyncWriteExt};
    ///
    /// # let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    /// # runtime.block_on(async {
    /// let service = TimerService::beside_runtime().start().unwrap();
    /// let timers = service.handle();
    /// let (stream, mut peer) = tokio::io::duplex(64);
    /// let limits = StreamLimits::default().idle(Duration::from_millis(20));
    /// let mut stream = TimedIo::new(stream, timers, limits);
    /// let control = stream.control();
    /// peer.write_all(b"7").await.unwrap();
    /// let request = stream.read_u8().await.unwrap();
    /// let in_flight = control.begin_request();
    /// // The work takes longer than the idle limit, and a read waits for the next request.
    /// let work = timers.sleep(Duration::from_millis(60));
    /// tokio::select! {
    ///     worked = work => worked.unwrap(),
    ///     end = stream.read_u8() => panic!("{end:?}"),
    /// }
    /// drop(in_flight);
    /// stream.write_u8(request).await.unwrap();
    /// assert_eq!(peer.read_u8().await.unwrap(), b'7');
    /// # });
    /// # }
    /// ```
    pub fn begin_request(&self) -> InProgress<M> {
        self.timers.begin_request()
    }

    /// Gives a future time until something is due, such as the answer to a request. A delay counts
    /// from this call. The end of the time does not end the stream.
    ///
    /// A value that is ready at the same time as the deadline wins, and so does one for which the
    /// data lay in a socket then, see [`corewheel::Timeout`](crate::Timeout#in-time). It may be
    /// this stream's socket that another task reads, as with the body of an HTTP/2 request: the
    /// time is up when the stream was read to its end after the deadline, and the future was polled
    /// after that.
    ///
    /// Cost: that of [`Handle::timeout`].
    ///
    /// ```
    /// # #[cfg(feature = "tokio")] {
    /// use corewheel::TimerService;
    /// use corewheel::stream::{StreamLimits, TimedIo};
    /// use std::time::Duration;
    ///
    /// let service = TimerService::beside_runtime().start().unwrap();
    /// # let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    /// # runtime.block_on(async {
    /// let (stream, _peer) = tokio::io::duplex(64);
    /// let limits = StreamLimits::default().idle(Duration::from_secs(60));
    /// let stream = TimedIo::new(stream, service.handle(), limits);
    /// let control = stream.control();
    /// let answer = std::future::pending::<()>();
    /// let late = control.timeout(Duration::from_millis(20), answer).await;
    /// assert!(late.unwrap_err().is_elapsed());
    /// assert_eq!(control.limit_reached(), None);
    /// # });
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The future returns `Elapsed` if the time was up, and otherwise why there is no timer. A poll
    /// after the drop of the stream returns `Closed`; the drop wakes no task.
    pub fn timeout<W: When, F: Future>(
        &self,
        when: W,
        future: F,
    ) -> impl Future<Output = Result<F::Output, TimeoutError>> {
        Guarded::new(future, Deadline::new(&self.shared, self.timers.nanos_of(when)))
    }

    /// Waits until it is time to write a heartbeat: nothing was written for
    /// [`StreamLimits::heartbeat`](super::StreamLimits::heartbeat). It is time again after each
    /// further such time without a write. Where there is no such limit, it waits until the stream
    /// ends.
    ///
    /// May be dropped and called again. One task waits for a stream's heartbeat at a time, the last
    /// that has called this on any control; other tasks may read and write meanwhile.
    ///
    /// # Errors
    ///
    /// The stream has reached a limit or is dropped, or there is no timer: see
    /// [`TimedIo`](super::TimedIo#when-there-is-no-timer).
    pub fn heartbeat(&self) -> impl Future<Output = io::Result<()>> {
        self.event(&self.shared.heartbeat, DeadlineKind::Heartbeat)
    }

    /// Waits until no request was in flight for
    /// [`StreamLimits::request_idle`](super::StreamLimits::request_idle), whatever the peer has
    /// sent meanwhile, and again after each further such time. The owner then ends the connection,
    /// as by a GOAWAY. Where there is no such limit, it waits until the stream ends.
    ///
    /// May be dropped and called again. One task waits for it at a time, the last that has called
    /// this on any control; other tasks may read and write meanwhile.
    ///
    /// # Errors
    ///
    /// The errors of [`heartbeat`](Self::heartbeat).
    pub fn request_idle(&self) -> impl Future<Output = io::Result<()>> {
        self.event(&self.shared.request_idle, DeadlineKind::RequestIdle)
    }

    /// Waits until the connection has reached its greatest age,
    /// [`StreamLimits::max_age`](super::StreamLimits::max_age), and returns at once afterwards. The
    /// owner then tells the peer, as by a GOAWAY or `Connection: close`, and ends what is in
    /// progress: the stream ends after
    /// [`StreamLimits::max_age_grace`](super::StreamLimits::max_age_grace). Where there is no such
    /// limit, the greatest age itself ends the stream, and this waits until then.
    ///
    /// May be dropped and called again. One task waits for a stream's greatest age at a time, the
    /// last that has called this on any control; other tasks may read and write meanwhile.
    ///
    /// # Errors
    ///
    /// The errors of [`heartbeat`](Self::heartbeat).
    pub fn max_age_reached(&self) -> impl Future<Output = io::Result<()>> {
        self.event(&self.shared.aged, DeadlineKind::MaxAge)
    }

    /// Waits for an event that the owner is told of.
    fn event(&self, waiter: &Waiter, wanted: DeadlineKind) -> impl Future<Output = io::Result<()>> {
        let mut registered = None;
        poll_fn(move |cx| {
            let may_have_come = waiter.register_once(&mut registered, cx.waker());
            // A poll finds a heartbeat that is due before its timer expires.
            if !may_have_come && wanted != DeadlineKind::Heartbeat {
                return Poll::Pending;
            }
            let event = self.poll_event(wanted);
            if event.is_ready() {
                waiter.look_again();
            }
            event
        })
    }

    /// Polls for an event that the owner is told of.
    fn poll_event(&self, wanted: DeadlineKind) -> Poll<io::Result<()>> {
        if let Some(timeout) = self.limit_reached() {
            return Poll::Ready(Err(timeout.into()));
        }
        let waker = Waker::from(Arc::clone(&self.shared));
        let cx = &mut Context::from_waker(&waker);
        // The stream takes the event of the greatest age, which ends it if there is no grace.
        let is_age = wanted == DeadlineKind::MaxAge;
        // A client is not idle while it has something to take.
        let is_idle = wanted == DeadlineKind::RequestIdle;
        let asks = Cell::new(false);
        let event = self.timers.poll_kinds(cx, None, |kind, came_at| {
            let is_wanted = !is_age && kind == wanted;
            let is_known = !is_idle || self.shared.looks.may_judge(came_at);
            asks.set(asks.get() || is_wanted && !is_known);
            is_wanted && is_known
        });
        if asks.get() {
            self.shared.looks.ask();
            self.shared.wake_waiting(Direction::Read);
            self.shared.wake_waiting(Direction::Write);
        }
        match event {
            Poll::Pending if is_age && self.timers.goes_on() => Poll::Ready(Ok(())),
            event => event.map(|event| event.map(drop).map_err(no_timer)),
        }
    }

    /// The limit that has ended the stream; `None` if it has reached none.
    pub fn limit_reached(&self) -> Option<StreamTimeout> {
        self.shared.timeout.get().copied()
    }

    /// The timers of the stream; see [`TimedIo::timers`](super::TimedIo::timers).
    pub fn timers(&self) -> &ConnTimers<M> {
        &self.timers
    }
}

debug_fields!([M: Side] StreamControl<M>, |it|
    timers: it.timers, timeout: it.shared.timeout.get()
);

#[cfg(all(test, corewheel_loom))]
mod loom_tests {
    use loom::thread;

    use super::*;
    use crate::link::loom_tests::check;
    use crate::values::ids::ServiceId;
    use corewheel_test_support::Alarm;

    #[test]
    fn read_that_waits_sees_that_the_timer_has_expired_or_is_woken() {
        check(|| {
            let shared =
                Arc::new(Shared::new(Handle::new(ServiceId::next()), Duration::ZERO, false));
            shared.set_woken(false);
            let timer = Arc::clone(&shared);
            let thread = thread::spawn(move || timer.wake_by_ref());
            let (alarm, waker) = Alarm::new();
            shared.waiting(Direction::Read).register_once(&mut None, &waker);
            let is_seen = shared.is_woken();
            thread.join().unwrap();
            assert!(is_seen || alarm.count() > 0, "the read waits for ever");
        });
    }
}

//! The deadlines of one stream: what each read and each write tells its timers, and when it ends.
//!
//! A read or a write first tries the stream, and only one that must wait looks at the deadlines. So
//! data that has come is in time. Only the greatest age is looked at before, when the timer has
//! woken the stream.
//!
//! The deadlines of a message begin with its first byte, and are armed when a read first waits for
//! more of it. So a message that has come as a whole arms nothing.
//!
//! Why not one event for both directions: where two tasks have a half of the stream each, the task
//! that writes would take the deadline of a read, whose data may lie in the socket. A poll takes
//! the events of its own direction; the others stay in the timers, which withdraw them if the
//! stream is active meanwhile.
//!
//! Invariants: nothing waits without a timer. No event is kept here.
//!
//! Reads in a row that are ready touch the timers once in eight times, since on any thread a touch
//! reads the clock. No limit ends a stream in which nothing waits, and a wait that begins touches
//! the timers again, unless a read waits already. So no idle time begins before the last read, and
//! how many reads were ready before makes no difference.
//!
//! Cost: a read that is ready costs a few branches, and one in eight a touch; a write that is ready
//! costs a touch. The first byte of a message costs a reading of the clock and a
//! compare-and-exchange besides. A read that must wait costs two touches, and two readings of the
//! clock and compare-and-exchanges if it is measured; a write that must wait costs as much. The
//! first one polls the timers, and so does the first one after the timer has expired. The timers
//! wake the stream when a deadline has come, so that a later poll finds nothing before.

mod forward;
mod looks;
mod writes;

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use self::forward::Watched;
use super::control::{Shared, StreamControl};
use super::http2::Protocol;
use super::limits::{StreamTimeout, ends};
use super::notes::{CONNECTION, ENDED, HEAD, MEASURED, MESSAGE};
use super::socket::Acknowledged;
use crate::clock::saturating_nanos;
use crate::conn::{
    ConnTimers, DeadlineKind, Direction, Ends, InProgress, Moment, Side, Transfer, Wakes,
};
use crate::face::handle::AnyHandle;
use crate::pass;
use crate::values::refused::RefusedKind;

/// So many reads in a row that were ready stamp the connection once.
const UNSTAMPED_MAX: u8 = 8;

/// So many writes and flushes after a question show that the task does not read. A poll of a
/// connection reads before it flushes, or after a few writes.
const WITHOUT_READ_MAX: u32 = 32;

/// What there is of a direction.
struct Way<M: Side> {
    /// The looks of runtimes that decide by the last read, or by the last write, flush or shutdown.
    looks: u64,
    /// Whether a read or a write waits.
    waits: bool,
    /// The bytes that are measured. The transfer is paused unless a read or a write waits; `None`
    /// if none has waited for such bytes.
    transfer: Option<Transfer<M>>,
    /// Whether the timers were polled for what ends a wait, and no deadline was armed since that
    /// may be earlier. Then they wake the stream when such a deadline has come.
    is_watched: bool,
    /// Whether a look at the socket has come since the events of the direction were last judged.
    /// Not for a poll only: the look may be that of a flush, after which the read is polled that
    /// has asked.
    has_looked: bool,
    /// The waker of what waited last; `None` if the stream was woken since.
    registered: Option<Waker>,
}

impl<M: Side> Default for Way<M> {
    fn default() -> Self {
        let (is_watched, has_looked, registered) = (false, false, None);
        Self { looks: 0, waits: false, transfer: None, is_watched, has_looked, registered }
    }
}

impl<M: Side> Way<M> {
    /// The transfer goes on at `now`, or begins with the bytes before. True if its deadline was
    /// filed.
    fn resume(
        &mut self,
        timers: &ConnTimers<M>,
        kind: DeadlineKind,
        before: u64,
        now: u64,
    ) -> bool {
        if let Some(transfer) = &self.transfer {
            return transfer.resume_at(now, Wakes::Nothing);
        }
        let transfer = self.transfer.insert(timers.measure(kind, now));
        transfer.count(before);
        true
    }
}

/// For what a write, a flush or a shutdown waits, which is a stall.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sending {
    /// None waits.
    Nothing,
    /// The stream.
    Stream,
    /// The stream has accepted all, and pieces of responses wait for a window. So many bytes of
    /// pieces were taken when that was last looked at.
    Window { taken: u64 },
}

pub(super) struct Deadlines<M: Side> {
    watched: Watched,
    timers: ConnTimers<M>,
    shared: Arc<Shared>,
    /// Of `shared`.
    waker: Waker,
    reads: Way<M>,
    writes: Way<M>,
    /// How many reads in a row have not stamped the connection.
    unstamped: u8,
    /// The looks of runtimes that were counted when the stream was last woken, as the end of a pass
    /// does, before what is read or written next; 0 if that decides nothing.
    looks: u64,
    /// Whether the last write was put off so that other tasks of the shard run. What it was given
    /// is not accepted, though nothing waits.
    is_put_off: bool,
    /// When the stream last accepted bytes at once; `None` if something has waited since. A
    /// response whose flush follows has ended then.
    written: Option<Moment>,
    sending: Sending,
    /// For the time of such a wait, and whether it is one for a window. It is stopped unless one
    /// waits; `None` if none has waited yet, or if the event of the last may have come.
    stall: Option<(Transfer<M>, bool)>,
    /// What the peer has acknowledged; `None` of a stream without a socket.
    acknowledged: Option<Acknowledged>,
    /// While a write waits that only its rate bounds, it holds the idle times back.
    rated: Option<InProgress<M>>,
    /// Why the look of this poll has found no timer. Another look would ask the shard again, and
    /// wait for it.
    refused: Option<RefusedKind>,
    /// When the head that has begun must be complete; `None` if no head has begun.
    head_due: Option<u64>,
    /// The bytes of the message that is measured, before a read waited for a part of it that is
    /// measured; `None` if no message is measured.
    message: Option<u64>,
    /// What the next read that waits answers; `None` if nothing is asked.
    question: Option<u32>,
    pub(super) http2: Protocol,
}

impl<M: Side> Deadlines<M> {
    /// `handle` is for timers beside that of the connection, and `head` the limit of a head.
    pub(super) fn new(timers: ConnTimers<M>, handle: AnyHandle, head: Duration) -> Self {
        let shared = Arc::new(Shared::new(handle, head));
        let waker = Waker::from(Arc::clone(&shared));
        Self {
            watched: if head.is_zero() { Watched::Undecided } else { Watched::All },
            looks: 0,
            timers,
            shared,
            waker,
            reads: Way::default(),
            writes: Way::default(),
            unstamped: 0,
            is_put_off: false,
            written: None,
            sending: Sending::Nothing,
            stall: None,
            acknowledged: None,
            rated: None,
            refused: None,
            head_due: None,
            message: None,
            question: None,
            http2: Protocol::NEW,
        }
    }

    pub(super) fn timers(&self) -> &ConnTimers<M> {
        &self.timers
    }

    pub(super) fn control(&self) -> StreamControl<M> {
        StreamControl { timers: self.timers.clone(), shared: Arc::clone(&self.shared) }
    }

    fn is_stalled(&self) -> bool {
        self.sending != Sending::Nothing
    }

    fn is_windowed(&self) -> bool {
        matches!(self.sending, Sending::Window { .. })
    }

    fn way(&mut self, direction: Direction) -> &mut Way<M> {
        match direction {
            Direction::Read => &mut self.reads,
            Direction::Write => &mut self.writes,
        }
    }
}

/// Reads and writes.
impl<M: Side> Deadlines<M> {
    /// Reads or writes by `call`, which says how many bytes it has transferred.
    #[inline]
    pub(super) fn transfer(
        &mut self,
        direction: Direction,
        cx: &mut Context<'_>,
        call: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if self.forwards() {
            return self.forward(direction, cx, call);
        }
        self.check()?;
        self.way(direction).looks = self.looks;
        let is_first = !self.way(direction).waits;
        let begins = self.timers.begin_poll(is_first, cx);
        if direction == Direction::Write {
            self.is_put_off = begins.is_pending();
        }
        ready!(begins);
        if direction == Direction::Write {
            self.does_not_read(cx);
        }
        let polled = call(cx);
        self.timers.note_ready(is_first, polled.is_ready());
        let Poll::Ready(result) = polled else {
            return self.wait(direction, cx).map(Err);
        };
        let way = self.way(direction);
        way.has_looked = false;
        let has_waited = std::mem::replace(&mut way.waits, false);
        // The time of a write to a socket is counted when the socket is looked at.
        let is_counted =
            has_waited && !(direction == Direction::Write && self.acknowledged.is_some());
        let transfer = self.way(direction).transfer.as_ref().filter(|_| is_counted);
        let counted_until = transfer.and_then(Transfer::counted_until);
        if let Ok(count @ 1..) = result {
            match direction {
                Direction::Read => self.was_read(count as u64, has_waited),
                Direction::Write => self.was_written(count as u64, has_waited),
            }
        }
        if has_waited && direction == Direction::Read {
            self.shared.reads.set_waits(false);
        }
        // A wait for a window goes on.
        let goes_on = direction == Direction::Write && self.is_windowed();
        if !goes_on {
            if let (Some(at), Some(transfer)) = (counted_until, &self.way(direction).transfer) {
                transfer.pause_at(at);
            }
        }
        Poll::Ready(result)
    }

    /// These bytes were read; none if they are not known.
    #[inline]
    pub(super) fn note_read(&mut self, read: &[u8]) {
        self.shared.behind.note_read(read);
        if self.http2.was_read(read, &self.shared.streams, || self.timers.now()) {
            self.tunnel_moves();
        }
        if self.is_windowed() && self.http2.gives_window() {
            self.window_is_given();
        }
    }

    /// A tunnel of HTTP/2 is as active as a request that ends now.
    #[cold]
    fn tunnel_moves(&self) {
        self.timers.hold_request();
        self.timers.end_requests(1, None);
    }

    /// Registers the task of a read or write that waits.
    #[inline]
    fn register(&mut self, direction: Direction, cx: &Context<'_>) {
        let way = match direction {
            Direction::Read => &mut self.reads,
            Direction::Write => &mut self.writes,
        };
        self.shared.waiting(direction).register_once(&mut way.registered, cx.waker());
    }

    fn wait(&mut self, direction: Direction, cx: &Context<'_>) -> Poll<io::Error> {
        self.register(direction, cx);
        if !std::mem::replace(&mut self.way(direction).waits, true) {
            match direction {
                Direction::Read => {
                    self.shared.reads.set_waits(true);
                    self.read_waits();
                }
                Direction::Write => self.write_waits(),
            }
        } else if direction == Direction::Read {
            self.wait_for_message(false);
        }
        // Without a budget, the stream may have more.
        if direction == Direction::Read && self.question.is_some() && pass::has_budget() {
            self.answer();
        }
        let has_accepted = !self.is_stalled() && !self.is_put_off;
        if direction == Direction::Read && self.shared.unsent.has_ends() && has_accepted {
            // The framework has not flushed, as it waits for more to answer.
            let (ends, _) = self.shared.unsent.take_ends();
            self.timers.end_requests(ends, self.written);
        }
        self.written = None;
        self.poll(direction)
    }

    /// The stream was read to its end, or is not read on.
    #[cold]
    fn answer(&mut self) {
        if let Some(question) = self.question.take() {
            self.shared.reads.answer(question);
        }
    }

    /// The task writes or flushes, and may not read in this poll nor in later ones.
    #[inline]
    pub(super) fn does_not_read(&mut self, cx: &Context<'_>) {
        if self.question.is_some() {
            if self.shared.reads.is_waited_for(WITHOUT_READ_MAX) {
                cx.waker().wake_by_ref();
            } else {
                self.answer();
            }
        }
    }

    #[inline]
    fn was_read(&mut self, count: u64, has_waited: bool) {
        let any = self.shared.notes.has_any_for_read();
        let now = if any { self.take_notes() } else { None };
        if let Some(transfer) = &self.reads.transfer {
            transfer.count(count);
        } else if let Some(bytes) = &mut self.message {
            // The bytes of a head with a deadline do not count. The last of them may be followed by
            // others in the same read.
            let before = if self.shared.notes.has(HEAD) { 0 } else { *bytes };
            *bytes = before.saturating_add(count);
        }
        if self.message.is_some() || self.shared.notes.has(HEAD) {
            // The owner may read on before it says that this was the last of a head or a message,
            // so the wait that follows decides nothing.
            self.looks = 0;
        }
        self.unstamped += 1;
        // A wait that is in progress would count from an older stamp.
        if has_waited || self.is_stalled() || self.unstamped == UNSTAMPED_MAX {
            let at = self.stamp_read(now);
            self.shared.set_moved(at);
        }
    }

    /// `now` is the time, if it is known.
    fn stamp_read(&mut self, now: Option<u64>) -> Moment {
        self.unstamped = 0;
        self.timers.touch_read_by(now)
    }

    /// Something was read that begins the connection, or a message, or is no part of the message
    /// before. Returns the time, if it has asked.
    fn take_notes(&mut self) -> Option<u64> {
        let has_deadline = !self.shared.head.is_zero();
        let notes = self.shared.notes.take(has_deadline);
        if notes & ENDED != 0 {
            self.forget_message();
        }
        if notes & CONNECTION != 0 {
            self.disarm(DeadlineKind::Handshake);
        }
        if notes & MEASURED != 0 {
            self.message = Some(0);
        }
        if notes & MESSAGE != 0 {
            self.shared.behind.begin_head();
        }
        let now = (notes & MESSAGE != 0 && has_deadline).then(|| self.timers.now())?;
        self.head_due = Some(now.saturating_add(saturating_nanos(self.shared.head)));
        Some(now)
    }

    /// A read begins to wait, perhaps for more of a message.
    fn read_waits(&mut self) {
        // The time for which the owner did not read does not count.
        self.stamp_read(None);
        self.wait_for_message(true);
    }

    /// A read begins to wait, or waits as before: meanwhile the owner may have said that a head has
    /// begun, or is complete.
    #[inline(always)]
    fn wait_for_message(&mut self, begins: bool) {
        if self.message.is_some() || !self.shared.notes.has_none_for_wait() {
            self.file_message(begins);
        }
    }

    #[inline(never)]
    fn file_message(&mut self, begins: bool) {
        self.forget_ended();
        let is_filed = self.arm_head();
        let is_new = begins || self.reads.transfer.is_none();
        let is_filed = is_new && self.measure_read() || is_filed;
        self.unwatch(is_filed);
    }

    /// The time in which a read waits for a message counts from now, if the message is measured. A
    /// head with a deadline has that alone. True if a deadline was filed.
    fn measure_read(&mut self) -> bool {
        if self.shared.notes.take_measured_rest() {
            self.message = Some(0);
        }
        let bytes = self.message.filter(|_| !self.shared.notes.has(HEAD));
        bytes.is_some_and(|bytes| {
            let now = self.timers.now();
            self.reads.resume(&self.timers, DeadlineKind::ReadRate, bytes, now)
        })
    }

    /// Arms the deadline of a head that has begun, unless it is armed. True if it was armed now.
    fn arm_head(&mut self) -> bool {
        if self.shared.notes.take_untimed() {
            self.head_due = Some(self.timers.nanos_of(self.shared.head));
        }
        let Some(due) = self.head_due else { return false };
        let mut is_filed = false;
        let arm = || {
            // An error says that the connection is closed, which the next poll finds out.
            let _ = self.timers.arm_at(DeadlineKind::Request, due, Wakes::Nothing);
            is_filed = true;
        };
        if self.shared.notes.arm_head(arm) {
            self.disarm(DeadlineKind::Request);
        }
        is_filed
    }

    fn disarm(&self, kind: DeadlineKind) {
        // An error says that the connection is closed, so nothing is armed.
        let _ = self.timers.disarm(kind);
    }

    /// Forgets the message that is measured, if the owner has said that it has ended.
    fn forget_ended(&mut self) {
        if self.shared.notes.has(ENDED) {
            self.shared.notes.forget_end();
            self.forget_message();
        }
    }

    fn forget_message(&mut self) {
        (self.message, self.reads.transfer) = (None, None);
    }
}

/// Deadlines.
impl<M: Side> Deadlines<M> {
    /// An error if the stream has ended.
    #[inline]
    fn check(&mut self) -> io::Result<()> {
        if self.shared.is_woken() { self.look() } else { Ok(()) }
    }

    /// Looks whether the stream has ended or is too old.
    #[cold]
    fn look(&mut self) -> io::Result<()> {
        if let Some(timeout) = self.shared.timeout.get() {
            return Err((*timeout).into());
        }
        if self.watched == Watched::Nothing {
            self.watch();
        }
        self.question = self.shared.reads.question();
        // The flag is set again if the timer wakes the stream during this poll.
        self.shared.set_woken(false);
        (self.reads.registered, self.writes.registered) = (None, None);
        self.unwatch(true);
        match self.take_events(0, |_, kind, _| kind.is_of_age()) {
            Poll::Ready(Ok(error)) => return Err(error),
            // What is ready needs no timer.
            Poll::Ready(Err(refused)) => {
                self.shared.set_woken(true);
                self.refused = Some(refused);
            }
            Poll::Pending => self.refused = None,
        }
        self.decide_watched();
        self.looks = pass::looks();
        Ok(())
    }

    /// The timers are to be polled before a read or a write waits, if a deadline was filed.
    fn unwatch(&mut self, is_filed: bool) {
        self.reads.is_watched &= !is_filed;
        self.writes.is_watched &= !is_filed;
    }

    /// Polls for what ends the wait in a direction.
    #[inline(always)]
    fn poll(&mut self, direction: Direction) -> Poll<io::Error> {
        // The task has registered its waker before, so it sees the flag, or the timers wake it.
        if self.way(direction).is_watched && !self.shared.is_woken() {
            return Poll::Pending;
        }
        self.poll_timers(direction)
    }

    /// Takes the wanted events that have come, until one ends the stream, or none is left. What
    /// they guard was polled since there were so many `looks`.
    fn take_events(
        &mut self,
        looks: u64,
        is_wanted: impl Fn(&Self, DeadlineKind, Option<Moment>) -> bool,
    ) -> Poll<Result<io::Error, RefusedKind>> {
        loop {
            // The owner may say at any moment that the message has ended.
            self.forget_ended();
            let cx = &mut Context::from_waker(&self.waker);
            let is_wanted = |kind, came_at| is_wanted(self, kind, came_at);
            let event = ready!(self.timers.poll_kinds(cx, Some(looks), is_wanted));
            let kind = match event {
                Ok(event) => event.kind,
                Err(refused) => return Poll::Ready(Err(refused)),
            };
            if kind == DeadlineKind::MaxAge && self.timers.has_grace() {
                // Only the owner is told.
                self.shared.aged.wake();
            } else if kind != DeadlineKind::ReadRate || !self.shared.notes.has(ENDED) {
                return Poll::Ready(Ok(self.end(kind)));
            }
        }
    }

    /// Whether a deadline ends a wait in a direction. A read is asked first, as its data may have
    /// come in time.
    fn is_wanted(&self, direction: Direction, kind: DeadlineKind) -> bool {
        let reads = direction == Direction::Read;
        match ends(kind) {
            Ends::Nothing => false,
            Ends::Reads => reads,
            // Bytes that are left end a read where no write waits.
            Ends::Writes => !reads || self.has_only_left(),
            Ends::Either => reads || !self.reads.waits,
            Ends::All => true,
        }
    }

    /// A limit is reached: the stream has ended, in both directions.
    #[cold]
    fn end(&mut self, kind: DeadlineKind) -> io::Error {
        self.refused = None;
        if let (Ends::Writes, Some(known)) = (ends(kind), &self.acknowledged) {
            let (acknowledged, left) = known.bytes();
            self.timers.count_bytes(kind, acknowledged, left);
        }
        let timeout = match kind {
            DeadlineKind::MaxAge if self.timers.is_ordered(kind) => StreamTimeout::Told,
            DeadlineKind::AgeGrace if self.timers.is_ordered(kind) => StreamTimeout::Drained,
            _ => StreamTimeout::new(kind, &self.timers.limits(), self.shared.head),
        };
        let timeout = *self.shared.timeout.get_or_init(|| timeout);
        // A shutdown that waits afterwards has a time of its own.
        self.sending = Sending::Nothing;
        (self.stall, self.writes.transfer, self.rated) = (None, None, None);
        if let Some(known) = &mut self.acknowledged {
            known.has_left = false;
        }
        self.forget_message();
        self.question = None;
        self.shared.reads.close();
        self.waker.wake_by_ref();
        timeout.into()
    }
}

fn is_idle(kind: DeadlineKind) -> bool {
    matches!(kind, DeadlineKind::ReadIdle | DeadlineKind::WriteIdle | DeadlineKind::AllIdle)
}

impl<M: Side> Drop for Deadlines<M> {
    fn drop(&mut self) {
        self.timers.close();
        self.shared.set_dropped();
        self.shared.reads.close();
        // The shared part may outlive the stream, and must not hold the wakers of its tasks.
        self.waker.wake_by_ref();
    }
}

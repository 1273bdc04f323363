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
//! Cost: a read or a write that is ready costs a touch and a few branches; the first byte of a
//! message, a reading of the clock and a compare-and-exchange besides. A read that must wait costs
//! another touch, and the first one a poll of the timers. The timers wake the stream when a
//! deadline has come, so that a later poll finds nothing before.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::control::{Shared, StreamControl};
use super::limits::{StreamLimits, StreamTimeout, ends, no_timer};
use super::notes::{CONNECTION, ENDED, MEASURED, MESSAGE};
use super::timeout::TIMEOUT;
use crate::clock::saturating_nanos;
use crate::conn::{ConnTimers, DeadlineKind, Direction, Ends, InProgress, Side, Transfer, Wakes};
use crate::face::handle::Handle;

/// The message whose read is measured.
enum MeasuredMessage<M: Side> {
    /// No message is measured.
    None,
    /// No read has waited for a part of it. The number of bytes that were read.
    Ready(usize),
    /// A read has waited. The transfer is paused unless a read waits.
    Waited(Transfer<M>),
}

pub(super) struct Deadlines<M: Side> {
    timers: ConnTimers<M>,
    shared: Arc<Shared>,
    /// Of `shared`.
    waker: Waker,
    /// Whether a read waits.
    reads: bool,
    /// Whether a write waits.
    writes: bool,
    /// The write, flush or shutdown that waits; `None` if none does.
    stall: Option<InProgress<M>>,
    /// When the head that has begun must be complete.
    head_due: u64,
    measured: MeasuredMessage<M>,
    /// The writes that had to wait. They are paused unless a write waits; `None` if none has waited
    /// yet.
    written: Option<Transfer<M>>,
    /// For each direction, whether the timers were polled for what ends its wait, and the stream
    /// has armed nothing since. Then they wake the stream when such a deadline has come.
    watched: [bool; 2],
}

impl<M: Side> Deadlines<M> {
    /// `handle` is for timers beside that of the connection.
    pub(super) fn new(timers: ConnTimers<M>, handle: Handle, limits: StreamLimits) -> Self {
        let shared = Arc::new(Shared::new(handle, limits.head));
        let waker = Waker::from(Arc::clone(&shared));
        Self {
            timers,
            shared,
            waker,
            reads: false,
            writes: false,
            stall: None,
            head_due: 0,
            measured: MeasuredMessage::None,
            written: None,
            watched: [false; 2],
        }
    }

    pub(super) fn timers(&self) -> &ConnTimers<M> {
        &self.timers
    }

    pub(super) fn control(&self) -> StreamControl<M> {
        StreamControl::new(self.timers.clone(), Arc::clone(&self.shared))
    }
}

/// Reads.
impl<M: Side> Deadlines<M> {
    /// Reads by `read`, which says how many bytes it has read.
    #[inline]
    pub(super) fn read<V>(
        &mut self,
        cx: &mut Context<'_>,
        read: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<(V, usize)>>,
    ) -> Poll<io::Result<V>> {
        if let Err(error) = self.check() {
            return Poll::Ready(Err(error));
        }
        let is_first = !self.reads;
        if self.timers.begin_poll(is_first, cx).is_pending() {
            return Poll::Pending;
        }
        let polled = read(cx);
        self.timers.note_ready(is_first, polled.is_ready());
        let Poll::Ready(read) = polled else {
            return self.read_waits(cx).map(Err);
        };
        let has_waited = std::mem::replace(&mut self.reads, false);
        if let Ok((_, count)) = read
            && count > 0
        {
            self.was_read(count);
        }
        if let MeasuredMessage::Waited(transfer) = &self.measured
            && has_waited
        {
            transfer.pause();
        }
        Poll::Ready(read.map(|(value, _)| value))
    }

    #[inline]
    fn was_read(&mut self, count: usize) {
        let is_touched = self.shared.notes.has_any_for_read() && self.take_notes();
        match &mut self.measured {
            MeasuredMessage::Waited(transfer) => return transfer.add(count as u64),
            MeasuredMessage::Ready(bytes) => *bytes = bytes.saturating_add(count),
            MeasuredMessage::None => {}
        }
        if !is_touched {
            self.timers.touch_read();
        }
    }

    /// Something was read that begins the connection, or a message, or is no part of the message
    /// before. True if this has touched the timers.
    fn take_notes(&mut self) -> bool {
        let has_deadline = !self.shared.head.is_zero();
        let notes = self.shared.notes.take(has_deadline);
        if notes & ENDED != 0 {
            self.measured = MeasuredMessage::None;
        }
        if notes & CONNECTION != 0 {
            self.disarm(DeadlineKind::Handshake);
        }
        if notes & MEASURED != 0 {
            self.measured = MeasuredMessage::Ready(0);
        }
        let is_head = notes & MESSAGE != 0 && has_deadline;
        if is_head {
            let now = self.timers.touch_read_now();
            self.head_due = now.saturating_add(saturating_nanos(self.shared.head));
        }
        is_head
    }

    /// Whether the next bytes that are read are counted.
    #[cfg(feature = "hyper")]
    pub(super) fn is_read_measured(&self) -> bool {
        let is_measured = !matches!(self.measured, MeasuredMessage::None);
        is_measured || self.shared.notes.has(MEASURED)
    }

    fn read_waits(&mut self, cx: &Context<'_>) -> Poll<io::Error> {
        self.shared.reader.register(cx.waker());
        if !self.reads {
            self.reads = true;
            // The time for which the owner did not read does not count.
            self.timers.touch_read();
            self.arm_message();
        }
        self.poll(Direction::Read)
    }

    /// A read begins to wait for more of a message, if there is one.
    fn arm_message(&mut self) {
        self.forget_ended();
        let (timers, due, watched) = (&self.timers, self.head_due, &mut self.watched);
        let arm = || {
            // An error says that the connection is closed, which the next poll finds out.
            let _ = timers.arm_at(DeadlineKind::Request, due, Wakes::Nothing);
            *watched = [false; 2];
        };
        if self.shared.notes.arm_head(arm) {
            self.disarm(DeadlineKind::Request);
        }
        if self.shared.notes.take_measured_rest() {
            self.measured = MeasuredMessage::Ready(0);
        }
        match &self.measured {
            MeasuredMessage::None => return,
            MeasuredMessage::Ready(bytes) => {
                let transfer = self.timers.measure(Direction::Read, Wakes::Nothing);
                transfer.add(*bytes as u64);
                self.measured = MeasuredMessage::Waited(transfer);
            }
            MeasuredMessage::Waited(transfer) => transfer.resume_and(Wakes::Nothing),
        }
        self.watched = [false; 2];
    }

    fn disarm(&self, kind: DeadlineKind) {
        // An error says that the connection is closed, so nothing is armed.
        let _ = self.timers.disarm(kind);
    }

    /// Forgets the message that is measured, if the owner has said that it has ended.
    fn forget_ended(&mut self) {
        if self.shared.notes.has(ENDED) {
            self.shared.notes.forget_end();
            self.measured = MeasuredMessage::None;
        }
    }
}

/// Writes.
impl<M: Side> Deadlines<M> {
    /// Writes by `write`, which says how many bytes were accepted.
    #[inline]
    pub(super) fn write(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Err(error) = self.check() {
            return Poll::Ready(Err(error));
        }
        let is_first = !self.writes;
        if self.timers.begin_poll(is_first, cx).is_pending() {
            return Poll::Pending;
        }
        let polled = write(cx);
        self.timers.note_ready(is_first, polled.is_ready());
        let Poll::Ready(written) = polled else {
            if !self.writes {
                self.writes = true;
                self.measure_write();
            }
            return self.write_waits(cx).map(Err);
        };
        let has_waited = std::mem::replace(&mut self.writes, false);
        let count = *written.as_ref().unwrap_or(&0);
        if count > 0 {
            self.timers.touch_write();
            if self.stall.is_some() {
                self.stall_ends();
            }
        }
        if let Some(transfer) = &self.written
            && has_waited
        {
            transfer.add(count as u64);
            transfer.pause();
        }
        Poll::Ready(written)
    }

    /// A write begins to wait.
    fn measure_write(&mut self) {
        self.watched = [false; 2];
        match &self.written {
            Some(transfer) => transfer.resume_and(Wakes::Nothing),
            None => self.written = Some(self.timers.measure(Direction::Write, Wakes::Nothing)),
        }
    }

    /// Flushes by `flush`.
    pub(super) fn flush(
        &mut self,
        cx: &mut Context<'_>,
        flush: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        if let Err(error) = self.check() {
            return Poll::Ready(Err(error));
        }
        self.flush_unchecked(cx, flush)
    }

    /// Shuts down by `shutdown`, also after a limit was reached.
    pub(super) fn shutdown(
        &mut self,
        cx: &mut Context<'_>,
        shutdown: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        self.flush_unchecked(cx, shutdown)
    }

    fn flush_unchecked(
        &mut self,
        cx: &mut Context<'_>,
        flush: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        let Poll::Ready(flushed) = flush(cx) else {
            return self.write_waits(cx).map(Err);
        };
        // A flush may be done while a write waits.
        if self.stall.is_some() && !self.writes {
            self.stall_ends();
        }
        Poll::Ready(flushed)
    }

    fn write_waits(&mut self, cx: &Context<'_>) -> Poll<io::Error> {
        self.shared.writer.register(cx.waker());
        if self.stall.is_none() {
            self.stall = Some(self.timers.begin_write_and(Wakes::Nothing));
            self.watched = [false; 2];
        }
        self.poll(Direction::Write)
    }

    /// A byte was accepted, or a flush is done.
    #[cold]
    fn stall_ends(&mut self) {
        let Some(stall) = self.stall.take() else { return };
        if !stall.finish() {
            // The event has come, and the write was done before a poll has taken it.
            let is_stall = |kind| kind == DeadlineKind::WriteTimeout;
            let _ = self.timers.poll_kinds(&mut Context::from_waker(&self.waker), is_stall);
        }
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
        // The flag is set again if the timer wakes the stream during this poll.
        self.shared.set_woken(false);
        self.watched = [false; 2];
        loop {
            let cx = &mut Context::from_waker(&self.waker);
            match self.timers.poll_kinds(cx, DeadlineKind::is_of_age) {
                Poll::Ready(Ok(event)) => self.tell_or_end(event.kind)?,
                Poll::Ready(Err(_)) => {
                    // What is ready needs no timer.
                    self.shared.set_woken(true);
                    return Ok(());
                }
                Poll::Pending => return Ok(()),
            }
        }
    }

    /// Polls for what ends the wait in a direction.
    #[inline]
    fn poll(&mut self, direction: Direction) -> Poll<io::Error> {
        // The task has registered its waker before, so it sees the flag, or the timers wake it.
        if self.watched[direction as usize] && !self.shared.is_woken() {
            return Poll::Pending;
        }
        self.poll_timers(direction)
    }

    fn poll_timers(&mut self, direction: Direction) -> Poll<io::Error> {
        loop {
            // The owner may say at any moment that the message has ended.
            self.forget_ended();
            let is_wanted = |kind| self.is_wanted(direction, kind);
            let cx = &mut Context::from_waker(&self.waker);
            let Poll::Ready(event) = self.timers.poll_kinds(cx, is_wanted) else {
                self.watched[direction as usize] = true;
                return Poll::Pending;
            };
            let is_ended = self.shared.notes.has(ENDED);
            match event {
                Ok(event) if event.kind == DeadlineKind::ReadRate && is_ended => {}
                Ok(event) => {
                    if let Err(error) = self.tell_or_end(event.kind) {
                        return Poll::Ready(error);
                    }
                }
                Err(refused) => return Poll::Ready(no_timer(refused)),
            }
        }
    }

    /// Whether a deadline ends a wait in a direction. A read is asked first, as its data may have
    /// come in time.
    fn is_wanted(&self, direction: Direction, kind: DeadlineKind) -> bool {
        let reads = direction == Direction::Read;
        match ends(kind) {
            Ends::Nothing => false,
            _ if kind == TIMEOUT => false,
            Ends::Reads => reads,
            Ends::Writes => !reads,
            Ends::Either => reads || !self.reads,
            Ends::All => true,
        }
    }

    /// A limit is reached: the stream has ended, unless only the owner is to be told.
    #[cold]
    fn tell_or_end(&mut self, kind: DeadlineKind) -> io::Result<()> {
        if kind == DeadlineKind::MaxAge && !self.timers.limits().max_age_grace.is_zero() {
            self.shared.set_aged();
            return Ok(());
        }
        Err(self.end(kind))
    }

    /// A limit is reached: the stream has ended, in both directions.
    #[cold]
    fn end(&mut self, kind: DeadlineKind) -> io::Error {
        let timeout = StreamTimeout::new(kind, &self.timers.limits(), self.shared.head);
        let timeout = *self.shared.timeout.get_or_init(|| timeout);
        // A shutdown that waits afterwards has a time of its own.
        (self.stall, self.written) = (None, None);
        self.measured = MeasuredMessage::None;
        self.waker.wake_by_ref();
        timeout.into()
    }
}

impl<M: Side> Drop for Deadlines<M> {
    fn drop(&mut self) {
        self.timers.close();
        // The shared part may outlive the stream, and must not hold the wakers of its tasks.
        self.waker.wake_by_ref();
    }
}

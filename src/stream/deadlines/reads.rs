//! Reads of a stream, and the messages that they bring.
//!
//! Invariants: no head has a deadline, and no message is measured, once its end is noted.
//!
//! Cost: see the module above.

use std::io;
use std::task::{Context, Poll, ready};

use super::super::notes::{CONNECTION, ENDED, HEAD, MEASURED, MESSAGE, TAKEN};
use super::{Deadlines, Measured};
use crate::clock::saturating_nanos;
use crate::conn::{DeadlineKind, Direction, Moment, Side, Transfer, Wakes};
use crate::pass;

/// So many writes and flushes after a question show that the task does not read. A poll of a
/// connection reads before it flushes, or after a few writes.
const WITHOUT_READ_MAX: u32 = 32;

impl<M: Side> Deadlines<M> {
    /// Reads by `call`, which says how many bytes it has read.
    #[inline]
    pub(in crate::stream) fn read(
        &mut self,
        cx: &mut Context<'_>,
        call: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if self.forwards() {
            return self.forward_read(cx, call);
        }
        self.check()?;
        self.reads.way.looks = self.looks;
        let is_first = !self.reads.way.waits;
        ready!(self.timers.begin_poll(is_first, cx));
        let polled = call(cx);
        self.timers.note_ready(is_first, polled.is_ready());
        let Poll::Ready(result) = polled else { return self.wait_to_read(cx).map(Err) };
        let has_waited = self.reads.way.end_wait();
        let transfer = self.reads.transfer().filter(|_| has_waited);
        let counted_until = transfer.and_then(Transfer::counted_until);
        if let Ok(count @ 1..) = result {
            self.was_read(count as u64, has_waited);
        }
        if has_waited {
            self.shared.reads.set_waits(false);
        }
        if let (Some(at), Some(transfer)) = (counted_until, self.reads.transfer()) {
            transfer.pause_at(at);
        }
        Poll::Ready(result)
    }

    /// These bytes were read; none if they are not known.
    #[inline]
    pub(in crate::stream) fn note_read(&mut self, read: &[u8]) {
        self.shared.behind.note_read(read);
        if self.http2.moved(Direction::Read, read, &self.shared.streams, || self.timers.now()) {
            self.tunnel_moves();
        }
        if self.writes.is_windowed() && self.http2.gives_window() {
            self.window_is_given();
        }
    }

    fn wait_to_read(&mut self, cx: &Context<'_>) -> Poll<io::Error> {
        self.register(Direction::Read, cx);
        let begins = !std::mem::replace(&mut self.reads.way.waits, true);
        if begins {
            self.shared.reads.set_waits(true);
            // The time for which the owner did not read does not count.
            self.stamp_read(None);
        }
        // Of a read that waits as before, the owner may have said meanwhile that a head has begun,
        // or is complete.
        if self.reads.message.is_some() || !self.shared.notes.has_none_for_wait() {
            self.file_message(begins);
        }
        // Without a budget, the stream may have more.
        if self.reads.question.is_some() && pass::has_budget() {
            self.answer();
        }
        if self.shared.unsent.has_ends() && self.writes.has_accepted() {
            // The framework has not flushed, as it waits for more to answer.
            let (ends, _) = self.shared.unsent.take_ends();
            self.timers.end_requests(ends, self.writes.written);
        }
        self.writes.written = None;
        self.poll(Direction::Read)
    }

    /// The stream was read to its end, or is not read on.
    #[cold]
    fn answer(&mut self) {
        if let Some(question) = self.reads.question.take() {
            self.shared.reads.answer(question);
        }
    }

    /// The task writes or flushes, and may not read in this poll nor in later ones.
    #[inline]
    pub(super) fn does_not_read(&mut self, cx: &Context<'_>) {
        if self.reads.question.is_some() {
            if self.shared.reads.is_waited_for(WITHOUT_READ_MAX) {
                cx.waker().wake_by_ref();
            } else {
                self.answer();
            }
        }
    }

    #[inline]
    fn was_read(&mut self, count: u64, has_waited: bool) {
        let now = if self.shared.notes.has(TAKEN) { self.take_notes() } else { None };
        let is_of_head = self.shared.notes.has(HEAD);
        match &mut self.reads.message {
            Some(Measured::Awaited(transfer)) => transfer.count(count),
            // The bytes of a head with a deadline do not count. The last of them may be followed by
            // others in the same read.
            Some(Measured::Bytes(bytes)) if is_of_head => *bytes = count,
            Some(Measured::Bytes(bytes)) => *bytes = bytes.saturating_add(count),
            None => {}
        }
        if self.reads.message.is_some() || is_of_head {
            // The owner may read on before it says that this was the last of a head or a message,
            // so the wait that follows decides nothing.
            self.looks = 0;
        }
        // A wait that is in progress would count from an older stamp.
        if self.reads.is_stamped() || has_waited || self.writes.is_stalled() {
            let at = self.stamp_read(now);
            self.shared.set_moved(at);
        }
    }

    /// `now` is the time, if it is known.
    pub(super) fn stamp_read(&mut self, now: Option<u64>) -> Moment {
        self.reads.unstamped = 0;
        self.timers.touch_read_by(now)
    }

    /// Something was read that begins the connection, or a message, or is no part of the message
    /// before. Returns the time, if it has asked.
    fn take_notes(&mut self) -> Option<u64> {
        let has_deadline = !self.shared.head.is_zero();
        let notes = self.shared.notes.take(has_deadline);
        if notes & ENDED != 0 {
            self.reads.message = None;
        }
        if notes & CONNECTION != 0 {
            self.disarm(DeadlineKind::Handshake);
        }
        if notes & MEASURED != 0 {
            self.reads.message = Some(Measured::Bytes(0));
        }
        if notes & MESSAGE != 0 {
            self.shared.behind.begin_head();
        }
        let now = (notes & MESSAGE != 0 && has_deadline).then(|| self.timers.now())?;
        self.reads.head_due = Some(now.saturating_add(saturating_nanos(self.shared.head)));
        Some(now)
    }

    /// A read begins to wait, or waits as before, for a message.
    #[inline(never)]
    fn file_message(&mut self, begins: bool) {
        self.forget_ended();
        let is_filed = self.arm_head();
        let is_new = begins || self.reads.transfer().is_none();
        let is_filed = is_new && self.measure_read() || is_filed;
        self.unwatch(is_filed);
    }

    /// The time in which a read waits for a message counts from now, if the message is measured. A
    /// head with a deadline has that alone. True if a deadline was filed.
    fn measure_read(&mut self) -> bool {
        if self.shared.notes.take_measured_rest() {
            self.reads.message = Some(Measured::Bytes(0));
        }
        if self.shared.notes.has(HEAD) {
            return false;
        }
        match self.reads.message {
            Some(Measured::Awaited(ref transfer)) => {
                transfer.resume_at(self.timers.now(), Wakes::Nothing)
            }
            Some(Measured::Bytes(bytes)) => {
                let transfer = self.timers.measure(DeadlineKind::ReadRate, self.timers.now());
                transfer.count(bytes);
                self.reads.message = Some(Measured::Awaited(transfer));
                true
            }
            None => false,
        }
    }

    /// Arms the deadline of a head that has begun, unless it is armed. True if it was armed now.
    fn arm_head(&mut self) -> bool {
        if self.shared.notes.take_untimed() {
            self.reads.head_due = Some(self.timers.nanos_of(self.shared.head));
        }
        let Some(due) = self.reads.head_due else { return false };
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
    pub(super) fn forget_ended(&mut self) {
        if self.shared.notes.has(ENDED) {
            self.shared.notes.forget_end();
            self.reads.message = None;
        }
    }
}

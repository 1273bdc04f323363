//! Writes, flushes and shutdowns of a stream, and what waits of responses for an HTTP/2 window.
//!
//! Why data that waits for a window is a write that waits: hyper takes a whole frame of a response
//! once the peer has a window for one byte, and nothing waits in the stream then. Such a peer would
//! hold its request for ever.
//!
//! Invariants: while something waits, a transfer counts the time without a byte, and another one
//! the rate, where there is such a limit. Each of them holds the idle times back meanwhile.
//!
//! Cost: see the module above. A flush after which data waits for a window costs as much as a write
//! that waits, where that wait begins or bytes were taken, and a load otherwise.

use std::io;
use std::task::{Context, Poll, ready};

use super::{Deadlines, Stall};
use crate::conn::{DeadlineKind, Direction, Side, Transfer, Wakes};
use crate::pass;

impl<M: Side> Deadlines<M> {
    /// Writes some of these bytes by `call`, which says how many it has written.
    #[inline]
    pub(in crate::stream) fn write<'a>(
        &mut self,
        bytes: impl IntoIterator<Item = &'a [u8]>,
        cx: &mut Context<'_>,
        call: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let written = self.poll_write(cx, call);
        let Poll::Ready(Ok(mut left)) = written else { return written };
        let mut moves = false;
        for part in bytes {
            let part = &part[..part.len().min(left)];
            let now = || self.timers.now();
            moves |= self.http2.moved(Direction::Write, part, &self.shared.streams, now);
            left -= part.len();
        }
        if moves {
            self.tunnel_moves();
        }
        written
    }

    #[inline]
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        call: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if self.forwards() {
            return self.forward_write(cx, call);
        }
        self.check()?;
        self.writes.way.looks = self.looks;
        let is_first = !self.writes.way.waits;
        let begins = self.timers.begin_poll(is_first, cx);
        self.writes.is_put_off = begins.is_pending();
        ready!(begins);
        self.does_not_read(cx);
        let polled = call(cx);
        self.timers.note_ready(is_first, polled.is_ready());
        let Poll::Ready(result) = polled else { return self.wait_to_write(cx).map(Err) };
        let has_waited = self.writes.way.end_wait();
        // The time of a write to a socket is counted when the socket is looked at.
        let is_counted = has_waited && self.writes.acknowledged.is_none();
        let rate = self.writes.rate.as_ref().filter(|_| is_counted);
        let counted_until = rate.and_then(Transfer::counted_until);
        if let Ok(count @ 1..) = result {
            self.was_written(count as u64, has_waited);
        }
        // A wait for a window goes on.
        let until = counted_until.filter(|_| !self.writes.is_windowed());
        if let (Some(at), Some(rate)) = (until, &self.writes.rate) {
            rate.pause_at(at);
        }
        Poll::Ready(result)
    }

    pub(super) fn wait_to_write(&mut self, cx: &Context<'_>) -> Poll<io::Error> {
        self.register(Direction::Write, cx);
        if !std::mem::replace(&mut self.writes.way.waits, true) {
            self.write_waits();
        }
        self.writes.written = None;
        self.poll(Direction::Write)
    }

    #[inline]
    fn was_written(&mut self, count: u64, has_waited: bool) {
        if self.writes.acknowledged.as_ref().is_some_and(|known| !known.has_left) {
            self.leave_unacknowledged();
        }
        let is_of_response = self.shared.unsent.accept(count, self.writes.is_windowed());
        let counts = !self.writes.is_stalled() || self.ends_stall(count, is_of_response);
        if !has_waited {
            self.writes.written = Some(self.timers.stamp_write());
            return;
        }
        if let Some(known) = &mut self.writes.acknowledged {
            known.end_write(|| self.timers.now());
        } else if let Some(rate) = self.writes.rate.as_ref().filter(|_| counts) {
            rate.count(count);
        }
        // The peer has taken what was in the way.
        self.shared.set_moved(self.timers.stamp_waited_write());
    }

    /// The stream has accepted bytes in a wait, which ends if they may be bytes of responses. True
    /// if they are to be counted.
    fn ends_stall(&mut self, count: u64, is_of_response: bool) -> bool {
        if self.writes.is_windowed() {
            if is_of_response {
                self.window_comes(count);
            }
            // They are counted by that, or where the framework takes them.
            return false;
        }
        let taken = self.shared.unsent.taken();
        if !is_of_response && self.shared.unsent.await_window() {
            self.writes.sending().taken = Some(taken);
            return false;
        }
        self.stall_ends();
        true
    }

    /// A write begins to wait.
    fn write_waits(&mut self) {
        self.shared.unsent.begin_sending();
        // A peer without a window that lets other frames fill the socket begins no other wait.
        match self.writes.newly_taken(&self.shared.unsent) {
            Some(0) => return,
            Some(taken) => self.window_comes(taken),
            None => {}
        }
        self.measure_writes();
    }

    /// The time for which writes wait counts.
    fn measure_writes(&mut self) {
        let now = self.timers.now();
        if let Some(known) = &mut self.writes.acknowledged {
            known.waits_since = now;
        }
        self.resume_rate(now);
        self.stall(now);
    }

    pub(super) fn resume_rate(&mut self, now: u64) {
        if let Some(known) = self.writes.acknowledged.as_mut().filter(|known| !known.has_left) {
            known.counted_at = now;
        }
        let is_filed = if let Some(rate) = &self.writes.rate {
            rate.resume_at(now, Wakes::Nothing)
        } else {
            self.writes.rate = Some(self.timers.measure(DeadlineKind::WriteRate, now));
            true
        };
        self.unwatch(is_filed);
    }

    /// Flushes by `flush`.
    pub(in crate::stream) fn flush(
        &mut self,
        cx: &mut Context<'_>,
        flush: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        self.does_not_read(cx);
        if self.forwards() {
            let polled = flush(cx);
            if polled.is_ready() {
                return polled;
            }
            self.watch();
            return self.shutdown(cx, |_| Poll::Pending);
        }
        self.check()?;
        ready!(self.shutdown(cx, flush))?;
        if self.shared.unsent.has_any() && !self.writes.way.waits {
            return Poll::Ready(self.all_accepted(cx));
        }
        Poll::Ready(Ok(()))
    }

    /// The stream has accepted all that it was given: requests end, and pieces of responses that
    /// are left wait for a window.
    fn all_accepted(&mut self, cx: &Context<'_>) -> io::Result<()> {
        let (ends, has_pieces) = self.shared.unsent.take_ends();
        self.timers.end_requests(ends, self.writes.written);
        // A piece that is dropped from here on wakes the task.
        if has_pieces && self.shared.unsent.await_window() {
            return self.wait_for_window(cx);
        }
        if let Some(taken) = self.writes.newly_taken(&self.shared.unsent) {
            self.window_comes(taken);
            self.timers.touch();
        }
        Ok(())
    }

    /// The peer gives no window for a response: a write that waits, though not in the stream. Bytes
    /// that are no part of a response, such as those of a PING, do not end the wait.
    fn wait_for_window(&mut self, cx: &Context<'_>) -> io::Result<()> {
        self.register(Direction::Write, cx);
        let taken = self.shared.unsent.taken();
        if let Some(newly @ 1..) = self.writes.newly_taken(&self.shared.unsent) {
            self.window_comes(newly);
        }
        if !self.writes.is_windowed() {
            self.writes.sending().taken = Some(taken);
            self.measure_writes();
        }
        match self.poll(Direction::Write) {
            Poll::Ready(error) => Err(error),
            Poll::Pending => Ok(()),
        }
    }

    /// The peer gives a window in a wait for one, which begins again: the window may be for another
    /// response, or too small for a byte, and the peer has given it.
    #[cold]
    pub(super) fn window_is_given(&mut self) {
        self.measure_stall(self.timers.now());
    }

    /// The wait for a window is over: the peer has taken so many bytes of responses, or none is
    /// left.
    fn window_comes(&mut self, taken: u64) {
        self.stall_ends();
        let has_left = self.writes.has_left();
        let Some(rate) = &self.writes.rate else { return };
        let counted_until = rate.counted_until();
        if let Some(known) = &mut self.writes.acknowledged {
            // The bytes are counted when the peer acknowledges them.
            known.counted_at = counted_until.unwrap_or(known.counted_at);
        } else {
            rate.count(taken);
        }
        if let (Some(at), false) = (counted_until, has_left) {
            rate.pause_at(at);
        }
    }

    /// Shuts down by `shutdown`, also after a limit was reached.
    pub(in crate::stream) fn shutdown(
        &mut self,
        cx: &mut Context<'_>,
        shutdown: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        // No look comes before a shutdown, which goes on after a limit was reached. The flag stays,
        // as what is read or written after a limit returns its error.
        if self.shared.is_woken() {
            self.writes.way.registered = None;
            self.looks = pass::looks();
        }
        self.writes.way.looks = self.looks;
        let Poll::Ready(done) = shutdown(cx) else {
            self.register(Direction::Write, cx);
            if !self.writes.is_stalled() || self.writes.is_windowed() {
                self.shared.unsent.begin_sending();
            }
            if !self.writes.is_stalled() {
                self.stall(self.timers.now());
            }
            return self.poll(Direction::Write).map(Err);
        };
        // A flush may be done while a write waits.
        if self.writes.is_stalled() && !self.writes.way.waits && !self.writes.is_windowed() {
            self.stall_ends();
            // What comes after a limit was reached is no activity.
            if self.shared.timeout.get().is_none() {
                self.timers.touch();
            }
        }
        Poll::Ready(done)
    }

    /// A write, flush or shutdown begins to wait.
    fn stall(&mut self, now: u64) {
        // No idle time counts from before the last read, of which no time is known if it was not
        // stamped. Where a read waits, all were. What comes after a limit is no activity.
        if !self.reads.way.waits && self.shared.timeout.get().is_none() {
            self.stamp_read(None);
        }
        self.writes.sending();
        if self.writes.has_left() && !self.writes.is_windowed() {
            // Its time goes on.
            self.writes.presume();
        } else {
            self.measure_stall(now);
        }
        let is_timed = self.writes.stall.as_ref().is_some_and(|stall| stall.time.is_limited());
        if !is_timed && self.writes.rate.as_ref().is_some_and(Transfer::is_limited) {
            self.writes.sending().rated.get_or_insert_with(|| self.timers.begin_read());
        }
    }

    /// The time of the wait begins at `now`.
    pub(super) fn measure_stall(&mut self, now: u64) {
        // What was judged by the socket is measured anew for a window, which says nothing of it.
        let is_of_window = self.writes.is_windowed();
        let is_filed = match &mut self.writes.stall {
            Some(stall) if stall.is_of_window == is_of_window => stall.time.restart(now),
            stall => {
                let time = self.timers.measure(DeadlineKind::WriteTimeout, now);
                *stall = Some(Stall { time, is_of_window });
                true
            }
        };
        self.unwatch(is_filed);
        self.judge_writes(now);
        self.writes.presume();
    }

    /// A byte was accepted, or a flush is done.
    fn stall_ends(&mut self) {
        self.writes.sending = None;
        if !self.writes.has_left() {
            self.writes.stall.take_if(|stall| stall.time.stop());
        } else if self.writes.stall.as_ref().is_some_and(|stall| stall.is_of_window) {
            self.measure_stall(self.timers.now());
        } else {
            self.writes.presume();
        }
    }
}

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

use super::{Deadlines, Sending};
use crate::conn::{DeadlineKind, Direction, Side, Transfer};
use crate::pass;

/// Writes.
impl<M: Side> Deadlines<M> {
    #[inline]
    pub(super) fn was_written(&mut self, count: u64, has_waited: bool) {
        if self.acknowledged.as_ref().is_some_and(|known| !known.has_left) {
            self.leave_unacknowledged();
        }
        let is_of_response = self.shared.unsent.accept(count, self.is_windowed());
        let counts = !self.is_stalled() || self.ends_stall(count, is_of_response);
        if !has_waited {
            self.written = Some(self.timers.stamp_write());
            return;
        }
        if let Some(known) = &mut self.acknowledged {
            known.end_write(|| self.timers.now());
        }
        // The peer has taken what was in the way.
        self.shared.set_moved(self.timers.stamp_waited_write());
        if counts && self.acknowledged.is_none() {
            if let Some(transfer) = &self.writes.transfer {
                transfer.count(count);
            }
        }
    }

    /// Of these bytes the stream has accepted as many as it says.
    #[inline]
    pub(in crate::stream) fn note_written<'a>(
        &mut self,
        written: &Poll<io::Result<usize>>,
        bytes: impl IntoIterator<Item = &'a [u8]>,
    ) {
        let Poll::Ready(Ok(mut left)) = *written else { return };
        let mut moves = false;
        for part in bytes {
            let accepted = &part[..part.len().min(left)];
            moves |= self.http2.was_written(accepted, &self.shared.streams, || self.timers.now());
            left -= accepted.len();
        }
        if moves {
            self.tunnel_moves();
        }
    }

    /// The stream has accepted bytes in a wait, which ends if they may be bytes of responses. True
    /// if they are to be counted.
    fn ends_stall(&mut self, count: u64, is_of_response: bool) -> bool {
        if self.is_windowed() {
            if is_of_response {
                self.window_comes(count);
            }
            // They are counted by that, or where the framework takes them.
            return false;
        }
        if !is_of_response {
            let taken = self.shared.unsent.taken();
            let is_windowed = self.shared.unsent.await_window();
            self.sending = if is_windowed { Sending::Window { taken } } else { Sending::Stream };
        }
        if !self.is_windowed() {
            self.stall_ends();
        }
        !self.is_windowed()
    }

    /// A write begins to wait.
    pub(super) fn write_waits(&mut self) {
        self.shared.unsent.begin_sending();
        // A peer without a window that lets other frames fill the socket begins no other wait.
        match self.newly_taken() {
            Some(0) => return,
            Some(taken) => self.window_comes(taken),
            None => {}
        }
        self.measure_writes();
    }

    /// The time for which writes wait counts.
    fn measure_writes(&mut self) {
        let now = self.timers.now();
        if let Some(known) = &mut self.acknowledged {
            known.begin_write(now);
        }
        self.resume_rate(now);
        self.stall(now);
    }

    pub(super) fn resume_rate(&mut self, now: u64) {
        if let Some(known) = &mut self.acknowledged {
            known.counted_at = if known.has_left { known.counted_at } else { now };
        }
        let is_filed = self.writes.resume(&self.timers, DeadlineKind::WriteRate, 0, now);
        self.unwatch(is_filed);
    }

    /// Flushes by `flush`.
    pub(in crate::stream) fn flush(
        &mut self,
        cx: &mut Context<'_>,
        flush: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
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
        if self.shared.unsent.has_any() && !self.writes.waits {
            return self.all_accepted(cx);
        }
        Poll::Ready(Ok(()))
    }

    /// The stream has accepted all that it was given: requests end, and pieces of responses that
    /// are left wait for a window.
    fn all_accepted(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let (ends, has_pieces) = self.shared.unsent.take_ends();
        self.timers.end_requests(ends, self.written);
        // A piece that is dropped from here on wakes the task.
        if has_pieces && self.shared.unsent.await_window() {
            return match self.wait_for_window(cx) {
                Poll::Ready(error) => Poll::Ready(Err(error)),
                Poll::Pending => Poll::Ready(Ok(())),
            };
        }
        if let Some(taken) = self.newly_taken() {
            self.window_comes(taken);
            self.timers.touch();
        }
        Poll::Ready(Ok(()))
    }

    /// The peer gives no window for a response: a write that waits, though not in the stream. Bytes
    /// that are no part of a response, such as those of a PING, do not end the wait.
    fn wait_for_window(&mut self, cx: &Context<'_>) -> Poll<io::Error> {
        self.register(Direction::Write, cx);
        let taken = self.shared.unsent.taken();
        if let Some(newly @ 1..) = self.newly_taken() {
            self.window_comes(newly);
        }
        if !self.is_windowed() {
            self.sending = Sending::Window { taken };
            self.measure_writes();
        }
        self.poll(Direction::Write)
    }

    /// The peer gives a window in a wait for one, which begins again: the window may be for another
    /// response, or too small for a byte, and the peer has given it.
    #[cold]
    pub(super) fn window_is_given(&mut self) {
        let is_filed = self.measure_stall(self.timers.now());
        self.unwatch(is_filed);
    }

    /// How many bytes of responses were taken in the wait for a window; `None` if there is none.
    fn newly_taken(&self) -> Option<u64> {
        let Sending::Window { taken } = self.sending else { return None };
        Some(self.shared.unsent.taken() - taken)
    }

    /// The wait for a window is over: the peer has taken so many bytes of responses, or none is
    /// left.
    fn window_comes(&mut self, taken: u64) {
        self.stall_ends();
        let has_left = self.has_left();
        let Some(transfer) = &self.writes.transfer else { return };
        let counted_until = transfer.counted_until();
        if let Some(known) = &mut self.acknowledged {
            // The bytes are counted when the peer acknowledges them.
            known.counted_at = counted_until.unwrap_or(known.counted_at);
        } else {
            transfer.count(taken);
        }
        if let (Some(at), false) = (counted_until, has_left) {
            transfer.pause_at(at);
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
            self.writes.registered = None;
            self.looks = pass::looks();
        }
        self.writes.looks = self.looks;
        let Poll::Ready(done) = shutdown(cx) else {
            self.register(Direction::Write, cx);
            if !self.is_stalled() || self.is_windowed() {
                self.shared.unsent.begin_sending();
            }
            if !self.is_stalled() {
                self.stall(self.timers.now());
            }
            return self.poll(Direction::Write).map(Err);
        };
        // A flush may be done while a write waits.
        if self.is_stalled() && !self.writes.waits && !self.is_windowed() {
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
        if !self.reads.waits && self.shared.timeout.get().is_none() {
            self.stamp_read(None);
        }
        if !self.is_windowed() {
            self.sending = Sending::Stream;
        }
        let is_filed = if self.has_left() && !self.is_windowed() {
            // Its time goes on.
            self.presume();
            false
        } else {
            self.measure_stall(now)
        };
        let is_timed = self.stall.as_ref().is_some_and(|(stall, _)| stall.is_limited());
        let is_rated = self.writes.transfer.as_ref().is_some_and(Transfer::is_limited);
        if self.rated.is_none() && !is_timed && is_rated {
            self.rated = Some(self.timers.begin_read());
        }
        self.unwatch(is_filed);
    }

    /// The time of the wait begins at `now`. True if it is to be filed.
    pub(super) fn measure_stall(&mut self, now: u64) -> bool {
        // What was judged by the socket is measured anew for a window, which says nothing of it.
        let is_windowed = self.is_windowed();
        let is_filed = match &mut self.stall {
            Some((stall, was_windowed)) if *was_windowed == is_windowed => stall.restart(now),
            stall => {
                let begun = self.timers.measure(DeadlineKind::WriteTimeout, now);
                *stall = Some((begun, is_windowed));
                true
            }
        };
        self.judge_writes(now);
        self.presume();
        is_filed
    }

    /// Bytes that are left hold no idle time back by themselves.
    fn presume(&self) {
        if let Some((stall, _)) = &self.stall {
            stall.presume(!self.is_stalled());
        }
    }

    /// A byte was accepted, or a flush is done.
    fn stall_ends(&mut self) {
        self.sending = Sending::Nothing;
        self.rated = None;
        if !self.has_left() {
            self.stall.take_if(|(stall, _)| stall.stop());
        } else if matches!(self.stall, Some((_, true))) {
            let is_filed = self.measure_stall(self.timers.now());
            self.unwatch(is_filed);
        } else {
            self.presume();
        }
    }
}

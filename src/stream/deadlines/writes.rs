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

use super::super::socket::{Acknowledged, LOOKS, LUMP_MAX};
use super::Deadlines;
use crate::clock::saturating_nanos;
use crate::conn::{DeadlineKind, Direction, Side, Transfer};

/// What the peer has acknowledged, of a stream with a socket.
impl<M: Side> Deadlines<M> {
    /// The stream has a socket, whose peer has acknowledged so many bytes.
    #[cfg(unix)]
    pub(in crate::stream) fn set_acknowledged(&mut self, bytes: u64) {
        self.acknowledged = Some(Acknowledged::new(bytes));
    }

    /// A write, flush or shutdown is polled: looks at the socket if one waits and a deadline may
    /// have passed.
    #[inline]
    pub(in crate::stream) fn look_at_socket(&mut self, acknowledged: impl FnOnce() -> Option<u64>) {
        let Some(known) = &mut self.acknowledged else { return };
        known.has_looked = false;
        if self.is_stalled && (self.shared.is_woken() || !self.writes.is_watched) {
            if let Some(bytes) = acknowledged() {
                self.note_acknowledged(bytes);
            }
        }
    }

    #[cold]
    fn note_acknowledged(&mut self, bytes: u64) {
        let Some(known) = &mut self.acknowledged else { return };
        let (now, limit) = (self.timers.now(), self.timers.limits().write_timeout);
        let newly = known.look(bytes, now, saturating_nanos(limit));
        let is_late = known.is_late;
        if newly > 0 {
            if let Some(transfer) = &self.writes.transfer {
                transfer.count(newly);
                transfer.bound(now, LUMP_MAX);
            }
        }
        if !is_late && !self.is_windowed {
            // The event of a part that is over is withdrawn with it.
            self.stall = None;
            let is_filed = self.measure_stall(now);
            self.unwatch(is_filed);
        }
    }

    /// Whether the event of a write that waits is true by what the peer has acknowledged.
    pub(super) fn is_judged_late(&self, kind: DeadlineKind) -> bool {
        let Some(known) = &self.acknowledged else { return true };
        match kind {
            DeadlineKind::WriteTimeout => self.is_windowed || known.is_late,
            // The bytes were counted at the look.
            _ => known.has_looked,
        }
    }

    /// Whether a rate may be judged only after a look, for which the task is to poll again.
    pub(super) fn must_look(&self) -> bool {
        let Some(known) = &self.acknowledged else { return false };
        let is_limited = || self.writes.transfer.as_ref().is_some_and(Transfer::is_limited);
        !known.has_looked && is_limited() && self.timers.is_off(DeadlineKind::WriteRate)
    }

    /// Resets the connection at its close if a limit of writing has ended it.
    #[inline]
    pub(in crate::stream) fn reset_if_late<V>(
        &self,
        polled: &Poll<io::Result<V>>,
        reset: impl FnOnce(),
    ) {
        if self.acknowledged.is_some() && matches!(polled, Poll::Ready(Err(_))) {
            use super::super::StreamTimeout::{WriteRate, WriteStall};

            if let Some(WriteStall(_) | WriteRate(_)) = self.shared.timeout.get() {
                reset();
            }
        }
    }
}

/// Writes.
impl<M: Side> Deadlines<M> {
    #[inline]
    pub(super) fn was_written(&mut self, count: u64, has_waited: bool) {
        let is_of_response = self.shared.unsent.accept(count, self.is_windowed);
        let counts = !self.is_stalled || self.ends_stall(count, is_of_response);
        if !has_waited {
            self.written = Some(self.timers.stamp_write());
            return;
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
        if self.is_windowed {
            if is_of_response {
                self.window_comes(count);
            }
            // They are counted by that, or where the framework takes them.
            return false;
        }
        if !is_of_response {
            self.taken = self.shared.unsent.taken();
            self.is_windowed = self.shared.unsent.await_window();
        }
        if !self.is_windowed {
            self.stall_ends();
        }
        !self.is_windowed
    }

    /// A write begins to wait.
    pub(super) fn write_waits(&mut self) {
        self.shared.unsent.begin_sending();
        // A peer without a window that lets other frames fill the socket begins no other wait.
        if self.is_windowed && self.shared.unsent.taken() == self.taken {
            return;
        }
        if self.is_windowed {
            self.window_comes(self.newly_taken());
        }
        self.measure_writes();
    }

    /// The time for which writes wait counts.
    fn measure_writes(&mut self) {
        let now = self.timers.now();
        let is_filed = self.writes.resume(&self.timers, DeadlineKind::WriteRate, 0, now);
        self.unwatch(is_filed);
        self.stall(now);
    }

    /// Flushes by `flush`.
    pub(in crate::stream) fn flush(
        &mut self,
        cx: &mut Context<'_>,
        flush: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
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
        if self.is_windowed {
            self.window_comes(self.newly_taken());
            self.timers.touch();
        }
        Poll::Ready(Ok(()))
    }

    /// The peer gives no window for a response: a write that waits, though not in the stream. Bytes
    /// that are no part of a response, such as those of a PING, do not end the wait.
    fn wait_for_window(&mut self, cx: &Context<'_>) -> Poll<io::Error> {
        self.register(Direction::Write, cx);
        let taken = self.shared.unsent.taken();
        if self.is_windowed && taken != self.taken {
            self.window_comes(self.newly_taken());
        }
        if !self.is_windowed {
            (self.is_windowed, self.taken) = (true, taken);
            self.measure_writes();
        }
        self.poll(Direction::Write)
    }

    /// How many bytes of responses were taken in the wait for a window.
    fn newly_taken(&self) -> u64 {
        self.shared.unsent.taken() - self.taken
    }

    /// The wait for a window is over: the peer has taken so many bytes of responses, or none is
    /// left.
    fn window_comes(&mut self, taken: u64) {
        self.is_windowed = false;
        self.stall_ends();
        if self.acknowledged.is_some() {
            // The bytes are counted when the peer acknowledges them.
            return;
        }
        if let Some(transfer) = &self.writes.transfer {
            let counted_until = transfer.counted_until();
            transfer.count(taken);
            if let Some(at) = counted_until {
                transfer.pause_at(at);
            }
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
            self.passes = self.timers.passes();
        }
        self.writes_know_passes();
        let Poll::Ready(done) = shutdown(cx) else {
            self.register(Direction::Write, cx);
            if !self.is_stalled || self.is_windowed {
                self.shared.unsent.begin_sending();
            }
            if !self.is_stalled {
                self.stall(self.timers.now());
            }
            return self.poll(Direction::Write).map(Err);
        };
        // A flush may be done while a write waits.
        if self.is_stalled && !self.writes.waits && !self.is_windowed {
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
        self.is_stalled = true;
        if let Some(acknowledged) = &mut self.acknowledged {
            acknowledged.begin(now);
        }
        let is_filed = self.measure_stall(now);
        let is_limited =
            |transfer: &Option<Transfer<M>>| transfer.as_ref().is_some_and(Transfer::is_limited);
        if self.rated.is_none() && !is_limited(&self.stall) && is_limited(&self.writes.transfer) {
            self.rated = Some(self.timers.pause_reads());
        }
        self.unwatch(is_filed);
    }

    /// The time of the wait, or the part of it until the next look, begins at `now`. True if it is
    /// to be filed.
    fn measure_stall(&mut self, now: u64) -> bool {
        let is_looked_at = self.acknowledged.is_some() && !self.is_windowed;
        let parts = if is_looked_at { LOOKS } else { 1 };
        let is_same = std::mem::replace(&mut self.stall_parts, parts) == parts;
        match &mut self.stall {
            Some(stall) if is_same => stall.restart(now),
            stall => {
                *stall = Some(self.timers.measure(DeadlineKind::WriteTimeout, parts, now));
                true
            }
        }
    }

    /// A byte was accepted, or a flush is done.
    fn stall_ends(&mut self) {
        self.is_stalled = false;
        self.rated = None;
        if self.stall.as_ref().is_some_and(Transfer::stop) {
            self.stall = None;
        }
    }
}

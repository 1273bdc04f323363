//! Transfers whose rate is measured.

use std::fmt;
use std::sync::Arc;

use super::kinds::{self, DeadlineKind};
use super::measured::{Direction, Progress};
use super::rules;
use super::side::{Connection, Side, Wakes};
use crate::clock::Timeline;
use crate::face::timers::Timers;

/// A read or a write whose rate is measured; it ends when this is dropped. Made by
/// [`ConnTimers::begin_measured_read`](super::ConnTimers::begin_measured_read) and
/// [`begin_measured_write`](super::ConnTimers::begin_measured_write), where its deadline is
/// described.
///
/// It is `'static`, so it can be moved into the task that does the work; on the side
/// [`Handle`](crate::Handle) it is `Send` and `Sync`. It does not keep the connection open: it has
/// no effect on a connection that is closed. A panic of the task drops it. The deadline of a
/// transfer that was forgotten comes, unless another one begins.
#[must_use = "the transfer ends when this is dropped"]
pub struct Transfer<S: Side = Timers> {
    conn: S::Conn,
    /// The kind of its deadline.
    kind: usize,
    /// Whether it is the only one of its kind, whose event is withdrawn when it ends.
    is_only: bool,
    /// `None` if there is no limit.
    pub(super) progress: Option<Arc<Progress>>,
}

impl<S: Side> Transfer<S> {
    /// Begins at `now`: beside others of its kind, or in the place of the one before, as the only
    /// one.
    pub(super) fn begin(
        conn: &S::Conn,
        (kind, is_only): (usize, bool),
        now: u64,
        wakes: Wakes,
    ) -> Self {
        let mut transfer = Self { conn: conn.clone(), kind, is_only, progress: None };
        transfer.begin_again(now, wakes);
        transfer
    }

    pub(super) fn begin_again(&mut self, now: u64, wakes: Wakes) {
        let (kind, is_only) = (self.kind, self.is_only);
        self.progress = self.conn.change(wakes, |facts| rules::begin(facts, kind, is_only, now));
    }

    /// Counts as a read or a write.
    fn touch(&self) {
        let is_read = self.kind == kinds::rate(Direction::Read);
        let direction = if is_read { Direction::Read } else { Direction::Write };
        self.conn.stamp(direction, self.conn.stamp_now());
    }

    /// Some bytes were transferred. Counts as a read or a write, as
    /// [`touch_read`](super::ConnTimers::touch_read) and
    /// [`touch_write`](super::ConnTimers::touch_write) do. One addition beside what a touch costs,
    /// which is atomic on any thread; takes no lock.
    #[inline]
    pub fn add(&self, bytes: u64) {
        self.count(bytes);
        self.touch();
    }

    /// Some bytes were transferred, which does not count as a read or a write.
    #[inline]
    pub(crate) fn count(&self, bytes: u64) {
        if let Some(progress) = &self.progress {
            S::Conn::add(progress, bytes);
        }
    }

    /// The server does not read or write for a while, because it is busy or its buffers are full.
    /// The time until [`resume`](Self::resume) does not count. A transfer that is paused stays so.
    /// No event comes during a pause. If the time of the transfer was up before, its event comes
    /// after [`resume`](Self::resume).
    ///
    /// Reads the clock, and takes no lock. One task at a time pauses and resumes a transfer.
    pub fn pause(&self) {
        if let Some(now) = self.nanos() {
            self.pause_at(now);
        }
    }

    /// The present; `None` if the transfer has no limit.
    fn nanos(&self) -> Option<u64> {
        self.progress.as_ref()?;
        // The near clock may be ahead, and would count too little time as a pause.
        self.conn.time().map(Timeline::nanos)
    }

    /// A wait for the peer has ended, and what came with it is not counted yet. Returns until when
    /// the wait counts: for half of its time, if the server was late to see its end.
    #[cfg(any(feature = "hyper", feature = "tokio"))]
    #[inline]
    pub(crate) fn counted_until(&self) -> Option<u64> {
        let (progress, time) = (self.progress.as_ref()?, self.conn.time()?);
        Some(progress.counted_until(time.nanos(), |due| time.round_up(due)))
    }

    /// As [`pause`](Self::pause), by a time that has passed.
    #[inline]
    pub(crate) fn pause_at(&self, now: u64) {
        if let Some(progress) = &self.progress {
            progress.pause(now);
        }
    }

    /// The server reads or writes again. A transfer that is not paused goes on.
    ///
    /// On any thread, takes the connection's lock only where the timer has expired since the
    /// transfer was last resumed.
    pub fn resume(&self) {
        self.resume_at(self.conn.now(), Wakes::Task);
    }

    /// True if the timer had to be filed.
    #[inline]
    pub(crate) fn resume_at(&self, now: u64, wakes: Wakes) -> bool {
        let is_to_file = self.progress.as_ref().is_some_and(|progress| progress.resume(now));
        if is_to_file {
            self.conn.change(wakes, |_| ((), true));
        }
        is_to_file
    }

    /// Ends the transfer. False if its time was up before, as of the shard's last turn or, on any
    /// thread, the last poll for events, or if another transfer has taken its place.
    pub fn finish(mut self) -> bool {
        self.end()
    }

    /// Ends a write, which counts as one. The idle time of reads begins again if the write has held
    /// it back and it would be over; otherwise it goes on, as a write that is accepted at once says
    /// nothing of the peer.
    ///
    /// All stamps come before the task is woken, which would find the connection idle otherwise.
    pub(super) fn end_write(&mut self) -> bool {
        self.touch();
        let Some(progress) = self.progress.take() else { return true };
        let (conn, now, stamp) = (&self.conn, self.conn.now(), self.conn.stamp_now());
        conn.change(Wakes::Task, |facts| {
            let (is_in_time, is_over) = rules::end_write(facts, &progress, now);
            if is_over {
                conn.stamp(Direction::Read, stamp);
            }
            (is_in_time, true)
        })
    }

    pub(super) fn end(&mut self) -> bool {
        let end = |progress| self.conn.look(|facts| rules::end(facts, &progress, self.is_only));
        self.progress.take().is_none_or(end)
    }
}

impl<S: Side> Drop for Transfer<S> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<S: Side> fmt::Debug for Transfer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transfer({})", DeadlineKind::at(self.kind))
    }
}

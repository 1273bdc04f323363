//! Transfers whose rate is measured.

use std::sync::Arc;

use super::kinds::{self, DeadlineKind};
use super::measured::{Direction, Progress};
use super::rules;
use super::side::{Connection, Side, Wakes};
use crate::clock::Timeline;
use crate::face::timers::Timers;

/// A read or a write whose rate or time is limited; it ends when this is dropped. Users have it as
/// an [`InProgress`](super::InProgress), whose methods say more.
#[must_use = "the transfer ends when this is dropped"]
pub(crate) struct Transfer<S: Side = Timers> {
    pub(super) conn: S::Conn,
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

    pub(crate) fn begin_again(&mut self, now: u64, wakes: Wakes) {
        let kind = (self.kind, self.is_only);
        self.progress = self.conn.change(wakes, |facts| rules::begin(facts, kind, now));
    }

    /// Counts as a read or a write.
    fn touch(&self) {
        let is_read = self.kind == kinds::rate(Direction::Read);
        let direction = if is_read { Direction::Read } else { Direction::Write };
        self.conn.stamp(direction, self.conn.stamp_now());
    }

    /// Some bytes were transferred, which counts as a read or a write.
    #[inline]
    pub(super) fn add(&self, bytes: u64) {
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

    /// The time from now does not count, until the transfer is resumed.
    pub(super) fn pause(&self) {
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

    /// The time counts again. A transfer that is not paused goes on.
    pub(super) fn resume(&self) {
        self.resume_at(self.conn.now(), Wakes::Task);
    }

    /// True if the timer had to be filed.
    #[inline]
    pub(crate) fn resume_at(&self, now: u64, wakes: Wakes) -> bool {
        let is_to_file = self.progress.as_ref().is_some_and(|progress| progress.resume(now));
        if is_to_file {
            self.conn.change(wakes, |_| ((), 0));
        }
        is_to_file
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
            let (is_in_time, is_over, first_idle) = rules::end_write(facts, &progress, now);
            if is_over {
                conn.stamp(Direction::Read, stamp);
            }
            (is_in_time, if is_over { 0 } else { first_idle })
        })
    }

    /// The kind of its deadline.
    pub(super) fn kind(&self) -> DeadlineKind {
        DeadlineKind::at(self.kind)
    }

    /// Ends the transfer. False if its time was up before, as of the shard's last turn or, on any
    /// thread, the last poll for events, or if another transfer has taken its place.
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

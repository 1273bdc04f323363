//! Reads, writes and requests that are in progress, and transfers whose rate is measured.

use std::fmt;
use std::sync::Arc;

use super::kinds::{DeadlineKind, Direction, WRITES, rate};
use super::measured::Progress;
use super::rules::{self, Held};
use super::side::{Connection, Side, Wakes};
use crate::face::timers::Timers;

/// A read, a write or a request that is in progress; it ends when this is dropped. Made by
/// [`ConnTimers::begin_read`](super::ConnTimers::begin_read),
/// [`begin_write`](super::ConnTimers::begin_write),
/// [`begin_request`](super::ConnTimers::begin_request), and, for a transfer whose rate is measured,
/// [`begin_measured_read`](super::ConnTimers::begin_measured_read) and
/// [`begin_measured_write`](super::ConnTimers::begin_measured_write), where the effect of each is
/// described.
///
/// It is `'static`, so it can be moved into the task that does the work; on the side
/// [`Handle`](crate::Handle) it is `Send` and `Sync`. It does not keep the connection open: it has
/// no effect on a connection that is closed. A panic of the task drops it. The deadline of a
/// measured transfer that was forgotten comes, unless another one begins.
#[must_use = "what is in progress ends when this is dropped"]
pub struct InProgress<S: Side = Timers> {
    kind: Kind<S>,
}

enum Kind<S: Side> {
    Held(S::Conn, Held),
    /// A write whose time is limited, or a measured transfer.
    Transfer(Transfer<S>),
}

impl<S: Side> InProgress<S> {
    pub(super) fn begin(conn: &S::Conn, held: Held) -> Self {
        conn.begin(held);
        Self { kind: Kind::Held(conn.clone(), held) }
    }

    pub(super) fn transfer(conn: &S::Conn, kind: usize) -> Self {
        let transfer = Transfer::begin(conn, (kind, kind != WRITES), conn.now(), Wakes::Task);
        Self { kind: Kind::Transfer(transfer) }
    }

    fn measured(&self) -> Option<&Transfer<S>> {
        match &self.kind {
            Kind::Transfer(transfer) if transfer.kind != WRITES => Some(transfer),
            _ => None,
        }
    }

    /// Some bytes of a measured transfer were transferred. Counts as a read or a write, as
    /// [`touch_read`](super::ConnTimers::touch_read) and
    /// [`touch_write`](super::ConnTimers::touch_write) do. Without an effect on what is not
    /// measured.
    ///
    /// Cost: one addition beside what a touch costs, which is atomic on any thread; no lock.
    #[inline]
    pub fn add(&self, bytes: u64) {
        if let Some(transfer) = self.measured() {
            transfer.count(bytes);
            transfer.touch();
        }
    }

    /// The server does not read or write for a while, because it is busy or its buffers are full.
    /// The time until [`resume`](Self::resume) does not count for a measured transfer. One that is
    /// paused stays so. No event comes during a pause. If the time of the transfer was up before,
    /// its event comes after [`resume`](Self::resume). Without an effect on what is not measured.
    ///
    /// Cost: a reading of the clock; no lock. One task at a time pauses and resumes a transfer.
    pub fn pause(&self) {
        let Some(transfer) = self.measured() else { return };
        if let Some(time) = transfer.conn.time() {
            // The near clock may be ahead, and would count too little time as a pause.
            transfer.pause_at(time.nanos());
        }
    }

    /// The server reads or writes again. A transfer that is not paused goes on. Without an effect
    /// on what is not measured.
    ///
    /// Cost: a reading of the clock. On any thread, the connection's lock, only where the timer has
    /// expired since the transfer was last resumed.
    pub fn resume(&self) {
        if let Some(transfer) = self.measured() {
            transfer.resume_at(transfer.conn.now(), Wakes::Task);
        }
    }

    /// Ends what is in progress. False for a write or a measured transfer whose time was up before,
    /// as of the shard's last turn or, on any thread, the last poll for events: a write that is
    /// overdue is still in time if none has found it so, and then there is no event. False, too,
    /// for a measured transfer in whose place another one has begun.
    pub fn finish(mut self) -> bool {
        match &mut self.kind {
            Kind::Transfer(transfer) => transfer.finish(),
            Kind::Held(..) => true,
        }
    }
}

impl<S: Side> Drop for InProgress<S> {
    fn drop(&mut self) {
        match &mut self.kind {
            Kind::Held(conn, held) => conn.end(*held, None),
            Kind::Transfer(transfer) => _ = transfer.finish(),
        }
    }
}

impl<S: Side> fmt::Debug for InProgress<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(transfer) = self.measured() {
            return write!(f, "InProgress({})", DeadlineKind::at(transfer.kind));
        }
        f.write_str(match &self.kind {
            Kind::Held(_, Held::Read) => "InProgress(read)",
            Kind::Held(_, Held::Request) => "InProgress(request)",
            Kind::Transfer(_) => "InProgress(write)",
        })
    }
}

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
        let is_read = self.kind == rate(Direction::Read);
        let direction = if is_read { Direction::Read } else { Direction::Write };
        self.conn.touch(direction, None);
    }

    /// Some bytes were transferred, which does not count as a read or a write.
    #[inline]
    pub(crate) fn count(&self, bytes: u64) {
        if let Some(progress) = &self.progress {
            S::Conn::add(progress, bytes);
        }
    }

    /// A wait for the peer has ended, and what came with it is not counted yet. Returns until when
    /// the wait counts: for half of its time, if the server was late to see its end.
    #[inline]
    pub(crate) fn counted_until(&self) -> Option<u64> {
        let (progress, time) = (self.progress.as_ref()?, self.conn.time()?);
        Some(progress.counted_until(time.nanos(), |due| time.round_up(due)))
    }

    /// The time from one that has passed does not count, until the transfer is resumed.
    #[inline]
    pub(crate) fn pause_at(&self, now: u64) {
        if let Some(progress) = &self.progress {
            progress.pause(now);
        }
    }

    /// The time counts again. A transfer that is not paused goes on. True if the timer had to be
    /// filed.
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
    fn end_write(&mut self) -> bool {
        self.touch();
        let Some(progress) = self.progress.take() else { return true };
        let (conn, now, stamp) = (&self.conn, self.conn.now(), self.conn.stamp_at(None));
        conn.change(Wakes::Task, |facts| {
            let (is_in_time, is_over, first_idle) = rules::end_write(facts, &progress, now);
            if is_over {
                conn.stamp(Direction::Read, stamp);
            }
            (is_in_time, if is_over { 0 } else { first_idle })
        })
    }

    /// Ends a transfer of a user.
    fn finish(&mut self) -> bool {
        if self.kind == WRITES { self.end_write() } else { self.end() }
    }

    /// Ends the transfer. False if its time was up before, as of the shard's last turn or, on any
    /// thread, the last poll for events, or if another transfer has taken its place.
    fn end(&mut self) -> bool {
        let end = |progress| self.conn.look(|facts| rules::end(facts, &progress, self.is_only));
        self.progress.take().is_none_or(end)
    }
}

impl<S: Side> Drop for Transfer<S> {
    fn drop(&mut self) {
        self.end();
    }
}

//! Reads, writes and requests that are in progress.

use std::fmt;

use super::kinds::{WRITES, rate};
use super::measured::Direction;
use super::rules::Held;
use super::side::{Connection, Side, Wakes};
use super::transfer::Transfer;
use crate::face::timers::Timers;

/// A read, a write or a request that is in progress; it ends when this is dropped. Made by
/// [`ConnTimers::begin_read`](super::ConnTimers::begin_read),
/// [`pause_reads`](super::ConnTimers::pause_reads),
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
    Write(Transfer<S>),
    Measured(Transfer<S>),
}

impl<S: Side> InProgress<S> {
    pub(super) fn begin(conn: &S::Conn, held: Held) -> Self {
        conn.begin(held);
        Self { kind: Kind::Held(conn.clone(), held) }
    }

    pub(super) fn write(conn: &S::Conn) -> Self {
        let write = Transfer::begin(conn, (WRITES, false), conn.now(), Wakes::Task);
        Self { kind: Kind::Write(write) }
    }

    pub(super) fn measured(conn: &S::Conn, direction: Direction) -> Self {
        let transfer = Transfer::begin(conn, (rate(direction), true), conn.now(), Wakes::Task);
        Self { kind: Kind::Measured(transfer) }
    }

    /// Some bytes of a measured transfer were transferred. Counts as a read or a write, as
    /// [`touch_read`](super::ConnTimers::touch_read) and
    /// [`touch_write`](super::ConnTimers::touch_write) do. Without an effect on what is not
    /// measured.
    ///
    /// Cost: one addition beside what a touch costs, which is atomic on any thread; no lock.
    #[inline]
    pub fn add(&self, bytes: u64) {
        if let Kind::Measured(transfer) = &self.kind {
            transfer.add(bytes);
        }
    }

    /// The server does not read or write for a while, because it is busy or its buffers are full.
    /// The time until [`resume`](Self::resume) does not count for a measured transfer. One that is
    /// paused stays so. No event comes during a pause. If the time of the transfer was up before,
    /// its event comes after [`resume`](Self::resume). Without an effect on what is not measured.
    ///
    /// Cost: a reading of the clock; no lock. One task at a time pauses and resumes a transfer.
    pub fn pause(&self) {
        if let Kind::Measured(transfer) = &self.kind {
            transfer.pause();
        }
    }

    /// The server reads or writes again. A transfer that is not paused goes on. Without an effect
    /// on what is not measured.
    ///
    /// Cost: a reading of the clock. On any thread, the connection's lock, only where the timer has
    /// expired since the transfer was last resumed.
    pub fn resume(&self) {
        if let Kind::Measured(transfer) = &self.kind {
            transfer.resume();
        }
    }

    /// Ends what is in progress. False for a write or a measured transfer whose time was up before,
    /// as of the shard's last turn or, on any thread, the last poll for events: a write that is
    /// overdue is still in time if none has found it so, and then there is no event. False, too,
    /// for a measured transfer in whose place another one has begun.
    pub fn finish(mut self) -> bool {
        match &mut self.kind {
            Kind::Write(write) => write.end_write(),
            Kind::Measured(transfer) => transfer.end(),
            Kind::Held(..) => true,
        }
    }
}

impl<S: Side> Drop for InProgress<S> {
    fn drop(&mut self) {
        match &mut self.kind {
            Kind::Held(conn, held) => conn.end(*held, None),
            Kind::Write(write) => {
                write.end_write();
            }
            // Ends by its own drop.
            Kind::Measured(_) => {}
        }
    }
}

impl<S: Side> fmt::Debug for InProgress<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.kind {
            Kind::Held(_, Held::Read) => "InProgress(read)",
            Kind::Held(_, Held::Request) => "InProgress(request)",
            Kind::Write(_) => "InProgress(write)",
            Kind::Measured(transfer) => return write!(f, "InProgress({})", transfer.kind()),
        })
    }
}

//! Reads, writes and requests that are in progress.

use std::fmt;
use std::sync::Arc;

use super::kinds::WRITES;
use super::measured::{Direction, Progress};
use super::rules::{self, Held};
use super::side::{Connection, OnShard, Side, Wakes};

/// A read, a write or a request that is in progress; it ends when this is dropped. Made by
/// [`ConnTimers::begin_read`](super::ConnTimers::begin_read),
/// [`pause_reads`](super::ConnTimers::pause_reads),
/// [`begin_write`](super::ConnTimers::begin_write) and
/// [`begin_request`](super::ConnTimers::begin_request), where the effect of each is described.
///
/// It is `'static`, so it can be moved into the task that does the work; on the side
/// [`AnyThread`](super::AnyThread) it is `Send` and `Sync`. It does not keep the connection open:
/// it has no effect on a connection that is closed. A panic of the task drops it.
#[must_use = "what is in progress ends when this is dropped"]
pub struct InProgress<S: Side = OnShard> {
    conn: S::Conn,
    kind: Kind,
}

enum Kind {
    Held(Held),
    /// `None` if its time is not limited, or if it has ended.
    Write(Option<Arc<Progress>>),
}

impl<S: Side> InProgress<S> {
    pub(super) fn begin(conn: &S::Conn, held: Held) -> Self {
        conn.begin(held);
        Self { conn: conn.clone(), kind: Kind::Held(held) }
    }

    pub(super) fn write(conn: &S::Conn) -> Self {
        let now = conn.now();
        let write = conn.change(Wakes::Task, |facts| rules::begin(facts, WRITES, now));
        Self { conn: conn.clone(), kind: Kind::Write(write) }
    }

    /// Ends what is in progress. False for a write whose time was up before, as of the shard's last
    /// turn or, on any thread, the last poll for events: a write that is overdue is still in time
    /// if none has found it so, and then there is no event.
    pub fn finish(mut self) -> bool {
        self.end_write()
    }

    fn end_write(&mut self) -> bool {
        let Kind::Write(write) = &mut self.kind else { return true };
        let end = |write| self.conn.look(|facts| rules::end(facts, &write, false));
        write.take().is_none_or(end)
    }
}

impl<S: Side> Drop for InProgress<S> {
    fn drop(&mut self) {
        self.end_write();
        match self.kind {
            Kind::Held(held) => self.conn.end(held),
            Kind::Write(_) => self.conn.stamp(Direction::Write, self.conn.stamp_now()),
        }
    }
}

impl<S: Side> fmt::Debug for InProgress<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Held(Held::Read) => "InProgress(read)",
            Kind::Held(Held::Request) => "InProgress(request)",
            Kind::Write(_) => "InProgress(write)",
        })
    }
}

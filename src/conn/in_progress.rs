//! Reads, writes and requests that are in progress.

use std::fmt;

use super::kinds::WRITES;
use super::rules::Held;
use super::side::{Connection, Side, Wakes};
use super::transfer::Transfer;
use crate::face::timers::Timers;

/// A read, a write or a request that is in progress; it ends when this is dropped. Made by
/// [`ConnTimers::begin_read`](super::ConnTimers::begin_read),
/// [`pause_reads`](super::ConnTimers::pause_reads),
/// [`begin_write`](super::ConnTimers::begin_write) and
/// [`begin_request`](super::ConnTimers::begin_request), where the effect of each is described.
///
/// It is `'static`, so it can be moved into the task that does the work; on the side
/// [`Handle`](crate::Handle) it is `Send` and `Sync`. It does not keep the connection open: it has
/// no effect on a connection that is closed. A panic of the task drops it.
#[must_use = "what is in progress ends when this is dropped"]
pub struct InProgress<S: Side = Timers> {
    kind: Kind<S>,
}

enum Kind<S: Side> {
    Held(S::Conn, Held),
    Write(Transfer<S>),
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

    /// Ends what is in progress. False for a write whose time was up before, as of the shard's last
    /// turn or, on any thread, the last poll for events: a write that is overdue is still in time
    /// if none has found it so, and then there is no event.
    pub fn finish(mut self) -> bool {
        match &mut self.kind {
            Kind::Write(write) => write.end_write(),
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
        }
    }
}

impl<S: Side> fmt::Debug for InProgress<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Held(_, Held::Read) => "InProgress(read)",
            Kind::Held(_, Held::Request) => "InProgress(request)",
            Kind::Write(_) => "InProgress(write)",
        })
    }
}

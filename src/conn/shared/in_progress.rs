//! Reads, writes and requests that are in progress, on any thread.

use std::fmt;
use std::sync::Arc;

use super::inner::{Inner, Wakes};

/// A read, a write or a request that is in progress; it ends when this is dropped. Made by
/// [`SharedConnTimers::begin_read`](super::SharedConnTimers::begin_read),
/// [`begin_write`](super::SharedConnTimers::begin_write) and
/// [`begin_request`](super::SharedConnTimers::begin_request), where the effect of each is
/// described.
///
/// It is `Send`, `Sync` and `'static`, so it can be moved into the task that does the work. It does
/// not keep the connection open: it has no effect on a connection that is closed. A panic of the
/// task drops it.
#[must_use = "what is in progress ends when this is dropped"]
pub struct SharedInProgress {
    conn: Arc<Inner>,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Read,
    /// With its number, if its time is limited and it has not ended yet.
    Write(Option<u32>),
    Request,
}

impl SharedInProgress {
    pub(super) fn read(conn: &Arc<Inner>) -> Self {
        conn.begin_read();
        Self { conn: Arc::clone(conn), kind: Kind::Read }
    }

    pub(super) fn write(conn: &Arc<Inner>, wakes: Wakes) -> Self {
        Self { conn: Arc::clone(conn), kind: Kind::Write(conn.begin_write(wakes)) }
    }

    pub(super) fn request(conn: &Arc<Inner>) -> Self {
        conn.begin_request();
        Self { conn: Arc::clone(conn), kind: Kind::Request }
    }

    /// Ends what is in progress. False for a write whose time was up before, as of the last poll
    /// for events: a write that is overdue is still in time if no poll has found it so, and then
    /// there is no event.
    pub fn finish(mut self) -> bool {
        self.end_write()
    }

    fn end_write(&mut self) -> bool {
        let Kind::Write(write) = &mut self.kind else { return true };
        write.take().is_none_or(|write| self.conn.end_write(write))
    }
}

impl Drop for SharedInProgress {
    fn drop(&mut self) {
        self.end_write();
        let conn = &self.conn;
        let now = conn.now();
        match self.kind {
            Kind::Read => conn.end_read(now),
            Kind::Write(_) => conn.written.set(now),
            Kind::Request => conn.end_request(now),
        }
    }
}

impl fmt::Debug for SharedInProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Read => "SharedInProgress(read)",
            Kind::Write(_) => "SharedInProgress(write)",
            Kind::Request => "SharedInProgress(request)",
        })
    }
}

//! Reads, writes and requests that are in progress.

use std::fmt;

use super::record::{RecordRef, add_one, take_one};

/// A read, a write or a request that is in progress; it ends when this is dropped. Made by
/// [`ConnTimers::begin_read`](super::ConnTimers::begin_read),
/// [`begin_write`](super::ConnTimers::begin_write) and
/// [`begin_request`](super::ConnTimers::begin_request), where the effect of each is described.
///
/// It is `'static`, so it can be moved into the task that does the work. It does not keep the
/// connection open: it has no effect on a connection that is closed. A panic of the task drops it.
#[must_use = "what is in progress ends when this is dropped"]
pub struct InProgress {
    conn: RecordRef,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Read,
    /// With its number, if its time is limited and it has not ended yet.
    Write(Option<u32>),
    Request,
}

impl InProgress {
    pub(super) fn read(conn: &RecordRef) -> Self {
        add_one(&conn.usage().reads);
        Self { conn: conn.clone(), kind: Kind::Read }
    }

    pub(super) fn write(conn: &RecordRef) -> Self {
        let write = conn.connections().begin_write(conn.index());
        Self { conn: conn.clone(), kind: Kind::Write(write) }
    }

    pub(super) fn request(conn: &RecordRef) -> Self {
        add_one(&conn.usage().requests);
        Self { conn: conn.clone(), kind: Kind::Request }
    }

    /// Ends what is in progress. False for a write whose time was up before, as of the last turn: a
    /// write that is overdue is still in time if no turn has found it so, and then there is no
    /// event.
    pub fn finish(mut self) -> bool {
        self.end_write()
    }

    fn end_write(&mut self) -> bool {
        let Kind::Write(write) = &mut self.kind else { return true };
        let (connections, index) = (self.conn.connections(), self.conn.index());
        write.take().is_none_or(|write| connections.end_write(index, write))
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.end_write();
        let (record, usage) = (self.conn.record(), self.conn.usage());
        let stamp = match self.kind {
            Kind::Read => {
                take_one(&usage.reads);
                &record.read
            }
            Kind::Write(_) => &record.written,
            Kind::Request => {
                take_one(&usage.requests);
                &usage.request_ended
            }
        };
        stamp.set(self.conn.connections().stamp());
    }
}

impl fmt::Debug for InProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Read => "InProgress(read)",
            Kind::Write(_) => "InProgress(write)",
            Kind::Request => "InProgress(request)",
        })
    }
}

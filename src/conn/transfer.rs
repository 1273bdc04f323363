//! Transfers whose rate is measured.

use std::fmt;
use std::sync::Arc;

use super::measured::{ByteCount, Direction};
use super::record::RecordRef;

/// A read or a write whose rate is measured; it ends when this is dropped. Made by
/// [`ConnTimers::begin_measured_read`](super::ConnTimers::begin_measured_read) and
/// [`begin_measured_write`](super::ConnTimers::begin_measured_write), where its deadline is
/// described.
///
/// It is `'static`, so it can be moved into the task that does the work. It does not keep the
/// connection open: it has no effect on a connection that is closed. A panic of the task drops it.
/// The deadline of a transfer that was forgotten comes, unless another one begins.
#[must_use = "the transfer ends when this is dropped"]
pub struct Transfer {
    conn: RecordRef,
    direction: Direction,
    /// `None` if there is no least rate.
    count: Option<Arc<ByteCount>>,
}

impl Transfer {
    pub(super) fn begin(conn: &RecordRef, direction: Direction) -> Self {
        let count = conn.connections().begin_transfer(conn.index(), direction);
        Self { conn: conn.clone(), direction, count }
    }

    /// Some bytes were transferred. Counts as a read or a write, as
    /// [`touch_read`](super::ConnTimers::touch_read) and
    /// [`touch_write`](super::ConnTimers::touch_write) do. One addition and one store.
    #[inline]
    pub fn add(&self, bytes: u64) {
        if let Some(count) = &self.count {
            count.add_here(bytes);
        }
        let record = self.conn.record();
        let stamp = match self.direction {
            Direction::Read => &record.read,
            Direction::Write => &record.written,
        };
        stamp.set(self.conn.connections().stamp());
    }

    /// The server does not read or write for a while, because it is busy or its buffers are full.
    /// The time until [`resume`](Self::resume) does not count. A transfer that is paused stays so.
    pub fn pause(&self) {
        if let Some(count) = &self.count {
            self.conn.connections().pause_transfer(self.conn.index(), self.direction, count);
        }
    }

    /// The server reads or writes again. A transfer that is not paused goes on.
    pub fn resume(&self) {
        if let Some(count) = &self.count {
            self.conn.connections().resume_transfer(self.conn.index(), self.direction, count);
        }
    }

    /// Ends the transfer. False if its time was up before, as of the last turn, or if another
    /// transfer has taken its place.
    pub fn finish(mut self) -> bool {
        self.end()
    }

    fn end(&mut self) -> bool {
        let (connections, index) = (self.conn.connections(), self.conn.index());
        let end = |count| connections.end_transfer(index, self.direction, &count);
        self.count.take().is_none_or(end)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.direction {
            Direction::Read => "Transfer(read)",
            Direction::Write => "Transfer(write)",
        })
    }
}

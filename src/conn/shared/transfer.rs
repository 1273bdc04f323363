//! Transfers whose rate is measured, on any thread.

use std::fmt;
use std::sync::Arc;

use super::super::measured::{ByteCount, Direction};
use super::inner::{Inner, Wakes};

/// A read or a write whose rate is measured; it ends when this is dropped. Made by
/// [`SharedConnTimers::begin_measured_read`](super::SharedConnTimers::begin_measured_read) and
/// [`begin_measured_write`](super::SharedConnTimers::begin_measured_write), where its deadline is
/// described.
///
/// It is `Send`, `Sync` and `'static`, so it can be moved into the task that does the work. It does
/// not keep the connection open: it has no effect on a connection that is closed. A panic of the
/// task drops it. The deadline of a transfer that was forgotten comes, unless another one begins.
#[must_use = "the transfer ends when this is dropped"]
pub struct SharedTransfer {
    conn: Arc<Inner>,
    direction: Direction,
    /// `None` if there is no least rate.
    count: Option<Arc<ByteCount>>,
}

impl SharedTransfer {
    pub(super) fn begin(conn: &Arc<Inner>, direction: Direction, wakes: Wakes) -> Self {
        let count = conn.begin_transfer(direction, wakes);
        Self { conn: Arc::clone(conn), direction, count }
    }

    /// Some bytes were transferred. Counts as a read or a write, as
    /// [`touch_read`](super::SharedConnTimers::touch_read) and
    /// [`touch_write`](super::SharedConnTimers::touch_write) do. One atomic addition beside what a
    /// touch costs; takes no lock.
    #[inline]
    pub fn add(&self, bytes: u64) {
        if let Some(count) = &self.count {
            count.add(bytes);
        }
        let stamp = match self.direction {
            Direction::Read => &self.conn.read,
            Direction::Write => &self.conn.written,
        };
        stamp.set(self.conn.now());
    }

    /// The server does not read or write for a while, because it is busy or its buffers are full.
    /// The time until [`resume`](Self::resume) does not count. A transfer that is paused stays so.
    ///
    /// Reads the clock, and takes the connection's lock.
    pub fn pause(&self) {
        if let Some(count) = &self.count {
            self.conn.pause_transfer(self.direction, count);
        }
    }

    /// The server reads or writes again. A transfer that is not paused goes on.
    ///
    /// Takes the connection's lock.
    pub fn resume(&self) {
        if let Some(count) = &self.count {
            self.conn.resume_transfer(self.direction, count, Wakes::Task);
        }
    }

    /// Does what [`resume`](Self::resume) does, and wakes no task: the caller polls for events
    /// before it waits.
    #[cfg(any(feature = "hyper", feature = "tokio"))]
    pub(crate) fn resume_unwoken(&self) {
        if let Some(count) = &self.count {
            self.conn.resume_transfer(self.direction, count, Wakes::Nothing);
        }
    }

    /// Ends the transfer. False if its time was up before, as of the last poll for events, or if
    /// another transfer has taken its place.
    pub fn finish(mut self) -> bool {
        self.end()
    }

    fn end(&mut self) -> bool {
        self.count.take().is_none_or(|count| self.conn.end_transfer(self.direction, &count))
    }
}

impl Drop for SharedTransfer {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for SharedTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.direction {
            Direction::Read => "SharedTransfer(read)",
            Direction::Write => "SharedTransfer(write)",
        })
    }
}

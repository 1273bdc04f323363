//! Transfers whose rate is measured.

use std::fmt;
use std::sync::Arc;

use super::measured::{ByteCount, Direction};
use super::rules;
use super::side::{Connection, OnShard, Side, Wakes};
use crate::clock::Timeline;

/// A read or a write whose rate is measured; it ends when this is dropped. Made by
/// [`ConnTimers::begin_measured_read`](super::ConnTimers::begin_measured_read) and
/// [`begin_measured_write`](super::ConnTimers::begin_measured_write), where its deadline is
/// described.
///
/// It is `'static`, so it can be moved into the task that does the work; on the side
/// [`AnyThread`](super::AnyThread) it is `Send` and `Sync`. It does not keep the connection open:
/// it has no effect on a connection that is closed. A panic of the task drops it. The deadline of a
/// transfer that was forgotten comes, unless another one begins.
#[must_use = "the transfer ends when this is dropped"]
pub struct Transfer<S: Side = OnShard> {
    conn: S::Conn,
    direction: Direction,
    /// `None` if there is no least rate.
    count: Option<Arc<ByteCount>>,
}

impl<S: Side> Transfer<S> {
    pub(super) fn begin(conn: &S::Conn, direction: Direction, wakes: Wakes) -> Self {
        let now = conn.now();
        let count = conn.change(wakes, |facts| {
            let count = rules::begin_transfer(facts, direction, now);
            let is_limited = count.is_some();
            (count, is_limited)
        });
        Self { conn: conn.clone(), direction, count }
    }

    /// Some bytes were transferred. Counts as a read or a write, as
    /// [`touch_read`](super::ConnTimers::touch_read) and
    /// [`touch_write`](super::ConnTimers::touch_write) do. One addition beside what a touch costs,
    /// which is atomic on any thread; takes no lock.
    #[inline]
    pub fn add(&self, bytes: u64) {
        if let Some(count) = &self.count {
            S::Conn::add(count, bytes);
        }
        self.conn.stamp(self.direction, self.conn.stamp_now());
    }

    /// The server does not read or write for a while, because it is busy or its buffers are full.
    /// The time until [`resume`](Self::resume) does not count. A transfer that is paused stays so.
    ///
    /// Reads the clock and, on any thread, takes the connection's lock.
    pub fn pause(&self) {
        // The near clock may be ahead, and would count too little time as a pause.
        let now = || self.conn.time().map(Timeline::nanos);
        if let Some(count) = &self.count
            && let Some(now) = now()
        {
            self.conn.look(|facts| {
                if let Some(transfer) = rules::transfer_mut(facts, self.direction, count) {
                    transfer.pause(now);
                }
            });
        }
    }

    /// The server reads or writes again. A transfer that is not paused goes on.
    ///
    /// On any thread, takes the connection's lock.
    pub fn resume(&self) {
        self.resume_and(Wakes::Task);
    }

    pub(crate) fn resume_and(&self, wakes: Wakes) {
        let Some(count) = &self.count else { return };
        let now = self.conn.now();
        self.conn.change(wakes, |facts| {
            if let Some(transfer) = rules::transfer_mut(facts, self.direction, count) {
                transfer.resume(now);
            }
            ((), true)
        });
    }

    /// Ends the transfer. False if its time was up before, as of the shard's last turn or, on any
    /// thread, the last poll for events, or if another transfer has taken its place.
    pub fn finish(mut self) -> bool {
        self.end()
    }

    fn end(&mut self) -> bool {
        self.count.take().is_none_or(|count| {
            self.conn.look(|facts| rules::end_transfer(facts, self.direction, &count))
        })
    }
}

impl<S: Side> Drop for Transfer<S> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<S: Side> fmt::Debug for Transfer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.direction {
            Direction::Read => "Transfer(read)",
            Direction::Write => "Transfer(write)",
        })
    }
}

//! Servers that measure the rate of what they read and write, and the law of it.
//!
//! With the code the law shares what the documentation says of a rate: which waits and which bytes
//! count, and that the time of a number of bytes is rounded up to a nanosecond. It adds up for how
//! long a transfer has run, where the code moves its beginning by each pause.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use corewheel::conn::{ConnTimers, DataRate, Side};
use corewheel::sim::net::{Known, Stream};
use corewheel::stream::TimedIo;
use fastrand::Rng;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::World;
use super::laws::{End, Seen};
use super::servers::{Events, Served, of_io};
use crate::judge::one_of;

/// Reads and writes, as places in an array.
pub(crate) const READ: usize = 0;
pub(crate) const WRITE: usize = 1;

/// How many runs of a transfer are kept, beside the present one.
const RUNS: usize = 4;

/// A transfer whose rate is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    rate: DataRate,
    bytes: u64,
    /// For how long it ran before the runs that are kept.
    ran: Duration,
    /// The last runs before the present one, the latest last: when each began and ended.
    runs: [(Duration, Duration); RUNS],
    since: Duration,
    /// `None` while it runs.
    paused_at: Option<Duration>,
}

impl Measured {
    pub(crate) fn new(rate: DataRate, bytes: u64, now: Duration) -> Self {
        let runs = [(Duration::ZERO, Duration::ZERO); RUNS];
        Self { rate, bytes, ran: Duration::ZERO, runs, since: now, paused_at: None }
    }

    fn pause(&mut self, now: Duration) {
        self.paused_at.get_or_insert(now);
    }

    /// A wait has ended with these bytes. Found over after its deadline, it is given half of the
    /// time that it had, and does not count beyond the tick of its deadline.
    fn end_wait(&mut self, world: &World, bytes: u64) {
        let now = world.now();
        let until = match self.due(0).map(|due| due.max(self.since)) {
            Some(due) if now > due => {
                now.min(world.tick_of(due)).saturating_sub(due.saturating_sub(self.since) / 2)
            }
            _ => now,
        };
        self.pause(until);
        self.bytes += bytes;
    }

    fn resume(&mut self, now: Duration) {
        if let Some(at) = self.paused_at.take() {
            let (begin, end) = self.runs[0];
            self.ran += end.saturating_sub(begin);
            self.runs.rotate_left(1);
            self.runs[RUNS - 1] = (self.since, at.max(self.since));
            self.since = now;
        }
    }

    /// When it is or was too slow, with so many bytes more; `None` if it is paused before.
    pub(crate) fn due(&self, more: u64) -> Option<Duration> {
        let nanos = u128::from(self.bytes + more) * 1_000_000_000;
        let takes = nanos.div_ceil(u128::from(self.rate.bytes_per_second));
        let takes = Duration::from_nanos(u64::try_from(takes).expect("it is a short time"));
        let mut left = takes.max(self.rate.grace).saturating_sub(self.ran);
        for (begin, end) in self.runs {
            let ran = end.saturating_sub(begin);
            if left < ran {
                return Some(begin + left);
            }
            left = left.saturating_sub(ran);
        }
        let due = self.since + left;
        Some(due).filter(|due| self.paused_at.is_none_or(|at| *due <= at))
    }

    /// When it began to run.
    pub(crate) fn since(&self) -> Duration {
        self.since
    }

    /// Until when it runs or has run, as of now.
    pub(crate) fn runs_until(&self, now: Duration) -> Duration {
        self.paused_at.unwrap_or(now)
    }

    /// Whether it is right to end it now.
    pub(crate) fn judge(&self, which: usize, witness: &Known, now: Duration) -> Result<(), String> {
        let mut due = self.due(0).ok_or_else(|| format!("it is paused: {self:?}"))?;
        if now < due {
            return Err(format!("too slow at {now:?}, before {due:?}"));
        }
        loop {
            // What had come counts, and what there was room for: a byte at least.
            let more = match which {
                READ => witness.unread_before(due),
                _ => u64::from(witness.room_since.is_some_and(|room| room < due)),
            };
            match self.due(more) {
                Some(later) if later > now => {
                    return Err(format!("too slow at {due:?}, and {more} bytes were in time"));
                }
                Some(later) if later > due => due = later,
                _ => break,
            }
        }
        let end = witness.end_came_at.filter(|came| which == READ && *came < due);
        end.map_or(Ok(()), |at| {
            Err(format!("too slow at {due:?}, and the peer has ended at {at:?}"))
        })
    }
}

/// A rate that some clients keep, with this grace.
pub(crate) fn random_rate(rng: &mut Rng, grace: Duration) -> DataRate {
    DataRate::new(one_of(rng, &[500, 1_000, 5_000]), grace)
}

/// Notes when the socket says in a write that it is not ready. A write that the stream puts off
/// does not come to the socket, and is no wait for the peer.
pub(super) struct Noted<'a> {
    pub(super) stream: Stream,
    pub(super) world: &'a World,
    pub(super) seen: &'a Seen,
}

impl AsRef<Stream> for Noted<'_> {
    fn as_ref(&self) -> &Stream {
        &self.stream
    }
}

impl AsyncRead for Noted<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Noted<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if written.is_pending() && !self.seen.has_waited.replace(true) {
            self.seen.change(WRITE, self.world, Measured::resume);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Seen {
    fn change(&self, which: usize, world: &World, change: impl FnOnce(&mut Measured, Duration)) {
        let mut measured = self.measured[which].get();
        if let Some(measured) = &mut measured {
            change(measured, world.now());
        }
        self.measured[which].set(measured);
    }
}

impl Served<'_> {
    fn change(&self, which: usize, change: impl FnOnce(&mut Measured, Duration)) {
        self.seen.change(which, self.world, change);
    }

    fn begin_measured(&self, which: usize, bytes: u64) {
        let measured = Measured::new(self.seen.rate.get(), bytes, self.world.now());
        self.seen.measured[which].set(Some(measured));
    }

    /// The server says when it waits for its client.
    pub(super) async fn rated<M: Events>(mut self, mut stream: Stream, conn: ConnTimers<M>) -> End {
        let mut buffer = [0; 64];
        let mut message = conn.begin_measured_read();
        self.begin_measured(READ, 0);
        loop {
            let room = self.rng.usize(1..=buffer.len());
            self.count_timer();
            match M::raced(conn.race(pin!(stream.read(&mut buffer[..room]))).await) {
                Ok(0) => return End::ByPeer,
                Ok(count) => {
                    message.add(count as u64);
                    self.change(READ, |measured, _| measured.bytes += count as u64);
                }
                Err(end) => return end,
            }
            let mut left = self.answer();
            if left == 0 {
                if self.rng.u8(..8) == 0 {
                    message = conn.begin_measured_read();
                    self.begin_measured(READ, 0);
                }
                continue;
            }
            message.pause();
            self.change(READ, Measured::pause);
            let answer = conn.begin_measured_write();
            self.begin_measured(WRITE, 0);
            self.seen.waits_from.set(None);
            while left > 0 {
                let part = vec![b'b'; left];
                self.count_timer();
                match self.race_write(&mut stream, &conn, &part).await {
                    Ok(count) => {
                        left -= count;
                        answer.add(count as u64);
                        self.change(WRITE, |measured, _| measured.bytes += count as u64);
                    }
                    Err(end) => return end,
                }
            }
            drop(answer);
            self.seen.measured[WRITE].set(None);
            message.resume();
            self.change(READ, Measured::resume);
        }
    }

    /// The stream knows when it waits, and the server says where messages begin and end.
    pub(super) async fn stream_rated<M: Side>(mut self, mut stream: TimedIo<Noted<'_>, M>) -> End {
        let (mut buffer, control) = ([0; 64], stream.control());
        control.begin_message();
        loop {
            let room = self.rng.usize(1..=buffer.len());
            self.begin_read();
            self.change(READ, Measured::resume);
            let count = match of_io(stream.read(&mut buffer[..room]).await) {
                Ok(0) => return End::ByPeer,
                Ok(count) => count as u64,
                Err(end) => return end,
            };
            self.seen.reads.set(None);
            if self.seen.measured[READ].get().is_none() {
                self.begin_measured(READ, 0);
            }
            self.change(READ, |measured, _| measured.end_wait(self.world, count));
            let mut left = self.answer();
            if left == 0 && self.rng.u8(..8) > 0 {
                continue;
            }
            control.message_complete();
            self.seen.measured[READ].set(None);
            while left > 0 {
                let part = vec![b'b'; left];
                self.count_timer();
                if self.seen.measured[WRITE].get().is_none() {
                    self.begin_measured(WRITE, 0);
                    self.change(WRITE, Measured::pause);
                }
                let count = match of_io(stream.write(&part).await) {
                    Ok(count) => count,
                    Err(end) => return end,
                };
                left -= count;
                if self.seen.has_waited.take() {
                    self.change(WRITE, |measured, _| measured.end_wait(self.world, count as u64));
                }
            }
            control.begin_message();
        }
    }
}

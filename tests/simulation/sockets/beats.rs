//! A server that sends a byte whenever it has written nothing for a while, and the law of that.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use corewheel::conn::ConnTimers;
use corewheel::sim::net::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::World;
use super::laws::{End, Seen};
use super::servers::{Events, Served};

impl Seen {
    /// A heartbeat has come.
    fn judge_beat(&self, world: &World) {
        let (now, since) = (world.now(), self.beats_from.get());
        let due = since.expect("the connection has begun") + self.beat();
        if now < due {
            world.violate(format!("a heartbeat at {now:?}, before {due:?}; {self:?}"));
        }
        self.beats_from.set(Some(now));
    }

    /// The time without a write after which a heartbeat comes.
    pub(super) fn beat(&self) -> Duration {
        self.limit / 3
    }
}

impl Served<'_> {
    pub(super) async fn beats<M: Events>(mut self, mut stream: Stream, conn: ConnTimers<M>) -> End {
        let (mut buffer, mut has_read) = ([0; 64], true);
        self.seen.beats_from.set(Some(self.world.now()));
        loop {
            let room = self.rng.usize(1..=buffer.len());
            if has_read {
                conn.touch_read();
                self.begin_read();
            }
            let read = M::raced(conn.race(pin!(stream.read(&mut buffer[..room]))).await);
            let mut left = match read {
                Ok(0) => return End::ByPeer,
                Ok(_) => {
                    self.seen.reads.set(None);
                    has_read = true;
                    self.answer()
                }
                Err(End::Beat) => {
                    self.seen.judge_beat(self.world);
                    has_read = false;
                    1
                }
                Err(end) => return end,
            };
            while left > 0 {
                let part = vec![b'b'; left];
                let _writing = conn.begin_write();
                self.begin_write();
                left -= loop {
                    let mut write = pin!(stream.write(&part));
                    let noted = poll_fn(|cx| {
                        let polled = write.as_mut().poll(cx);
                        if polled.is_pending() {
                            self.seen.waited_at.set(self.world.now());
                        }
                        polled
                    });
                    match M::raced(conn.race(pin!(noted)).await) {
                        Ok(count) => break count,
                        // It sends already.
                        Err(End::Beat) => self.seen.judge_beat(self.world),
                        Err(end) => return end,
                    }
                };
                let (began, now) = (self.seen.writes.take(), self.world.now());
                self.seen.beats_from.set(Some(now));
                // A write that is accepted at once says nothing of the peer.
                if began.is_some_and(|began| began < now) {
                    self.seen.wrote_at.set(now);
                }
            }
        }
    }
}

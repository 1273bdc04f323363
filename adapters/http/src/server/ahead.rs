//! What is read of a client while hyper does not read, so that the end of the client is found.
//!
//! hyper reads no more while a service works on a request of HTTP/1 and a part of the next one is
//! there. So a client that has sent two requests and left would hold the first until a limit. Where
//! hyper reads, it takes the end of a client for its departure. So one that has shut its side down
//! would lose its answer.
//!
//! Invariants: hyper gets each byte in its order, and the end after the last. No more than
//! [`AHEAD_MAX`] bytes are kept.
//!
//! Cost: no allocation for a client that sends nothing before its answer.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use corewheel::AnyHandle;
use corewheel::fallback::InfallibleSleep;
use tokio::io::ReadBuf;

/// The most bytes that are kept. The end behind more than these is found when hyper reads on.
const AHEAD_MAX: usize = 64 << 10;

/// What was read ahead.
#[derive(Default)]
pub(super) struct Ahead {
    read: Vec<u8>,
    /// How many bytes hyper has.
    begin: usize,
    /// Whether the last read of hyper's was ready, so that none waits.
    pub(super) is_wanted: bool,
    /// The time of a client that has closed its side.
    left: Option<InfallibleSleep>,
}

impl Ahead {
    pub(super) fn has_room(&self) -> bool {
        self.read.len() < AHEAD_MAX
    }

    pub(super) fn keep(&mut self, part: &[u8]) {
        self.read.extend_from_slice(part);
    }

    /// Hands over what was read before. False if there is nothing.
    pub(super) fn hand_over(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        if self.read.is_empty() {
            return false;
        }
        let count = buf.remaining().min(self.read.len() - self.begin);
        buf.put_slice(&self.read[self.begin..self.begin + count]);
        self.begin += count;
        if self.begin == self.read.len() {
            (self.read, self.begin) = (Vec::new(), 0);
        }
        true
    }

    /// Whether a client that has closed its side has waited for so long.
    pub(super) fn is_over(
        &mut self,
        timers: AnyHandle,
        time: Duration,
        cx: &mut Context<'_>,
    ) -> bool {
        let new = || InfallibleSleep::after(timers, time);
        time.is_zero() || Pin::new(self.left.get_or_insert_with(new)).poll(cx).is_ready()
    }
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ahead")
            .field("bytes", &(self.read.len() - self.begin))
            .finish_non_exhaustive()
    }
}

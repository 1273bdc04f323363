//! What a simulated network knows of a socket, and the code under test does not.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::kernel::Sending;

/// What the network knows of a socket at one moment; made by
/// [`Socket::known`](super::Socket::known). Times count from the start of the simulation.
///
/// A test compares it with what the server has done: a server must not have cut a client that has
/// sent in time.
///
/// ```
/// use corewheel::sim::net::Known;
/// use std::time::Duration;
///
/// /// Whether bytes lay in a socket of the server when its time was up.
/// fn was_in_time(known: &Known, due: Duration) -> bool {
///     known.unread_since().is_some_and(|came| came < due)
/// }
/// ```
#[derive(Clone, Default, Debug)]
#[non_exhaustive]
pub struct Known {
    /// How many bytes have come, those included that are not read.
    pub came: u64,
    /// How many bytes the owner has read.
    pub read: u64,
    /// How many bytes of the owner's writes the socket has accepted.
    pub accepted: u64,
    /// For what is not read, up to which byte it came when.
    marks: VecDeque<(u64, Duration)>,
    /// When the last byte was read; `None` if none was.
    pub last_read_at: Option<Duration>,
    /// Since when a write would be accepted; `None` if the send buffer was full and less than a
    /// third of it is free. The runtime of the owner may not have seen it.
    pub room_since: Option<Duration>,
    /// When the end of what the peer sends came; `None` if it has not.
    pub end_came_at: Option<Duration>,
    /// When the peer has reset the connection; `None` if it has not.
    pub reset_at: Option<Duration>,
    /// When the owner has closed the socket; `None` if it has not.
    pub closed_at: Option<Duration>,
    /// When the kernel has forgotten the socket and what it held; `None` while it is there.
    pub gone_at: Option<Duration>,
    /// What the peer has acknowledged of the owner's bytes until the owner has closed the socket,
    /// and how many were left then: an entry for each time at which it changed, the last one last.
    pub progress: Vec<Progress>,
}

/// What the peer of a socket had acknowledged, an entry of [`Known::progress`]; made by
/// [`Socket::known`](super::Socket::known).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Since when, from the start of the simulation.
    pub at: Duration,
    /// How many bytes the peer has acknowledged.
    pub acknowledged: u64,
    /// How many bytes are accepted and not acknowledged.
    pub left: u64,
}

impl Known {
    /// When the first byte came that is not read; `None` if all is read.
    pub fn unread_since(&self) -> Option<Duration> {
        self.marks.front().map(|(_, at)| *at)
    }

    /// How many bytes that had come before this time are not read.
    pub fn unread_before(&self, time: Duration) -> u64 {
        let mut marks = self.marks.iter().rev();
        marks.find(|(_, at)| *at < time).map_or(0, |(end, _)| end - self.read)
    }

    pub(super) fn note_came(&mut self, count: usize, at: Duration) {
        self.came += count as u64;
        match self.marks.back_mut() {
            Some((end, mark)) if *mark == at => *end = self.came,
            _ => self.marks.push_back((self.came, at)),
        }
    }

    /// Bytes were accepted or acknowledged. What follows the owner's close is nothing that the
    /// owner could have known.
    pub(super) fn note_progress(&mut self, sending: &Sending, at: Duration) {
        let (acknowledged, left) = (sending.acknowledged, sending.bytes.len() as u64);
        if self.closed_at.is_some() || self.progress.is_empty() && left == 0 {
            return;
        }
        let now = Progress { at, acknowledged, left };
        // While some bytes are left, more of them say nothing new.
        let is_same =
            |last: &Progress| last.acknowledged == acknowledged && (last.left > 0) == (left > 0);
        match self.progress.last_mut().filter(|last| last.at == now.at || is_same(last)) {
            Some(last) if is_same(last) => last.left = left,
            Some(last) => *last = now,
            None => self.progress.push(now),
        }
    }

    pub(super) fn note_read(&mut self, count: usize, at: Duration) {
        self.read += count as u64;
        self.last_read_at = Some(at);
        while self.marks.front().is_some_and(|(end, _)| *end <= self.read) {
            self.marks.pop_front();
        }
    }
}

pub(super) fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

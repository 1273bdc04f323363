//! What a simulated network knows of a socket, and the code under test does not.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::kernel::Sending;

/// What was seen of one socket, in nanoseconds and bytes.
#[derive(Default)]
pub(super) struct Known {
    /// How many bytes have come.
    pub(super) came: u64,
    /// How many of them were read.
    pub(super) read: u64,
    /// How many bytes of the owner were accepted.
    pub(super) accepted: u64,
    /// For what is not read, up to which byte it came when.
    marks: VecDeque<(u64, u64)>,
    last_read_at: Option<u64>,
    /// Since when a write finds room; `None` if it finds none.
    pub(super) room_since: Option<u64>,
    pub(super) end_came_at: Option<u64>,
    pub(super) reset_at: Option<u64>,
    pub(super) closed_at: Option<u64>,
    pub(super) gone_at: Option<u64>,
    /// What the peer has acknowledged, and how much is left.
    progress: Vec<Progress>,
}

/// What the peer of a socket had acknowledged; see [`Witness::progress`].
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
    pub(super) fn note_came(&mut self, count: usize, at: u64) {
        self.came += count as u64;
        match self.marks.back_mut() {
            Some((end, mark)) if *mark == at => *end = self.came,
            _ => self.marks.push_back((self.came, at)),
        }
    }

    /// Bytes were accepted or acknowledged. What follows the owner's close is nothing that the
    /// owner could have known.
    pub(super) fn note_progress(&mut self, sending: &Sending, at: u64) {
        let (acknowledged, left) = (sending.acknowledged, sending.bytes.len() as u64);
        if self.closed_at.is_some() || self.progress.is_empty() && left == 0 {
            return;
        }
        let now = Progress { at: Duration::from_nanos(at), acknowledged, left };
        // While some bytes are left, more of them say nothing new.
        let is_same =
            |last: &Progress| last.acknowledged == acknowledged && (last.left > 0) == (left > 0);
        match self.progress.last_mut().filter(|last| last.at == now.at || is_same(last)) {
            Some(last) if is_same(last) => last.left = left,
            Some(last) => *last = now,
            None => self.progress.push(now),
        }
    }

    pub(super) fn note_read(&mut self, count: usize, at: u64) {
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

/// What the network knows of a socket, also after it was dropped; made by
/// [`Stream::witness`](super::Stream::witness). Times count from the start of the simulation.
///
/// A test compares it with what the server has done: a server must not have cut a client that has
/// sent in time.
///
/// ```
/// use corewheel::sim::net::Witness;
/// use std::time::Duration;
///
/// /// Whether bytes lay in a socket of the server when its time was up.
/// fn was_in_time(socket: &Witness, due: Duration) -> bool {
///     socket.unread_since().is_some_and(|came| came < due)
/// }
/// ```
#[derive(Clone)]
pub struct Witness(pub(super) Arc<Mutex<Known>>);

impl Witness {
    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.0)
    }

    /// When the first byte came that is not read; `None` if all is read.
    pub fn unread_since(&self) -> Option<Duration> {
        self.known().marks.front().map(|(_, at)| Duration::from_nanos(*at))
    }

    /// How many bytes that had come before this time are not read.
    pub fn unread_before(&self, time: Duration) -> u64 {
        let known = self.known();
        let mut marks = known.marks.iter().rev();
        let last = marks.find(|(_, at)| Duration::from_nanos(*at) < time);
        last.map_or(0, |(end, _)| end - known.read)
    }

    /// When the last byte was read; `None` if none was.
    pub fn last_read_at(&self) -> Option<Duration> {
        self.known().last_read_at.map(Duration::from_nanos)
    }

    /// Since when a write would be accepted; `None` if the send buffer was full and less than a
    /// third of it is free. The runtime of the owner may not have seen it.
    pub fn room_since(&self) -> Option<Duration> {
        self.known().room_since.map(Duration::from_nanos)
    }

    /// When the end of what the peer sends came; `None` if it has not.
    pub fn end_came_at(&self) -> Option<Duration> {
        self.known().end_came_at.map(Duration::from_nanos)
    }

    /// When the peer has reset the connection; `None` if it has not.
    pub fn reset_at(&self) -> Option<Duration> {
        self.known().reset_at.map(Duration::from_nanos)
    }

    /// When the owner has closed the socket; `None` if it has not.
    pub fn closed_at(&self) -> Option<Duration> {
        self.known().closed_at.map(Duration::from_nanos)
    }

    /// When the kernel has forgotten the socket and what it held; `None` while it is there.
    pub fn gone_at(&self) -> Option<Duration> {
        self.known().gone_at.map(Duration::from_nanos)
    }

    /// What the peer has acknowledged of the owner's bytes until the owner has closed the socket,
    /// and how many were left then: an entry for each time at which it changed, the last one last.
    pub fn progress(&self) -> Vec<Progress> {
        self.known().progress.clone()
    }

    /// How many bytes have come, those included that are not read.
    pub fn came(&self) -> u64 {
        self.known().came
    }

    /// How many bytes the owner has read.
    pub fn read(&self) -> u64 {
        self.known().read
    }

    /// How many bytes of the owner's writes the socket has accepted.
    pub fn accepted(&self) -> u64 {
        self.known().accepted
    }
}

debug_fields!([] Witness, |it| came: it.came(), read: it.read(), accepted: it.accepted());

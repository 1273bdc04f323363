//! Transfers that are judged by what the peer has acknowledged.
//!
//! A write whose socket can be asked is looked at when a part of its limit has passed, and its time
//! counts from the last progress. A rate whose socket can be asked counts what was acknowledged. It
//! is looked at when more would have to be.
//!
//! Why not a look at each write: a look is a system call, and most writes wait for no peer. Only a
//! deadline that has passed asks.
//!
//! Invariants: no event of such a transfer is true before a look. For a caller that has no socket
//! at hand, the time of a write counts from the last progress that is known, and a rate counts what
//! its owner adds.

use super::super::acknowledged::{Acknowledged, LOOKS, LUMP_MAX, QUICK, UnsentBound};
use super::super::kinds::{WRITES, rate};
use super::{Direction, Measured, NEVER, Ordering, Transfers};

/// What the socket of a transfer is asked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    /// No socket was given: what its owner says counts.
    Nothing,
    /// Of a write whose time is limited: it is looked at at this time, and not before the first
    /// part of its limit has passed.
    Again(u64),
    /// Of a rate: the peer has acknowledged so many bytes.
    Bytes(u64),
}

impl Measured {
    /// When a write is looked at first.
    pub(super) fn first_look(&self) -> u64 {
        self.counts_from(None).saturating_add(self.progress.grace / u64::from(LOOKS))
    }

    /// The time of a write counts from its beginning, and from the last progress of its peer that
    /// is known, if its socket is asked.
    fn counts_from(&self, known: Option<&Acknowledged>) -> u64 {
        let start = self.progress.start.load(Ordering::Relaxed);
        match (self.asked.get(), known) {
            (Asked::Again(_), Some(known)) => start.max(known.progress_at),
            _ => start,
        }
    }

    /// When a write is late, unless its peer makes progress.
    pub(super) fn late_at(&self, known: Option<&Acknowledged>) -> u64 {
        self.counts_from(known).saturating_add(self.progress.grace)
    }

    /// Whether the time of a transfer was up when its event came.
    pub(super) fn is_late(&self, known: Option<&Acknowledged>) -> bool {
        let event_at = self.event_at.get();
        let was_up = || match self.asked.get() {
            Asked::Again(_) => self.late_at(known) <= event_at,
            Asked::Bytes(_) | Asked::Nothing => true,
        };
        event_at != NEVER && was_up()
    }

    /// The event of a write, which is not late, has come for a look. The caller has no socket.
    pub(super) fn put_off(&self, known: Option<&Acknowledged>) -> bool {
        if self.event_at.replace(NEVER) != NEVER {
            self.asked.set(Asked::Again(self.late_at(known)));
        }
        false
    }

    /// A rate has no event by its socket if no look came after it: then what its owner adds counts.
    pub(super) fn forget_socket_unless_asked(&self, known: Option<&Acknowledged>) {
        let event_at = self.event_at.get();
        let is_asked = known.is_some_and(|known| known.looked_at >= event_at);
        if event_at != NEVER && !is_asked {
            self.asked.set(Asked::Nothing);
        }
    }

    /// The peer has acknowledged so many bytes more.
    fn acknowledge(&self, newly: u64, known: &Acknowledged, now: u64) {
        match self.asked.get() {
            Asked::Nothing => {}
            Asked::Again(_) => {
                let late_at = self.late_at(Some(known));
                let has_come = self.event_at.replace(NEVER) != NEVER;
                if late_at <= now {
                    self.event_at.set(if has_come { now } else { NEVER });
                    return;
                }
                let next = now.saturating_add(self.progress.grace / u64::from(LOOKS));
                self.asked.set(Asked::Again(next.min(late_at)));
            }
            Asked::Bytes(bytes) => {
                let bytes = bytes.saturating_add(newly);
                self.asked.set(Asked::Bytes(self.progress.bounded(bytes, now, LUMP_MAX)));
            }
        }
    }
}

/// A write that waits for a peer with a bound of what the system accepts and has not sent.
#[derive(Clone, Copy, Debug)]
pub(in crate::conn) struct BoundWait {
    /// When it began, or the peer has last taken half of the bound.
    pub(in crate::conn) since: u64,
    /// What the peer had acknowledged then.
    pub(in crate::conn) bytes: u64,
}

/// What the system accepts and has not sent.
impl Transfers {
    pub(in crate::conn) fn bound(&mut self) -> Option<&mut UnsentBound> {
        Some(&mut self.known.as_mut()?.bound)
    }

    /// The peer of a write that waits has acknowledged so many bytes by `now`. Returns the bound to
    /// set, and whether there is one.
    pub(in crate::conn) fn follow(
        &mut self,
        wait: &mut BoundWait,
        bytes: u64,
        now: u64,
    ) -> (Option<u32>, bool) {
        let Some(bound) = self.bound() else { return (None, false) };
        let is_quick = now.saturating_sub(wait.since) <= QUICK;
        let is_over = bytes.saturating_sub(wait.bytes) >= u64::from(bound.present() / 2);
        let mut change = None;
        if is_over || !is_quick {
            *wait = BoundWait { since: now, bytes };
            change = bound.end_wait(is_quick);
        }
        (change, bound.present() > 0)
    }
}

impl Transfers {
    /// The transfers of writes that go on and whose socket is not asked.
    fn unasked(&self) -> impl Iterator<Item = &Measured> {
        let is_unasked = |transfer: &&Measured| {
            matches!(transfer.asked.get(), Asked::Nothing) && transfer.is_on()
        };
        let kinds = [WRITES, rate(Direction::Write)];
        kinds.into_iter().flat_map(|kind| self.of(kind)).filter(is_unasked)
    }

    /// Whether a socket is to be named for a write that waits, and whether with what its peer has
    /// acknowledged: the first look at a peer, and the beginning of a rate.
    pub(in crate::conn) fn wants_socket(&self) -> (bool, bool) {
        let mut unasked = self.unasked().peekable();
        let wants_socket = unasked.peek().is_some();
        let wants_bytes = self.known.is_none() || unasked.any(|transfer| transfer.kind != WRITES);
        (wants_socket, wants_socket && wants_bytes)
    }

    /// The transfers of writes that go on, of the wanted kinds, are judged by a socket from `now`
    /// on.
    pub(in crate::conn) fn ask(&self, is_wanted: impl Fn(usize) -> bool, now: u64) {
        for transfer in self.unasked().filter(|transfer| is_wanted(transfer.kind)) {
            if transfer.kind == WRITES {
                transfer.asked.set(Asked::Again(0));
            } else {
                transfer.progress.restart(now);
                transfer.asked.set(Asked::Bytes(0));
            }
        }
    }

    /// A peer that had acknowledged so many bytes has something to take from `now` on.
    pub(in crate::conn) fn begin_looks(&mut self, bytes: u64, now: u64) {
        let first = || Box::new(Acknowledged { bytes, ..Acknowledged::default() });
        self.known.get_or_insert_with(first).progress_at = now;
    }

    /// A look at the socket at `now`. True if the peer has made progress.
    pub(in crate::conn) fn look(&mut self, bytes: u64, now: u64) -> bool {
        // An event may have come by a clock that is a little ahead.
        let came = self.all.iter().map(|transfer| transfer.event_at.get());
        let now = came.filter(|at| *at != NEVER).fold(now, u64::max);
        let first = || {
            let bound = UnsentBound::default();
            Box::new(Acknowledged { bytes, progress_at: now, looked_at: now, bound })
        };
        let known = self.known.get_or_insert_with(first);
        let newly = known.look(bytes, now);
        self.all.iter().for_each(|transfer| transfer.acknowledge(newly, known, now));
        newly > 0
    }
}

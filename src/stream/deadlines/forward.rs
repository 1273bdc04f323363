//! A stream without a limit, which forwards what it is asked for.
//!
//! Why the stamps nevertheless: a limit may be set at any time, and counts from the last byte.
//!
//! Invariants: the timers were polled before, and nothing in them can come. Whatever changes that
//! wakes the stream, whose next read, write or flush looks and watches all from then on. No write
//! waits unwatched.
//!
//! Cost: a read of a message costs two stamps, and a write one.

use std::io;
use std::task::{Context, Poll};

#[cfg(feature = "hyper")]
use super::super::notes::MEASURED;
use super::Deadlines;
use crate::conn::{Direction, Side};

/// What a stream watches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Watched {
    /// That is decided by the first look: no limit was set when the stream began.
    Undecided,
    /// Nothing, until something wakes it or a write waits: no limit is set, and no deadline armed.
    Nothing,
    All,
}

impl<M: Side> Deadlines<M> {
    /// Whether nothing is watched.
    #[inline]
    pub(super) fn forwards(&self) -> bool {
        self.watched == Watched::Nothing && !self.shared.is_woken()
    }

    /// Reads by `call`, and leaves the stamps from which limits count that are set later.
    #[inline]
    pub(super) fn forward_read(
        &mut self,
        cx: &mut Context<'_>,
        call: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let polled = call(cx);
        let (waits, has_moved) = (polled.is_pending(), matches!(polled, Poll::Ready(Ok(1..))));
        let has_waited = std::mem::replace(&mut self.reads.way.waits, waits);
        if waits != has_waited {
            self.shared.reads.set_waits(waits);
        }
        let is_due = has_moved && self.reads.is_stamped();
        if is_due || waits != has_waited && (waits || has_moved) {
            let at = self.stamp_read(None);
            self.shared.set_moved(at);
        }
        if waits {
            self.register(Direction::Read, cx);
            if self.shared.is_woken() {
                // Before it was registered. The next poll looks.
                cx.waker().wake_by_ref();
            }
        }
        polled
    }

    /// Writes by `call`, and leaves such a stamp.
    #[inline]
    pub(super) fn forward_write(
        &mut self,
        cx: &mut Context<'_>,
        call: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let polled = call(cx);
        if polled.is_pending() {
            self.watch();
            return self.wait_to_write(cx).map(Err);
        }
        if let Poll::Ready(Ok(1..)) = polled {
            self.shared.set_moved(self.timers.stamp_write());
        }
        polled
    }

    /// From now on, all is watched. Of bytes that were written, some may not be acknowledged.
    #[cold]
    pub(super) fn watch(&mut self) {
        self.watched = Watched::All;
        if self.writes.acknowledged.is_some() {
            self.leave_unacknowledged();
        }
    }

    /// Decides what is watched, after the first look.
    #[inline]
    pub(super) fn decide_watched(&mut self) {
        if self.watched == Watched::Undecided {
            let is_watched = self.reads.question.is_some() || !self.timers.leave_unwatched();
            self.watched = if is_watched { Watched::All } else { Watched::Nothing };
        }
    }

    /// Whether the next bytes that are read are counted.
    #[cfg(feature = "hyper")]
    pub(in crate::stream) fn is_read_measured(&self) -> bool {
        self.watched == Watched::All
            && (self.reads.message.is_some() || self.shared.notes.has(MEASURED))
    }
}

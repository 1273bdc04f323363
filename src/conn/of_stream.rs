//! What a stream uses of its connection's timers beside their public methods: its reads and writes
//! look at their own deadlines only, and poll the timers before they wait.

use std::task::{Context, Poll};

use super::kinds::DeadlineKind;
use super::limits::ConnEvent;
use super::side::{Connection, Side, Wakes};
use super::timers::ConnTimers;
use super::transfer::Transfer;
use crate::values::refused::RefusedKind;

impl<S: Side> ConnTimers<S> {
    /// Polls for the next event of the wanted kinds; `Closed` if the connection is closed. The
    /// waker is woken for events of other kinds too: they stay, and another poll takes them.
    pub(crate) fn poll_kinds(
        &self,
        cx: &mut Context<'_>,
        wanted: impl Fn(DeadlineKind) -> bool,
    ) -> Poll<Result<ConnEvent, RefusedKind>> {
        let event = self.conn().poll(cx, wanted);
        event.map(|event| event.map_err(Into::into)?.ok_or(RefusedKind::Closed))
    }

    /// The present in nanoseconds since the clock's epoch, or a little later.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.conn().now()
    }

    /// Begins a transfer that is measured by the deadline of a kind.
    pub(crate) fn measure(&self, kind: DeadlineKind, now: u64) -> Transfer<S> {
        let kind = kind.index().expect("the kind is one of the table");
        Transfer::begin(self.conn(), kind, now, Wakes::Nothing)
    }
}

impl<S: Side> Transfer<S> {
    /// Some bytes were transferred, which does not count as a read or a write.
    #[inline]
    pub(crate) fn count(&self, bytes: u64) {
        if let Some(progress) = &self.progress {
            S::Conn::add(progress, bytes);
        }
    }

    /// Begins again at `now`, after [`stop`](Self::stop), with the limits of now. True if the
    /// caller is to poll for events.
    #[inline]
    pub(crate) fn restart(&mut self, now: u64) -> bool {
        if self.progress.as_ref().is_some_and(|progress| !progress.restart(now)) {
            return false;
        }
        // There was no limit, it has changed, or the timer has expired meanwhile.
        self.begin_again(now, Wakes::Nothing);
        self.progress.is_some()
    }

    /// Does not go on before a [`restart`](Self::restart). True if the event may have come: then
    /// the transfer is to be dropped, which withdraws the event.
    #[inline]
    pub(crate) fn stop(&self) -> bool {
        self.progress.as_ref().is_some_and(|progress| progress.pause(0))
    }
}

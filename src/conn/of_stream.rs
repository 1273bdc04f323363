//! What a stream uses of its connection's timers beside their public methods: its reads and writes
//! look at their own deadlines only, and poll the timers before they wait.

use std::task::{Context, Poll};

use super::in_progress::Transfer;
use super::kinds::{AGE_GRACE, DeadlineKind, Direction, MAX_AGE, WRITES};
use super::limits::{ConnEvent, NEVER, Wanted};
use super::moment::Moment;
use super::rules::{self, Held};
use super::side::{Connection, Side, Wakes};
use super::timers::ConnTimers;
use crate::values::refused::RefusedKind;

impl<S: Side> ConnTimers<S> {
    /// Whether one thread polls all tasks that have the timers.
    pub(crate) fn is_on_shard(&self) -> bool {
        self.conn().budget().is_some()
    }

    /// Whether the connection goes on for a while after it was told to end.
    pub(crate) fn has_grace(&self) -> bool {
        self.conn().look(|facts| facts.span(AGE_GRACE) != NEVER || facts.terms.is_draining())
    }

    /// Whether the connection was told to end, has begun no other age since, and goes on.
    pub(crate) fn goes_on(&self) -> bool {
        self.conn().look(|facts| facts.flags.get().is_told()) && self.has_grace()
    }

    /// Whether an event that has come follows from no limit: the connection was told to end before
    /// its greatest age, or the drain of its shard is over.
    pub(crate) fn is_ordered(&self, kind: DeadlineKind) -> bool {
        self.conn().look(|facts| match kind.index() {
            Some(MAX_AGE) => facts.present < rules::opened_due(facts, MAX_AGE, true),
            Some(AGE_GRACE) => facts.terms.drain_until <= facts.present,
            _ => false,
        })
    }

    /// Polls for the next event of the wanted kinds; `Closed` if the connection is closed. The
    /// waker is woken for events of other kinds too: they stay, and another poll takes them.
    ///
    /// The caller has polled what these kinds guard since there were so many
    /// [`looks`](crate::pass::looks); `None` if it does not know what they guard.
    pub(crate) fn poll_kinds(
        &self,
        cx: &mut Context<'_>,
        looks: Option<u64>,
        wanted: impl Wanted,
    ) -> Poll<Result<ConnEvent, RefusedKind>> {
        let event = self.conn().poll(cx, looks, wanted);
        event.map(|event| event.map_err(Into::into)?.ok_or(RefusedKind::Closed))
    }

    /// The present in nanoseconds since the clock's epoch, or a little later.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.conn().now()
    }

    /// Something was read, as [`touch_read`](Self::touch_read) says. `now` is what
    /// [`now`](Self::now) has returned since; `None` if nothing has asked. Returns the stamp of
    /// that.
    #[inline]
    pub(crate) fn touch_read_by(&self, now: Option<u64>) -> Moment {
        self.conn().touch(Direction::Read, now)
    }

    /// Whether no limit is set, no deadline is armed and no event has come, and the task that has
    /// polled for events is woken when that changes. False on a shard.
    pub(crate) fn leave_unwatched(&self) -> bool {
        self.conn().leave_unwatched()
    }

    /// Whether the limits bound a write that waits.
    pub(crate) fn bounds_writes(&self) -> bool {
        self.conn().with_limits(|limits| {
            !limits.write_timeout.is_zero() || limits.min_write_rate.bytes_per_second > 0
        })
    }

    /// Whether a deadline is off, for instance because its event has come.
    pub(crate) fn is_off(&self, kind: DeadlineKind) -> bool {
        kind.index().is_none_or(|kind| self.conn().due(kind) == NEVER)
    }

    /// Begins a request whose end is left to [`end_requests`](Self::end_requests).
    pub(crate) fn hold_request(&self) {
        self.conn().begin(Held::Request);
    }

    /// Something was written. Returns the stamp of that.
    #[inline]
    pub(crate) fn stamp_write(&self) -> Moment {
        self.conn().touch(Direction::Write, None)
    }

    /// A write has gone on that had to wait, as [`touch`](Self::touch) says. Returns the stamp of
    /// that.
    pub(crate) fn stamp_waited_write(&self) -> Moment {
        let stamp = self.stamp_write();
        self.conn().stamp(Direction::Read, stamp);
        stamp
    }

    /// Ends requests that [`hold_request`](Self::hold_request) has begun, at the time of a stamp,
    /// or now.
    pub(crate) fn end_requests(&self, count: u64, at: Option<Moment>) {
        (0..count).for_each(|_| self.conn().end(Held::Request, at));
    }

    /// The peer had something to take for a time, in nanoseconds, that the idle times do not count.
    /// They begin no later than `until`.
    pub(crate) fn was_busy(&self, busy: u64, until: u64) {
        let conn = self.conn();
        let stamps = conn.look(|facts| rules::later_by(facts, busy, until));
        conn.stamp_all(stamps);
        // A stamp before the last idle event may make the next one earlier.
        conn.change(Wakes::Nothing, |facts| rules::withdraw_idle(facts));
    }

    /// Begins a transfer that is measured by the deadline of a kind.
    pub(crate) fn measure(&self, kind: DeadlineKind, now: u64) -> Transfer<S> {
        let kind = kind.index().expect("the kind is one of the table");
        Transfer::begin(self.conn(), (kind, true), now, Wakes::Nothing)
    }

    /// The time of writes counts from `now` on. If it is judged by a socket, whose peer had
    /// acknowledged so many bytes, it begins again with what the peer acknowledges.
    pub(crate) fn judge_writes(&self, bytes: u64, is_by_socket: bool, now: u64) {
        self.conn().change(Wakes::Nothing, |facts| {
            let asked = rules::transfers(facts).map(|all| {
                all.begin_looks(bytes, now);
                if is_by_socket {
                    all.ask(|kind| kind == WRITES, now);
                }
            });
            ((), if asked.is_some() { 0 } else { NEVER })
        });
    }

    /// A look at the socket has found so many bytes acknowledged.
    pub(crate) fn look_at_writes(&self, bytes: u64, now: u64) {
        self.conn().change(Wakes::Nothing, |facts| {
            (rules::transfers(facts).map(|all| all.look(bytes, now)), 0)
        });
    }
}

impl<S: Side> Transfer<S> {
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

    /// Whether the transfer that runs is too slow by `now`.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.progress.as_ref().is_some_and(|progress| progress.due() <= now)
    }

    /// The transfer that runs is due later by this time, in nanoseconds.
    pub(crate) fn extend(&self, time: u64, now: u64) {
        if self.progress.as_ref().is_some_and(|progress| progress.extend(time, now)) {
            S::Conn::change(&self.conn, Wakes::Nothing, |_| ((), 0));
        }
    }

    /// What was counted gives the transfer no more time from `now` on than `longest`, in
    /// nanoseconds.
    pub(crate) fn bound(&self, now: u64, longest: u64) {
        if self.progress.as_ref().is_some_and(|progress| progress.bound(now, longest)) {
            S::Conn::change(&self.conn, Wakes::Nothing, |_| ((), 0));
        }
    }

    /// Sets whether the transfer only says when to look, and holds no idle time back.
    pub(crate) fn presume(&self, is_presumed: bool) {
        if let Some(progress) = &self.progress {
            progress.presume(is_presumed);
        }
    }

    /// Whether there is a limit.
    pub(crate) fn is_limited(&self) -> bool {
        self.progress.is_some()
    }

    /// Does not go on before a [`restart`](Self::restart). True if the event may have come: then
    /// the transfer is to be dropped, which withdraws the event.
    #[inline]
    pub(crate) fn stop(&self) -> bool {
        self.progress.as_ref().is_some_and(|progress| progress.pause(0))
    }
}

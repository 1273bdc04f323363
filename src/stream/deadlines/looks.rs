//! Looks at the socket, and the events of the timers that wait for one.
//!
//! A deadline that has passed asks for a look and wakes the stream. The next poll looks, before it
//! reads or writes. Then the event is judged, by a read or a write that must wait.
//!
//! Why a poll more for each event: the timers say what has come only where something waits, and the
//! socket is the stream's, which is lent to what reads or writes.
//!
//! Invariants: while bytes are left that the peer may not have acknowledged, a transfer counts the
//! time of the write and another one its rate, where there is such a limit.
//!
//! Cost: see [`socket`](super::super::socket).

use std::cell::Cell;
use std::io;
use std::task::{Context, Poll};

use super::super::StreamTimeout::{WriteRate, WriteStall};
use super::super::limits::{ends, no_timer};
use super::super::socket::{ACK_DELAY, Acknowledged, Doubt};
use super::Deadlines;
use crate::conn::DeadlineKind::{self, AllIdle, ReadIdle, WriteIdle};
use crate::conn::{Direction, Ends, LUMP_MAX, Moment, Sent, Side, Wakes};

/// What the peer has acknowledged, of a stream with a socket.
impl<M: Side> Deadlines<M> {
    /// The stream has a socket, of which the system says this.
    #[cfg(unix)]
    pub(in crate::stream) fn set_sent(&mut self, sent: Sent) {
        self.writes.acknowledged = Some(Acknowledged::new(sent, self.timers.limits().unsent_max));
    }

    /// Takes the bound that is to be set at the socket.
    #[inline]
    pub(in crate::stream) fn take_bound(&mut self) -> Option<u32> {
        self.writes.acknowledged.as_mut()?.take_bound()
    }

    /// A read, write, flush or shutdown is polled: looks at the socket if a deadline has asked.
    #[inline]
    pub(in crate::stream) fn look_at_socket(&mut self, sent: impl FnOnce() -> Option<Sent>) {
        if self.writes.acknowledged.is_some()
            && self.shared.is_woken()
            && self.shared.looks.take_asked()
        {
            // The system has said it before, so it does now.
            if let Some(sent) = sent() {
                self.look_at(sent);
            }
        }
    }

    #[cold]
    fn look_at(&mut self, sent: Sent) {
        let (is_windowed, is_stalled) = (self.writes.is_windowed(), self.writes.is_stalled());
        let Some(known) = &mut self.writes.acknowledged else { return };
        let now = self.timers.now();
        let look = known.look(sent, now);
        let counted_at = std::mem::replace(&mut known.counted_at, now);
        if self.writes.way.waits && !is_windowed {
            known.look_at_write(now);
        }
        let waits = is_stalled || known.has_left;
        if let Some(rate) = &mut self.writes.rate {
            rate.count(look.bytes);
            if !is_windowed {
                // In the rest of the time, the peer had nothing to take.
                rate.pause_at(now.min(counted_at.saturating_add(look.busy)));
            }
            let _is_filed = rate.resume_at(now, Wakes::Nothing);
            rate.bound(now, LUMP_MAX);
            if !is_windowed {
                match known.doubt(rate.is_due(now)) {
                    Doubt::Begins => rate.extend(ACK_DELAY, now),
                    Doubt::Refuted => rate.begin_again(now, Wakes::Nothing),
                    Doubt::Stays => {}
                }
            }
            if !waits {
                rate.pause_at(now);
            }
        }
        self.timers.look_at_writes(sent.acknowledged, now);
        (self.reads.way.has_looked, self.writes.way.has_looked) = (true, true);
        if !waits {
            self.writes.stall.take_if(|stall| stall.time.stop());
        }
        if self.timers.bounds_writes() {
            self.timers.was_busy(look.busy, look.busy_until);
        }
        self.unwatch(true);
        self.shared.looks.set_needed(waits);
        self.shared.looks.answer(Moment::at(now));
        self.shared.request_idle.wake();
    }

    /// Bytes were accepted, and all bytes before were acknowledged at the last look: a write that
    /// may wait, until a look finds that all is acknowledged again.
    #[cold]
    pub(super) fn leave_unacknowledged(&mut self) {
        let now = self.timers.now();
        self.shared.looks.set_needed(true);
        if let Some(known) = &mut self.writes.acknowledged {
            known.has_left = true;
        }
        if self.writes.is_stalled() {
            // The write that has waited has not waited for the peer, which had all.
            return self.judge_writes(now);
        }
        self.resume_rate(now);
        self.measure_stall(now);
        self.unwatch(true);
        // No read or write that waits may follow in this poll, so the timer is reset here. Where
        // there is none, what waits next says so.
        let cx = &mut Context::from_waker(&self.waker);
        let _ = self.timers.poll_kinds(cx, None, |_, _| false);
    }

    /// Whether nothing is to be asked of the socket before an event is judged that came at a time.
    fn is_known(&self, direction: Direction, kind: DeadlineKind, came_at: Option<Moment>) -> bool {
        let Some(known) = &self.writes.acknowledged else { return true };
        let has_looked = [&self.reads.way, &self.writes.way][direction as usize].has_looked;
        let is_asked = known.has_left || self.writes.is_stalled();
        let is_of_window = kind == DeadlineKind::WriteTimeout && self.writes.is_windowed();
        let is_idle = matches!(kind, ReadIdle | WriteIdle | AllIdle);
        let is_about_peer = ends(kind) == Ends::Writes || is_idle;
        // An earlier look, of a direction that was not polled since, says nothing of the event.
        let has_looked = has_looked && self.shared.looks.has_looked_since(came_at);
        has_looked || !is_asked || is_of_window || !is_about_peer
    }

    /// The time of a write counts from `now` on, by what the peer acknowledges, unless it waits for
    /// a window.
    pub(super) fn judge_writes(&self, now: u64) {
        if let Some(known) = &self.writes.acknowledged {
            self.timers.judge_writes(known.bytes().0, !self.writes.is_windowed(), now);
        }
    }

    /// Whether the close is to reset the connection: a limit of writing has ended it.
    #[inline]
    pub(in crate::stream) fn is_reset_by<V>(&self, polled: &Poll<io::Result<V>>) -> bool {
        let has_failed =
            self.writes.acknowledged.is_some() && matches!(polled, Poll::Ready(Err(_)));
        has_failed && matches!(self.shared.timeout.get(), Some(WriteStall(_) | WriteRate(_)))
    }

    /// Polls the timers for what ends the wait in a direction.
    #[cold]
    pub(super) fn poll_timers(&mut self, direction: Direction) -> Poll<io::Error> {
        if let Some(refused) = self.refused.take() {
            return Poll::Ready(no_timer(refused));
        }
        if let Some(sending) = &mut self.writes.sending {
            // The event of a write that is not polled again stays, and bounds nothing.
            sending.rated.take_if(|_| self.timers.is_off(DeadlineKind::WriteRate));
        }
        // After the pass, a write that waits may go on, and its peer is not idle then. A read may
        // bring the window that a write waits for.
        let (may_refute, other) = match direction {
            Direction::Read => {
                (self.writes.way.waits || self.writes.is_stalled(), self.writes.way.looks)
            }
            Direction::Write => (self.writes.is_windowed(), self.reads.way.looks),
        };
        let looks = if may_refute { self.looks.min(other) } else { self.looks };
        let asks = Cell::new(false);
        let ended = self.take_events(looks, |this, kind, came_at| {
            let is_wanted = this.is_wanted(direction, kind);
            let is_known = this.is_known(direction, kind, came_at);
            asks.set(asks.get() || is_wanted && !is_known);
            is_wanted && is_known
        });
        if asks.get() && ended.is_pending() {
            self.shared.looks.ask();
            self.waker.wake_by_ref();
        }
        let way = self.way(direction);
        way.has_looked = false;
        way.is_watched |= ended.is_pending();
        ended.map(|error| error.unwrap_or_else(no_timer))
    }
}

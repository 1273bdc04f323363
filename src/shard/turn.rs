//! One turn of a shard, the same for every driver.

use std::time::Duration;

use corewheel_shard::{Budget, Tick};

use super::Core;
use super::classes::Ended;
use super::hooks::PartId;
use super::payload::{Delivery, Host, Payload};
use super::shutdown::shut_down;
use crate::clock::nanos_after;
use crate::values::class::ClassId;
use crate::values::contain::contain;

/// What a turn leaves to its driver.
#[must_use = "it says when the next turn is due"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Turn {
    /// There is more to do at once, after whatever else the thread has to do.
    More,
    /// Nothing to do before this tick, unless something is scheduled or the bell rings.
    Next(Tick),
    /// Nothing to do unless something is scheduled or the bell rings.
    Idle,
    /// The shard is shut down; there will be nothing to do any more.
    Closed,
}

/// Takes a turn: begin, take mail, receive requests and move timers of a drain, shut down if that
/// was asked for, advance the wheel, deliver, publish, say what is next. The order never changes,
/// and each step keeps to its budget.
///
/// Expired timers are delivered with nothing borrowed, one at a time, so every callback sees the
/// shard as it is.
pub(crate) fn turn<P: Payload>(core: &Core<P>, host: &mut impl Host<P>) -> Turn {
    if core.is_closed() {
        return Turn::Closed;
    }
    let budget = core.directory().settings.budget;
    let now = core.nanos();
    core.parts.for_each(|part| part.turn_begins(now));
    core.take_mail(now);
    let more_requests = core.receive(now, budget.requests_max);
    if let Some(order) = core.take_shutdown_order() {
        let report = shut_down(core, host, order.policy);
        // If no caller waits for the report any more, the payloads in it are dropped here.
        contain(core.id(), || drop(order.report.send(report)));
        return Turn::Closed;
    }
    core.advance(now, budget.of_wheel());
    deliver(core, host, budget.time_max, budget.expired_max as usize);
    let more = more_requests || core.is_behind();
    core.end_turn(more);
    core.publish();
    match core.next_deadline() {
        _ if more => Turn::More,
        Some(tick) => Turn::Next(tick),
        None => Turn::Idle,
    }
}

/// Delivers what has expired, until `max` deliveries or this much time are used up.
pub(super) fn deliver<P: Payload>(
    core: &Core<P>,
    host: &mut impl Host<P>,
    time_max: Option<Duration>,
    max: usize,
) {
    let mut now = core.nanos();
    let tick = core.time().floor(now);
    let end = nanos_after(now, time_max.unwrap_or(Duration::MAX));
    let mut left = max;
    let mut part_was_last = core.state().part_was_last;
    // Timers and the work of parts take turns, so that neither keeps the other waiting.
    let mut parts_are_done = false;
    while left > 0 {
        let has_work = !parts_are_done && core.parts_have_work();
        let timer = if has_work && !part_was_last { None } else { core.pop(now) };
        let mut is_done = true;
        let is_part = timer.is_none();
        if is_part && !has_work {
            break;
        }
        let calm = contain(core.id(), || match timer {
            Some(Popped::Timer(delivery)) => host.deliver(delivery),
            Some(Popped::Part(part, index)) => core.parts.expired(part, index),
            None => is_done = core.deliver_part(now, tick),
        });
        part_was_last = is_part && is_done;
        if !is_done {
            parts_are_done = true;
            continue;
        }
        left -= 1;
        let after = core.nanos_near();
        core.note_delivery(calm, after.saturating_sub(now));
        now = after;
        if now >= end {
            break;
        }
    }
    core.state().part_was_last = part_was_last;
}

/// A timer that a turn delivers.
pub(super) enum Popped<P: Payload> {
    Timer(Delivery<P>),
    /// A timer of a part, with its index there.
    Part(PartId, u32),
}

impl<P: Payload> Core<P> {
    fn advance(&self, now: u64, budget: Budget) {
        self.state.borrow_mut().wheel.advance(self.time().floor(now), budget);
    }

    /// Makes everything due, for a shutdown that fires what is pending.
    pub(super) fn advance_to_the_end(&self) {
        self.state.borrow_mut().wheel.advance(Tick::NEVER, Budget::UNLIMITED);
    }

    /// The next timer to be delivered, with how late it is at `now`.
    #[inline]
    fn pop(&self, now: u64) -> Option<Popped<P>> {
        let is_closed = self.is_closed();
        let state = &mut *self.state.borrow_mut();
        let expired = state.wheel.pop_expired_unless(|payload| match payload.part() {
            Some((part, index)) if !is_closed => self.parts.postpone(part, index),
            _ => None,
        })?;
        let deadline = self.time().start_of(expired.deadline);
        let late = now.saturating_sub(deadline);
        state.lateness.record(late);
        let lateness = Duration::from_nanos(late);
        let is_late = lateness > self.directory.settings.lateness_bound;
        state.counts.late += u64::from(is_late);
        state.delivering = state.classes.end(expired.key.index(), Ended::Fired { late: is_late });
        if let Some((part, index)) = expired.task.part() {
            return Some(Popped::Part(part, index));
        }
        let handle = self.handle_of(expired.key);
        // No future is told that its time has come before it has, by whatever policy.
        let payload = expired.task.expire(&mut state.tables, now < deadline);
        Some(Popped::Timer(Delivery { handle, deadline, lateness, payload }))
    }

    #[inline]
    fn parts_have_work(&self) -> bool {
        !self.parts.is_empty() && self.parts.fold(false, |any, part| any || part.has_work())
    }

    /// Has a part deliver one of what is due. False if there was nothing.
    fn deliver_part(&self, now: u64, tick: Tick) -> bool {
        self.deliver_as(ClassId::NONE);
        let mut is_done = false;
        self.parts.for_each(|part| {
            if !is_done && part.has_work() {
                is_done = part.deliver(now, tick);
            }
        });
        is_done
    }

    /// Counts what a delivery came to, and how long it took in nanoseconds.
    #[inline]
    pub(super) fn note_delivery(&self, calm: bool, took: u64) {
        let over = Duration::from_nanos(took) > self.directory.settings.overrun;
        if over || !calm {
            {
                let counts = &mut self.state.borrow_mut().counts;
                counts.overrun += u64::from(over);
                counts.panicked += u64::from(!calm);
            }
            if over {
                self.note_overrun(took);
            }
        }
    }

    fn end_turn(&self, is_exhausted: bool) {
        let state = &mut *self.state.borrow_mut();
        state.delivering = ClassId::NONE;
        state.counts.turns += 1;
        state.counts.turns_exhausted += u64::from(is_exhausted);
    }

    fn is_behind(&self) -> bool {
        self.state.borrow().wheel.is_behind() || self.parts_have_work()
    }

    /// When the next turn is due.
    pub(crate) fn next_deadline(&self) -> Option<Tick> {
        let next = {
            let state = self.state.borrow();
            let next = state.wheel.next_deadline().unwrap_or(Tick::NEVER);
            next.min(state.drain_retries_at().unwrap_or(Tick::NEVER))
        };
        let next = self.parts.fold(next, |next, part| next.min(part.next_turn()));
        Some(next).filter(|next| *next < Tick::NEVER)
    }
}

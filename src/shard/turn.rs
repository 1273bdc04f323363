//! One turn of a shard; every driver takes turns by this function.

use std::task::Waker;
use std::time::Duration;

use corewheel_shard::{Budget, Choice, Expired, Tick};

use super::host::{Deliveries, Delivery, Values};
use super::lateness::TurnEnd;
use super::shutdown::shut_down;
use super::stored::Stored;
use super::wakes::{WAKES_MAX, Wake};
use super::{Core, State};
use crate::clock::nanos_after;
use crate::link::nursery::Due;
use crate::values::class::ClassId;
use crate::values::contain::contain;

/// When a driver takes the next turn.
#[must_use = "it says when the next turn is due"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// At once, after other tasks of the thread: the turn has left work behind.
    Now,
    /// At this tick, or when a timer is scheduled or the driver is woken before.
    At(Tick),
    /// When a timer is scheduled or the driver is woken.
    WhenWoken,
    /// Never: the shard is shut down.
    Never,
}

/// Takes a turn: begin, take mail and run its callbacks, receive requests, look at nurseries.
/// Then the turn shuts down if a shutdown order has come, advances the wheel, delivers, publishes,
/// and says when the next turn is due. The order never changes, and each step keeps to its budget.
/// No timer that is due after `last` is delivered.
///
/// Expired timers are delivered with nothing borrowed, one at a time, so every callback sees the
/// shard as it is. Those of futures are taken out of the wheel some at a time, see [`WAKES_MAX`].
pub(crate) fn turn<T: 'static>(
    core: &Core<T>,
    host: &mut Deliveries<'_, T, impl Values<T>>,
    last: Tick,
) -> Next {
    if core.is_closed() {
        return Next::Never;
    }
    let budget = core.directory().settings.budget;
    let now = core.nanos();
    core.begin_turn(now);
    core.parts.for_each(|part| part.turn_begins(now));
    if core.take_mail(now) {
        run_calls(core, host);
    }
    let more_requests = core.receive(now, budget.requests_max);
    if let Some(order) = core.take_shutdown_order() {
        let report = shut_down(core, host, order.policy);
        // If no caller waits for the report, the payloads in it are dropped here.
        contain(core.id(), || drop(order.report.send(report)));
        return Next::Never;
    }
    core.advance(core.time().floor(now).min(last), budget.of_wheel());
    deliver(core, host, budget.time_max, budget.expired_max as usize);
    let more = more_requests || core.is_behind();
    let next = core.next_deadline();
    core.end_turn(&TurnEnd { left_requests: more_requests, is_more: more, next });
    core.publish();
    match next {
        _ if more => Next::Now,
        Some(tick) => Next::At(tick),
        None => Next::WhenWoken,
    }
}

/// Runs the callbacks of the mail. Mail is rare, so they have no budget.
fn run_calls<T: 'static>(core: &Core<T>, host: &mut Deliveries<'_, T, impl Values<T>>) {
    for call in core.take_calls() {
        core.contain(|| host.run(call));
    }
}

/// Delivers expired timers and the work of parts, until `max` deliveries or `time_max` are used up.
pub(super) fn deliver<T: 'static>(
    core: &Core<T>,
    host: &mut Deliveries<'_, T, impl Values<T>>,
    time_max: Option<Duration>,
    max: usize,
) {
    let mut now = core.nanos();
    let tick = core.time().floor(now);
    let end = nanos_after(now, time_max.unwrap_or(Duration::MAX));
    let mut left = max;
    let (mut part_was_last, mut wakes) = {
        let mut state = core.state();
        state.times.deliver_from(now);
        (state.part_was_last, std::mem::take(&mut state.wakes))
    };
    // Timers and the work of parts are delivered alternately, so that neither delays the other.
    let mut parts_are_done = false;
    let mut read_ahead = 0;
    while left > 0 {
        if read_ahead == 0 {
            read_ahead = core.read_ahead();
        }
        let has_work = !parts_are_done && core.parts_have_work();
        // Any timer may be the last one if time is limited.
        let wakes_max = if has_work || time_max.is_some() { 1 } else { WAKES_MAX.min(left) };
        let timer =
            if has_work && !part_was_last { None } else { core.pop(now, wakes_max, &mut wakes) };
        let mut is_done = true;
        let is_part = timer.is_none();
        if is_part && !has_work {
            break;
        }
        let mut count = 1;
        let is_ok = contain(core.id(), || match timer {
            Some(Popped::Timer(delivery)) => host.deliver(delivery),
            Some(Popped::Wakes) => {
                count = wakes.len();
                now = core.wake_all(&mut wakes, now);
            }
            Some(Popped::Part(part)) => core.parts.expired(part),
            None => is_done = core.deliver_part(now, tick),
        });
        part_was_last = is_part && is_done;
        if !is_done {
            parts_are_done = true;
            continue;
        }
        left -= count;
        read_ahead = read_ahead.saturating_sub(count);
        let after = core.nanos_near();
        core.note_delivery(is_ok, after.saturating_sub(now));
        now = after;
        if now >= end {
            left = 0;
        }
    }
    let mut state = core.state();
    state.wakes = wakes;
    state.part_was_last = part_was_last;
    let is_used_up = left == 0 || state.wheel.is_budget_used_up();
    state.times.uses_budget_up = is_used_up;
}

/// An expired timer that a turn delivers.
pub(super) enum Popped<T: 'static> {
    Timer(Delivery<T>),
    /// The timers of futures, which `pop` has put into `wakes`.
    Wakes,
    /// A timer of a part, as [`PartId::with_index`](super::hooks::PartId::with_index) puts it. Why
    /// not two fields: a short one has the compiler move all payloads in unaligned pieces, which
    /// wait for each other.
    Part(u64),
}

impl<T: 'static> Core<T> {
    fn advance(&self, tick: Tick, budget: Budget) {
        self.state.borrow_mut().wheel.advance(tick, budget);
    }

    /// Makes all timers due, for a shutdown that fires them.
    pub(super) fn advance_to_the_end(&self) {
        self.state.borrow_mut().wheel.advance(Tick::NEVER, Budget::UNLIMITED);
    }

    /// Reads the sleepers of the timers that come next, so that the processor waits for many of
    /// them at once, and not for each at its delivery. Returns for how many deliveries that is
    /// done, at least 1.
    fn read_ahead(&self) -> usize {
        let State { wheel, tables, .. } = &*self.state.borrow();
        if tables.sleepers.is_empty() {
            return usize::MAX;
        }
        let (mut count, mut waiting) = (0, 0);
        for payload in wheel.next_payloads() {
            if let Stored::Sleeper(index) = *payload {
                waiting += u32::from(tables.is_waiting(index));
            }
            count += 1;
        }
        // Without `black_box`, the compiler may leave the reads out.
        std::hint::black_box(waiting);
        count.max(1)
    }

    /// Takes the next expired timer out, for a delivery at `now`. The timer of a future goes into
    /// `wakes`, and so do those of futures that come right after it, until `wakes` has `max`.
    #[inline]
    fn pop(&self, now: u64, max: usize, wakes: &mut Vec<Wake>) -> Option<Popped<T>> {
        let state = &mut *self.state.borrow_mut();
        let (expired, carried) = self.take_due(state, now, |_| true)?;
        if let Stored::Slot(..) = expired.payload {
            let is_future = |payload: &Stored<T>| matches!(payload, Stored::Slot(..));
            let mut next = Some((expired, carried));
            while let Some((Expired { key, deadline, .. }, carried)) = next {
                let class = state.classes.take(key.index());
                wakes.push(Wake::new(carried, key, self.time().start_of(deadline), class));
                let has_room = wakes.len() < max;
                next = has_room.then(|| self.take_due(state, now, is_future)).flatten();
            }
            return Some(Popped::Wakes);
        }
        let class = state.classes.take(expired.key.index());
        let deadline = self.time().start_of(expired.deadline);
        let late = now.saturating_sub(deadline);
        self.begin_delivery_of(state, class, Some(expired.key), late, || now);
        if let Stored::Part(part, index) = expired.payload {
            return Some(Popped::Part(part.with_index(index)));
        }
        // A shutdown that fires all timers must not report a future's timeout as elapsed early.
        let payload = expired.payload.expire(&mut state.tables, now < deadline);
        let (timer, lateness) = (self.timer_of(expired.key), Duration::from_nanos(late));
        Some(Popped::Timer(Delivery { timer, deadline, lateness, payload }))
    }

    /// Takes the next expired timer out of the wheel, if its payload `is_wanted`. Also returns the
    /// waker, if the timer is that of a future in a nursery.
    #[inline]
    fn take_due(
        &self,
        state: &mut State<T>,
        now: u64,
        is_wanted: impl Fn(&Stored<T>) -> bool,
    ) -> Option<(Expired<Stored<T>>, Option<Waker>)> {
        let is_closed = self.is_closed();
        // A shutdown fires all timers, early ones too.
        let begun = if is_closed { u64::MAX } else { self.time().round_down(now) };
        let State { wheel, nurseries, .. } = state;
        let mut waker = None;
        let expired = wheel.pop_expired_by(|payload| {
            if !is_wanted(payload) {
                return Choice::Leave;
            }
            let postponed = match *payload {
                Stored::Part(part, index) if !is_closed => self.parts.postpone(part, index),
                Stored::Slot(nursery, slot) => match nurseries.fire(nursery, slot, begun) {
                    Due::Fires(carried) => {
                        waker = Some(carried);
                        None
                    }
                    Due::NotBefore(later) if !is_closed => Some(self.time().ceil(later)),
                    Due::NotBefore(_) | Due::Nothing => None,
                },
                _ => None,
            };
            postponed.map_or(Choice::Take, Choice::Postpone)
        })?;
        Some((expired, waker))
    }

    #[inline]
    pub(super) fn parts_have_work(&self) -> bool {
        !self.parts.is_empty() && self.parts.fold(false, |any, part| any || part.has_work())
    }

    /// Calls the parts that have work, until one of them has delivered. False if none has.
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

    /// Counts a delivery that has panicked (`!is_ok`) or that took too long; `took` is in
    /// nanoseconds.
    #[inline]
    pub(super) fn note_delivery(&self, is_ok: bool, took: u64) {
        let over = Duration::from_nanos(took) > self.directory.settings.overrun;
        if over || !is_ok {
            {
                let counts = &mut self.state.borrow_mut().counts;
                counts.overrun += u64::from(over);
                counts.panicked += u64::from(!is_ok);
            }
            if over {
                self.note_overrun(took);
            }
        }
    }

    fn is_behind(&self) -> bool {
        self.state.borrow().wheel.is_behind() || self.has_work_left()
    }

    /// When the next turn is due; `None` if no timer or part wants a turn.
    pub(crate) fn next_deadline(&self) -> Option<Tick> {
        let next = {
            let state = self.state.borrow();
            let next = state.wheel.next_deadline().unwrap_or(Tick::NEVER);
            self.lanes_due().map_or(next, |due| next.min(due))
        };
        let next = next.min(self.next_look());
        let next = self.parts.fold(next, |next, part| next.min(part.next_turn()));
        Some(next).filter(|next| *next < Tick::NEVER)
    }
}

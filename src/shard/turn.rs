//! One turn of a shard; every driver takes turns by this function.

use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use corewheel_shard::{Budget, Choice, Expired, Tick};

use super::host::{Deliveries, Delivery, Values};
use super::lateness::TurnEnd;
use super::part::{Part, TurnTime};
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
    if !core.parts.none_turns() {
        core.begin_turn_of_parts(now);
    }
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
    let wanted = core.parts.wanted();
    let more = more_requests || wanted.has_work || core.is_behind();
    let next = core.next_deadline_but(wanted.turn_by);
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
    let mut delivering = Delivering::begin(core, time_max, max);
    while delivering.left > 0 {
        let (mut count, mut woken) = (1, None);
        let next = delivering.next(core);
        if matches!(next, Coming::Nothing) {
            break;
        }
        let Delivering { now, tick, wakes, .. } = &mut delivering;
        let is_ok = contain(core.id(), || match next {
            Coming::Timer(delivery) => host.deliver(delivery),
            Coming::Wakes => {
                count = wakes.len();
                woken = Some(core.wake_all(wakes, *now));
            }
            Coming::PartTimer(timer) => core.parts.expired(timer),
            Coming::Work(part) => {
                part.deliver(TurnTime { time: core.time(), nanos: *now, tick: *tick });
            }
            Coming::Nothing => {}
        });
        delivering.note(core, count, is_ok, woken);
    }
    delivering.end(core);
}

/// What a turn's deliveries keep for those of the next.
#[derive(Default)]
pub(super) struct Paused {
    /// The memory in which a turn keeps the futures that it wakes. Empty between turns.
    wakes: Vec<Wake>,
    /// Whether the last delivery was the work of a part, so that a timer is next.
    part_was_last: bool,
}

/// The deliveries of a turn.
struct Delivering {
    /// When the present delivery begins, in nanoseconds.
    now: u64,
    /// When `time_max` is used up, in nanoseconds.
    end: u64,
    is_timed: bool,
    /// The tick at the beginning.
    tick: Tick,
    /// How many more deliveries the budget allows.
    left: usize,
    /// How many of the next timers were read ahead.
    read_ahead: usize,
    /// Whether the last delivery was the work of a part, so that a timer is next.
    part_was_last: bool,
    /// The futures that are woken next.
    wakes: Vec<Wake>,
}

impl Delivering {
    fn begin<T: 'static>(core: &Core<T>, time_max: Option<Duration>, max: usize) -> Self {
        let now = core.nanos();
        let state = &mut *core.state();
        state.measured.times.deliver_from(now);
        Self {
            now,
            end: nanos_after(now, time_max.unwrap_or(Duration::MAX)),
            is_timed: time_max.is_some(),
            tick: core.time().floor(now),
            left: max,
            read_ahead: 0,
            part_was_last: state.paused.part_was_last,
            wakes: std::mem::take(&mut state.paused.wakes),
        }
    }

    /// Chooses what is delivered next. Timers and the work of parts are delivered alternately, so
    /// that neither delays the other.
    #[inline]
    fn next<T: 'static>(&mut self, core: &Core<T>) -> Coming<T> {
        if self.read_ahead == 0 {
            self.read_ahead = core.read_ahead();
        }
        let work = core.parts.delivering();
        if work.is_none() || self.part_was_last {
            // Any timer may be the last one if time is limited.
            let has_one = work.is_some() || self.is_timed;
            let wakes_max = if has_one { 1 } else { WAKES_MAX.min(self.left) };
            let timer = core.pop(self.now, wakes_max, &mut self.wakes);
            if !matches!(timer, Coming::Nothing) {
                self.part_was_last = false;
                return timer;
            }
        }
        let Some(part) = work else { return Coming::Nothing };
        self.part_was_last = true;
        core.deliver_as(ClassId::NONE);
        Coming::Work(part)
    }

    /// Notes `count` deliveries, of which the last has ended at `woken` if that is known.
    #[inline]
    fn note<T: 'static>(&mut self, core: &Core<T>, count: usize, is_ok: bool, woken: Option<u64>) {
        self.left -= count;
        self.read_ahead = self.read_ahead.saturating_sub(count);
        let after = core.nanos_near();
        core.note_delivery(is_ok, after.saturating_sub(woken.unwrap_or(self.now)));
        self.now = after;
        if after >= self.end {
            self.left = 0;
        }
    }

    fn end<T: 'static>(self, core: &Core<T>) {
        let state = &mut *core.state();
        state.paused.wakes = self.wakes;
        state.paused.part_was_last = self.part_was_last;
        let is_used_up = self.left == 0 || state.wheel.is_budget_used_up();
        state.measured.times.uses_budget_up = is_used_up;
    }
}

/// What a turn delivers next.
pub(super) enum Coming<T: 'static> {
    /// An expired timer with a payload of its own.
    Timer(Delivery<T>),
    /// The timers of futures, which `pop` has put into `wakes`.
    Wakes,
    /// A timer of a part, as [`PartId::with_index`](super::parts::PartId::with_index) puts it. Why
    /// not two fields: a short one has the compiler move all payloads in unaligned pieces, which
    /// wait for each other.
    PartTimer(u64),
    /// The work of a part.
    Work(Rc<dyn Part>),
    Nothing,
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
    fn pop(&self, now: u64, max: usize, wakes: &mut Vec<Wake>) -> Coming<T> {
        let state = &mut *self.state.borrow_mut();
        let Some((expired, carried)) = self.take_due(state, now, |_| true) else {
            return Coming::Nothing;
        };
        if let Stored::Slot(..) = expired.payload {
            let is_future = |payload: &Stored<T>| matches!(payload, Stored::Slot(..));
            let mut next = Some((expired, carried));
            while let Some((Expired { key, deadline, .. }, carried)) = next {
                let class = state.measured.classes.take(key.index());
                wakes.push(Wake::new(carried, key, self.time().start_of(deadline), class));
                let has_room = wakes.len() < max;
                next = has_room.then(|| self.take_due(state, now, is_future)).flatten();
            }
            return Coming::Wakes;
        }
        let class = state.measured.classes.take(expired.key.index());
        let deadline = self.time().start_of(expired.deadline);
        let late = now.saturating_sub(deadline);
        self.begin_delivery_of(state, class, Some(expired.key), late, || now);
        if let Stored::Part(part, index) = expired.payload {
            return Coming::PartTimer(part.with_index(index));
        }
        // A shutdown that fires all timers must not report a future's timeout as elapsed early.
        let payload = expired.payload.expire(&mut state.tables, now < deadline);
        let (timer, lateness) = (self.timer_of(expired.key), Duration::from_nanos(late));
        Coming::Timer(Delivery { timer, deadline, lateness, payload })
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

    /// Counts a delivery that has panicked (`!is_ok`) or that took too long; `took` is in
    /// nanoseconds.
    #[inline]
    pub(super) fn note_delivery(&self, is_ok: bool, took: u64) {
        let over = Duration::from_nanos(took) > self.directory.settings.overrun;
        if over || !is_ok {
            {
                let counts = &mut self.state.borrow_mut().measured.counts;
                counts.overrun += u64::from(over);
                counts.panicked += u64::from(!is_ok);
            }
            if over {
                self.note_overrun(took);
            }
        }
    }

    fn begin_turn_of_parts(&self, now: u64) {
        self.parts.forget_left();
        let turn = TurnTime { time: self.time(), nanos: now, tick: self.time().floor(now) };
        self.parts.each(|_, part| {
            part.turn_begins(turn);
            true
        });
    }

    /// Whether the wheel, or a command, has left work for a turn that follows at once.
    fn is_behind(&self) -> bool {
        let state = self.state.borrow();
        state.wheel.is_behind() || state.left.has_effects()
    }

    /// When the next turn is due; `None` if no timer or part wants a turn.
    pub(crate) fn next_deadline(&self) -> Option<Tick> {
        self.next_deadline_but(self.parts.wanted().turn_by)
    }

    /// When the next turn is due, if parts want one by `turn_by`.
    fn next_deadline_but(&self, turn_by: Tick) -> Option<Tick> {
        let next = {
            let state = self.state.borrow();
            let next = state.wheel.next_deadline().unwrap_or(Tick::NEVER);
            self.lanes_due().map_or(next, |due| next.min(due))
        };
        let next = next.min(self.next_look());
        Some(next.min(turn_by)).filter(|next| *next < Tick::NEVER)
    }
}

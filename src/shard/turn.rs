//! One turn of a shard; every driver takes turns by this function.

use std::rc::Rc;
use std::time::Duration;

use corewheel_shard::{Budget, Tick};

use super::host::{Deliveries, Delivery, Values};
use super::lateness::TurnEnd;
use super::part::{Part, TurnTime};
use super::shutdown::shut_down;
use super::stored::Stored;
use super::{Core, State};
use crate::clock::nanos_after;
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

/// Takes a turn: begin, take mail and run its callbacks, receive requests, look for room for timers
/// of threads. Then the turn shuts down if a shutdown order has come, advances the wheel, delivers
/// and acts for threads, publishes, and says when the next turn is due. The order never changes,
/// and each step keeps to its budget. No timer that is due after `last` is delivered.
///
/// Expired timers are delivered with nothing borrowed, one at a time, so every callback sees the
/// shard as it is. Those of futures are taken from their threads some at a time.
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
    let last = core.time().floor(now).min(last);
    core.advance(last, budget.of_wheel());
    deliver(core, host, last, budget.time_max, budget.expired_max as usize);
    let wanted = core.parts.wanted();
    let more = more_requests || wanted.has_work || core.is_behind(last);
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

/// Acts for the threads that need it by the tick `last`, and delivers expired timers and the work
/// of parts, until `max` deliveries or `time_max` are used up. A turn that has used them up has the
/// next one begin with the other of the two.
pub(super) fn deliver<T: 'static>(
    core: &Core<T>,
    host: &mut Deliveries<'_, T, impl Values<T>>,
    last: Tick,
    time_max: Option<Duration>,
    max: usize,
) {
    let mut delivering = Delivering::begin(core, time_max, max);
    let threads_last = delivering.paused.threads_last;
    if !threads_last {
        delivering.act_for_threads(core, last);
    }
    delivering.deliver_here(core, host);
    if threads_last {
        delivering.act_for_threads(core, last);
    }
    delivering.end(core);
}

/// What a turn's deliveries keep for those of the next.
#[derive(Clone, Copy, Default)]
pub(super) struct Paused {
    /// Whether the last delivery was the work of a part, so that a timer is next.
    part_was_last: bool,
    /// Whether the timers of threads come after those of the wheel.
    threads_last: bool,
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
    paused: Paused,
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
            paused: state.paused,
        }
    }

    /// Acts for one thread after another.
    fn act_for_threads<T: 'static>(&mut self, core: &Core<T>, last: Tick) {
        while self.left > 0 {
            // Any timer may be the last one if time is limited.
            let max = if self.is_timed { 1 } else { self.left };
            let (count, now) = core.act_for_thread(last, self.now, max);
            if count == 0 {
                return;
            }
            self.note(count, now);
        }
    }

    /// Delivers the timers of the wheel and the work of parts alternately, so that neither delays
    /// the other.
    fn deliver_here<T: 'static>(
        &mut self,
        core: &Core<T>,
        host: &mut Deliveries<'_, T, impl Values<T>>,
    ) {
        while self.left > 0 {
            let next = self.next(core);
            if matches!(next, Coming::Nothing) {
                return;
            }
            let Self { now, tick, .. } = *self;
            let is_ok = contain(core.id(), || match next {
                Coming::Timer(delivery) => host.deliver(delivery),
                Coming::PartTimer(timer) => core.parts.expired(timer),
                Coming::Work(part) => {
                    part.deliver(TurnTime { time: core.time(), nanos: now, tick });
                }
                Coming::Nothing => {}
            });
            let after = core.nanos_near();
            core.note_delivery(is_ok, after.saturating_sub(now));
            self.note(1, after);
        }
    }

    /// Chooses what of the wheel and of parts is delivered next.
    #[inline]
    fn next<T: 'static>(&mut self, core: &Core<T>) -> Coming<T> {
        let work = core.parts.delivering();
        if work.is_none() || self.paused.part_was_last {
            let timer = core.pop(self.now);
            if !matches!(timer, Coming::Nothing) {
                self.paused.part_was_last = false;
                return timer;
            }
        }
        let Some(part) = work else { return Coming::Nothing };
        self.paused.part_was_last = true;
        core.deliver_as(ClassId::NONE);
        Coming::Work(part)
    }

    /// Notes `count` deliveries, of which the last has ended at `after`.
    #[inline]
    fn note(&mut self, count: usize, after: u64) {
        self.now = after;
        self.left = if after < self.end { self.left.saturating_sub(count) } else { 0 };
    }

    fn end<T: 'static>(mut self, core: &Core<T>) {
        let state = &mut *core.state();
        state.settle_all();
        self.paused.threads_last = self.left == 0 && !self.paused.threads_last;
        state.paused = self.paused;
        let is_used_up = self.left == 0 || state.wheel.is_budget_used_up();
        state.measured.times.uses_budget_up = is_used_up;
    }
}

/// What a turn delivers next.
enum Coming<T: 'static> {
    /// An expired timer with a payload of its own.
    Timer(Delivery<T>),
    /// A timer of a part, as [`PartId::with_index`](super::part::PartId::with_index) puts it. Why
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

    /// Takes the next expired timer out, for a delivery at `now`.
    #[inline]
    fn pop(&self, now: u64) -> Coming<T> {
        let state = &mut *self.state.borrow_mut();
        let is_closed = self.is_closed();
        let expired = state.wheel.pop_expired_unless(|payload| match *payload {
            Stored::Part(part, index) if !is_closed => self.parts.postpone(part, index),
            _ => None,
        });
        let Some(expired) = expired else { return Coming::Nothing };
        let class = state.measured.classes.take(expired.key.index());
        let deadline = self.time().start_of(expired.deadline);
        let late = now.saturating_sub(deadline);
        self.begin_delivery_of(state, class, Some(expired.key), late, || now);
        if let Stored::Part(part, index) = expired.payload {
            return Coming::PartTimer(part.with_index(index));
        }
        let payload = expired.payload.take(&mut state.calls);
        let (timer, lateness) = (self.timer_of(expired.key), Duration::from_nanos(late));
        Coming::Timer(Delivery { timer, deadline, lateness, payload })
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

    /// Whether the wheel, a thread or a command has left work for a turn that follows at once.
    fn is_behind(&self, last: Tick) -> bool {
        let State { wheel, left, nurseries, .. } = &*self.state.borrow();
        let has_act = || nurseries.act_by() <= self.time().start_of(last);
        wheel.is_behind() || left.has_effects() || has_act()
    }

    /// When the next turn is due; `None` if no timer or part wants a turn.
    pub(crate) fn next_deadline(&self) -> Option<Tick> {
        self.next_deadline_but(self.parts.wanted().turn_by)
    }

    /// When the next turn is due, if parts want one by `turn_by`.
    fn next_deadline_but(&self, turn_by: Tick) -> Option<Tick> {
        let lanes_due = self.lanes_due().unwrap_or(Tick::NEVER);
        let State { wheel, nurseries, .. } = &mut *self.state.borrow_mut();
        nurseries.refresh();
        let next_act = self.time().ceil(nurseries.act_by());
        let next = wheel.next_deadline().map_or(next_act, |next| next.min(next_act)).min(lanes_due);
        Some(next.min(turn_by)).filter(|next| *next < Tick::NEVER)
    }
}

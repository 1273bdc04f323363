//! Delivers what is due in a turn: values to the handler, callbacks by calling them, the timers and
//! the work of parts, and wakes for futures. It runs code of the user, with nothing borrowed
//! but in [`Part::postpone`].

use std::rc::Rc;
use std::time::Duration;

use corewheel_shard::Tick;

use super::core::{Core, Paused};
use super::handler::{Fired, Handler};
use super::part::Part;
use super::stored::Stored;
use super::timers::{Payload, SendCall, Taken, Timers};
use crate::clock::nanos_after;
use crate::values::class::ClassId;
use crate::values::contain::Contained;
use crate::values::ids::TimerId;

/// An expired timer.
pub(super) struct Delivery<T: 'static> {
    pub(super) timer: TimerId,
    /// The deadline, rounded up to a tick, in nanoseconds.
    pub(super) deadline: u64,
    pub(super) lateness: Duration,
    pub(super) payload: Taken<T>,
}

/// The timers of a shard and the handler of its values, for the length of a turn.
pub(crate) struct Deliveries<'a, T: 'static, H> {
    pub(crate) timers: &'a Timers<T>,
    /// Dropped with its panic caught, since some executors end with a panic, or abort the process.
    pub(crate) handler: &'a mut Contained<H>,
}

impl<T: 'static, H: Handler<T>> Deliveries<'_, T, H> {
    #[inline]
    pub(super) fn deliver(&mut self, delivery: Delivery<T>) {
        let Self { timers, handler } = self;
        let Delivery { timer, deadline, lateness, payload } = delivery;
        match payload {
            Payload::Value(payload) => {
                let deadline = timers.core().time().instant_of(deadline);
                handler.get_mut()(Fired { timer, deadline, lateness, payload }, timers);
            }
            Payload::Callback(call) => call.run(timers),
            Payload::Local => {}
        }
    }

    /// Runs a callback of the mail, which has no timer.
    pub(super) fn run(&mut self, call: SendCall<T>) {
        call(self.timers);
    }

    /// Called during a shutdown, after the last timer was delivered.
    pub(super) fn closing(&mut self) {
        drop(self.handler.take());
    }
}

/// Acts for the threads that need it by the tick `last`, and delivers expired timers and the work
/// of parts, until `max` deliveries or `time_max` are used up. A turn that has used them up has the
/// next one begin with the other of the two.
pub(super) fn deliver<T: 'static>(
    core: &Core<T>,
    host: &mut Deliveries<'_, T, impl Handler<T>>,
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

/// The deliveries of a turn.
struct Delivering {
    /// When the present delivery begins, in nanoseconds.
    now: u64,
    /// When `time_max` is used up, in nanoseconds.
    end: u64,
    is_timed: bool,
    /// How many more deliveries the budget allows.
    left: usize,
    paused: Paused,
}

impl Delivering {
    fn begin<T: 'static>(core: &Core<T>, time_max: Option<Duration>, max: usize) -> Self {
        let now = core.nanos();
        core.parts.ask_again();
        let state = &mut *core.state.borrow_mut();
        state.measured.times.delivers_since = now;
        Self {
            now,
            end: nanos_after(now, time_max.unwrap_or(Duration::MAX)),
            is_timed: time_max.is_some(),
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
        host: &mut Deliveries<'_, T, impl Handler<T>>,
    ) {
        while self.left > 0 {
            let next = self.next(core);
            let now = self.now;
            match next {
                Coming::Timer(delivery) => core.contain(|| host.deliver(delivery)),
                Coming::PartTimer(timer) => core.contain(|| core.parts.expired(timer)),
                Coming::Work(part) => core.contain(|| part.deliver(Duration::from_nanos(now))),
                Coming::Nothing => return,
            };
            let after = core.nanos_near();
            core.note_delivery(after.saturating_sub(now));
            self.note(1, after);
        }
    }

    /// Chooses what of the wheel and of parts is delivered next.
    #[inline]
    fn next<T: 'static>(&mut self, core: &Core<T>) -> Coming<T> {
        let mut work = core.parts.delivering();
        if work.is_none() || self.paused.part_was_last {
            // Not after: no other code runs between a timer of a part and its call.
            core.parts.drop_ownerless();
            let timer = core.pop(self.now);
            if !matches!(timer, Coming::Nothing) {
                self.paused.part_was_last = false;
                return timer;
            }
            work = work.or_else(|| core.parts.find_delivering());
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
        let state = &mut *core.state.borrow_mut();
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
        let of = (class, Some(expired.key));
        state.measured.begin_delivery(of, late, self.time(), || now);
        if let Stored::Part(part, index) = expired.payload {
            return Coming::PartTimer(part.with_index(index));
        }
        let payload = expired.payload.take(&mut state.calls);
        let (timer, lateness) = (self.timer_of(expired.key), Duration::from_nanos(late));
        Coming::Timer(Delivery { timer, deadline, lateness, payload })
    }
}

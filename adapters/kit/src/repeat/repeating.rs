//! A periodic callback on its shard: a part of the shard, with the timer of the next run.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use corewheel::clock::Clock;
use corewheel::part::{Part, PartHandle, PartSender, PartTimer};
use corewheel::{Deadline, RefusedCall, RefusedKind, Timers, When};

use super::options::{Body, Pattern, later};
use super::{Periodic, PeriodicRun};

/// What a periodic callback shares with its handles and its runs.
pub(super) struct State {
    /// It will not run again.
    pub(super) is_over: Cell<bool>,
    /// The timer of the next run; `None` while the plan has no next run, and when it is over.
    timer: Cell<Option<PartTimer>>,
    /// When the next run is due, and the instant that its timer aims at: later by the jitter.
    due: Cell<Instant>,
    aim: Cell<Instant>,
    pub(super) runs: Cell<u64>,
    pub(super) missed: Cell<u64>,
}

/// A periodic callback of any type, on its shard.
pub(super) trait OnShard {
    fn state(&self) -> &State;
    /// Frees the timer of the next run and, if no run is on the stack, drops the callback.
    fn end(&self);
}

/// A periodic callback, which is a part of its shard.
pub(crate) struct Repeating<T: Send + 'static, F> {
    state: State,
    shard: PartHandle,
    /// The shard's timers, of no class, for the runs.
    timers: Timers<T>,
    clock: Clock,
    /// `None` when it has ended.
    body: RefCell<Option<Body<F>>>,
    /// Itself, until it has ended, so that it goes on without a handle.
    own: Cell<Option<Rc<Self>>>,
}

impl<T, F> Repeating<T, F>
where
    T: Send + 'static,
    F: FnMut(&mut PeriodicRun<'_, T>) + 'static,
{
    /// Begins a callback whose first run is due at `first`.
    pub(crate) fn begin<W: When>(
        timers: &Timers<T>,
        first: W,
        mut body: Body<F>,
    ) -> Result<Periodic, RefusedCall<F>> {
        let due = timers.handle().instant_of(first);
        let aim = timers.handle().clock().after(due, later(&mut body.jitter));
        let repeating = Self::add(timers, (due, aim), body);
        let deadline = repeating.deadline(aim, timers.now());
        if let Err(kind) = repeating.arm(deadline) {
            repeating.own.take();
            let body = repeating.body.take().expect("the callback has not run");
            let Body { call, pattern, .. } = body;
            repeating.shard.contain(|| drop(pattern));
            return Err(kind.of(call).into());
        }
        Ok(Periodic { repeating })
    }

    /// A part of the shard for a callback whose first run is due and aims at these instants.
    pub(super) fn add(
        timers: &Timers<T>,
        (due, aim): (Instant, Instant),
        body: Body<F>,
    ) -> Rc<Self> {
        let state = State {
            is_over: Cell::new(false),
            timer: Cell::new(None),
            due: Cell::new(due),
            aim: Cell::new(aim),
            runs: Cell::new(0),
            missed: Cell::new(0),
        };
        let repeating = timers.add_part(|shard| Self {
            state,
            shard,
            timers: timers.with_class_of(timers.handle()),
            clock: timers.handle().clock(),
            body: RefCell::new(Some(body)),
            own: Cell::new(None),
        });
        repeating.own.set(Some(Rc::clone(&repeating)));
        repeating
    }

    pub(super) fn sender(&self) -> PartSender<Self> {
        self.shard.sender()
    }

    /// Its timer has fired. Runs the callback, and ends it if it will not run again.
    pub(super) fn run(&self) {
        self.state.timer.set(None);
        if let Some(body) = &mut *self.body.borrow_mut() {
            self.run_once(body);
        }
        if self.state.is_over.get() || self.state.timer.get().is_none() {
            self.end();
        }
    }

    fn run_once(&self, body: &mut Body<F>) {
        let (state, timers) = (&self.state, &self.timers);
        let due = state.due.get();
        let missed = self.arm_next(body, due, timers.now());
        state.runs.set(state.runs.get() + 1);
        let mut run = PeriodicRun { timers, state, due, missed };
        self.shard.contain(|| (body.call)(&mut run));
        if let Pattern::Delay(delay) = body.pattern {
            let now = timers.now();
            self.reset(body, self.clock.after(now, delay), now);
        }
    }

    /// Schedules the timer of the next run before this run, so that there is room for it. Returns
    /// how many periods are left out.
    fn arm_next(&self, body: &mut Body<F>, due: Instant, now: Instant) -> u64 {
        let state = &self.state;
        match &mut body.pattern {
            Pattern::Rate(period, behavior) => {
                let late = now.saturating_duration_since(state.aim.get());
                let (next, missed) = behavior.next_tick(&self.clock, due, (now, late), *period);
                state.missed.set(state.missed.get().saturating_add(missed));
                let deadline = self.aim_at(body, next, now);
                self.arm_again(deadline);
                return missed;
            }
            // It is reset at the end of the run, to a later deadline.
            Pattern::Delay(delay) => {
                self.arm_again(self.shard.deadline(self.clock.after(now, *delay)));
            }
            Pattern::Plan(next) => {
                // Keeps the room while the plan is called.
                self.arm_again(self.shard.deadline(Duration::ZERO));
                let mut planned = None;
                self.shard.contain(|| planned = next(due));
                match planned {
                    Some(next) => self.reset(body, next, now),
                    None => self.disarm(),
                }
            }
        }
        0
    }

    /// Notes when the next run is due, and returns its deadline.
    fn aim_at(&self, body: &mut Body<F>, due: Instant, now: Instant) -> Deadline {
        let aim = self.clock.after(due, later(&mut body.jitter));
        self.state.due.set(due);
        self.state.aim.set(aim);
        self.deadline(aim, now)
    }

    /// The deadline of a run that aims at an instant, which may have passed.
    fn deadline(&self, aim: Instant, now: Instant) -> Deadline {
        if aim <= now { self.shard.deadline(Duration::ZERO) } else { self.shard.deadline(aim) }
    }

    fn arm(&self, deadline: Deadline) -> Result<(), RefusedKind> {
        let timer = self.shard.schedule(deadline, 0)?;
        self.state.timer.set(Some(timer));
        Ok(())
    }

    /// Schedules the timer of a later run. The slot of the timer that has just fired is free for
    /// it, unless the shard is closed or that slot's generations are used up.
    fn arm_again(&self, deadline: Deadline) {
        if self.arm(deadline).is_err() && !self.shard.is_closed() {
            let shard = self.shard.shard_id().number();
            tracing::error!(
                name: "repeat-without-timer",
                target: "corewheel::kit",
                shard, "a periodic callback ends for want of a timer"
            );
        }
    }

    /// Makes the next run due at another instant, unless it has no timer.
    fn reset(&self, body: &mut Body<F>, due: Instant, now: Instant) {
        if let Some(timer) = self.state.timer.get() {
            let deadline = self.aim_at(body, due, now);
            self.shard.reset(timer, deadline);
        }
    }
}

impl<T: Send + 'static, F> Repeating<T, F> {
    fn disarm(&self) {
        if let Some(timer) = self.state.timer.take() {
            self.shard.cancel(timer);
        }
    }
}

impl<T: Send + 'static, F> OnShard for Repeating<T, F> {
    fn state(&self) -> &State {
        &self.state
    }

    fn end(&self) {
        // Handles show it before what the callback holds is dropped.
        self.state.is_over.set(true);
        self.disarm();
        let body = self.body.try_borrow_mut().ok().and_then(|mut body| body.take());
        if let Some(Body { call, pattern, .. }) = body {
            self.shard.contain(|| drop(call));
            self.shard.contain(|| drop(pattern));
            drop(self.own.take());
        }
    }
}

impl<T, F> Part for Repeating<T, F>
where
    T: Send + 'static,
    F: FnMut(&mut PeriodicRun<'_, T>) + 'static,
{
    fn expired(self: Rc<Self>, _index: u32) {
        self.run();
    }

    fn closed(&self, _is_dead: bool) {
        self.end();
    }
}

//! A periodic callback on its shard: a part of the shard, with the timer of the next run.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use corewheel::clock::Clock;
use corewheel::part::{Part, PartHandle, PartTimer};
use corewheel::{Deadline, RefusedCall, RefusedKind, Timers, When};

use super::options::{Body, Pattern};
use super::phase::Own;
use super::{Periodic, PeriodicRun};

/// What a periodic callback shares with its handles and its runs.
pub(super) struct State {
    pub(super) shared: Own,
    /// The timer of the next run; `None` while the plan has no next run, and when it is over.
    timer: Cell<Option<PartTimer>>,
    /// When the next run is due, and the instant that its timer aims at: later by the jitter.
    pub(super) due: Cell<Instant>,
    aim: Cell<Instant>,
    pub(super) runs: Cell<u64>,
    pub(super) missed: Cell<u64>,
    pub(super) panicked: Cell<u64>,
    pub(super) ends_on_panic: Cell<bool>,
}

/// A periodic callback of any type, on its shard.
pub(super) trait OnShard {
    fn state(&self) -> &State;
    /// Frees the timer of the next run and, if no run is on the stack, drops the callback.
    fn end(&self);
}

/// A periodic callback, which is a part of its shard.
pub(crate) struct Repeating<T: Send + 'static, F, N> {
    state: State,
    shard: PartHandle,
    /// The shard's timers, of no class, for the runs.
    timers: Timers<T>,
    clock: Clock,
    /// `None` when it has ended.
    body: RefCell<Option<Body<F, N>>>,
    /// Itself, until it has ended, so that it goes on without a handle.
    own: Cell<Option<Rc<Self>>>,
}

impl<T, F, N> Repeating<T, F, N>
where
    T: Send + 'static,
    F: FnMut(&mut PeriodicRun<'_, T>) + 'static,
    N: FnMut(Instant) -> Option<Instant> + 'static,
{
    /// Begins a callback whose first run is due at `first`.
    pub(crate) fn begin<W: When>(
        timers: &Timers<T>,
        first: W,
        mut body: Body<F, N>,
    ) -> Result<Periodic, RefusedCall<F>> {
        let handle = timers.handle();
        let (clock, due) = (handle.clock(), handle.instant_of(first));
        let aim = body.aim(&clock, due);
        let slack = body.slack;
        let repeating = Self::add(timers, body, clock, (due, aim), Own::new(false));
        let deadline = repeating.deadline(aim, repeating.timers.now(), slack);
        if let Err(kind) = repeating.arm(deadline) {
            let body = repeating.body.take().expect("the callback has not run");
            return Err(kind.of(body.call).into());
        }
        repeating.own.set(Some(Rc::clone(&repeating)));
        Ok(Periodic { repeating })
    }

    /// Begins a callback that has come from another thread, with its first run.
    pub(super) fn begin_now(
        timers: &Timers<T>,
        body: Body<F, N>,
        clock: Clock,
        instants: (Instant, Instant),
        shared: Own,
    ) {
        let repeating = Self::add(timers, body, clock, instants, shared);
        let sender = repeating.shard.sender::<Self>();
        // If the shard has ended, so has the callback.
        let free = Box::new(move || {
            let _ = sender.send((), |stopped: Rc<Self>, ()| stopped.end());
        });
        repeating.state.shared.free.get_or_init(|| free);
        repeating.own.set(Some(Rc::clone(&repeating)));
        repeating.run();
    }

    /// A part of the shard for a callback whose first run is due and aims at these instants.
    fn add(
        timers: &Timers<T>,
        body: Body<F, N>,
        clock: Clock,
        (due, aim): (Instant, Instant),
        shared: Own,
    ) -> Rc<Self> {
        let state = State {
            shared,
            timer: Cell::new(None),
            due: Cell::new(due),
            aim: Cell::new(aim),
            runs: Cell::new(0),
            missed: Cell::new(0),
            panicked: Cell::new(0),
            ends_on_panic: Cell::new(body.ends_on_panic),
        };
        timers.add_part(|shard| Self {
            state,
            shard,
            timers: timers.with_class_of(timers.handle()),
            clock,
            body: RefCell::new(Some(body)),
            own: Cell::new(None),
        })
    }

    /// Its timer has fired.
    fn run(&self) {
        if !self.run_once() {
            self.end();
        }
    }

    /// Runs the callback, unless it must not run. False if it will not run again.
    fn run_once(&self) -> bool {
        let (state, timers) = (&self.state, &self.timers);
        state.timer.set(None);
        let mut body = self.body.borrow_mut();
        let Some(body) = &mut *body else { return false };
        if !state.shared.begin() {
            return false;
        }
        let (due, now) = (state.due.get(), timers.now());
        let mut run = PeriodicRun { timers, state, due, now, next_due: None, missed: 0 };
        self.arm_next(body, &mut run);
        state.runs.set(state.runs.get() + 1);
        let calm = self.shard.contain(|| (body.call)(&mut run));
        if !calm && state.ends_on_panic.get() {
            run.stop();
        }
        state.note_panic(calm);
        if let Pattern::Delay(delay) = *body.pattern.get_mut() {
            if state.timer.get().is_some() {
                let now = timers.now();
                let deadline = self.aim_at(body, self.clock.after(now, delay), now);
                self.reset(deadline);
            }
        }
        state.timer.get().is_some() && state.shared.rest()
    }

    /// Schedules the timer of the next run before this run, so that there is room for it.
    fn arm_next(&self, body: &mut Body<F, N>, run: &mut PeriodicRun<'_, T>) {
        let (state, due, now) = (&self.state, run.due, run.now);
        match body.pattern.get_mut() {
            Pattern::Rate { period, behavior } => {
                let late = now.saturating_duration_since(state.aim.get());
                let (next, missed) = behavior.next_tick(&self.clock, due, (now, late), *period);
                run.missed = missed;
                state.missed.set(state.missed.get().saturating_add(missed));
                run.next_due = Some(next);
                let deadline = self.aim_at(body, next, now);
                self.arm_again(deadline);
            }
            Pattern::Delay(delay) => {
                // It is reset at the end of the run, to a later deadline.
                let next = self.clock.after(now, *delay);
                self.arm_again(self.shard.deadline(next));
            }
            Pattern::Plan(next) => {
                // Keeps the room while the plan is called.
                self.arm_again(self.shard.deadline(Duration::ZERO));
                state.note_panic(self.shard.contain(|| run.next_due = next(due)));
                match run.next_due {
                    Some(next) => {
                        let deadline = self.aim_at(body, next, now);
                        self.reset(deadline);
                    }
                    None => state.disarm(&self.shard),
                }
            }
        }
        if state.timer.get().is_none() {
            run.next_due = None;
        }
    }

    /// Notes when the next run is due, and returns its deadline.
    fn aim_at(&self, body: &mut Body<F, N>, due: Instant, now: Instant) -> Deadline {
        let aim = body.aim(&self.clock, due);
        self.state.due.set(due);
        self.state.aim.set(aim);
        self.deadline(aim, now, body.slack)
    }

    /// The deadline of a run that aims at an instant, which may have passed.
    fn deadline(&self, aim: Instant, now: Instant, slack: Duration) -> Deadline {
        let earliest =
            if aim <= now { self.shard.deadline(Duration::ZERO) } else { self.shard.deadline(aim) };
        if slack.is_zero() {
            return earliest;
        }
        let left = aim.checked_add(slack).map_or(Duration::MAX, |latest| {
            latest.saturating_duration_since(self.shard.instant_of(earliest))
        });
        self.timers.deadline_with_slack(earliest, left)
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

    fn reset(&self, deadline: Deadline) {
        if let Some(timer) = self.state.timer.get() {
            self.shard.reset(timer, deadline);
        }
    }
}

impl<T: Send + 'static, F, N> OnShard for Repeating<T, F, N> {
    fn state(&self) -> &State {
        &self.state
    }

    fn end(&self) {
        // Handles show it before what the callback holds is dropped.
        self.state.shared.end();
        self.state.disarm(&self.shard);
        let body = self.body.try_borrow_mut().ok().and_then(|mut body| body.take());
        if let Some(Body { call, mut pattern, .. }) = body {
            self.state.note_panic(self.shard.contain(|| drop(call)));
            self.state.note_panic(self.shard.contain(|| drop(pattern.take())));
        }
        drop(self.own.take());
    }
}

impl<T, F, N> Part for Repeating<T, F, N>
where
    T: Send + 'static,
    F: FnMut(&mut PeriodicRun<'_, T>) + 'static,
    N: FnMut(Instant) -> Option<Instant> + 'static,
{
    fn expired(self: Rc<Self>, _index: u32) {
        self.run();
    }

    fn closed(&self, _is_dead: bool) {
        self.end();
    }
}

impl State {
    fn disarm(&self, shard: &PartHandle) {
        if let Some(timer) = self.timer.take() {
            shard.cancel(timer);
        }
    }

    /// Counts a panic of the callback or its plan.
    fn note_panic(&self, calm: bool) {
        if !calm {
            self.panicked.set(self.panicked.get() + 1);
        }
    }
}

//! A callback that runs again and again, on its shard: its runs, and the timer of the next one.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use corewheel_shard::{Tick, TimerKey};

use super::PeriodicRun;
use super::options::{Body, Pattern};
use super::remote::EndedOnDrop;
use crate::face::timers::Timers;
use crate::kit::herd::slacken;
use crate::kit::interval::next_tick;
use crate::shard::Core;
use crate::shard::timers::RepeatedCall;
use crate::values::class::ClassId;

type WeakCall<T> = Weak<dyn Fn(&Timers<T>)>;

/// What a periodic callback shares with its handles and its runs.
pub(super) struct State {
    phase: Cell<Phase>,
    /// The timer of the next run; `None` while the plan has no next run, and when it is over.
    timer: Cell<Option<TimerKey>>,
    /// When the next run is due, and the instant that its timer aims at: later by the jitter.
    due: Cell<Instant>,
    aim: Cell<Instant>,
    runs: Cell<u64>,
    missed: Cell<u64>,
    panicked: Cell<u64>,
    ends_on_panic: Cell<bool>,
    /// `None` if the callback was not sent from another thread.
    stop_flag: Option<EndedOnDrop>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Waits,
    Runs,
    /// Runs for the last time.
    Stopping,
    Over,
}

/// A periodic callback of any type, on its shard.
pub(super) trait OnShard {
    fn state(&self) -> &State;
    /// Cancels the timer of the next run. If no run is on the stack, that drops the callback.
    fn disarm(&self);
}

impl<T: Send + 'static, F, N> OnShard for (Timers<T>, Rc<Repeating<T, F, N>>) {
    fn state(&self) -> &State {
        &self.1.state
    }

    fn disarm(&self) {
        self.1.state.disarm(self.0.core());
    }
}

pub(super) struct Repeating<T: 'static, F, N> {
    state: State,
    class: ClassId,
    /// What the timers call. It keeps the callback alive, and not the other way round.
    call: OnceCell<WeakCall<T>>,
    /// `None` when it has ended.
    body: RefCell<Option<Body<F, N>>>,
}

/// Ends the callback when the last of its timers is gone.
struct Owner<T: 'static, F, N>(Rc<Repeating<T, F, N>>);

impl<T: 'static, F, N> Drop for Owner<T, F, N> {
    fn drop(&mut self) {
        self.0.state.end();
        drop(self.0.take_body());
    }
}

/// The deadline of a run that aims at an instant, which may have passed.
pub(super) fn deadline<T: Send + 'static>(
    core: &Core<T>,
    aim: Instant,
    now: Instant,
    slack: Duration,
) -> Tick {
    let earliest = if aim <= now { core.tick_of(Duration::ZERO) } else { core.tick_of(aim) };
    if slack.is_zero() {
        return earliest;
    }
    slacken(core.time(), earliest, core.time().nanos_at(aim), slack)
}

impl<T: 'static, F, N> Repeating<T, F, N> {
    /// Takes the callback out. `None` if it runs, or has ended.
    pub(super) fn take_body(&self) -> Option<Body<F, N>> {
        self.body.try_borrow_mut().ok()?.take()
    }
}

impl<T, F, N> Repeating<T, F, N>
where
    T: Send + 'static,
    F: FnMut(&mut PeriodicRun<'_, T>) + 'static,
    N: FnMut(Instant) -> Option<Instant> + 'static,
{
    /// A callback whose first run is due and aims at these instants, and what its timers call.
    pub(super) fn new(
        body: Body<F, N>,
        class: ClassId,
        (due, aim): (Instant, Instant),
        stop_flag: Option<EndedOnDrop>,
    ) -> (Rc<Self>, RepeatedCall<T>) {
        let state = State {
            phase: Cell::new(Phase::Waits),
            timer: Cell::new(None),
            due: Cell::new(due),
            aim: Cell::new(aim),
            runs: Cell::new(0),
            missed: Cell::new(0),
            panicked: Cell::new(0),
            ends_on_panic: Cell::new(body.ends_on_panic),
            stop_flag,
        };
        let (call, body) = (OnceCell::new(), RefCell::new(Some(body)));
        let repeating = Rc::new(Self { state, class, call, body });
        let owner = Owner(Rc::clone(&repeating));
        let call: RepeatedCall<T> = Rc::new(move |timers| {
            let owner = &owner;
            owner.0.run(timers);
        });
        repeating.call.set(Rc::downgrade(&call)).expect("it is set here alone");
        (repeating, call)
    }

    /// Its timer has fired.
    fn run(&self, timers: &Timers<T>) {
        let (state, core) = (&self.state, timers.core());
        state.timer.set(None);
        // It is borrowed only by a run further up the stack.
        let Ok(mut body) = self.body.try_borrow_mut() else { return };
        let Some(body) = &mut *body else { return };
        if !state.begin() {
            return;
        }
        let (due, now) = (state.due.get(), timers.now());
        let mut run = PeriodicRun { timers, state, due, now, next_due: None, missed: 0 };
        self.arm_next(body, &mut run);
        state.runs.set(state.runs.get() + 1);
        let calm = core.contain(|| (body.call)(&mut run));
        state.note_panic(calm);
        if !calm && state.ends_on_panic.get() {
            state.phase.set(Phase::Stopping);
        }
        if let Pattern::Delay(delay) = *body.pattern.get_mut() {
            if state.timer.get().is_some() {
                let now = timers.now();
                let next = core.time().clock().after(now, delay);
                let deadline = state.aim_at(core, body, next, now);
                state.reset(core, deadline);
            }
        }
        state.rest(core);
    }

    /// Schedules the timer of the next run before this run, so that there is room for it.
    fn arm_next(&self, body: &mut Body<F, N>, run: &mut PeriodicRun<'_, T>) {
        let (state, core, due, now) = (&self.state, run.timers.core(), run.due, run.now);
        let clock = core.time().clock();
        match body.pattern.get_mut() {
            Pattern::Rate { period, behavior } => {
                let late = now.saturating_duration_since(state.aim.get());
                let next = next_tick(clock, due, (now, late), *period, *behavior);
                run.missed = next.missed;
                state.missed.set(state.missed.get().saturating_add(next.missed));
                run.next_due = Some(next.due);
                let deadline = state.aim_at(core, body, next.due, now);
                self.arm_again(core, deadline);
            }
            Pattern::Delay(delay) => {
                // It is reset at the end of the run, to a later deadline.
                let next = clock.after(now, *delay);
                self.arm_again(core, core.tick_of(next));
            }
            Pattern::Plan(next) => {
                // Keeps the room while the plan is called.
                self.arm_again(core, core.tick_of(Duration::ZERO));
                state.note_panic(core.contain(|| run.next_due = next(due)));
                match run.next_due {
                    Some(next) => {
                        let deadline = state.aim_at(core, body, next, now);
                        state.reset(core, deadline);
                    }
                    None => state.disarm(core),
                }
            }
        }
        if state.timer.get().is_none() {
            run.next_due = None;
        }
    }

    /// Schedules the timer of the next run. False if the shard is full or closed, or the callback
    /// is dropped.
    pub(super) fn arm(&self, core: &Core<T>, deadline: Tick) -> bool {
        let call = self.call.get().and_then(Weak::upgrade);
        let arm = |call| core.schedule_repeated(self.class, deadline, &call);
        self.state.timer.set(call.and_then(arm));
        self.state.timer.get().is_some()
    }

    /// Schedules the timer of a later run. The slot of the timer that has just fired is free for
    /// it, unless the shard is closed or that slot's generations are used up.
    fn arm_again(&self, core: &Core<T>, deadline: Tick) {
        if !self.arm(core, deadline) && !core.is_closed() {
            let shard = core.id().number();
            tracing::error!(
                name: "repeat-without-timer",
                target: "corewheel::kit",
                shard, "a periodic callback ends for want of a timer"
            );
        }
    }
}

impl State {
    pub(super) fn phase(&self) -> Phase {
        self.phase.get()
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        self.phase.set(phase);
    }

    pub(super) fn due(&self) -> Instant {
        self.due.get()
    }

    pub(super) fn runs(&self) -> u64 {
        self.runs.get()
    }

    pub(super) fn missed(&self) -> u64 {
        self.missed.get()
    }

    pub(super) fn panicked(&self) -> u64 {
        self.panicked.get()
    }

    pub(super) fn end_on_panic(&self) {
        self.ends_on_panic.set(true);
    }

    /// The callback will not run any more. Handles show it before what the callback holds is
    /// dropped.
    fn end(&self) {
        self.phase.set(Phase::Over);
        if let Some(stop_flag) = &self.stop_flag {
            stop_flag.end();
        }
    }

    /// Begins a run. False if the callback must not run.
    fn begin(&self) -> bool {
        let may = self.phase.get() == Phase::Waits
            && self.stop_flag.as_ref().is_none_or(EndedOnDrop::begin);
        self.phase.set(if may { Phase::Runs } else { Phase::Over });
        may
    }

    /// A run is over.
    fn rest<T: Send + 'static>(&self, core: &Core<T>) {
        let next = self.timer.get().filter(|_| self.phase.get() == Phase::Runs);
        let goes_on = |timer| self.stop_flag.as_ref().is_none_or(|stop_flag| stop_flag.rest(timer));
        if next.is_some_and(goes_on) {
            self.phase.set(Phase::Waits);
        } else {
            self.end();
            self.disarm(core);
        }
    }

    /// Notes when the next run is due, and returns its deadline.
    fn aim_at<T: Send + 'static, F, N>(
        &self,
        core: &Core<T>,
        body: &mut Body<F, N>,
        due: Instant,
        now: Instant,
    ) -> Tick {
        let aim = body.aim(core.time().clock(), due);
        self.due.set(due);
        self.aim.set(aim);
        deadline(core, aim, now, body.slack)
    }

    fn reset<T: Send + 'static>(&self, core: &Core<T>, deadline: Tick) {
        if let Some(timer) = self.timer.get() {
            let _ = core.reset(timer, deadline);
        }
    }

    /// Cancels the timer of the next run. If no run is on the stack, that drops the callback.
    fn disarm<T: Send + 'static>(&self, core: &Core<T>) {
        if let Some(timer) = self.timer.take() {
            self.note_panic(core.contain(|| core.cancel_repeated(timer)));
        }
    }

    /// Counts a panic of the callback or its plan.
    fn note_panic(&self, calm: bool) {
        if !calm {
            self.panicked.set(self.panicked.get() + 1);
        }
    }
}

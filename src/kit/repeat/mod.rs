//! Callbacks that run again and again: at a fixed rate, with a fixed delay, by a plan.
//!
//! Why not a callback that schedules itself anew: it drifts by its own lateness, its box is made
//! again for each period, a full shard ends it, one panic ends it, and a caller that wants to stop
//! it holds a handle that is stale after the first run.
//!
//! Invariants: while a callback waits or runs it has one timer, which is armed before it runs, so
//! that there is room for it whatever the callback does; it never runs within itself; once it is
//! stopped, or has ended for another reason, it has no timer and is dropped. Nothing is borrowed
//! while it runs but what is its own. Absent by design: a task or a thread for each.
//!
//! Cost: two allocations when it begins and none after, a timer, and for each run a clock reading
//! more than a callback that runs once.

mod of_class;
mod options;
mod remote;

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use corewheel_shard::{Tick, TimerKey};

use self::options::{Body, Pattern};
pub use self::options::{OnPanic, Repeat};
pub use self::remote::RemotePeriodic;
use self::remote::StopOfOne;
use crate::clock::Clock;
use crate::face::callback::SharedCall;
use crate::face::timers::Timers;
use crate::kit::herd::slacken;
use crate::values::class::ClassId;
use crate::values::error::ScheduleError;

/// What became of a stop.
#[must_use = "it says whether the callback is still running"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopOutcome {
    /// It was waiting for its next run, which will not come.
    Stopped,
    /// It is running right now, further up this call or on its shard, and this run is its last.
    LastRun,
    /// It had ended before.
    AlreadyOver,
}

/// Names a callback that runs periodically, on its own core; made by [`Timers::repeat`] and
/// [`Timers::repeat_by_plan`].
///
/// It does not own the callback: when it and all its clones are dropped, the callback goes on. It
/// may be kept in the callback itself.
pub struct Periodic<T: Send + 'static = std::convert::Infallible> {
    timers: Timers<T>,
    course: Rc<dyn HasState<T>>,
}

/// One run of a periodic callback, as it gets it.
pub struct PeriodicRun<'a, T: Send + 'static = std::convert::Infallible> {
    timers: &'a Timers<T>,
    state: &'a State<T>,
    due: Instant,
    now: Instant,
    next_due: Option<Instant>,
    missed: u64,
    behind: u64,
}

type WeakCall<T> = Weak<dyn Fn(&Timers<T>, u32)>;

/// What a periodic callback has in common with its handles.
struct State<T: 'static> {
    /// What its timers call; it keeps the callback alive and not the other way round.
    call: OnceCell<WeakCall<T>>,
    class: ClassId,
    phase: Cell<Phase>,
    timer: Cell<Option<TimerKey>>,
    /// When the next run is due, and what its timer aims at.
    due: Cell<Instant>,
    aim: Cell<Instant>,
    runs: Cell<u64>,
    missed: Cell<u64>,
    panicked: Cell<u64>,
    on_panic: Cell<OnPanic>,
    stop_flag: Option<StopOfOne>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Waits,
    Runs,
    /// Runs for the last time.
    Stopping,
    Over,
}

trait HasState<T: 'static> {
    fn state(&self) -> &State<T>;
}

struct Course<T: 'static, F, N> {
    state: State<T>,
    /// None when it has ended.
    body: RefCell<Option<Body<F, N>>>,
}

impl<T: Send + 'static, F, N> HasState<T> for Course<T, F, N> {
    fn state(&self) -> &State<T> {
        &self.state
    }
}

/// Ends a course when the last of its timers is gone.
struct Owner<T: 'static, F, N>(Rc<Course<T, F, N>>);

impl<T: 'static, F, N> Drop for Owner<T, F, N> {
    fn drop(&mut self) {
        self.0.state.end();
        let body = self.0.body.try_borrow_mut().ok().and_then(|mut body| body.take());
        drop(body);
    }
}

/// Periodic callbacks.
impl<T: Send + 'static> Timers<T> {
    /// Runs a callback periodically on this core, until it is stopped, from inside or by the
    /// handle.
    ///
    /// It never overlaps with itself, and after a stop that tells `Stopped` it does not run. When
    /// the shard is shut down by `ShutdownPolicy::Fire` it runs once more, for the last time; by
    /// the other policies it does not.
    ///
    /// ```
    /// use corewheel::{Fired, ManualClock, MissedTickBehavior, PeriodicRun, Repeat, TimerService};
    /// use std::cell::Cell;
    /// use std::rc::Rc;
    /// use std::time::Duration;
    ///
    /// // A shard in a loop of our own, by a clock that we move.
    /// let clock = ManualClock::new();
    /// let builder = TimerService::builder().shards(1).clock(clock.clock());
    /// let service = builder.start_attached::<()>()?;
    /// let shard = service.attach(service.shards().next().unwrap())?;
    /// let mut shard = shard.into_loop(|_: Fired<()>, _: &_| {})?;
    ///
    /// let beats = Rc::new(Cell::new(0));
    /// let counted = Rc::clone(&beats);
    /// let every_second = Repeat::at_fixed_rate(Duration::from_secs(1))?
    ///     .missed_tick_behavior(MissedTickBehavior::Skip);
    /// let heartbeat = shard.timers().repeat(every_second, move |run: &mut PeriodicRun<()>| {
    ///     counted.set(counted.get() + 1);
    ///     if counted.get() == 3 {
    ///         run.stop();
    ///     }
    /// })?;
    /// for seconds in [1.0, 4.5, 0.5, 1.0] {
    ///     clock.advance(Duration::from_secs_f64(seconds));
    ///     let _ = shard.turn();
    /// }
    /// // At 1, 5.5 and 6 seconds. What was due at 2 came 3.5 seconds late, without those of 3, 4
    /// // and 5.
    /// assert_eq!((beats.get(), heartbeat.missed()), (3, 3));
    /// assert!(heartbeat.is_over() && shard.timers().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the callback. Once it was accepted it cannot be refused.
    pub fn repeat<F>(&self, repeat: Repeat, call: F) -> Result<Periodic<T>, ScheduleError<F>>
    where
        F: FnMut(&mut PeriodicRun<'_, T>) + 'static,
    {
        let due = repeat.first(clock(self), self.now());
        self.begin(due, repeat.with(call), ClassId::NONE)
    }

    /// Runs a callback at `first`, and then at whatever `next` makes of the moment before, until it
    /// makes nothing of it: a backoff, the hours of a calendar. A moment that has passed comes in
    /// the next turn.
    ///
    /// The plan is asked before each run, with nothing borrowed. One that panics is over; the run
    /// before which it was asked is the last.
    ///
    /// ```
    /// # use corewheel::{Fired, PeriodicRun, Timers, TimerService};
    /// # use std::time::{Duration, Instant};
    /// # let service = TimerService::builder().shards(1).start_attached::<()>()?;
    /// # let shard = service.attach(service.shards().next().unwrap())?;
    /// # let shard = shard.into_loop(|_: Fired<()>, _: &_| {})?;
    /// # let timers = shard.timers();
    /// // Attempts after 1, 3, 7, 15 seconds and so on, until one succeeds or a wait is too long.
    /// let mut wait = Duration::from_secs(1);
    /// let first = timers.now() + wait;
    /// let backoff = move |before: Instant| {
    ///     wait *= 2;
    ///     (wait < Duration::from_mins(1)).then(|| before + wait)
    /// };
    /// # let attempt = || true;
    /// let attempts = timers.repeat_by_plan(first, backoff, move |run: &mut PeriodicRun<()>| {
    ///     if attempt() {
    ///         run.stop();
    ///     }
    /// })?;
    /// assert_eq!(attempts.next_due(), Some(first));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the callback; the plan is dropped.
    pub fn repeat_by_plan<F, N>(
        &self,
        first: Instant,
        next: N,
        call: F,
    ) -> Result<Periodic<T>, ScheduleError<F>>
    where
        F: FnMut(&mut PeriodicRun<'_, T>) + 'static,
        N: FnMut(Instant) -> Option<Instant> + 'static,
    {
        self.begin(first, Body::planned(next, call), ClassId::NONE)
    }

    fn begin<F, N>(
        &self,
        due: Instant,
        mut body: Body<F, N>,
        class: ClassId,
    ) -> Result<Periodic<T>, ScheduleError<F>>
    where
        F: FnMut(&mut PeriodicRun<'_, T>) + 'static,
        N: FnMut(Instant) -> Option<Instant> + 'static,
    {
        let aim = body.aim(clock(self), due);
        let deadline = deadline(self, aim, self.now(), body.slack);
        let (course, call) = Course::new(body, class, (due, aim), None);
        if course.state.arm(self, deadline) {
            return Ok(Periodic { timers: self.clone(), course });
        }
        let body = course.body.take().expect("it has not begun");
        drop(call);
        Err(if self.core().is_closed() {
            ScheduleError::Closed(body.call)
        } else {
            ScheduleError::Full(body.call)
        })
    }
}

fn clock<T: Send + 'static>(timers: &Timers<T>) -> &Clock {
    timers.core().time().clock()
}

/// The deadline of a run that aims at a moment, which may have passed.
fn deadline<T: Send + 'static>(
    timers: &Timers<T>,
    aim: Instant,
    now: Instant,
    slack: Duration,
) -> Tick {
    let core = timers.core();
    let earliest =
        if aim <= now { core.deadline_after(Duration::ZERO) } else { core.deadline_at(aim) };
    if slack.is_zero() {
        return earliest;
    }
    slacken(core.time(), earliest, core.time().nanos_at(aim), slack)
}

impl<T, F, N> Course<T, F, N>
where
    T: Send + 'static,
    F: FnMut(&mut PeriodicRun<'_, T>) + 'static,
    N: FnMut(Instant) -> Option<Instant> + 'static,
{
    /// A course, and what its timers call.
    fn new(
        body: Body<F, N>,
        class: ClassId,
        (due, aim): (Instant, Instant),
        stop_flag: Option<StopOfOne>,
    ) -> (Rc<Self>, SharedCall<T>) {
        let state = State {
            call: OnceCell::new(),
            class,
            phase: Cell::new(Phase::Waits),
            timer: Cell::new(None),
            due: Cell::new(due),
            aim: Cell::new(aim),
            runs: Cell::new(0),
            missed: Cell::new(0),
            panicked: Cell::new(0),
            on_panic: Cell::new(body.on_panic),
            stop_flag,
        };
        let course = Rc::new(Self { state, body: RefCell::new(Some(body)) });
        let owner = Owner(Rc::clone(&course));
        let call: SharedCall<T> = Rc::new(move |timers, _| {
            let owner = &owner;
            owner.0.run(timers);
        });
        let weak = Rc::downgrade(&call);
        course.state.call.set(weak).expect("it is set here alone");
        (course, call)
    }

    /// Its time has come.
    fn run(&self, timers: &Timers<T>) {
        let state = &self.state;
        state.timer.set(None);
        let Ok(mut body) = self.body.try_borrow_mut() else { return };
        let Some(body) = &mut *body else { return };
        if !state.begin() {
            return;
        }
        let now = timers.now();
        let mut run = PeriodicRun {
            timers,
            state,
            due: state.due.get(),
            now,
            next_due: None,
            missed: 0,
            behind: 0,
        };
        self.arm_next(body, &mut run);
        state.runs.set(state.runs.get() + 1);
        if !state.contain(timers, || (body.call)(&mut run)) && state.on_panic.get() == OnPanic::End
        {
            state.phase.set(Phase::Stopping);
        }
        if let Pattern::Delay(delay) = *body.pattern.get_mut()
            && state.timer.get().is_some()
        {
            let now = timers.now();
            let next = clock(timers).after(now, delay);
            let deadline = state.aim_at(timers, body, next, now);
            state.move_to(timers, deadline);
        }
        state.rest(timers);
    }

    /// Sees to the timer of the next run before this one, so that there is room for it.
    fn arm_next(&self, body: &mut Body<F, N>, run: &mut PeriodicRun<'_, T>) {
        let (state, timers, due, now) = (&self.state, run.timers, run.due, run.now);
        match body.pattern.get_mut() {
            Pattern::Rate { period, behavior } => {
                let late = now.saturating_duration_since(state.aim.get());
                let next = timers.next_tick(due, (now, late), *period, *behavior);
                (run.missed, run.behind) = (next.missed, next.behind);
                state.missed.set(state.missed.get().saturating_add(next.missed));
                run.next_due = Some(next.due);
                let deadline = state.aim_at(timers, body, next.due, now);
                state.arm_again(timers, deadline);
            }
            Pattern::Delay(delay) => {
                // It will be later, by how long the run takes.
                let next = clock(timers).after(now, *delay);
                state.arm_again(timers, timers.core().deadline_at(next));
            }
            Pattern::Plan(next) => {
                // Keeps the place while the plan is asked.
                state.arm_again(timers, timers.core().deadline_after(Duration::ZERO));
                state.contain(timers, || run.next_due = next(due));
                match run.next_due {
                    Some(next) => {
                        let deadline = state.aim_at(timers, body, next, now);
                        state.move_to(timers, deadline);
                    }
                    None => state.disarm(timers),
                }
            }
        }
        if state.timer.get().is_none() {
            run.next_due = None;
        }
    }
}

impl<T> State<T> {
    /// It will not run any more; said before what it holds is dropped.
    fn end(&self) {
        self.phase.set(Phase::Over);
        if let Some(stop_flag) = &self.stop_flag {
            stop_flag.end();
        }
    }
}

impl<T: Send + 'static> State<T> {
    /// False if it must not run.
    fn begin(&self) -> bool {
        let may = self.phase.get() == Phase::Waits
            && self.stop_flag.as_ref().is_none_or(StopOfOne::begin);
        self.phase.set(if may { Phase::Runs } else { Phase::Over });
        may
    }

    /// A run is over.
    fn rest(&self, timers: &Timers<T>) {
        let next = self.timer.get().filter(|_| self.phase.get() == Phase::Runs);
        let goes_on = |timer| self.stop_flag.as_ref().is_none_or(|stop_flag| stop_flag.rest(timer));
        if next.is_some_and(goes_on) {
            self.phase.set(Phase::Waits);
        } else {
            self.end();
            self.disarm(timers);
        }
    }

    /// Notes when the next run is due, and returns its deadline.
    fn aim_at<F, N>(
        &self,
        timers: &Timers<T>,
        body: &mut Body<F, N>,
        due: Instant,
        now: Instant,
    ) -> Tick {
        let aim = body.aim(clock(timers), due);
        self.due.set(due);
        self.aim.set(aim);
        deadline(timers, aim, now, body.slack)
    }

    fn arm(&self, timers: &Timers<T>, deadline: Tick) -> bool {
        let call = self.call.get().and_then(Weak::upgrade);
        let core = timers.core();
        let arm = |call| core.schedule_shared(self.class, deadline, &call, 0);
        self.timer.set(call.and_then(arm));
        self.timer.get().is_some()
    }

    /// The place of the timer that has just fired is there for the next one, unless the shard is
    /// closed or that place has been used up.
    fn arm_again(&self, timers: &Timers<T>, deadline: Tick) {
        if !self.arm(timers, deadline) && !timers.core().is_closed() {
            let shard = timers.shard_id().number();
            tracing::error!(shard, "a periodic callback ends for want of a timer");
        }
    }

    fn move_to(&self, timers: &Timers<T>, deadline: Tick) {
        if let Some(timer) = self.timer.get() {
            let _ = timers.core().reset(timer, deadline);
        }
    }

    /// Takes the timer away, and with it perhaps the callback.
    fn disarm(&self, timers: &Timers<T>) {
        if let Some(timer) = self.timer.take() {
            self.contain(timers, || timers.core().cancel_shared(timer));
        }
    }

    /// Runs something of the user's; false if it panicked.
    fn contain(&self, timers: &Timers<T>, run: impl FnOnce()) -> bool {
        let calm = timers.core().contain(run);
        if !calm {
            self.panicked.set(self.panicked.get() + 1);
        }
        calm
    }
}

impl<T: Send + 'static> Periodic<T> {
    /// Stops the callback and says what that came to. What was stopped while it was waiting is
    /// dropped here, and its timer is free.
    pub fn stop(&self) -> StopOutcome {
        let state = self.state();
        match state.phase.get() {
            Phase::Over => StopOutcome::AlreadyOver,
            Phase::Runs | Phase::Stopping => {
                state.phase.set(Phase::Stopping);
                StopOutcome::LastRun
            }
            Phase::Waits => {
                state.phase.set(Phase::Over);
                state.disarm(&self.timers);
                StopOutcome::Stopped
            }
        }
    }

    /// Says what is to become of the callback when it panics.
    pub fn set_on_panic(&self, on_panic: OnPanic) {
        self.state().on_panic.set(on_panic);
    }

    /// Whether it will not run again: it was stopped, its plan or its shard has ended, or it has
    /// panicked and was to end then.
    pub fn is_over(&self) -> bool {
        self.state().phase.get() == Phase::Over
    }

    /// When the next run is due; `None` when it is over. While it runs with a fixed delay, that is
    /// not known yet, and this is when the present run was due.
    pub fn next_due(&self) -> Option<Instant> {
        (!self.is_over()).then(|| self.state().due.get())
    }

    /// How many runs have begun.
    pub fn runs(&self) -> u64 {
        self.state().runs.get()
    }

    /// How many runs were left out, because their time passed before the callback could run.
    /// Those that come late in a burst are not left out.
    pub fn missed(&self) -> u64 {
        self.state().missed.get()
    }

    /// How many times the callback or its plan has panicked.
    pub fn panicked(&self) -> u64 {
        self.state().panicked.get()
    }

    fn state(&self) -> &State<T> {
        self.course.state()
    }
}

impl<T: Send + 'static> Clone for Periodic<T> {
    fn clone(&self) -> Self {
        Self { timers: self.timers.clone(), course: Rc::clone(&self.course) }
    }
}

impl<T: Send + 'static> fmt::Debug for Periodic<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Periodic")
            .field("over", &self.is_over())
            .field("runs", &self.runs())
            .field("missed", &self.missed())
            .field("panicked", &self.panicked())
            .finish_non_exhaustive()
    }
}

impl<T: Send + 'static> PeriodicRun<'_, T> {
    /// The shard's timers.
    pub fn timers(&self) -> &Timers<T> {
        self.timers
    }

    /// When this run was due: exact, without jitter and slack, and not rounded up to a tick.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// When this run began.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// When the next run is due. `None` if this one is the last, and with a fixed delay, where it
    /// depends on when this one ends.
    pub fn next_due(&self) -> Option<Instant> {
        self.next_due
    }

    /// Which run this is, from 0.
    pub fn number(&self) -> u64 {
        self.state.runs.get() - 1
    }

    /// How many periods after this one have passed already and are left out. None with
    /// [`MissedTickBehavior::Burst`](crate::MissedTickBehavior::Burst), and without a fixed rate.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// How many whole periods late this run is, at a fixed rate: those that are missed, or in a
    /// burst those that are still to be caught up with.
    pub fn behind(&self) -> u64 {
        self.behind
    }

    /// Makes this run the last.
    pub fn stop(&mut self) {
        self.state.phase.set(Phase::Stopping);
    }

    /// Says what is to become of the callback when it panics, in this run and later.
    pub fn set_on_panic(&mut self, on_panic: OnPanic) {
        self.state.on_panic.set(on_panic);
    }
}

impl<T: Send + 'static> fmt::Debug for PeriodicRun<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeriodicRun")
            .field("number", &self.number())
            .field("due", &self.due)
            .field("missed", &self.missed)
            .field("behind", &self.behind)
            .finish_non_exhaustive()
    }
}

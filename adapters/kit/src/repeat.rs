//! Callbacks that run again and again: at a fixed rate, with a fixed delay, or when a plan says.
//!
//! For heartbeats, polls and sweeps without a task. By hand it is a callback that schedules itself
//! anew, with a box for each run; here a run costs no allocation, and a clock reading more.
//!
//! ```
//! use corewheel::interval::MissedTickBehavior;
//! use corewheel::clock::ManualClock;
//! use corewheel::{Fired, TimerService};
//! use corewheel_kit::repeat::Repeat;
//! use std::time::Duration;
//!
//! // One shard in a loop of our own, with a clock that the example moves.
//! let clock = ManualClock::new();
//! let builder = TimerService::builder().shards(1).clock(&clock);
//! let service = builder.start_attached_with::<()>()?;
//! let shard = service.attach(service.shards().next().unwrap())?;
//! let mut shard = shard.into_loop(|_: Fired<()>, _: &_| {})?;
//!
//! let every_second = Repeat::at_fixed_rate(Duration::from_secs(1))?
//!     .missed_tick_behavior(MissedTickBehavior::Skip);
//! let heartbeat = every_second.begin(shard.timers(), |run| {
//!     println!("heartbeat {}, {} were missed", run.number, run.missed);
//!     if run.number == 2 {
//!         run.stop();
//!     }
//! })?;
//! for seconds in [1.0, 4.5, 0.5, 1.0] {
//!     clock.advance(Duration::from_secs_f64(seconds));
//!     let _ = shard.turn();
//! }
//! // It has run at 1, 5.5 and 6 seconds. The run that was due at 2 seconds came 3.5 seconds late,
//! // and those of 3, 4 and 5 seconds were missed.
//! assert!(heartbeat.is_over() && shard.timers().is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Why not a callback that schedules itself anew: it drifts by its own lateness, its box is made
//! again for each period, a full shard ends it, and one panic ends it. A caller that wants to stop
//! it holds an id that is stale after the first run.
//!
//! Invariants: while a callback waits or runs it has one timer, which is scheduled before it runs,
//! so that there is room for it whatever the callback does. It never runs within itself. Once it is
//! stopped, or has ended for another reason, it has no timer and is dropped. The shard borrows
//! nothing of its own while it runs. Absent by design: a task or a thread for each.
//!
//! Cost: two allocations when it begins, one more with a plan, and none after. It is a
//! [part](corewheel::part) of the shard with one timer. A run costs a clock reading more than that
//! of a callback that runs once.
//!
//! # From another thread
//!
//! [`Handle::keep`](corewheel::Handle::keep) begins it on the shard, and the
//! [`Kept`](corewheel::kept::Kept) that it returns stops it by a message. The first period counts
//! from when the shard runs the closure.
//!
//! ```
//! use corewheel::{TimerService, Timers};
//! use corewheel_kit::repeat::Repeat;
//! use std::sync::mpsc;
//! use std::time::Duration;
//!
//! let service = TimerService::builder().shards(1).start()?;
//! let shard = service.handle().on(service.shard_for(0));
//!
//! let (sender, beats) = mpsc::channel();
//! let every = Repeat::at_fixed_rate(Duration::from_millis(2))?;
//! let begin = move |timers: &Timers| {
//!     let beat = every.begin(timers, move |run| {
//!         // The receiver is gone at the end of this example.
//!         let _ = sender.send(run.number);
//!     });
//!     beat.expect("there is room")
//! };
//! // An error if `begin` has panicked.
//! let heartbeat = shard.keep(begin)?.wait()?;
//! assert_eq!((beats.recv()?, beats.recv()?), (0, 1));
//! assert!(heartbeat.try_run(|heartbeat| heartbeat.stop())?.wait()?);
//! // The shard has dropped the callback, and with it the sender.
//! while beats.recv().is_ok() {}
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use corewheel::clock::Clock;
use corewheel::interval::MissedTickBehavior;
use corewheel::part::{Part, PartHandle, PartTimer};
use corewheel::{ConfigError, Deadline, Refused, RefusedKind, Timers, When};

use crate::herd::Jitter;

/// When a periodic callback runs: at a fixed rate or with a fixed delay, from when on, and how
/// exactly.
///
/// A fixed rate keeps to its grid: each run is due a period after the run before it was due, not
/// after it ran, so nothing drifts, and a run that takes long or comes late moves no other. A fixed
/// delay is counted from the end of each run to the beginning of the next.
///
/// Jitter makes single runs later, up to its length, and never earlier; it does not move the grid.
/// Where it is longer than the period, a run comes after later ones are due, which are then made up
/// for or missed. A period that does not fit (584 years) means never again.
/// A period that is shorter than a tick cannot be kept: with [`MissedTickBehavior::Burst`] the
/// callback runs in every turn and falls behind without end.
///
/// A clone has the same jitter: two callbacks with it run in step.
///
/// ```
/// use corewheel_kit::herd::Jitter;
/// use corewheel::interval::MissedTickBehavior;
/// use corewheel_kit::repeat::Repeat;
/// use std::time::Duration;
///
/// // A heartbeat that leaves out the periods that it was too late for. Each run comes up to a
/// // second later, so that servers that start together do not beat together.
/// let seed = u64::from(std::process::id());
/// let heartbeat = Repeat::at_fixed_rate(Duration::from_secs(10))?
///     .missed_tick_behavior(MissedTickBehavior::Skip)
///     .jitter(Jitter::random(Duration::from_secs(1), seed));
/// // A run at once and one each minute.
/// let cleaning = Repeat::with_fixed_delay(Duration::from_secs(60))?.first(Duration::ZERO);
/// # Ok::<(), corewheel::ConfigError>(())
/// ```
#[must_use = "a callback runs from `begin` on"]
#[derive(Clone, Debug)]
pub struct Repeat {
    period: Duration,
    /// What happens to missed periods at a fixed rate. `None` with a fixed delay.
    behavior: Option<MissedTickBehavior>,
    /// How long after it has begun the first run is due.
    first: Duration,
    jitter: Jitter,
}

impl Repeat {
    /// A run at the end of each period. The first run is due in a period, unless
    /// [`first`](Self::first) says otherwise.
    ///
    /// # Errors
    ///
    /// The period is zero.
    #[doc(alias = "schedule_at_fixed_rate")]
    pub fn at_fixed_rate(period: Duration) -> Result<Self, ConfigError> {
        Self::new("period", period, Some(MissedTickBehavior::default()))
    }

    /// A run `delay` after the end of the run before. The first run is due in `delay`, unless
    /// [`first`](Self::first) says otherwise.
    ///
    /// # Errors
    ///
    /// The delay is zero.
    #[doc(alias = "schedule_with_fixed_delay")]
    pub fn with_fixed_delay(delay: Duration) -> Result<Self, ConfigError> {
        Self::new("delay", delay, None)
    }

    fn new(
        field: &'static str,
        period: Duration,
        behavior: Option<MissedTickBehavior>,
    ) -> Result<Self, ConfigError> {
        ConfigError::if_zero(field, period)?;
        Ok(Self { period, behavior, first: period, jitter: Jitter::random(Duration::ZERO, 0) })
    }

    /// When the first run is due, from when the callback is handed over.
    pub fn first(mut self, delay: Duration) -> Self {
        self.first = delay;
        self
    }

    /// What happens to periods at whose end the callback could not run, because its run before, or
    /// other work on the core, took too long. By default all of their runs come, one in each turn,
    /// until none is late. Without effect on a fixed delay, which misses none.
    pub fn missed_tick_behavior(mut self, missed: MissedTickBehavior) -> Self {
        self.behavior = self.behavior.map(|_| missed);
        self
    }

    /// Makes each run later by a time of its own. Whether a period was missed is counted from the
    /// later instant.
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// Runs a callback periodically on this core until it is stopped: by [`PeriodicRun::stop`], or
    /// by [`Periodic::stop`]. For an example see the [module](self).
    ///
    /// It never runs within itself, and it does not run after a stop. If it panics, the panic is
    /// contained, logged and counted, and its later runs come all the same. A shutdown by
    /// [`ShutdownPolicy::Fire`](corewheel::ShutdownPolicy::Fire) runs it once more, for the last
    /// time; the other policies do not run it.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the callback. After its first run was accepted, no later run is
    /// refused.
    ///
    /// # Panics
    ///
    /// If the shard has as many [parts](Timers::add_part) as it can have.
    pub fn begin<T, F>(self, timers: &Timers<T>, call: F) -> Result<Periodic, Refused<F>>
    where
        T: Send + 'static,
        F: FnMut(&mut PeriodicRun<'_, T>) + 'static,
    {
        let next = match self.behavior {
            Some(behavior) => Next::Rate(self.period, behavior),
            None => Next::Delay(self.period),
        };
        Repeating::begin(timers, self.first, (next, self.jitter), call)
    }

    /// Runs a callback when `first` is due, and then at each instant that `next` returns, until it
    /// returns `None`: a backoff, the hours of a calendar. An instant that has passed is due in the
    /// next turn.
    ///
    /// `next` is called before each run, with the instant at which that run was due, and with
    /// nothing borrowed. If it panics, the run that follows is the last.
    ///
    /// ```
    /// # use corewheel::{Fired, TimerService};
    /// # use corewheel_kit::repeat::Repeat;
    /// # use std::time::{Duration, Instant};
    /// # let service = TimerService::builder().shards(1).start_attached_with::<()>()?;
    /// # let shard = service.attach(service.shards().next().unwrap())?;
    /// # let shard = shard.into_loop(|_: Fired<()>, _: &_| {})?;
    /// # let timers = shard.timers();
    /// // Attempts after 1, 3, 7, 15 seconds and so on, until one succeeds or a wait is too long.
    /// let mut wait = Duration::from_secs(1);
    /// let backoff = move |before: Instant| {
    ///     wait *= 2;
    ///     (wait < Duration::from_secs(60)).then(|| before + wait)
    /// };
    /// # let attempt = || true;
    /// let attempts = Repeat::by_plan(timers, Duration::from_secs(1), backoff, move |run| {
    ///     if attempt() {
    ///         run.stop();
    ///     }
    /// })?;
    /// assert!(!attempts.is_over());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the callback; `next` is dropped.
    ///
    /// # Panics
    ///
    /// If the shard has as many [parts](Timers::add_part) as it can have.
    pub fn by_plan<T, F>(
        timers: &Timers<T>,
        first: impl When,
        next: impl FnMut(Instant) -> Option<Instant> + 'static,
        call: F,
    ) -> Result<Periodic, Refused<F>>
    where
        T: Send + 'static,
        F: FnMut(&mut PeriodicRun<'_, T>) + 'static,
    {
        let next = Next::Plan(Box::new(next));
        Repeating::begin(timers, first, (next, Jitter::random(Duration::ZERO, 0)), call)
    }
}

/// A callback that runs periodically, on its own core; made by [`Repeat::begin`] and
/// [`Repeat::by_plan`].
///
/// It does not own the callback: when it and all its clones are dropped, the callback goes on. The
/// callback itself may hold one.
#[derive(Clone)]
pub struct Periodic(Rc<Repeating>);

impl Periodic {
    /// Stops the callback. If it was waiting for its next run it is dropped here, and its timer is
    /// free; a run further up the stack is its last. False if the callback was over before.
    pub fn stop(&self) -> bool {
        let was_over = self.is_over();
        if !was_over {
            self.0.end();
        }
        !was_over
    }

    /// Whether the callback will not run again: it was stopped, or its plan or its shard has ended.
    pub fn is_over(&self) -> bool {
        self.0.is_over.get()
    }
}

impl fmt::Debug for Periodic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Periodic").field("over", &self.is_over()).finish_non_exhaustive()
    }
}

/// One run of a periodic callback: its argument.
#[derive(Debug)]
#[non_exhaustive]
pub struct PeriodicRun<'a, T: Send + 'static = Infallible> {
    /// The shard's timers.
    pub timers: &'a Timers<T>,
    /// When this run was due: exact, without jitter, and not rounded up to a tick.
    pub due: Instant,
    /// The number of this run, from 0.
    pub number: u64,
    /// How many periods after this run have passed already and are left out. It is 0 with
    /// [`MissedTickBehavior::Burst`], with a fixed delay, and with a plan.
    pub missed: u64,
    is_over: &'a Cell<bool>,
}

impl<T: Send + 'static> PeriodicRun<'_, T> {
    /// Makes this run the last.
    pub fn stop(&mut self) {
        self.is_over.set(true);
    }
}

/// How the instant at which a run is due follows from the run before.
enum Next {
    Rate(Duration, MissedTickBehavior),
    Delay(Duration),
    Plan(Box<dyn FnMut(Instant) -> Option<Instant>>),
}

/// Runs a callback that was due at an instant, with the number of the run and of those it missed.
type Call = Box<dyn FnMut(&Repeating, Instant, u64, u64)>;

/// A callback with all that says when it runs.
struct Body {
    call: Call,
    next: Next,
    jitter: Jitter,
}

/// A periodic callback, which is a part of its shard, with the timer of the next run.
struct Repeating {
    shard: PartHandle,
    clock: Clock,
    /// It will not run again.
    is_over: Cell<bool>,
    /// The timer of the next run; `None` while the plan has no next run, and when it is over.
    timer: Cell<Option<PartTimer>>,
    /// When the next run is due, and the instant that its timer aims at: later by the jitter.
    due: Cell<(Instant, Instant)>,
    runs: Cell<u64>,
    /// `None` when it has ended.
    body: RefCell<Option<Body>>,
    /// Itself, until it has ended, so that it goes on without a handle.
    own: Cell<Option<Rc<Self>>>,
}

impl Repeating {
    fn begin<T, F>(
        timers: &Timers<T>,
        first: impl When,
        (next, mut jitter): (Next, Jitter),
        mut call: F,
    ) -> Result<Periodic, Refused<F>>
    where
        T: Send + 'static,
        F: FnMut(&mut PeriodicRun<'_, T>) + 'static,
    {
        let due = timers.handle().instant_of(first);
        let repeating = timers.add_part(|shard| Self {
            shard,
            clock: timers.handle().clock(),
            is_over: Cell::new(false),
            timer: Cell::new(None),
            due: Cell::new((due, due)),
            runs: Cell::new(0),
            body: RefCell::new(None),
            own: Cell::new(None),
        });
        if let Err(kind) = repeating.arm(repeating.aim_at(due, &mut jitter)) {
            repeating.shard.contain(|| drop(next));
            return Err(kind.of(call));
        }
        // Of no class, for the runs.
        let timers = timers.with_class_of(timers.handle());
        let call: Call = Box::new(move |repeating, due, number, missed| {
            let (timers, is_over) = (&timers, &repeating.is_over);
            call(&mut PeriodicRun { timers, due, number, missed, is_over });
        });
        repeating.body.replace(Some(Body { call, next, jitter }));
        repeating.own.set(Some(Rc::clone(&repeating)));
        Ok(Periodic(repeating))
    }

    /// Runs the callback. The timer of the next run is scheduled before, so that there is room for
    /// it.
    fn run(&self, Body { call, next, jitter }: &mut Body) {
        let ((due, aim), now) = (self.due.get(), self.clock.now());
        let mut missed = 0;
        let deadline = match next {
            Next::Rate(period, behavior) => {
                let late = now.saturating_duration_since(aim);
                let (next, left_out) = behavior.next_tick(&self.clock, due, (now, late), *period);
                missed = left_out;
                self.aim_at(next, jitter)
            }
            // It is reset at the end of the run, to a later deadline.
            Next::Delay(delay) => self.shard.deadline(self.clock.after(now, *delay)),
            // Keeps the room while the plan is called.
            Next::Plan(_) => self.shard.deadline(Duration::ZERO),
        };
        // The slot of the timer that has just fired is free, unless the shard is closed or that
        // slot's generations are used up.
        if self.arm(deadline).is_err() && !self.shard.is_closed() {
            let shard = self.shard.shard_id().number();
            tracing::error!(
                name: "repeat-without-timer",
                target: "corewheel::kit",
                shard, "a periodic callback ends for want of a timer"
            );
        }
        if let Next::Plan(next) = next {
            let mut planned = None;
            self.shard.contain(|| planned = next(due));
            match planned {
                Some(next) => self.reset(next, jitter),
                None => self.disarm(),
            }
        }
        let number = self.runs.replace(self.runs.get() + 1);
        self.shard.contain(|| call(self, due, number, missed));
        if let Next::Delay(delay) = next {
            self.reset(self.clock.after(self.clock.now(), *delay), jitter);
        }
    }

    /// Notes when the next run is due, and returns the deadline of its timer.
    fn aim_at(&self, due: Instant, jitter: &mut Jitter) -> Deadline {
        let aim = self.clock.after(due, jitter.after(Duration::ZERO));
        self.due.set((due, aim));
        if aim <= self.clock.now() {
            return self.shard.deadline(Duration::ZERO);
        }
        self.shard.deadline(aim)
    }

    fn arm(&self, deadline: Deadline) -> Result<(), RefusedKind> {
        self.timer.set(Some(self.shard.schedule(deadline, 0)?));
        Ok(())
    }

    /// Makes the next run due at another instant, unless it has no timer.
    fn reset(&self, due: Instant, jitter: &mut Jitter) {
        if let Some(timer) = self.timer.get() {
            self.shard.reset(timer, self.aim_at(due, jitter));
        }
    }

    fn disarm(&self) {
        if let Some(timer) = self.timer.take() {
            self.shard.cancel(timer);
        }
    }

    /// Frees the timer of the next run and, if no run is on the stack, drops the callback.
    fn end(&self) {
        // Handles show it before what the callback holds is dropped.
        self.is_over.set(true);
        self.disarm();
        let body = self.body.try_borrow_mut().ok().and_then(|mut body| body.take());
        if let Some(Body { call, next, .. }) = body {
            self.shard.contain(|| drop(call));
            self.shard.contain(|| drop(next));
            drop(self.own.take());
        }
    }
}

impl Part for Repeating {
    /// Runs the callback, and ends it if it will not run again.
    fn expired(self: Rc<Self>, _index: u32) {
        self.timer.set(None);
        if let Some(body) = &mut *self.body.borrow_mut() {
            self.run(body);
        }
        if self.is_over.get() || self.timer.get().is_none() {
            self.end();
        }
    }

    fn closed(&self, _is_dead: bool) {
        self.end();
    }
}

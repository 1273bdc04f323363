//! What must have become of each timer of a history: the model that the service is compared with.
//! With the code it shares that a deadline is rounded up to a tick, which is a promise.
//!
//! A violation is noted here and not raised at once, since most of the code that finds one runs in
//! a callback, where the shard contains panics.

mod jobs;
mod waits;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Weak;
use std::time::{Duration, Instant};

use corewheel::sim::Time;
use corewheel::{CancelOutcome, Payload, ResetOutcome, TimerId};

pub(crate) use self::jobs::{Job, drop_contained};
use self::waits::Waiting;
use crate::commands::{Due, Temper};

/// The number of a timer of a history.
pub(crate) type Id = usize;

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum State {
    #[default]
    Live,
    Fired,
    Cancelled,
    Returned,
    Refused,
    Dropped,
}

type Cancelled<C> = CancelOutcome<Payload<Job, C>>;

/// A timer, as its owner knows it.
#[derive(Clone, Default, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is an uncertainty of its own")]
pub(crate) struct Timer {
    pub(crate) state: State,
    /// `None` until it is scheduled.
    pub(crate) handle: Option<TimerId>,
    /// The shard that it is on, or on its way to.
    shard: usize,
    /// The earliest and the latest deadline that it may have, in nanoseconds from the start. They
    /// differ while a reset is on its way.
    due_min: u64,
    due_max: u64,
    /// It may have been due when it was scheduled or reset.
    is_due_at_once: bool,
    /// It was scheduled on the core with a delay of zero, and not reset.
    is_zero: bool,
    /// How many requests for it are on their way, its own schedule included.
    in_flight: u32,
    /// How many requests for it were sent.
    requests: u32,
    /// How many cancels were sent that may take effect before they are replied to.
    cancels: u32,
    /// A cancel of it is on its way, or was sent without a reply.
    may_drop: bool,
    /// Since which step of the simulation nothing for it is on its way.
    since: u64,
    /// The time of that step, in nanoseconds. A timer whose deadline had passed by then is due
    /// then.
    since_ns: u64,
    /// Requests on their way whose arrival no reply tells, the schedule included.
    sent: Vec<Sent>,
    /// The client that has sent all requests on their way, which arrive in the order in which they
    /// were sent; `None` if several have, or if none is on its way.
    sender: Option<u32>,
    /// The deadline of the last reset of such a client, with its number among the requests.
    reset_to: Option<(u32, u64)>,
    /// For a value that is delivered when a task takes it: how many tasks wait for one.
    takers: Option<Rc<Cell<u32>>>,
}

/// A request on its way: the client and the shard, and its place in the order of what that client
/// sends there.
type Sent = (u32, usize, u64);

impl Timer {
    /// The deadline of the last reset, if nothing comes after it and it comes after all others.
    fn last_reset(&self) -> Option<u64> {
        let (number, due) = self.reset_to?;
        (number == self.requests && self.sender.is_some()).then_some(due)
    }
}

pub(crate) struct Ledger {
    time: Time,
    start: Instant,
    tick: u64,
    timers: RefCell<Vec<Timer>>,
    violation: RefCell<Option<String>>,
    /// For each shard, whether it has ended, or is ending.
    pub(crate) ended: RefCell<Vec<bool>>,
    /// A shutdown fires all timers, early ones too.
    pub(crate) fires_all: Cell<bool>,
    /// How many tasks wait for a reply or for a timeout.
    pub(crate) waiting: Cell<u32>,
    /// What shards were asked for that does not wait for a time. Dropped when it is done.
    asked: RefCell<Vec<(usize, Weak<()>)>>,
    /// Timeouts of tasks; `None` when the task is done.
    timeouts: RefCell<Vec<Option<Waiting>>>,
}

thread_local! {
    static LEDGER: RefCell<Option<Rc<Ledger>>> = const { RefCell::new(None) };
}

impl Ledger {
    /// Makes the ledger of a history, which jobs on this thread report to.
    pub(crate) fn begin(time: Time, tick: Duration, shards: usize) -> Rc<Self> {
        let ledger = Rc::new(Self {
            start: time.now(),
            time,
            tick: tick.as_nanos() as u64,
            timers: RefCell::default(),
            violation: RefCell::default(),
            ended: RefCell::new(vec![false; shards]),
            fires_all: Cell::new(false),
            waiting: Cell::new(0),
            asked: RefCell::default(),
            timeouts: RefCell::default(),
        });
        LEDGER.set(Some(Rc::clone(&ledger)));
        ledger
    }

    /// Ends the history: jobs report to no ledger any more.
    pub(crate) fn end() {
        drop(LEDGER.take());
    }

    pub(crate) fn with(run: impl FnOnce(&Self)) {
        let ledger = LEDGER.try_with(|ledger| ledger.borrow().clone()).ok().flatten();
        if let Some(ledger) = ledger {
            run(&ledger);
        }
    }

    /// A value of the user is dropped while the thread unwinds: a panic of it would abort the
    /// process.
    pub(crate) fn violate_unwinding(what: &str) {
        Self::with(|ledger| ledger.violate(format!("{what} is dropped while the thread unwinds")));
    }

    pub(crate) fn violate(&self, what: String) {
        self.violation.borrow_mut().get_or_insert(what);
    }

    pub(crate) fn require(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violate(what());
        }
    }

    #[track_caller]
    pub(crate) fn check(&self) {
        let violation = self.violation.borrow_mut().take();
        assert_eq!(violation, None, "at {:?}", self.now());
    }

    pub(crate) fn now(&self) -> u64 {
        self.nanos_of(self.time.now())
    }

    fn nanos_of(&self, instant: Instant) -> u64 {
        instant.saturating_duration_since(self.start).as_nanos() as u64
    }

    pub(crate) fn nanos_at(&self, due: Due) -> u64 {
        let now = self.now();
        match due {
            Due::In(delay) => {
                u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX).saturating_add(now)
            }
            Due::Ago(ago) => now.saturating_sub(ago.as_nanos() as u64),
            Due::Never => u64::MAX,
            Due::After(_) => unreachable!("it is a reset, which has its time by now"),
        }
    }

    /// When a timer is due after a reset.
    pub(crate) fn due_of_reset(&self, id: Id, due: Due) -> Due {
        let Due::After(by) = due else { return due };
        let at = self.get(id).due_max.saturating_add(by.as_nanos() as u64);
        Due::In(Duration::from_nanos(at.saturating_sub(self.now())))
    }

    /// The start of the tick at which a timer fires that is due at `nanos`.
    fn tick_of(&self, nanos: u64) -> u64 {
        nanos.checked_next_multiple_of(self.tick).unwrap_or(u64::MAX)
    }

    pub(crate) fn len(&self) -> usize {
        self.timers.borrow().len()
    }

    pub(crate) fn get(&self, id: Id) -> Timer {
        self.timers.borrow()[id].clone()
    }

    pub(crate) fn is_live(&self, id: Id) -> bool {
        self.timers.borrow()[id].state == State::Live
    }

    fn edit<R>(&self, id: Id, edit: impl FnOnce(&mut Timer) -> R) -> R {
        edit(&mut self.timers.borrow_mut()[id])
    }

    fn is_due_at(&self, timer: &mut Timer, due: u64) {
        (timer.due_min, timer.due_max) = (due, due);
        timer.is_due_at_once = due <= self.now();
        timer.is_zero = false;
    }

    fn may_be_due_at(&self, timer: &mut Timer, due: u64) {
        timer.due_min = timer.due_min.min(due);
        timer.due_max = timer.due_max.max(due);
        timer.is_due_at_once |= due <= self.now();
        timer.is_zero = false;
    }

    fn land(&self, timer: &mut Timer) {
        timer.in_flight -= 1;
        if timer.in_flight == 0 {
            if let Some(due) = timer.last_reset() {
                (timer.due_min, timer.due_max) = (due, due);
            }
            timer.sender = None;
            self.rests(timer);
        }
    }

    /// Nothing for the timer is on its way from now on.
    fn rests(&self, timer: &mut Timer) {
        (timer.since, timer.since_ns) = (self.time.steps(), self.now());
    }
}

/// What the owner of timers does.
impl Ledger {
    /// A new timer, about to be scheduled; `sent` if its schedule is a request of a client.
    pub(crate) fn job(
        &self,
        shard: usize,
        due: Due,
        temper: Temper,
        sent: Option<(u32, u64)>,
    ) -> Job {
        let mut timer = Timer {
            shard,
            in_flight: u32::from(sent.is_some()),
            may_drop: self.ended.borrow()[shard],
            sent: sent.map(|(client, number)| (client, shard, number)).into_iter().collect(),
            sender: sent.map(|(client, _)| client),
            ..Timer::default()
        };
        self.is_due_at(&mut timer, self.nanos_at(due));
        self.rests(&mut timer);
        timer.is_zero = due == Due::In(Duration::ZERO) && sent.is_none();
        let mut timers = self.timers.borrow_mut();
        timers.push(timer);
        Job::new(timers.len() - 1, temper)
    }

    /// A value of a container of the shard, whose timers are the container's own.
    pub(crate) fn value(&self, shard: usize, due: Due, temper: Temper) -> Job {
        let job = self.job(shard, due, temper, None);
        self.edit(job.id, |timer| timer.in_flight += 1);
        job
    }

    /// A value is delivered only when one of so many tasks takes it.
    pub(crate) fn waits_for(&self, id: Id, takers: &Rc<Cell<u32>>) {
        self.edit(id, |timer| timer.takers = Some(Rc::clone(takers)));
    }

    /// A value is due between two times, in nanoseconds, which depends on the scale.
    pub(crate) fn is_due_between(&self, id: Id, (min, max): (u64, u64)) {
        self.edit(id, |timer| (timer.due_min, timer.due_max) = (min, max));
    }

    /// A value of a container has another deadline.
    pub(crate) fn value_reset(&self, id: Id, due: Due) {
        let due = self.nanos_at(due);
        self.edit(id, |timer| self.is_due_at(timer, due));
    }

    /// A container gives values back undelivered.
    pub(crate) fn taken_out(&self, jobs: impl IntoIterator<Item = Job>) {
        for job in jobs {
            self.finish(job.id, State::Cancelled);
            job.disarm();
        }
    }

    /// A container is cleared.
    pub(crate) fn may_drop(&self, ids: &[Id]) {
        for id in ids {
            self.edit(*id, |timer| timer.may_drop = true);
        }
    }

    pub(crate) fn scheduled(&self, id: Id, handle: TimerId) {
        self.edit(id, |timer| timer.handle = Some(handle));
    }

    pub(crate) fn refused(&self, id: Id, is_closed: bool) {
        let shard = self.get(id).shard;
        self.finish(id, State::Refused);
        let has_ended = self.ended.borrow()[shard];
        self.require(!is_closed || has_ended, || format!("{id} is refused as closed, and is not"));
    }

    /// A container refuses a value.
    pub(crate) fn refuse(&self, job: Job) {
        self.refused(job.id, false);
        job.disarm();
    }

    /// A shard has received all that a client had sent to it up to its request `number`.
    pub(crate) fn received(&self, client: u32, shard: usize, number: u64) {
        for timer in self.timers.borrow_mut().iter_mut() {
            let before = timer.sent.len();
            timer
                .sent
                .retain(|(sender, to, sent)| (*sender, *to) != (client, shard) || *sent > number);
            for _ in timer.sent.len()..before {
                self.land(timer);
            }
        }
    }

    /// A cancel goes to another thread.
    pub(crate) fn send_cancel(&self, id: Id) {
        self.edit(id, |timer| {
            timer.may_drop = true;
            timer.cancels += 1;
            timer.requests += 1;
            timer.in_flight += 1;
            timer.sender = None;
        });
    }

    /// A reset of a client goes to another thread; `sent` says which of its requests it is, and
    /// where it goes, if no reply will tell that it has arrived.
    pub(crate) fn send_reset(&self, id: Id, due: Due, client: u32, sent: Option<Sent>) {
        let due = self.nanos_at(due);
        self.edit(id, |timer| {
            if timer.in_flight == 0 {
                timer.sender = Some(client);
            }
            timer.sender = timer.sender.filter(|sender| *sender == client);
            self.may_be_due_at(timer, due);
            timer.requests += 1;
            timer.in_flight += 1;
            timer.reset_to = timer.sender.map(|_| (timer.requests, due));
            timer.sent.extend(sent);
        });
    }

    /// The reply to a reset.
    pub(crate) fn reset(&self, id: Id, outcome: ResetOutcome) {
        self.landed(id);
        match outcome {
            ResetOutcome::AlreadyFired => self.check_fired(id),
            ResetOutcome::Stale => self.check_stale(id, 0),
            _ => {}
        }
        self.require(outcome != ResetOutcome::Foreign, || format!("{id} is foreign to a reset"));
    }

    /// A cancel has this outcome; `sent` is how many of the cancels sent it is.
    pub(crate) fn cancelled<C>(&self, id: Id, outcome: Cancelled<C>, sent: u32) {
        match outcome {
            CancelOutcome::Cancelled { payload: Payload::Value(job), .. } => {
                self.require(job.id == id, || format!("the cancel of {id} returns {}", job.id));
                self.finish(job.id, State::Cancelled);
                job.disarm();
            }
            CancelOutcome::Cancelled { payload: Payload::Callback(call), .. } => {
                self.finish(id, State::Cancelled);
                // The job in it reports that it is dropped, to a timer that has ended.
                drop_contained(call);
            }
            CancelOutcome::Cancelled { payload: Payload::Local, .. } => {
                let state = self.get(id).state;
                self.require(state == State::Dropped, || format!("{id} is cancelled: {state:?}"));
            }
            CancelOutcome::AlreadyFired => self.check_fired(id),
            CancelOutcome::Stale => self.check_stale(id, sent),
            CancelOutcome::Overtook | CancelOutcome::Elsewhere(_) => {}
            CancelOutcome::Foreign => self.violate(format!("{id} is foreign to a cancel")),
        }
    }

    /// A cancel with a reply has come to its end.
    pub(crate) fn landed(&self, id: Id) {
        self.edit(id, |timer| self.land(timer));
    }

    /// An outcome says that the timer has fired.
    fn check_fired(&self, id: Id) {
        let state = self.get(id).state;
        self.require(state == State::Fired, || format!("{id} is said to have fired: {state:?}"));
    }

    /// An outcome says that the timer is stale; `sent` is how many of the cancels sent it replies
    /// to.
    fn check_stale(&self, id: Id, sent: u32) {
        let Timer { state, shard, cancels, .. } = self.get(id);
        // A shutdown that returns its timers may have them already.
        let may_be_stale = self.ended.borrow()[shard] || cancels > sent || state != State::Live;
        self.require(may_be_stale, || format!("{id} is said to be stale, and is live"));
    }

    /// A request for a timer gets no reply, as a shard has ended.
    pub(crate) fn unanswered(&self, id: Id) {
        let has_ended = self.ended.borrow()[self.get(id).shard];
        self.require(has_ended, || format!("a request for {id} gets no reply"));
    }

    /// The outcome of a reset on the core.
    pub(crate) fn reset_here(&self, id: Id, due: Due, outcome: ResetOutcome, shard: usize) {
        let nanos = self.nanos_at(due);
        let timer = self.get(id);
        match outcome {
            ResetOutcome::Reset => self.edit(id, |timer| {
                timer.requests += 1;
                self.rests(timer);
                if timer.in_flight == 0 {
                    self.is_due_at(timer, nanos);
                } else {
                    self.may_be_due_at(timer, nanos);
                }
            }),
            ResetOutcome::AlreadyFired => self.check_fired(id),
            ResetOutcome::Stale => self.check_stale(id, 0),
            // The request still comes.
            ResetOutcome::Overtook => self.edit(id, |timer| self.may_be_due_at(timer, nanos)),
            ResetOutcome::Elsewhere(_) => {}
            ResetOutcome::Foreign => self.violate(format!("{id} is foreign to a reset")),
        }
        let won = outcome == ResetOutcome::Reset;
        self.require(won || !self.must_be_here(&timer, shard), || {
            format!("{id} is on this core, but a reset says {outcome:?}")
        });
    }

    /// The outcome of a cancel on the core.
    pub(crate) fn cancelled_here<C>(&self, id: Id, outcome: Cancelled<C>, shard: usize) {
        let won = outcome.won();
        self.require(won || !self.must_be_here(&self.get(id), shard), || {
            format!("{id} is on this core, but a cancel does not win")
        });
        if matches!(outcome, CancelOutcome::Overtook) {
            self.edit(id, |timer| {
                timer.may_drop = true;
                timer.cancels += 1;
            });
        }
        self.cancelled(id, outcome, 0);
    }

    fn must_be_here(&self, timer: &Timer, shard: usize) -> bool {
        timer.state == State::Live
            && timer.in_flight == 0
            && timer.shard == shard
            && !self.ended.borrow()[shard]
    }

    /// A shard ends: its timers may be dropped from now on.
    pub(crate) fn shard_ends(&self, shard: usize) {
        self.ended.borrow_mut()[shard] = true;
        for timer in self.timers.borrow_mut().iter_mut() {
            timer.may_drop |= timer.shard == shard;
        }
    }

    /// Whether a timer of a handle may be refused as closed: its shard has ended, or any has if
    /// `shard` is `None`.
    pub(crate) fn may_be_closed(&self, shard: Option<usize>) -> bool {
        let ended = self.ended.borrow();
        shard.map_or_else(|| ended.contains(&true), |shard| ended[shard])
    }
}

/// What the service does.
impl Ledger {
    pub(crate) fn finish(&self, id: Id, state: State) {
        let before = self.edit(id, |timer| std::mem::replace(&mut timer.state, state));
        self.require(before == State::Live, || format!("{id} is {state:?}, and was {before:?}"));
    }

    /// A timer is delivered on a shard; `deadline` is `None` for a callback.
    pub(crate) fn fired(&self, id: Id, shard: usize, deadline: Option<Instant>) {
        let (now, timer) = (self.now(), self.get(id));
        self.finish(id, State::Fired);
        if self.fires_all.get() {
            return;
        }
        // A timer that is due when it is scheduled is of the tick that has begun, or of the next.
        let (min, max) = (timer.due_min / self.tick * self.tick, self.tick_of(timer.due_max));
        let (due, is_due_at_once) = (timer.due_min, timer.is_due_at_once);
        self.require(now >= due, || format!("{id} of {due} ns fires at {now} ns"));
        let is_early = !is_due_at_once && now < self.tick_of(due);
        self.require(!is_early, || format!("{id} of {due} ns fires at {now} ns, before its tick"));
        let deadline = deadline.map(|deadline| self.nanos_of(deadline));
        let is_its_own = deadline.is_none_or(|deadline| min <= deadline && deadline <= max);
        self.require(is_its_own, || format!("{id} of {min} to {max} ns fires as of {deadline:?}"));
        if timer.in_flight == 0 && timer.due_min == timer.due_max {
            self.check_order(id, shard, if is_due_at_once { min } else { max });
        }
        self.require(timer.shard == shard, || {
            format!("{id} fires on shard {shard}, but is on {}", timer.shard)
        });
    }

    /// The start of the tick whose timers this one comes with, at the latest: a timer whose
    /// deadline has passed comes with those of the tick that has begun.
    fn order_of(&self, timer: &Timer) -> u64 {
        let begun = timer.since_ns / self.tick * self.tick;
        if timer.is_zero { begun } else { self.tick_of(timer.due_max).max(begun) }
    }

    /// No timer of an earlier tick, known to the shard before this step, is left behind.
    fn check_order(&self, id: Id, shard: usize, due: u64) {
        let (timers, step) = (self.timers.borrow(), self.time.steps());
        let is_earlier = |timer: &Timer| {
            timer.state == State::Live
                && timer.shard == shard
                && timer.in_flight == 0
                && timer.since < step
                && timer.due_min == timer.due_max
                && self.order_of(timer) < due
        };
        let earlier = timers.iter().position(is_earlier);
        let now = self.now();
        self.require(earlier.is_none(), || {
            let other = earlier.map(|other| (other, self.tick_of(timers[other].due_max)));
            format!("{id} of {due} ns fires at {now} ns before {other:?}")
        });
    }

    /// A payload is dropped undelivered.
    fn dropped(&self, id: Id) {
        let Timer { state, may_drop, .. } = self.get(id);
        if state == State::Live {
            self.edit(id, |timer| timer.state = State::Dropped);
            self.require(may_drop, || format!("{id} is dropped without a reason"));
        }
    }

    /// Nothing can run, and the clock has moved: no timer of a shard that works was due before.
    pub(crate) fn check_rest(&self, works: impl Fn(usize) -> bool) {
        let now = self.now();
        let is_late = |timer: &Timer| {
            timer.state == State::Live
                && !timer.may_drop
                && timer.takers.as_ref().is_none_or(|takers| takers.get() > 0)
                && works(timer.shard)
                && self.tick_of(timer.last_reset().unwrap_or(timer.due_max)) < now
        };
        let timers = self.timers.borrow();
        let late = timers.iter().position(is_late);
        self.require(late.is_none(), || {
            let timer = late.map(|id| (id, self.tick_of(timers[id].due_max), &timers[id]));
            format!("nothing runs until {now} ns, but a timer is due: {timer:?}")
        });
        drop(timers);
        self.check_waits(works);
    }

    /// The history is over and all shards have ended: every timer has ended, too.
    pub(crate) fn check_end(&self) {
        let timers = self.timers.borrow();
        let lost = timers.iter().position(|timer| timer.state == State::Live);
        self.require(lost.is_none(), || {
            format!("{lost:?} is lost: {:?}", lost.map(|id| &timers[id]))
        });
        let waiting = self.waiting.get();
        self.require(waiting == 0, || format!("{waiting} tasks wait for ever"));
    }
}

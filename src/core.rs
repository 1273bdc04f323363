//! What a shard's thread holds: the wheel with its side tables, the owners' ends of its lanes, and
//! a client of its own to reach the other shards.
//!
//! Why cells and not `&mut`: whatever a timer runs may call back into the shard that runs it. So
//! each method borrows, does its work and lets go, and nothing of the user's, no callback, no
//! waker, no `Drop` of a task, ever runs inside: what a method collects to run or to drop it hands
//! out as [`Effect`]s.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use corewheel_shard::{ArmOutcome, Budget, CancelOutcome as ShardCancel, Shard, Tick, TimerKey};
use hashbrown::HashMap;
use slab::Slab;

use crate::client::Client;
use crate::clock::nanos_after;
use crate::error::{ScheduleError, StartError};
use crate::handle::{ShardId, TimerHandle};
use crate::lane::{LaneReceiver, Request};
use crate::mesh::{Directory, Door, Job, Order};
use crate::shutdown::{Returned, ShardReport, ShutdownPolicy};
use crate::spawn::Outputs;
use crate::stats::{Recorder, ShardCounts, ShardState};
use crate::task::{
    Call, Callback, CancelOutcome, Fired, LocalCall, RemoteTask, ResetOutcome, Stored, Task,
};

/// A lane on which nothing came for this long is closed, so that what was granted to a client that
/// was leaked comes back. A client that is alive notices and opens another.
const LANE_IDLE: Duration = Duration::from_mins(1);

pub(crate) struct Core<T: 'static> {
    id: ShardId,
    directory: Arc<Directory<T>>,
    client: Client<T>,
    state: RefCell<State<T>>,
    lanes: RefCell<Vec<LaneReceiver<T>>>,
    jobs: RefCell<Vec<Job<T>>>,
    /// What waits for the outputs of futures that were spawned from elsewhere.
    pub(crate) outputs: Outputs,
    order: RefCell<Option<Order<T>>>,
    /// Until when the driver sleeps; [`Tick::ZERO`] while it is awake.
    asleep_until: Cell<Tick>,
    lanes_checked: Cell<Tick>,
    closed: Cell<bool>,
}

struct State<T: 'static> {
    shard: Shard<Stored<T>>,
    calls: Slab<Call<T>>,
    sleepers: Slab<Sleeper>,
    /// Cancels that overtook their timers and whose senders wait for the task.
    overtaken: HashMap<TimerKey, oneshot::Sender<CancelOutcome<RemoteTask<T>>>>,
    effects: Vec<Effect<T>>,
    counts: ShardCounts,
    lateness: Recorder,
    ring_delay: Recorder,
}

/// A future that waits for a timer of this core.
enum Sleeper {
    Waiting(Waker),
    Fired,
    Closed,
}

/// What a future finds when it looks at its timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slept {
    NotYet,
    Fired,
    Closed,
}

/// What is left to be done when nothing is borrowed any more.
enum Effect<T: 'static> {
    DropTask(Task<T>),
    Cancelled(oneshot::Sender<CancelOutcome<RemoteTask<T>>>, CancelOutcome<Task<T>>),
    Reset(oneshot::Sender<ResetOutcome>, ResetOutcome),
    Wake(Waker),
}

impl<T> Effect<T> {
    fn run(self) {
        // Nobody waits any more where an answer cannot be sent.
        match self {
            Self::DropTask(task) => drop(task),
            Self::Cancelled(answer, outcome) => {
                let (outcome, left) = outcome.into_remote();
                drop(answer.send(outcome));
                drop(left);
            }
            Self::Reset(answer, outcome) => drop(answer.send(outcome)),
            Self::Wake(waker) => waker.wake(),
        }
    }
}

impl<T> CancelOutcome<Task<T>> {
    /// The outcome for another thread, and what cannot go there: to be dropped here.
    fn into_remote(self) -> (CancelOutcome<RemoteTask<T>>, Option<LocalCall<T>>) {
        let outcome = match self {
            Self::Cancelled { remaining, task } => {
                let (task, left) = task.into_remote();
                return (CancelOutcome::Cancelled { remaining, task }, left);
            }
            Self::Overtook => CancelOutcome::Overtook,
            Self::AlreadyFired => CancelOutcome::AlreadyFired,
            Self::Stale => CancelOutcome::Stale,
            Self::Elsewhere(shard) => CancelOutcome::Elsewhere(shard),
        };
        (outcome, None)
    }
}

impl<T> Task<T> {
    fn into_remote(self) -> (RemoteTask<T>, Option<LocalCall<T>>) {
        match self {
            Self::Value(value) => (RemoteTask::Value(value), None),
            Self::Callback(Callback(Call::Send(call))) => (RemoteTask::Callback(call), None),
            Self::Callback(Callback(Call::Local(call))) => (RemoteTask::LeftAtHome, Some(call)),
            Self::Sleep => (RemoteTask::LeftAtHome, None),
        }
    }
}

/// One timer to be delivered.
pub(crate) enum Delivery<T: 'static> {
    Value(Fired<T>),
    Call(Call<T>),
    Wake(Option<Waker>),
}

impl<T: Send + 'static> Core<T> {
    /// Makes the wheel of this shard and opens its door.
    pub(crate) fn open(
        directory: Arc<Directory<T>>,
        id: ShardId,
        spawns: bool,
    ) -> Result<Self, StartError> {
        let config = directory.settings.shard;
        let shard = Shard::new(config).map_err(|error| StartError::Shard {
            shard: id,
            source: std::io::Error::new(std::io::ErrorKind::OutOfMemory, error),
        })?;
        let counts = ShardCounts { capacity: u64::from(config.capacity), ..ShardCounts::default() };
        let core = Self {
            id,
            client: Client::new(Arc::clone(&directory)),
            state: RefCell::new(State {
                shard,
                calls: Slab::new(),
                sleepers: Slab::new(),
                overtaken: HashMap::new(),
                effects: Vec::new(),
                counts,
                lateness: Recorder::new(),
                ring_delay: Recorder::new(),
            }),
            lanes: RefCell::new(Vec::new()),
            jobs: RefCell::new(Vec::new()),
            outputs: Outputs::default(),
            order: RefCell::new(None),
            asleep_until: Cell::new(Tick::ZERO),
            lanes_checked: Cell::new(Tick::ZERO),
            closed: Cell::new(false),
            directory,
        };
        core.door().visitors().spawns = spawns;
        core.open_door(core.directory.tick.floor(core.nanos()));
        core.publish();
        Ok(core)
    }

    pub(crate) fn id(&self) -> ShardId {
        self.id
    }

    pub(crate) fn directory(&self) -> &Arc<Directory<T>> {
        &self.directory
    }

    pub(crate) fn client(&self) -> &Client<T> {
        &self.client
    }

    pub(crate) fn door(&self) -> &Door<T> {
        self.directory.door(self.id).expect("a core is made for a shard that there is")
    }

    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        self.directory.clock.nanos()
    }

    #[inline]
    pub(crate) fn deadline_after(&self, delay: Duration) -> Tick {
        self.directory.tick.ceil(nanos_after(self.nanos(), delay))
    }

    #[inline]
    pub(crate) fn deadline_at(&self, at: Instant) -> Tick {
        self.directory.tick.ceil(self.directory.clock.nanos_at(at))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }
}

/// Commands of this core.
impl<T: Send + 'static> Core<T> {
    #[inline]
    pub(crate) fn schedule(
        &self,
        deadline: Tick,
        task: T,
    ) -> Result<TimerHandle, ScheduleError<T>> {
        if self.closed.get() {
            return Err(ScheduleError::Closed(task));
        }
        let full = match self.state.borrow_mut().shard.schedule(deadline, Stored::Value(task)) {
            Ok(key) => Ok(key),
            Err(full) => Err(full.0),
        };
        let key = full.or_else(|stored| self.schedule_when_full(deadline, stored));
        match key {
            Ok(key) => {
                self.note_deadline(deadline);
                Ok(TimerHandle::new(self.id, key))
            }
            Err(Stored::Value(task)) => Err(ScheduleError::Full(task)),
            Err(_) => unreachable!("a refusal returns what was given"),
        }
    }

    pub(crate) fn schedule_call(
        &self,
        deadline: Tick,
        call: LocalCall<T>,
    ) -> Result<TimerHandle, ScheduleError<LocalCall<T>>> {
        if self.closed.get() {
            return Err(ScheduleError::Closed(call));
        }
        let index = self.state.borrow_mut().calls.insert(Call::Local(call)) as u32;
        match self.schedule_stored(deadline, Stored::Call(index)) {
            Some(key) => Ok(TimerHandle::new(self.id, key)),
            None => match self.state.borrow_mut().calls.remove(index as usize) {
                Call::Local(call) => Err(ScheduleError::Full(call)),
                Call::Send(_) => unreachable!("a refusal returns what was given"),
            },
        }
    }

    /// A timer that wakes a future. Its sleeper must be released by the future.
    pub(crate) fn schedule_sleep(&self, deadline: Tick, waker: Waker) -> Option<(TimerKey, u32)> {
        let index = self.state.borrow_mut().sleepers.insert(Sleeper::Waiting(waker)) as u32;
        let key = self.schedule_stored(deadline, Stored::Sleeper(index));
        if key.is_none() {
            self.release_sleeper(index);
        }
        key.map(|key| (key, index))
    }

    /// Looks whether a sleeper's time has come, and keeps the waker if not.
    pub(crate) fn poll_sleeper(&self, index: u32, waker: &Waker) -> Slept {
        let mut state = self.state.borrow_mut();
        let old = match &mut state.sleepers[index as usize] {
            Sleeper::Fired => return Slept::Fired,
            Sleeper::Closed => return Slept::Closed,
            Sleeper::Waiting(known) if known.will_wake(waker) => return Slept::NotYet,
            Sleeper::Waiting(known) => std::mem::replace(known, waker.clone()),
        };
        // A waker's drop is the user's code.
        drop(state);
        drop(old);
        Slept::NotYet
    }

    pub(crate) fn release_sleeper(&self, index: u32) {
        let sleeper = self.state.borrow_mut().sleepers.try_remove(index as usize);
        // A waker's drop is the user's code, so it comes when nothing is borrowed.
        drop(sleeper);
    }

    /// Ends a sleep from the future's side.
    pub(crate) fn abandon_sleep(&self, key: TimerKey, index: u32) {
        // Its task is a number, and it may have fired: there is nothing to be told of it.
        let _ = self.state.borrow_mut().shard.cancel(key);
        self.publish_command();
        self.release_sleeper(index);
    }

    #[inline]
    pub(crate) fn cancel(&self, key: TimerKey) -> CancelOutcome<Task<T>> {
        let mut state = self.state.borrow_mut();
        let outcome = state.shard.cancel(key);
        let outcome = state.finish_cancel(outcome, self.nanos(), &self.directory);
        drop(state);
        self.publish_command();
        outcome
    }

    #[inline]
    pub(crate) fn reset(&self, key: TimerKey, deadline: Tick) -> ResetOutcome {
        let outcome = self.state.borrow_mut().shard.reset(key, deadline).into();
        if outcome == ResetOutcome::Moved {
            self.note_deadline(deadline);
        }
        outcome
    }

    pub(crate) fn pending(&self) -> usize {
        self.state.borrow().shard.len()
    }

    fn schedule_stored(&self, deadline: Tick, stored: Stored<T>) -> Option<TimerKey> {
        let first = self.state.borrow_mut().shard.schedule(deadline, stored);
        let key = first.or_else(|full| self.schedule_when_full(deadline, full.0)).ok()?;
        self.note_deadline(deadline);
        Some(key)
    }

    /// Keys that nobody has come for are the last reserve.
    #[cold]
    fn schedule_when_full(&self, deadline: Tick, stored: Stored<T>) -> Result<TimerKey, Stored<T>> {
        let key = self.door().visitors().bank.pop_back();
        let mut state = self.state.borrow_mut();
        if let Some(key) = key {
            state.shard.revoke(key);
            if let Ok(key) = state.shard.schedule(deadline, stored) {
                return Ok(key);
            }
            unreachable!("a slot was just given back");
        }
        state.counts.refused += 1;
        Err(stored)
    }

    /// Wakes the driver if it sleeps past a deadline that has just come up.
    #[inline]
    fn note_deadline(&self, deadline: Tick) {
        if deadline < self.asleep_until.get() {
            self.asleep_until.set(Tick::ZERO);
            self.door().bell.ring();
        } else {
            self.publish_command();
        }
    }

    /// Publishes what a command has changed while the driver sleeps. Its next turn may be far off,
    /// and until then the statistics would show a shard that its own tasks keep busy as idle.
    #[inline]
    fn publish_command(&self) {
        if self.asleep_until.get() > Tick::ZERO {
            let state = self.state.borrow();
            self.door().published.store_commands(state.shard.counters());
        }
    }
}

/// The steps of a turn; [`crate::turn`] says in which order.
impl<T: Send + 'static> Core<T> {
    /// Takes in what other threads have sent, as much as the budget allows. True if there is more.
    pub(crate) fn receive(&self, now: u64) -> bool {
        let tick = self.directory.tick.floor(now);
        if self.door().answer_knock() {
            self.open_door(tick);
        }
        let more = self.drain_lanes(tick, now);
        self.tend_lanes(tick);
        self.run_effects();
        more
    }

    pub(crate) fn advance(&self, now: u64) {
        let budget = self.directory.settings.budget.of_wheel();
        self.state.borrow_mut().shard.advance(self.directory.tick.floor(now), budget);
    }

    /// Makes everything due, for a shutdown that fires what is pending.
    pub(crate) fn advance_to_the_end(&self) {
        self.state.borrow_mut().shard.advance(Tick::NEVER, Budget::UNLIMITED);
    }

    /// The next timer to be delivered, with how late it is at `now`.
    #[inline]
    pub(crate) fn pop(&self, now: u64) -> Option<Delivery<T>> {
        let mut state = self.state.borrow_mut();
        let expired = state.shard.pop_expired()?;
        let due = self.directory.tick.start_of(expired.deadline);
        let late = now.saturating_sub(due);
        state.lateness.record(late);
        let lateness = Duration::from_nanos(late);
        if lateness > self.directory.settings.lateness_bound {
            state.counts.late += 1;
        }
        Some(match expired.task {
            Stored::Value(task) => Delivery::Value(Fired {
                handle: TimerHandle::new(self.id, expired.key),
                deadline: self.directory.clock.instant(due),
                lateness,
                task,
            }),
            Stored::Call(index) => Delivery::Call(state.calls.remove(index as usize)),
            // No future is told that its time has come before it has, by whatever policy.
            Stored::Sleeper(index) if now < due => {
                Delivery::Wake(state.end_sleep(index, Sleeper::Closed))
            }
            Stored::Sleeper(index) => Delivery::Wake(state.end_sleep(index, Sleeper::Fired)),
        })
    }

    /// What a delivery came to.
    #[inline]
    pub(crate) fn note_delivery(&self, calm: bool, took: u64) {
        let over = Duration::from_nanos(took) > self.directory.settings.overrun;
        if over || !calm {
            let mut state = self.state.borrow_mut();
            state.counts.overrun += u64::from(over);
            state.counts.panicked += u64::from(!calm);
        }
    }

    pub(crate) fn note_turn(&self, exhausted: bool) {
        let mut state = self.state.borrow_mut();
        state.counts.turns += 1;
        state.counts.turns_exhausted += u64::from(exhausted);
    }

    /// Stores the counts where everybody can read them.
    pub(crate) fn publish(&self) {
        let lanes = self.lanes.borrow();
        let state = &mut *self.state.borrow_mut();
        state.counts.take_over(state.shard.counters());
        state.counts.granted = state.shard.granted() as u64;
        state.counts.lanes = lanes.len() as u64;
        state.counts.lane_depth = lanes.iter().map(|lane| lane.depth() as u64).sum();
        let published = &self.door().published;
        published.store(&state.counts, &mut state.lateness, &mut state.ring_delay);
    }

    pub(crate) fn next_deadline(&self) -> Option<Tick> {
        self.state.borrow().shard.next_deadline()
    }

    pub(crate) fn is_behind(&self) -> bool {
        self.state.borrow().shard.is_behind()
    }

    pub(crate) fn take_jobs(&self) -> Vec<Job<T>> {
        std::mem::take(&mut *self.jobs.borrow_mut())
    }

    pub(crate) fn take_order(&self) -> Option<Order<T>> {
        self.order.borrow_mut().take()
    }

    /// Goes to sleep by the bell's protocol. False if something came meanwhile.
    pub(crate) fn fall_asleep(&self, until: Tick, waker: &Waker) -> bool {
        let door = self.door();
        self.asleep_until.set(until);
        door.bell.fall_asleep(until, waker);
        if door.is_knocked() || self.lanes.borrow().iter().any(LaneReceiver::has_news) {
            self.wake_up();
            return false;
        }
        true
    }

    pub(crate) fn wake_up(&self) {
        self.asleep_until.set(Tick::ZERO);
        self.door().bell.wake_up();
    }

    /// Whether anything has come in since the last turn, for a driver that spins.
    pub(crate) fn has_news(&self) -> bool {
        self.door().is_knocked() || self.lanes.borrow().iter().any(LaneReceiver::has_news)
    }

    /// Takes in what was left at the door, and fills the bank.
    fn open_door(&self, tick: Tick) {
        let mut state = self.state.borrow_mut();
        let mut visitors = self.door().visitors();
        match visitors.state {
            ShardState::Waiting => visitors.state = ShardState::Running,
            ShardState::Running => {}
            // The service was shut down before the shard was driven.
            ShardState::Closed | ShardState::Dead => return self.closed.set(true),
        }
        for mut lane in visitors.arriving.drain(..) {
            lane.used_at = tick;
            self.lanes.borrow_mut().push(lane);
        }
        self.jobs.borrow_mut().append(&mut visitors.jobs);
        if let Some(order) = visitors.order.take() {
            *self.order.borrow_mut() = Some(order);
        }
        while visitors.bank.len() < self.directory.settings.grant_window {
            let Some(key) = state.shard.grant() else { break };
            visitors.bank.push_back(key);
        }
    }

    fn drain_lanes(&self, tick: Tick, now: u64) -> bool {
        let mut lanes = self.lanes.borrow_mut();
        if lanes.is_empty() {
            return false;
        }
        let state = &mut *self.state.borrow_mut();
        // Every lane has its share, so that one that floods does not starve another.
        let share = (self.directory.settings.budget.requests_max as usize / lanes.len()).max(1);
        let mut more = false;
        for lane in lanes.iter_mut() {
            let drained = lane.drain(share, |request, key| {
                state.apply(request, key, now, &self.directory);
            });
            if drained > 0 {
                state.counts.requests += drained as u64;
                lane.used_at = tick;
                more |= drained == share;
            }
            for _ in 0..lane.wants_keys(self.directory.settings.grant_window) {
                // What is kept for newcomers is the last that there is for those who are here.
                let reserve = || self.door().visitors().bank.pop_back();
                let Some(key) = state.shard.grant().or_else(reserve) else { break };
                lane.grant(key);
            }
        }
        more
    }

    /// Lets go of lanes whose client is gone, and now and then of those that have long been idle.
    fn tend_lanes(&self, tick: Tick) {
        let mut lanes = self.lanes.borrow_mut();
        if lanes.iter().any(LaneReceiver::is_finished) {
            for lane in lanes.extract_if(.., |lane| lane.is_finished()) {
                self.let_go(lane);
            }
        }
        let idle = self.directory.tick.ceil(LANE_IDLE.as_nanos() as u64).index();
        if tick.saturating_since(self.lanes_checked.get()) >= idle {
            self.lanes_checked.set(tick);
            for lane in lanes.extract_if(.., |lane| tick.saturating_since(lane.used_at) >= idle) {
                self.let_go(lane);
            }
        }
    }

    /// Closes a lane, drains it for the last time and takes its keys back.
    fn let_go(&self, mut lane: LaneReceiver<T>) {
        lane.close();
        let now = self.nanos();
        let state = &mut *self.state.borrow_mut();
        lane.drain_last(|request, key| state.apply(request, key, now, &self.directory));
        self.door().visitors().forget(lane.shared());
        for key in lane.hand_back() {
            state.shard.revoke(key);
            if let Some(answer) = state.overtaken.remove(&key) {
                state.effects.push(Effect::Cancelled(answer, CancelOutcome::Stale));
            }
        }
    }

    fn run_effects(&self) {
        loop {
            let mut effects = std::mem::take(&mut self.state.borrow_mut().effects);
            if effects.is_empty() {
                return;
            }
            for effect in effects.drain(..) {
                if !contain(self.id, || effect.run()) {
                    self.note_delivery(false, 0);
                }
            }
            let mut state = self.state.borrow_mut();
            if state.effects.is_empty() {
                // The room is kept for the next turn.
                state.effects = effects;
            }
        }
    }
}

/// The end.
impl<T: Send + 'static> Core<T> {
    /// Closes the door and all lanes; afterwards nothing can come in any more, and an order to shut
    /// down that was still to be seen is answered by nobody. False if that has been done before.
    pub(crate) fn close(&self, state: ShardState) -> bool {
        if self.closed.replace(true) {
            return false;
        }
        // Whoever comes to the door after this finds it closed, whoever came before is let in.
        let (jobs, order) = {
            let shard_state = &mut *self.state.borrow_mut();
            let mut visitors = self.door().visitors();
            visitors.state = state;
            self.lanes.borrow_mut().append(&mut visitors.arriving);
            for key in visitors.bank.drain(..) {
                shard_state.shard.revoke(key);
            }
            (std::mem::take(&mut visitors.jobs), (visitors.order.take(), self.order.take()))
        };
        // All of it may run what is the user's: the capture of a job, a waker.
        contain(self.id, || drop((jobs, self.take_jobs())));
        contain(self.id, || drop(order));
        if state == ShardState::Dead {
            // An executor that has died may keep its futures for ever.
            self.outputs.abandon(self.id);
        }
        for lane in std::mem::take(&mut *self.lanes.borrow_mut()) {
            self.let_go(lane);
        }
        self.run_effects();
        true
    }

    /// Takes all pending timers out after [`close`](Self::close), by a policy that does not fire
    /// them, and wakes the futures that wait for them.
    pub(crate) fn clear_out(&self, policy: ShutdownPolicy) -> ShardReport<T> {
        let mut drained = Vec::new();
        {
            let state = &mut *self.state.borrow_mut();
            for expired in state.shard.drain().collect::<Vec<_>>() {
                let task = state.take(expired.task, Sleeper::Closed);
                if policy == ShutdownPolicy::Return {
                    drained.push((expired.key, expired.deadline, task));
                } else {
                    state.effects.push(Effect::DropTask(task));
                }
            }
            for (_, answer) in state.overtaken.drain() {
                state.effects.push(Effect::Cancelled(answer, CancelOutcome::Stale));
            }
        }
        self.run_effects();
        let mut returned = Vec::new();
        for (key, deadline, task) in drained {
            let handle = TimerHandle::new(self.id, key);
            let deadline = self.directory.clock.instant(self.directory.tick.start_of(deadline));
            let (task, left) = task.into_remote();
            returned.push(Returned { handle, deadline, task });
            if !contain(self.id, || drop(left)) {
                self.note_delivery(false, 0);
            }
        }
        self.publish();
        ShardReport::new(self.id, self.door().stats(self.id).counts, returned)
    }
}

impl<T: Send + 'static> State<T> {
    /// Does what a client asks. Whatever that sets free or answers is left as an effect.
    fn apply(
        &mut self,
        request: Request<T>,
        key: Option<TimerKey>,
        now: u64,
        directory: &Directory<T>,
    ) {
        match request {
            Request::Schedule { deadline, sent_us, task } => {
                self.note_ring_delay(sent_us, now);
                self.arm(key, deadline, Stored::Value(task), now, directory);
            }
            Request::Call { deadline, sent_us, call } => {
                self.note_ring_delay(sent_us, now);
                let index = self.calls.insert(Call::Send(call)) as u32;
                self.arm(key, deadline, Stored::Call(index), now, directory);
            }
            Request::Cancel { key, answer } => {
                let outcome = self.shard.cancel(key);
                let overtook = matches!(outcome, ShardCancel::Overtook);
                let outcome = self.finish_cancel(outcome, now, directory);
                match answer {
                    // The answer can tell the task when it comes.
                    Some(answer) if overtook => {
                        self.overtaken.insert(key, answer);
                    }
                    Some(answer) => self.effects.push(Effect::Cancelled(answer, outcome)),
                    None => self.effects.extend(outcome.task().map(Effect::DropTask)),
                }
            }
            Request::Reset { key, deadline, answer } => {
                let outcome = self.shard.reset(key, deadline).into();
                self.effects.extend(answer.map(|answer| Effect::Reset(answer, outcome)));
            }
        }
    }

    fn arm(
        &mut self,
        key: Option<TimerKey>,
        deadline: Tick,
        stored: Stored<T>,
        now: u64,
        directory: &Directory<T>,
    ) {
        let key = key.expect("a request for a timer comes with the key that it uses up");
        match self.shard.arm(key, deadline, stored) {
            ArmOutcome::Armed => {}
            ArmOutcome::Overtaken(stored) => {
                let task = self.take(stored, Sleeper::Closed);
                self.effects.push(match self.overtaken.remove(&key) {
                    Some(answer) => {
                        let remaining = directory.remaining(deadline, now);
                        Effect::Cancelled(answer, CancelOutcome::Cancelled { remaining, task })
                    }
                    None => Effect::DropTask(task),
                });
            }
            ArmOutcome::NotGranted(_) => unreachable!("the queue of a lane holds granted keys"),
        }
    }

    #[inline]
    fn finish_cancel(
        &mut self,
        outcome: ShardCancel<Stored<T>>,
        now: u64,
        directory: &Directory<T>,
    ) -> CancelOutcome<Task<T>> {
        match outcome {
            ShardCancel::Cancelled { deadline, task } => {
                let remaining = directory.remaining(deadline, now);
                CancelOutcome::Cancelled { remaining, task: self.take(task, Sleeper::Closed) }
            }
            ShardCancel::Overtook => CancelOutcome::Overtook,
            ShardCancel::AlreadyFired => CancelOutcome::AlreadyFired,
            ShardCancel::Stale => CancelOutcome::Stale,
        }
    }

    /// What a stored task stands for; a sleeper ends as told.
    #[inline]
    fn take(&mut self, stored: Stored<T>, end: Sleeper) -> Task<T> {
        match stored {
            Stored::Value(value) => Task::Value(value),
            Stored::Call(index) => Task::Callback(Callback(self.calls.remove(index as usize))),
            Stored::Sleeper(index) => {
                let waker = self.end_sleep(index, end);
                self.effects.extend(waker.map(Effect::Wake));
                Task::Sleep
            }
        }
    }

    fn end_sleep(&mut self, index: u32, end: Sleeper) -> Option<Waker> {
        let sleeper = self.sleepers.get_mut(index as usize)?;
        match std::mem::replace(sleeper, end) {
            Sleeper::Waiting(waker) => Some(waker),
            Sleeper::Fired | Sleeper::Closed => None,
        }
    }

    #[inline]
    fn note_ring_delay(&mut self, sent_us: u32, now: u64) {
        let delay_us = ((now / 1_000) as u32).wrapping_sub(sent_us);
        // A sender's clock reading can be a moment later than this turn's.
        let delay_us = if delay_us > u32::MAX / 2 { 0 } else { delay_us };
        self.ring_delay.record(u64::from(delay_us) * 1_000);
    }
}

/// Runs something of the user's; false if it panicked.
pub(crate) fn contain(shard: ShardId, run: impl FnOnce()) -> bool {
    let Err(payload) = catch_unwind(AssertUnwindSafe(run)) else { return true };
    let message = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(not a message)");
    tracing::error!(shard = shard.number(), message, "a timer's task panicked");
    // What was thrown may panic when it is dropped.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(payload);
    }
    false
}

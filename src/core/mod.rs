//! What a shard's thread holds: the wheel with its side tables, the owners' ends of its lanes, and
//! a client of its own to reach the other shards.
//!
//! Why cells and not `&mut`: whatever a timer runs may call back into the shard that runs it. So
//! each method borrows, does its work and lets go, and nothing of the user's, no callback, no
//! waker, no `Drop` of a task, ever runs inside: what a method collects to run or to drop it hands
//! out as effects.

mod budget;
mod classes;
mod closing;
mod connections;
mod conns;
mod end;
mod links;
mod many;
mod marks;
mod moving;
mod put_off;
mod recent;
mod scale;
mod shared;
mod state;
mod steps;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use corewheel_shard::{
    CancelOutcome as ShardCancel, ResetOutcome as ShardReset, Shard, Tick, TimerKey,
};
use hashbrown::HashMap;
use slab::Slab;

use self::budget::PollBudget;
use self::classes::ClassTable;
use self::closing::CloseListeners;
pub(crate) use self::closing::Closing;
pub(crate) use self::connections::Refused;
use self::conns::Conns;
pub(crate) use self::conns::{Block, Events, NEVER, Packed, Record, slot_of};
use self::moving::{Draining, Moved};
use self::put_off::PutOff;
use self::recent::Recent;
use self::scale::Scaling;
pub(crate) use self::scale::{CLASSES_MAX, Class};
pub(crate) use self::shared::Owner;
use self::shared::Owners;
pub(crate) use self::state::Slept;
use self::state::{Sleeper, State};
use crate::class::ClassId;
use crate::client::Client;
use crate::clock::NearClock;
use crate::error::{ScheduleError, StartError};
use crate::handle::{Home, ShardId, TimerHandle};
use crate::lane::LaneReceiver;
use crate::mesh::{Directory, Door, Job, Order};
use crate::spawn::Futures;
use crate::stats::{Recorder, ShardCounts};
use crate::task::{Call, CancelOutcome, Fired, LocalCall, ResetOutcome, Stored, Task};

pub(crate) struct Core<T: 'static> {
    id: ShardId,
    home: Home,
    directory: Arc<Directory<T>>,
    client: Client<T>,
    clock: NearClock,
    recent: Recent,
    state: RefCell<State<T>>,
    conns: RefCell<Conns<T>>,
    lanes: RefCell<Vec<LaneReceiver<T>>>,
    jobs: RefCell<Vec<Job<T>>>,
    /// The futures that were spawned from elsewhere.
    pub(crate) futures: Futures<T>,
    order: RefCell<Option<Order<T>>>,
    scaling: Scaling,
    /// Until when the driver sleeps; [`Tick::ZERO`] while it is awake.
    asleep_until: Cell<Tick>,
    lanes_checked: Cell<Tick>,
    closed: Cell<bool>,
    draining: RefCell<Option<Draining>>,
    close_listeners: CloseListeners,
    budget: PollBudget,
}

/// One timer to be delivered.
pub(crate) enum Delivery<T: 'static> {
    Value(Fired<T>),
    Call(Call<T>),
    Wake(Option<Waker>),
    Events(u32, Events),
    Scaled(Rc<dyn Class>),
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
            home: directory.service.home(id),
            client: Client::new(Arc::clone(&directory)),
            clock: NearClock::new(directory.clock.clone()),
            state: RefCell::new(State {
                shard,
                calls: Slab::new(),
                owners: Owners::new(),
                sleepers: Slab::new(),
                overtaken: HashMap::new(),
                moved: Moved::new(directory.service.home(id), config.capacity as usize),
                effects: Vec::new(),
                counts,
                lateness: Recorder::new(),
                ring_delay: Recorder::new(),
                classes: ClassTable::new(directory.settings.classes.len(), config.capacity),
                delivering: ClassId::NONE,
                put_off: PutOff::default(),
            }),
            recent: Recent::new(),
            conns: RefCell::default(),
            lanes: RefCell::new(Vec::new()),
            jobs: RefCell::new(Vec::new()),
            futures: Futures::default(),
            order: RefCell::new(None),
            scaling: Scaling::new(),
            asleep_until: Cell::new(Tick::ZERO),
            lanes_checked: Cell::new(Tick::ZERO),
            closed: Cell::new(false),
            draining: RefCell::new(None),
            close_listeners: CloseListeners::default(),
            budget: PollBudget::new(),
            directory,
        };
        core.door().visitors().spawns = spawns;
        core.open_door(core.directory.tick.floor(core.nanos()));
        core.rescale();
        core.publish();
        Ok(core)
    }

    pub(crate) fn id(&self) -> ShardId {
        self.id
    }

    /// What the handles of this shard's timers carry.
    #[inline]
    pub(crate) fn home(&self) -> Home {
        self.home
    }

    /// Whether a timer that is not of this shard is of another service.
    #[cold]
    pub(crate) fn is_foreign(&self, timer: TimerHandle) -> bool {
        !timer.is_of(self.directory.service)
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

    /// What the clock shows. It takes asking the system.
    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        self.clock.ask()
    }

    /// The same or a little later, and cheap.
    #[inline]
    pub(crate) fn nanos_near(&self) -> u64 {
        self.clock.nanos()
    }

    #[inline]
    pub(crate) fn deadline_after(&self, delay: Duration) -> Tick {
        self.directory.deadline_after(self.nanos_near(), delay)
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
        let first = self.state.borrow_mut().shard.schedule(deadline, Stored::Value(task));
        match first {
            Ok(key) => {
                self.note_deadline(deadline);
                Ok(self.home.handle(key))
            }
            Err(full) => self.schedule_value_when_full(deadline, full.0),
        }
    }

    #[cold]
    fn schedule_value_when_full(
        &self,
        deadline: Tick,
        stored: Stored<T>,
    ) -> Result<TimerHandle, ScheduleError<T>> {
        match self.schedule_when_full(deadline, stored) {
            Ok(key) => {
                self.note_deadline(deadline);
                Ok(self.home.handle(key))
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
            Some(key) => Ok(self.home.handle(key)),
            None => match self.state.borrow_mut().calls.remove(index as usize) {
                Call::Local(call) => Err(ScheduleError::Full(call)),
                _ => unreachable!("a refusal returns what was given"),
            },
        }
    }

    /// A timer that wakes a future. Its sleeper must be released by the future.
    pub(crate) fn schedule_sleep(
        &self,
        class: ClassId,
        deadline: Tick,
        waker: Waker,
    ) -> Option<(TimerKey, u32)> {
        let index = self.state.borrow_mut().sleepers.insert(Sleeper::Waiting(waker)) as u32;
        let key = self.schedule_stored(deadline, Stored::Sleeper(index));
        let Some(key) = key else {
            self.refuse_class(class);
            self.release_sleeper(index);
            return None;
        };
        self.begin_class(class, key);
        Some((key, index))
    }

    /// Looks whether a sleeper's time has come, and keeps the waker if not.
    pub(crate) fn poll_sleeper(&self, index: u32, waker: &Waker) -> Slept {
        match &self.state.borrow().sleepers[index as usize] {
            Sleeper::Fired => return Slept::Fired,
            Sleeper::Closed => return Slept::Closed,
            Sleeper::Waiting(known) if known.will_wake(waker) => return Slept::NotYet,
            Sleeper::Waiting(_) => {}
        }
        // Cloning and dropping a waker are the user's code, which may end the sleep.
        let waker = waker.clone();
        let old = match &mut self.state.borrow_mut().sleepers[index as usize] {
            Sleeper::Fired => return Slept::Fired,
            Sleeper::Closed => return Slept::Closed,
            Sleeper::Waiting(known) => std::mem::replace(known, waker),
        };
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
        let _ = self.state.borrow_mut().cancel(key);
        self.publish_command();
        self.release_sleeper(index);
    }

    #[inline]
    pub(crate) fn cancel(&self, key: TimerKey, now: u64) -> CancelOutcome<Task<T>> {
        let outcome = self.state.borrow_mut().cancel(key);
        self.publish_command();
        match outcome {
            // Most are this, and are not to be carried through what the others take.
            ShardCancel::Cancelled { deadline, task: Stored::Value(value) } => {
                let remaining = self.directory.remaining(deadline, now);
                CancelOutcome::Cancelled { remaining, task: Task::Value(value) }
            }
            ShardCancel::Stale => self.cancel_moved(key, now),
            outcome => self.state.borrow_mut().finish_cancel(outcome, now, &self.directory),
        }
    }

    #[inline]
    pub(crate) fn reset(&self, key: TimerKey, deadline: Tick) -> ResetOutcome {
        let outcome = self.state.borrow_mut().shard.reset(key, deadline);
        match outcome {
            ShardReset::Moved => {
                self.note_deadline(deadline);
                ResetOutcome::Moved
            }
            ShardReset::Stale => self.reset_moved(key, deadline),
            outcome => outcome.into(),
        }
    }

    /// When a timer is due that is pending here.
    pub(crate) fn deadline_of(&self, key: TimerKey) -> Option<Tick> {
        self.state.borrow().shard.deadline(key)
    }

    pub(crate) fn pending(&self) -> usize {
        self.state.borrow().shard.len()
    }

    fn schedule_stored(&self, deadline: Tick, stored: Stored<T>) -> Option<TimerKey> {
        let key = self.schedule_quietly(deadline, stored)?;
        self.note_deadline(deadline);
        Some(key)
    }

    /// The same, but for [`note_deadline`](Self::note_deadline), which must follow: for who has
    /// something to finish before a driver is woken, whose waker is the user's code.
    #[inline]
    fn schedule_quietly(&self, deadline: Tick, stored: Stored<T>) -> Option<TimerKey> {
        let first = self.state.borrow_mut().shard.schedule(deadline, stored);
        first.or_else(|full| self.schedule_when_full(deadline, full.0)).ok()
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
    pub(crate) fn note_deadline(&self, deadline: Tick) {
        if self.asleep_until.get() > Tick::ZERO {
            self.note_asleep(deadline);
        }
    }

    #[cold]
    fn note_asleep(&self, deadline: Tick) {
        if deadline < self.asleep_until.get() {
            self.asleep_until.set(Tick::ZERO);
            self.door().bell.ring();
        } else {
            self.publish_asleep();
        }
    }

    /// Publishes what a command has changed while the driver sleeps. Its next turn may be far off,
    /// and until then the statistics would show a shard that its own tasks keep busy as idle.
    #[inline]
    fn publish_command(&self) {
        if self.asleep_until.get() > Tick::ZERO {
            self.publish_asleep();
        }
    }

    #[cold]
    fn publish_asleep(&self) {
        let State { shard, classes, .. } = &mut *self.state.borrow_mut();
        let published = &self.door().published;
        published.store_commands(shard.counters(), |published| classes.publish(published));
    }
}

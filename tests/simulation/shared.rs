//! Sleeps and timeouts of handles: tasks on other threads and on shards poll, reset and drop them,
//! and take them over from each other.
//!
//! A deadline is computed here from the clock of the simulation and rounded up to a tick, which is
//! a promise. The code reads a near clock of its own.

use std::cell::{RefCell, RefMut};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use corewheel::{AnyHandle, RefusedKind, ShardId, Sleep, TimeoutError};
use fastrand::Rng;

use crate::commands::Due;
use crate::history::History;
use crate::ledger::Ledger;
use crate::world::{World, by_due, world};

/// How often a task does something with its sleep, before it only waits.
const ACTIONS_MAX: u32 = 12;

/// What becomes of a sleep of a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SharedPlan {
    /// The shard of the timers; `None` if the thread's own shard is used.
    pub(crate) shard: Option<u8>,
    /// Whether a second task takes the sleep over.
    pub(crate) is_taken_over: bool,
    /// The shards on which the first task and the one that takes the sleep over run; `None` for a
    /// thread of their own.
    pub(crate) tasks: [Option<u8>; 2],
    pub(crate) due: Due,
    /// The longest time between two actions of a task.
    pub(crate) pause_max: Duration,
    /// The seed of what the tasks do.
    pub(crate) seed: u64,
}

/// The sleeps of a history, and the wakers that they were polled with.
#[derive(Default)]
pub(crate) struct Shared {
    sleeps: RefCell<Vec<Place>>,
    /// Each waker that is not dropped and each timeout holds a clone.
    wakers: Arc<()>,
}

impl Shared {
    pub(crate) fn len(&self) -> usize {
        self.sleeps.borrow().len()
    }

    /// The sleeps that have ended.
    pub(crate) fn ended(&self) -> Vec<usize> {
        let places = self.sleeps.borrow();
        (0..places.len()).filter(|place| places[*place].sleeping.is_none()).collect()
    }

    /// How many wakers of these sleeps are not dropped.
    pub(crate) fn wakers_of(&self, sleeps: &[usize]) -> usize {
        let places = self.sleeps.borrow();
        sleeps.iter().map(|place| Arc::strong_count(&places[*place].wakers) - 1).sum()
    }

    /// A waker of a sleep is woken, which its timer does at its time, and not before. A shard that
    /// has ended wakes all, and one that has looked for room wakes what has waited for it.
    fn check_woken(&self, world: &World, place: usize) {
        let (places, ledger) = (self.sleeps.borrow(), &world.ledger);
        // `None` while it is polled. A timer that another thread ends may come at its own time.
        let place = &places[place];
        let Some(sleeping) = place.sleeping.as_ref().filter(|_| place.owner == 0) else { return };
        let (now, due) = (ledger.now(), sleeping.expected.due);
        let is_early = due < u64::MAX && now < due;
        let is_right = !is_early || !world.has_room() || ledger.may_be_closed(None);
        ledger.require(is_right, || format!("a sleep until {due} ns is woken at {now} ns"));
    }

    /// How many wakers are not dropped, and how many timeouts wait.
    pub(crate) fn wakers(&self) -> usize {
        Arc::strong_count(&self.wakers) - 1
    }
}

/// The place of a sleep, where the next task takes it over.
struct Place {
    /// `None` while it is polled, and after its end.
    sleeping: Option<Sleeping>,
    /// The task that polls it, as an index into the plan's tasks.
    owner: usize,
    /// The waker of that task.
    waker: Option<Waker>,
    /// Each waker that the sleep was polled with holds a clone.
    wakers: Arc<()>,
}

struct Sleeping {
    sleep: Box<Sleep>,
    expected: Expected,
}

/// A deadline in the ledger, until it is dropped.
struct Expected {
    ledger: Rc<Ledger>,
    timeout: usize,
    shard: Option<usize>,
    due: u64,
}

impl Expected {
    fn new(ledger: &Rc<Ledger>, shard: Option<usize>, works_on: Option<usize>, due: u64) -> Self {
        let timeout = ledger.timeout(works_on, due);
        Self { ledger: Rc::clone(ledger), timeout, shard, due }
    }

    fn reset(&mut self, due: u64) {
        self.due = due;
        self.ledger.timeout_reset(self.timeout, due);
    }

    /// The sleep need not end until it is polled again.
    fn rest(&mut self) {
        self.ledger.timeout_reset(self.timeout, u64::MAX);
    }

    fn check_elapsed(&self) {
        let (now, due) = (self.ledger.now(), self.due);
        // A shutdown that fires all timers does not end a sleep of a handle either.
        self.ledger.require(now >= due, || format!("a sleep until {due} ns ends at {now} ns"));
    }

    fn check_refused(&self, kind: RefusedKind) {
        let is_true = match kind {
            RefusedKind::Full => true,
            RefusedKind::Closed => self.ledger.may_be_closed(self.shard),
            _ => false,
        };
        let shard = self.shard;
        self.ledger.require(is_true, || format!("a sleep on {shard:?} is refused as {kind:?}"));
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.ledger.timeout_done(self.timeout, false);
    }
}

/// A waker that says whether it was woken.
struct Relay {
    task: Waker,
    place: usize,
    is_woken: AtomicBool,
    _alive: [Arc<()>; 2],
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        if let Some(world) = world() {
            world.shared.check_woken(&world, self.place);
        }
        // Relaxed: a simulation has one thread.
        self.is_woken.store(true, Ordering::Relaxed);
        self.task.wake_by_ref();
    }
}

enum Event {
    /// The sleep has returned this.
    Slept(Result<(), RefusedKind>),
    Paused,
    /// Another task has the sleep.
    Lost,
}

type Pause = Pin<Box<dyn Future<Output = ()>>>;

/// A task that polls the sleep of a place.
struct Sleeper {
    world: Rc<World>,
    place: usize,
    number: usize,
    rng: Rng,
    pause_max: Duration,
    /// The waker of the last poll; `None` if the next poll has another one.
    relay: Option<Arc<Relay>>,
    /// The sleep is polled though no waker was woken.
    polls: bool,
}

impl Sleeper {
    fn pause(&mut self) -> Duration {
        Duration::from_nanos(self.rng.u64(..=self.pause_max.as_nanos() as u64))
    }

    fn place(&self) -> RefMut<'_, Place> {
        RefMut::map(self.world.shared.sleeps.borrow_mut(), |sleeps| &mut sleeps[self.place])
    }

    /// Polls the sleep if its waker was woken.
    fn poll(&mut self, pause: &mut Option<Pause>, cx: &mut Context<'_>) -> Poll<Event> {
        let mut sleeping = {
            let mut place = self.place();
            if place.owner != self.number {
                return Poll::Ready(Event::Lost);
            }
            place.waker = Some(cx.waker().clone());
            let Some(sleeping) = place.sleeping.take() else { return Poll::Ready(Event::Lost) };
            sleeping
        };
        let shared = &self.world.shared;
        let relay = self.relay.get_or_insert_with(|| {
            let task = cx.waker().clone();
            let of_place = &shared.sleeps.borrow()[self.place].wakers;
            let alive = [&shared.wakers, of_place].map(Arc::clone);
            self.polls = true;
            let place = self.place;
            Arc::new(Relay { task, place, is_woken: AtomicBool::new(false), _alive: alive })
        });
        let is_woken = relay.is_woken.swap(false, Ordering::Relaxed);
        let mut slept = Poll::Pending;
        if std::mem::take(&mut self.polls) || is_woken {
            let waker = Waker::from(Arc::clone(relay));
            sleeping.expected.reset(sleeping.expected.due);
            slept = Pin::new(&mut sleeping.sleep).poll(&mut Context::from_waker(&waker));
        }
        if let Poll::Ready(result) = &slept {
            match result {
                Ok(()) => sleeping.expected.check_elapsed(),
                Err(kind) => sleeping.expected.check_refused(*kind),
            }
            let is_done = sleeping.sleep.is_elapsed() == result.is_ok();
            self.world.ledger.require(is_done, || "a sleep is done, and is not".to_owned());
            sleeping.expected.rest();
        }
        self.place().sleeping = Some(sleeping);
        match (slept, pause) {
            (Poll::Ready(result), _) => Poll::Ready(Event::Slept(result)),
            (Poll::Pending, Some(pause)) => pause.as_mut().poll(cx).map(|()| Event::Paused),
            (Poll::Pending, None) => Poll::Pending,
        }
    }

    /// Resets the sleep. If it waits, it need not be polled.
    fn reset(&mut self, waits: bool) {
        let due = match self.rng.u8(..10) {
            0 => Due::In(Duration::ZERO),
            1 => Due::Never,
            2 => Due::Ago(self.pause()),
            3..5 => Due::After(self.pause() / 16),
            _ => Due::In(self.pause()),
        };
        let taken = self.place().sleeping.take();
        let Some(mut sleeping) = taken else { return };
        let due = if let Due::After(by) = due {
            let at = Duration::from_nanos(sleeping.expected.due).saturating_add(by);
            Due::In(at.saturating_sub(Duration::from_nanos(self.world.ledger.now())))
        } else {
            due
        };
        sleeping.expected.reset(self.world.ledger.nanos_at(due));
        by_due!(self.world, due, |when| sleeping.sleep.reset(when));
        self.place().sleeping = Some(sleeping);
        self.polls = !waits || self.rng.bool();
    }

    /// Drops the sleep.
    fn end(&self) {
        let sleeping = self.place().sleeping.take();
        drop(sleeping);
    }

    /// Takes the sleep over. False if it has ended.
    fn take_over(&self) -> bool {
        let mut place = self.place();
        place.owner = self.number;
        let waker = place.waker.take();
        let has_sleep = place.sleeping.is_some();
        drop(place);
        waker.filter(|_| has_sleep).into_iter().for_each(Waker::wake);
        has_sleep
    }

    async fn run(mut self) {
        if self.number > 0 {
            let pause = self.pause();
            self.world.time.sleep(pause).await;
            if !self.take_over() {
                return;
            }
            match self.rng.u8(..6) {
                0 => return self.end(),
                1..3 => self.reset(false),
                _ => {}
            }
        }
        for action in 0.. {
            let mut pause: Option<Pause> = None;
            if action < ACTIONS_MAX && self.rng.u8(..4) > 0 {
                let time = self.pause();
                pause = Some(Box::pin(self.world.time.sleep(time)));
            }
            let event = poll_fn(|cx| self.poll(&mut pause, cx)).await;
            match event {
                Event::Lost => return,
                Event::Slept(Ok(())) if action < ACTIONS_MAX && self.rng.bool() => {
                    self.reset(false);
                }
                Event::Slept(Err(RefusedKind::Full)) if action < ACTIONS_MAX && self.rng.bool() => {
                    self.relay = None;
                    let pause = self.pause();
                    self.world.time.sleep(pause).await;
                    if self.place().owner == self.number {
                        self.reset(false);
                    }
                }
                Event::Slept(_) => return self.end(),
                Event::Paused => match self.rng.u8(..8) {
                    0 => return self.end(),
                    1..4 => self.reset(true),
                    4..6 => self.relay = None,
                    6 => self.polls = true,
                    _ => {}
                },
            }
        }
    }
}

impl History {
    /// The handle of a shard, and the shard.
    fn handle_on(&self, shard: Option<u8>) -> (AnyHandle, Option<usize>) {
        let handle = self.sim.service().handle().untyped();
        let shard = shard.map(|shard| self.shard(shard));
        (shard.map_or(handle, |shard| handle.on(ShardId::new(shard as u16))), shard)
    }

    pub(crate) fn share_sleep(&self, plan: SharedPlan) {
        let world = &self.world;
        let (handle, shard) = self.handle_on(plan.shard);
        // A task on a shard waits for its own shard, too.
        let works_on = shard.filter(|_| plan.tasks == [None; 2]);
        let due = world.ledger.nanos_at(plan.due);
        let sleep = Box::new(by_due!(world, plan.due, |when| handle.sleep(when)));
        let expected = Expected::new(&world.ledger, shard, works_on, due);
        let place = world.shared.sleeps.borrow().len();
        let sleeping = Some(Sleeping { sleep, expected });
        let of_place = Place { sleeping, owner: 0, waker: None, wakers: Arc::default() };
        world.shared.sleeps.borrow_mut().push(of_place);
        let mut seeds = Rng::with_seed(plan.seed);
        let tasks = plan.tasks.into_iter().take(if plan.is_taken_over { 2 } else { 1 });
        for (number, on) in tasks.enumerate() {
            let (seed, pause_max) = (seeds.u64(..), plan.pause_max);
            let make = move |world: Rc<World>| Sleeper {
                world,
                place,
                number,
                rng: Rng::with_seed(seed),
                pause_max,
                relay: None,
                polls: true,
            };
            let Some(on) = on else {
                drop(self.sim.spawn(make(Rc::clone(world)).run()));
                continue;
            };
            let start = move |_| async move {
                let world = crate::world::world().expect("a history runs");
                let _alive = Rc::clone(&world.spawned);
                let _end = EndsSleep { place, number };
                make(world).run().await;
            };
            let on = ShardId::new(self.shard(on) as u16);
            match self.sim.service().spawn_on(on, start) {
                Ok(reply) => self.wait_for(reply, |_| {}),
                Err(_) => drop(EndsSleep { place, number }),
            }
        }
    }

    pub(crate) fn share_timeout(&self, shard: Option<u8>, due: Due, work: Due) {
        let world = Rc::clone(&self.world);
        let (handle, shard) = self.handle_on(shard);
        let wait = world.wait(work);
        let timeout = async move {
            // A delay counts from here on.
            let due_ns = world.ledger.nanos_at(due);
            let expected = Expected::new(&world.ledger, shard, shard, due_ns);
            let _waits = Arc::clone(&world.shared.wakers);
            let result = by_due!(world, due, |when| handle.timeout(when, wait).await);
            match result {
                Ok(()) => {}
                Err(TimeoutError::NoTimer(kind)) => expected.check_refused(kind),
                Err(_) => expected.check_elapsed(),
            }
        };
        drop(self.sim.spawn(timeout));
    }
}

/// A task of a shard ends, as the shard may have: drops the sleep, if the task has it.
struct EndsSleep {
    place: usize,
    number: usize,
}

impl Drop for EndsSleep {
    fn drop(&mut self) {
        let Some(world) = world() else { return };
        let taken = {
            let place = &mut world.shared.sleeps.borrow_mut()[self.place];
            if place.owner == self.number { place.sleeping.take() } else { None }
        };
        drop(taken);
    }
}

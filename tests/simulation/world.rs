//! What the owners of timers do, on a core or from a thread, and what callbacks do.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use corewheel::kept::Kept;
use corewheel::shutdown::ShutdownReport;
use corewheel::sim::Thread;
use corewheel::sim::Time;
use corewheel::{
    Refused, RefusedKind, ShardId, ShutdownPolicy, Sleep, TimerId, TimerService, Timers,
};
use fastrand::Rng;

use crate::commands::{Due, Planned, Temper, Work};
use crate::containers::Containers;
use crate::ledger::{Id, Job, Ledger, drop_contained};
use crate::operations::KEYS;
use crate::shared::Shared;

/// A client with a number, and how many requests it has sent.
pub(crate) struct Sender {
    pub(crate) client: Thread<Job>,
    pub(crate) number: u32,
    pub(crate) sent: Cell<u64>,
}

impl Sender {
    /// The place of the next request in the order of what the client sends.
    pub(crate) fn next(&self) -> u64 {
        self.sent.set(self.sent.get() + 1);
        self.sent.get()
    }
}

/// What commands and callbacks share.
pub(crate) struct World {
    pub(crate) ledger: Rc<Ledger>,
    pub(crate) service: Rc<TimerService<Job>>,
    /// A shutdown has begun.
    pub(crate) shut_down: Cell<bool>,
    pub(crate) time: Time,
    pub(crate) rng: RefCell<Rng>,
    pub(crate) shards: RefCell<Vec<Timers<Job>>>,
    /// That of each shard.
    pub(crate) capacity: usize,
    /// The containers of each shard.
    pub(crate) containers: RefCell<Vec<Containers>>,
    /// A value that is kept on each shard; `None` in histories without them.
    pub(crate) kept: Vec<Option<Kept<()>>>,
    pub(crate) senders: RefCell<Vec<Rc<Sender>>>,
    pub(crate) senders_made: Cell<u32>,
    /// Clients that are neither used nor dropped while the history runs. They are dropped after it,
    /// since a run of an hour has millions of them.
    pub(crate) forgotten: RefCell<Vec<Rc<Sender>>>,
    /// Sleeps that the wake-up of one of them drops, with the numbers of their timeouts.
    pub(crate) tangles: RefCell<Vec<Vec<(Sleep, usize)>>>,
    /// Sleeps of handles.
    pub(crate) shared: Shared,
    /// Futures on shards that are not dropped.
    pub(crate) spawned: Rc<()>,
}

/// Evaluates an expression with the delay or the instant of a deadline, which share no type.
macro_rules! by_due {
    ($world:expr, $due:expr, |$when:ident| $run:expr) => {
        match $world.when($due) {
            Ok($when) => $run,
            Err($when) => $run,
        }
    };
}
pub(crate) use by_due;

/// Where a timer is scheduled from.
#[derive(Clone, Copy)]
pub(crate) enum Via<'a> {
    /// The core of the shard.
    Core(&'a Timers<Job>),
    /// A client, to this shard.
    Client(&'a Sender, usize),
}

impl Via<'_> {
    /// The shard, and the place of the next request in the order of what the client sends.
    fn shard_and_place(self) -> (usize, Option<(u32, u64)>) {
        match self {
            Self::Core(timers) => (shard_of(timers), None),
            Self::Client(sender, shard) => (shard, Some((sender.number, sender.next()))),
        }
    }
}

/// Evaluates an expression with the timers of a core or with the handle of a client.
macro_rules! with_timers {
    ($from:expr, |$timers:ident| $run:expr) => {
        match $from {
            Via::Core($timers) => $run,
            Via::Client(sender, shard) => {
                let $timers = sender.client.on(ShardId::new(shard as u16));
                $run
            }
        }
    };
}

pub(crate) fn shard_of(timers: &Timers<Job>) -> usize {
    usize::from(timers.shard_id().number())
}

thread_local! {
    pub(crate) static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

pub(crate) fn world() -> Option<Rc<World>> {
    WORLD.try_with(|world| world.borrow().clone()).ok().flatten()
}

/// A future that runs on a shard.
pub(crate) async fn work_on(world: &Rc<World>, timers: &Timers<Job>, work: Work) {
    match work {
        Work::Sleeps(due) => {
            let end = world.ledger.nanos_at(due);
            let slept = by_due!(world, due, |when| timers.sleep(when).await);
            world.check_slept(slept.is_ok(), end);
        }
        Work::Ticks(count, period) => {
            let Ok(mut interval) = timers.interval(period) else { return };
            for _ in 0..count {
                if interval.tick().await.is_err() {
                    return;
                }
            }
        }
        Work::Waits(due) => world.wait(due).await,
        Work::TimesOut(due, work) => {
            let end = world.ledger.nanos_at(due);
            let result = by_due!(world, due, |when| timers.timeout(when, world.wait(work)).await);
            world.check_slept(result.is_err_and(|error| error.is_elapsed()), end);
        }
        Work::Takes(count, all) => {
            let taker = world.containers.borrow()[shard_of(timers)].taker(world, count, all);
            taker.await;
        }
        Work::Panics => panic!("on purpose"),
        Work::Commands => {}
    }
}

/// The waker of sleeps that are dropped together.
struct Untangle {
    number: usize,
    panics: bool,
}

impl Wake for Untangle {
    fn wake(self: Arc<Self>) {
        let Some(world) = world() else { return };
        let sleeps = std::mem::take(&mut world.tangles.borrow_mut()[self.number]);
        for (_, timeout) in &sleeps {
            world.ledger.timeout_done(*timeout, false);
        }
        drop(sleeps);
        assert!(!self.panics, "on purpose");
    }
}

/// A timer is delivered on a shard; `deadline` is `None` for a callback.
pub(crate) fn deliver(job: Job, shard: usize, deadline: Option<Instant>, timers: &Timers<Job>) {
    let Some(world) = world() else { return };
    world.ledger.fired(job.id, shard, deadline);
    job.act(&world, timers);
}

impl Job {
    /// Its owner has it. Does what its temper says.
    pub(crate) fn act(self, world: &World, timers: &Timers<Job>) {
        let temper = self.temper;
        self.disarm();
        match temper {
            Temper::Reentrant => world.act(timers),
            Temper::PanicsWhenFired => panic!("on purpose"),
            Temper::Calm | Temper::PanicsWhenDropped => {}
        }
    }
}

/// What the owner of timers does, on a core or from a thread.
impl World {
    pub(crate) fn sender(&self, number: u8) -> Option<Rc<Sender>> {
        let senders = self.senders.borrow();
        senders.get(usize::from(number) % senders.len().max(1)).cloned()
    }

    pub(crate) fn take_sender(&self, number: u8) -> Option<Rc<Sender>> {
        let mut senders = self.senders.borrow_mut();
        let index = usize::from(number) % senders.len().max(1);
        (index < senders.len()).then(|| senders.remove(index))
    }

    /// One of the timers that have a handle, mostly one of the last.
    pub(crate) fn timer(&self, number: u16) -> Option<(Id, TimerId)> {
        let len = self.ledger.len();
        let id = len.checked_sub(1 + usize::from(number) % len.clamp(1, 60))?;
        self.ledger.get(id).handle.map(|handle| (id, handle))
    }

    pub(crate) fn some_timers(&self, number: u16, count: u8) -> Vec<(Id, TimerId)> {
        (0..u16::from(count)).filter_map(|n| self.timer(number.wrapping_add(n))).collect()
    }

    /// A delay, or an instant.
    pub(crate) fn when(&self, due: Due) -> Result<Duration, Instant> {
        match due {
            Due::In(delay) => Ok(delay),
            Due::Never | Due::After(_) => Ok(Duration::MAX),
            Due::Ago(ago) => {
                let past = Duration::from_nanos(self.ledger.now()).min(ago);
                Err(self.time.now().checked_sub(past).expect("it is not before the start"))
            }
        }
    }

    /// Waits so long, without a timer of the service.
    pub(crate) fn wait(&self, due: Due) -> impl Future<Output = ()> + use<> {
        let time = self.time.clone();
        async move {
            match due {
                Due::In(delay) => time.sleep(delay).await,
                Due::Ago(_) | Due::After(_) => {}
                Due::Never => std::future::pending().await,
            }
        }
    }

    pub(crate) fn check_slept(&self, has_elapsed: bool, end: u64) {
        let now = self.ledger.now();
        if has_elapsed && now < end && !self.ledger.fires_all.get() {
            self.ledger.violate(format!("a sleep until {end} ns ends at {now} ns"));
        }
    }

    pub(crate) fn schedule(&self, from: Via<'_>, planned: Planned) {
        let (due, (shard, place)) = (planned.due, from.shard_and_place());
        let job = self.ledger.job(shard, due, planned.temper, place);
        let id = job.id;
        if planned.is_call {
            let call = move |timers: &Timers<Job>| deliver(job, shard_of(timers), None, timers);
            with_timers!(from, |timers| {
                let scheduled = by_due!(self, due, |when| timers.schedule_fn(when, call));
                self.note(id, scheduled, drop_contained);
            });
        } else {
            let scheduled =
                with_timers!(from, |timers| by_due!(self, due, |when| timers.schedule(when, job)));
            self.note(id, scheduled, |refused| refused.into_value().disarm());
        }
    }

    fn note<R>(
        &self,
        id: Id,
        scheduled: Result<TimerId, Refused<R>>,
        end: impl FnOnce(Refused<R>),
    ) {
        match scheduled {
            Ok(handle) => self.ledger.scheduled(id, handle),
            Err(refused) => {
                self.ledger.refused(id, refused.kind() == RefusedKind::Closed);
                end(refused);
            }
        }
    }

    /// Schedules values with several delays, the longest not always last.
    pub(crate) fn schedule_many(&self, from: Via<'_>, count: u8, due: Due) {
        let (shard, place) = from.shard_and_place();
        let Due::In(first) = due else { return };
        for number in 0..count {
            let delay = first / (1 + u32::from(number) * 7 % 5);
            let job = self.ledger.job(shard, Due::In(delay), Temper::Calm, place);
            let id = job.id;
            let scheduled = with_timers!(from, |timers| timers.schedule(delay, job));
            self.note(id, scheduled, |refused| refused.into_value().disarm());
        }
    }

    pub(crate) fn cancel_here(&self, timers: &Timers<Job>, (id, handle): (Id, TimerId)) {
        self.ledger.cancelled_here(id, timers.cancel(handle), shard_of(timers));
    }

    pub(crate) fn cancel_many_here(&self, timers: &Timers<Job>, number: u16, count: u8) {
        for timer in self.some_timers(number, count) {
            self.cancel_here(timers, timer);
        }
    }

    pub(crate) fn reset_here(&self, timers: &Timers<Job>, (id, handle): (Id, TimerId), due: Due) {
        let due = self.ledger.due_of_reset(id, due);
        let outcome = by_due!(self, due, |when| timers.reset(handle, when));
        self.ledger.reset_here(id, due, outcome, shard_of(timers));
    }

    /// Whether all timers that there were, and the keys of all clients, fit into any shard at once.
    pub(crate) fn has_room(&self) -> bool {
        let keys = 64 * self.senders_made.get() as usize;
        self.capacity >= self.ledger.len() + self.shared.len() + keys + 100
    }

    /// The shard's own thread leaves a command for a turn.
    pub(crate) fn command_kept(&self, shard: usize) {
        if let Some(kept) = &self.kept[shard] {
            let asked = self.ledger.ask(shard);
            // A shard that has ended refuses it.
            drop(kept.try_run(move |()| drop(asked)));
        }
    }

    /// Polls sleeps of a shard, each with a waker that drops all of them.
    pub(crate) fn tangle(&self, timers: &Timers<Job>, due: Due, count: u8, panics: bool) {
        let number = self.tangles.borrow().len();
        self.tangles.borrow_mut().push(Vec::new());
        let waker = Waker::from(Arc::new(Untangle { number, panics }));
        for _ in 0..count {
            let timeout = self.ledger.timeout(Some(shard_of(timers)), self.ledger.nanos_at(due));
            let mut sleep = by_due!(self, due, |when| timers.sleep(when));
            if Pin::new(&mut sleep).poll(&mut Context::from_waker(&waker)).is_pending() {
                self.tangles.borrow_mut()[number].push((sleep, timeout));
            } else {
                self.ledger.timeout_done(timeout, false);
            }
        }
    }

    /// Begins a shutdown; `None` if one has begun before.
    pub(crate) fn begin_shutdown(
        &self,
        policy: ShutdownPolicy,
    ) -> Option<impl Future<Output = ShutdownReport<Job>> + 'static> {
        let report = self.service.begin_shutdown(policy).ok()?;
        self.shut_down.set(true);
        self.ledger.fires_all.set(policy == ShutdownPolicy::Fire);
        for shard in 0..self.shards.borrow().len() {
            self.ledger.shard_ends(shard);
        }
        Some(report)
    }

    /// What a callback does with its shard and with the clients.
    pub(crate) fn act(&self, timers: &Timers<Job>) {
        if self.rng.borrow_mut().u8(..200) == 0 {
            let refused = self.service.shutdown(ShutdownPolicy::Drop).is_err();
            if !refused {
                self.ledger.violate("a shutdown has blocked in a callback".to_owned());
            }
            let policies = [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop];
            let policy = policies[self.rng.borrow_mut().usize(..3)];
            // Nothing waits for the report.
            drop(self.begin_shutdown(policy));
        }
        let (what, number, delay) = {
            let mut rng = self.rng.borrow_mut();
            (rng.u8(..12), rng.u16(..), Duration::from_micros(rng.u64(..50_000)))
        };
        let (due, timer, here) = (Due::In(delay), self.timer(number), Via::Core(timers));
        let planned = |due, is_call| Planned { due, temper: Temper::Calm, is_call };
        match (what, timer) {
            (0, _) => self.schedule(here, planned(Due::In(Duration::ZERO), true)),
            (1..3, _) => self.schedule(here, planned(due, what == 1)),
            (3, Some(timer)) => self.cancel_here(timers, timer),
            (4, Some(timer)) => self.reset_here(timers, timer, due),
            (5, _) => self.cancel_many_here(timers, number, 9),
            (6, _) => self.schedule_many(here, 5, due),
            (7, Some((id, handle))) => {
                self.ledger.send_cancel(id);
                timers.handle().cancel_detached(handle);
            }
            (8, _) => {
                let on = &self.containers.borrow()[shard_of(timers)];
                on.operations.check(self, number as u8 % KEYS);
            }
            (9, _) => self.tangle(timers, due, 2, false),
            (10.., _) => {
                let shard = usize::from(number) % self.shards.borrow().len();
                let Some(sender) = self.sender(number as u8) else { return };
                self.schedule(Via::Client(&sender, shard), planned(due, true));
            }
            _ => {}
        }
    }
}

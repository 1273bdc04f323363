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

use crate::commands::{Due, Temper, Work};
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

thread_local! {
    pub(crate) static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

pub(crate) fn world() -> Option<Rc<World>> {
    WORLD.try_with(|world| world.borrow().clone()).ok().flatten()
}

/// A future that runs on a shard.
pub(crate) async fn work_on(world: &Rc<World>, timers: &Timers<Job>, work: Work) {
    let wait = |due: Due| {
        let time = world.time.clone();
        async move {
            match due {
                Due::In(delay) => time.sleep(delay).await,
                Due::Ago(_) | Due::After(_) => {}
                Due::Never => std::future::pending().await,
            }
        }
    };
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
        Work::Waits(due) => wait(due).await,
        Work::TimesOut(due, work) => {
            let end = world.ledger.nanos_at(due);
            let result = by_due!(world, due, |when| timers.timeout(when, wait(work)).await);
            world.check_slept(result.is_err_and(|error| error.is_elapsed()), end);
        }
        Work::Takes { count, all } => {
            let shard = usize::from(timers.shard_id().number());
            let taker = {
                let containers = &world.containers.borrow()[shard];
                containers.taker(Rc::clone(world), shard, count, all)
            };
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

/// A timer is delivered on a shard.
pub(crate) fn deliver(job: Job, shard: usize, deadline: Option<Instant>, timers: &Timers<Job>) {
    let Some(world) = world() else { return };
    world.ledger.fired(job.id, shard, deadline);
    let temper = job.temper;
    job.disarm();
    match temper {
        Temper::Reentrant => world.act(timers),
        Temper::PanicsWhenFired => panic!("on purpose"),
        Temper::Calm | Temper::PanicsWhenDropped => {}
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

    pub(crate) fn check_slept(&self, has_elapsed: bool, end: u64) {
        let now = self.ledger.now();
        if has_elapsed && now < end && !self.ledger.fires_all.get() {
            self.ledger.violate(format!("a sleep until {end} ns ends at {now} ns"));
        }
    }

    pub(crate) fn schedule(
        &self,
        sender: &Sender,
        shard: usize,
        due: Due,
        temper: Temper,
        is_call: bool,
    ) {
        let job = self.ledger.job(shard, due, temper, Some((sender.number, sender.next())));
        let id = job.id;
        let timers = sender.client.on(ShardId::new(shard as u16));
        if is_call {
            let call = move |timers: &Timers<Job>| {
                deliver(job, usize::from(timers.shard_id().number()), None, timers);
            };
            let scheduled = by_due!(self, due, |when| timers.schedule_fn(when, call));
            self.note_call(id, scheduled);
        } else {
            let scheduled = by_due!(self, due, |when| timers.schedule(when, job));
            self.note_value(id, scheduled);
        }
    }

    pub(crate) fn note_value(&self, id: Id, scheduled: Result<TimerId, Refused<Job>>) {
        match scheduled {
            Ok(handle) => self.ledger.scheduled(id, handle),
            Err(refused) => {
                self.ledger.refused(id, matches!(refused, Refused::Closed(_)));
                refused.into_value().disarm();
            }
        }
    }

    pub(crate) fn note_call<C>(&self, id: Id, scheduled: Result<TimerId, Refused<C>>) {
        match scheduled {
            Ok(handle) => self.ledger.scheduled(id, handle),
            Err(refused) => {
                self.ledger.refused(id, refused.kind() == RefusedKind::Closed);
                drop_contained(refused);
            }
        }
    }

    /// Values with several delays, the longest not always last.
    fn many(
        &self,
        shard: usize,
        count: u8,
        due: Due,
        sent: Option<(u32, u64)>,
    ) -> Vec<(Duration, Job)> {
        let Due::In(first) = due else { return Vec::new() };
        let one = |number: u8| {
            let parts = 1 + u32::from(number) * 7 % 5;
            let delay = first / parts;
            (delay, self.ledger.job(shard, Due::In(delay), Temper::Calm, sent))
        };
        (0..count).map(one).collect()
    }

    pub(crate) fn schedule_many(&self, sender: &Sender, shard: usize, count: u8, due: Due) {
        let sent = Some((sender.number, sender.next()));
        let there = sender.client.on(ShardId::new(shard as u16));
        for (delay, job) in self.many(shard, count, due, sent) {
            self.note_value(job.id, there.schedule(delay, job));
        }
    }

    pub(crate) fn schedule_here(
        &self,
        timers: &Timers<Job>,
        due: Due,
        temper: Temper,
        is_call: bool,
    ) {
        let shard = usize::from(timers.shard_id().number());
        let job = self.ledger.job(shard, due, temper, None);
        let id = job.id;
        if is_call {
            let call = move |timers: &Timers<Job>| {
                deliver(job, usize::from(timers.shard_id().number()), None, timers);
            };
            let scheduled = by_due!(self, due, |when| timers.schedule_fn(when, call));
            self.note_call(id, scheduled);
        } else {
            let scheduled = by_due!(self, due, |when| timers.schedule(when, job));
            self.note_value(id, scheduled);
        }
    }

    pub(crate) fn schedule_many_here(&self, timers: &Timers<Job>, count: u8, due: Due) {
        let shard = usize::from(timers.shard_id().number());
        for (delay, job) in self.many(shard, count, due, None) {
            self.note_value(job.id, timers.schedule(delay, job));
        }
    }

    pub(crate) fn cancel_here(&self, timers: &Timers<Job>, (id, handle): (Id, TimerId)) {
        let shard = usize::from(timers.shard_id().number());
        self.ledger.cancelled_here(id, timers.cancel(handle), shard);
    }

    pub(crate) fn cancel_many_here(&self, timers: &Timers<Job>, picked: &[(Id, TimerId)]) {
        for timer in picked {
            self.cancel_here(timers, *timer);
        }
    }

    pub(crate) fn reset_here(&self, timers: &Timers<Job>, (id, handle): (Id, TimerId), due: Due) {
        let shard = usize::from(timers.shard_id().number());
        let due = self.ledger.due_of_reset(id, due);
        let outcome = by_due!(self, due, |when| timers.reset(handle, when));
        self.ledger.reset_here(id, due, outcome, shard);
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
        let shard = usize::from(timers.shard_id().number());
        let number = self.tangles.borrow().len();
        self.tangles.borrow_mut().push(Vec::new());
        let waker = Waker::from(Arc::new(Untangle { number, panics }));
        for _ in 0..count {
            let timeout = self.ledger.timeout(shard, self.ledger.nanos_at(due));
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
        let (due, timer) = (Due::In(delay), self.timer(number));
        match (what, timer) {
            (0, _) => self.schedule_here(timers, Due::In(Duration::ZERO), Temper::Calm, true),
            (1..3, _) => self.schedule_here(timers, due, Temper::Calm, what == 1),
            (3, Some(timer)) => self.cancel_here(timers, timer),
            (4, Some(timer)) => self.reset_here(timers, timer, due),
            (5, _) => self.cancel_many_here(timers, &self.some_timers(number, 9)),
            (6, _) => self.schedule_many_here(timers, 5, due),
            (7, Some((id, handle))) => {
                self.ledger.send_cancel(id);
                timers.handle().cancel_detached(handle);
            }
            (8, _) => {
                let containers = self.containers.borrow();
                let on = &containers[usize::from(timers.shard_id().number())];
                on.operations.check(self, number as u8 % KEYS);
            }
            (9, _) => self.tangle(timers, due, 2, false),
            (10.., _) => {
                let shards = self.shards.borrow().len();
                let Some(sender) = self.sender(number as u8) else { return };
                self.schedule(&sender, usize::from(number) % shards, due, Temper::Calm, true);
            }
            _ => {}
        }
    }
}

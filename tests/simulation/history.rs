//! Executes the commands of a history, on a simulated service whose settings come from the seed.

use std::cell::{Cell, RefCell};
use std::mem;
use std::rc::Rc;
use std::time::Duration;

use corewheel::attach::ShardLoop;
use corewheel::settings::{TurnBudget, WheelKind};
use corewheel::sim::Simulation;
use corewheel::stats::ShardCounts;
use corewheel::{
    Fired, ShardId, ShutdownPolicy, TimerId, TimerService, TimerServiceBuilder, Timers,
};
use fastrand::Rng;

use crate::commands::{Command, Due, Temper, What};
use crate::containers::Containers;
use crate::judge::so_far;
use crate::ledger::{Job, Ledger};
use crate::shared::Shared;
use crate::world::{Sender, Via, WORLD, World, deliver};

/// The time in which a shard that takes turns takes back the keys of clients that are idle or
/// forgotten: it looks once a minute for clients that were idle for a minute.
const IDLE: Duration = Duration::from_secs(200);

/// A history that runs.
pub(crate) struct History {
    pub(crate) sim: Simulation<Job>,
    pub(crate) world: Rc<World>,
    pub(crate) held: Vec<bool>,
    /// Another service, with a timer of it.
    pub(crate) other: (TimerService<u32>, ShardLoop<u32>, TimerId),
}

pub(crate) fn settings(rng: &mut Rng) -> (TimerServiceBuilder, Duration) {
    let of = |rng: &mut Rng, values: &[u32]| values[rng.usize(..values.len())];
    let tick = Duration::from_micros(of(rng, &[100, 1_000, 10_000, 1_000_000]).into());
    let budget = TurnBudget {
        requests_max: of(rng, &[1, 2, 5, 100]),
        expired_max: of(rng, &[1, 2, 5, 100]),
        time_max: rng.bool().then_some(Duration::ZERO),
        ..TurnBudget::default()
    };
    let kind = if rng.bool() { WheelKind::Hierarchical } else { WheelKind::Hashed };
    let builder = TimerService::builder()
        .shards(rng.usize(1..=3))
        .tick(tick)
        .wheel(kind)
        .slots(of(rng, &[2, 2, 4, 16, 64, 256]))
        .capacity(of(rng, &[1, 2, 3, 8, 30, 100, 1_000]))
        .lane_capacity(of(rng, &[1, 2, 3, 8, 64]) as usize)
        .budget(budget);
    (builder, tick)
}

/// Runs the history of a seed, and checks it after every step.
pub(crate) fn run(seed: u64, commands: &[Command]) -> u64 {
    run_and(seed, commands, |_| ())
}

/// Runs the history of a seed as [`run`] does. Returns a line for each command, of what was done so
/// far.
pub(crate) fn record(seed: u64, commands: &[Command]) -> Vec<String> {
    let mut record = Vec::new();
    run_and(seed, commands, |History { sim, world, .. }| {
        record.push(so_far(sim, world.time.steps()));
    });
    record
}

/// Runs the history of a seed, and calls a function after each command; returns how many steps.
fn run_and(seed: u64, commands: &[Command], mut call: impl FnMut(&History)) -> u64 {
    // What an earlier history has left when it failed.
    WORLD.take();
    Ledger::end();
    let mut history = History::new(seed);
    for command in commands {
        history.execute(command);
        history.world.ledger.check();
        call(&history);
    }
    history.finish()
}

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(!seed);
        let (builder, tick) = settings(&mut rng);
        let handler = |shard: ShardId| {
            move |fired: Fired<Job>, timers: &Timers<Job>| {
                let Fired { payload: job, deadline, .. } = fired;
                deliver(job, usize::from(shard.number()), Some(deadline), timers);
            }
        };
        let sim = Simulation::start(seed, builder, handler).expect("the settings are in range");
        let shards: Vec<_> =
            sim.service().shards().map(|shard| sim.timers(shard).clone()).collect();
        let (held, keeps) = (vec![false; shards.len()], rng.bool());
        let containers = shards.iter().map(|on| Containers::new(on, Some(4)));
        let ledger = Ledger::begin(sim.time(), tick, shards.len());
        let world = Rc::new(World {
            ledger,
            service: Rc::clone(sim.service()),
            shut_down: Cell::new(false),
            time: sim.time(),
            rng: RefCell::new(rng),
            containers: RefCell::new(containers.collect()),
            capacity: timers_max(&sim, 0),
            kept: shards.iter().map(|on| keeps.then(|| on.keep(()).ok()).flatten()).collect(),
            shards: RefCell::new(shards),
            senders: RefCell::default(),
            senders_made: Cell::new(0),
            forgotten: RefCell::default(),
            tangles: RefCell::default(),
            shared: Shared::default(),
            spawned: Rc::new(()),
        });
        WORLD.set(Some(Rc::clone(&world)));
        let other = TimerService::builder().shards(1).capacity(10).start_attached_with().unwrap();
        let attachment = other.attach(ShardId::new(0)).unwrap();
        let foreign = attachment.into_loop((|_, _| ()) as fn(Fired<u32>, &Timers<u32>)).unwrap();
        let handle = foreign.timers().schedule(Duration::MAX, 1).unwrap();
        let this = Self { sim, world, held, other: (other, foreign, handle) };
        this.new_client();
        this
    }

    pub(crate) fn shard(&self, number: u8) -> usize {
        usize::from(number) % self.held.len()
    }

    /// Whether the thread of a shard is stalled.
    fn is_stalled(&self, shard: usize) -> bool {
        let end = self.sim.stall_end(ShardId::new(shard as u16));
        end.is_some_and(|end| end > self.sim.elapsed())
    }

    /// Whether the thread of a shard runs, and receives.
    fn works(&self, shard: usize) -> bool {
        let is_stalled = self.is_stalled(shard);
        !is_stalled && !self.held[shard] && !self.world.ledger.ended.borrow()[shard]
    }

    /// Takes a step. Returns false if no task can run any more.
    fn step(&mut self) -> bool {
        let has_run = self.sim.step();
        let is_over = !has_run && self.sim.next_at().is_none();
        if !has_run && !is_over {
            // A stall that ends at this moment has kept its shard from working before.
            let works = |shard| self.works(shard) && !self.was_stalled(shard);
            self.world.ledger.check_rest(works);
            let containers = self.world.containers.borrow();
            for (_, on) in containers.iter().enumerate().filter(|(shard, _)| works(*shard)) {
                on.check_rest(&self.world.ledger);
            }
        }
        self.world.ledger.check();
        !is_over
    }

    /// Whether a stall of the shard ends at this very moment.
    fn was_stalled(&self, shard: usize) -> bool {
        self.sim.stall_end(ShardId::new(shard as u16)) == Some(self.sim.elapsed())
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.sim.elapsed().saturating_add(time);
        while self.sim.next_at().is_some_and(|at| at <= end) {
            self.step();
        }
        self.sim.leap(end.saturating_sub(self.sim.elapsed()));
        while self.sim.next_at().is_some_and(|at| at <= end) {
            self.step();
        }
    }

    fn execute(&mut self, command: &Command) {
        let world = Rc::clone(&self.world);
        let Command { client, shard: number, timer, what } = *command;
        let (shard, timers) = (self.shard(number), self.local(number));
        match (what, world.sender(client), world.timer(timer), timers) {
            (What::NewClient, ..) => self.new_client(),
            (What::DropClient, ..) => drop(world.take_sender(client)),
            (What::ForgetClient, ..) => {
                world.forgotten.borrow_mut().extend(world.take_sender(client));
            }
            (What::Schedule(planned), Some(sender), ..) => {
                world.schedule(Via::Client(&sender, shard), planned);
            }
            (What::ScheduleMany(count, due), Some(sender), ..) => {
                world.schedule_many(Via::Client(&sender, shard), count, due);
            }
            (What::Cancel(mode), Some(sender), Some(timer), _) => {
                self.cancel(&sender, timer, mode);
            }
            (What::Reset(due, mode), Some(sender), Some(timer), _) => {
                self.reset(&sender, timer, due, mode);
            }
            (What::CancelMany(count, mode), Some(sender), ..) => {
                self.cancel_many(&sender, &world.some_timers(timer, count), mode);
            }
            (What::Remaining, Some(sender), Some((_, handle)), _) => {
                sender.next();
                let shard = usize::from(handle.shard().number());
                self.wait_for_shard(shard, sender.client.remaining(handle), |_| {});
            }
            (What::Timeout(due, work), Some(sender), ..) => {
                self.timeout(&sender, shard, due, work);
            }
            (What::LocalSchedule(planned), .., Some(timers)) => {
                world.schedule(Via::Core(&timers), planned);
            }
            (What::LocalMany(count, due), .., Some(timers)) => {
                world.schedule_many(Via::Core(&timers), count, due);
            }
            (What::LocalCancel, _, Some(timer), Some(timers)) => world.cancel_here(&timers, timer),
            (What::LocalCancelMany(count), .., Some(timers)) => {
                world.cancel_many_here(&timers, timer, count);
            }
            (What::LocalReset(due), _, Some(timer), Some(timers)) => {
                world.reset_here(&timers, timer, due);
            }
            (What::Contain(command), .., Some(_)) => {
                world.containers.borrow()[shard].execute(&world, command);
            }
            (What::ReplaceContainers, .., Some(timers)) => {
                let quarters = {
                    let containers = &world.containers.borrow()[shard];
                    containers.may_drop(&world);
                    containers.scaled.quarters.get()
                };
                let others = Containers::new(&timers, quarters);
                drop(mem::replace(&mut world.containers.borrow_mut()[shard], others));
            }
            (What::Tangle(due, count, panics), .., Some(timers)) => {
                world.tangle(&timers, due, count, panics);
            }
            (What::Spawn(work), ..) => self.spawn(shard, work),
            (What::SharedSleep(plan), ..) => self.share_sleep(plan),
            (What::SharedTimeout(shard, due, work), ..) => self.share_timeout(shard, due, work),
            (What::Foreign(detached), Some(sender), _, timers) => {
                self.use_foreign(&sender, timers.as_ref(), detached);
            }
            (What::Steps(count), ..) => {
                // Until no task can run any more.
                let _is_over = (0..count).any(|_| !self.step());
            }
            (What::Run(time), ..) => self.run_for(time),
            (What::Stall(stall), ..) => self.sim.stall(ShardId::new(shard as u16), stall),
            (What::Leap(by), ..) => self.sim.leap(by),
            (What::Hold(holds), ..) => self.hold(shard, holds),
            (What::Kill, ..) => {
                world.ledger.shard_ends(shard);
                self.sim.kill(ShardId::new(shard as u16));
            }
            (What::Shutdown(policy, waits), ..) => self.shut_down(policy, waits),
            // There is no client, no timer that has a handle, or the shard is stalled.
            _ => {}
        }
    }

    fn new_client(&self) {
        let world = &self.world;
        let number = world.senders_made.replace(world.senders_made.get() + 1);
        let sender = Sender { client: self.sim.thread(), number, sent: Cell::new(0) };
        world.senders.borrow_mut().push(Rc::new(sender));
    }

    fn hold(&mut self, shard: usize, holds: bool) {
        self.held[shard] = holds;
        self.sim.hold_lanes(ShardId::new(shard as u16), holds);
    }

    /// The timers of a shard whose thread runs.
    fn local(&self, shard: u8) -> Option<Timers<Job>> {
        let shard = self.shard(shard);
        (!self.is_stalled(shard)).then(|| self.world.shards.borrow()[shard].clone())
    }

    /// Ends the history: every timer gets an outcome, and every reply comes.
    fn finish(mut self) -> u64 {
        (0..self.held.len()).for_each(|shard| self.hold(shard, false));
        let stalls =
            (0..self.held.len()).filter_map(|shard| self.sim.stall_end(ShardId::new(shard as u16)));
        let last = stalls.max().unwrap_or_default();
        self.run_for(last.saturating_sub(self.sim.elapsed()));
        self.check_room();
        self.check_ended_sleeps();
        self.shut_down(ShutdownPolicy::Return, true);
        // Clients that are gone leave nothing behind.
        drop(self.world.senders.take());
        self.run_for(Duration::from_secs(10));
        let (ledger, steps) = (Rc::clone(&self.world.ledger), self.world.time.steps());
        for stats in self.sim.service().stats().shards {
            check_law(&ledger, &stats.counts);
        }
        let spawned = Rc::strong_count(&self.world.spawned) - 1;
        ledger.require(spawned == 0, || format!("{spawned} futures outlive their shards"));
        // A task that waits for a sleep has a waker.
        let wakers = self.world.shared.wakers();
        ledger.require(wakers == 0, || format!("{wakers} wakers of sleeps outlive the service"));
        let others = self.other.1.timers().len();
        ledger.require(others == 1, || format!("another service has {others} timers, and not 1"));
        for containers in self.world.containers.take() {
            containers.end(&ledger);
        }
        drop(self.world.tangles.take());
        ledger.check();
        WORLD.take();
        // Tasks that wait for something that never comes are dropped with the simulation; a task
        // that waits for a reply must have got it before.
        ledger.check_end();
        ledger.check();
        drop(self);
        ledger.check();
        Ledger::end();
        steps
    }

    /// The timers of sleeps that were dropped are freed within a second.
    fn check_ended_sleeps(&mut self) {
        let ledger = Rc::clone(&self.world.ledger);
        if !(0..self.held.len()).all(|shard| self.works(shard)) {
            return;
        }
        let ended = self.world.shared.ended();
        // Two more for ticks of a second.
        self.run_for(Duration::from_secs(1 + 2));
        let wakers = self.world.shared.wakers_of(&ended);
        if wakers > 0 && !ledger.ended.borrow().contains(&true) {
            ledger.violate(format!("{wakers} wakers outlive their sleeps"));
        }
    }

    /// A new client gets room on each shard that has any, and soon.
    fn check_room(&mut self) {
        self.run_for(IDLE);
        for shard in 0..self.held.len() {
            let timers = self.world.shards.borrow()[shard].clone();
            // Where the ledger does not say that there is room, the shard does.
            let is_full = timers.len() + 1 >= timers_max(&self.sim, shard);
            let may_refuse = is_full && !self.world.has_room();
            if may_refuse || !self.works(shard) || self.world.shut_down.get() {
                continue;
            }
            let client = self.sim.thread();
            let (mut refused, ledger) = (None, Rc::clone(&self.world.ledger));
            for attempt in 0..10 {
                let job = ledger.job(shard, Due::Never, Temper::Calm, Some((u32::MAX, 0)));
                let id = job.id;
                match client.on(ShardId::new(shard as u16)).schedule(Duration::MAX, job) {
                    Ok(handle) => {
                        ledger.scheduled(id, handle);
                        refused = None;
                        break;
                    }
                    Err(error) => {
                        refused = Some(error.kind());
                        ledger.refuse(error.into_value());
                        // The first attempt may have been what woke the shard, so that it looks
                        // for idle lanes from now on.
                        let pause = if attempt == 4 { IDLE } else { Duration::from_secs(1) };
                        self.run_for(pause);
                    }
                }
            }
            if refused.is_some() {
                let counts = self.sim.service().stats().shards[shard].counts;
                ledger.violate(format!(
                    "shard {shard} has {} timers and refuses a client: {refused:?}, {counts:?}",
                    timers.len(),
                ));
            }
        }
    }
}

fn timers_max(sim: &Simulation<Job>, shard: usize) -> usize {
    sim.service().stats().shards[shard].counts.capacity as usize
}

pub(crate) fn check_law(ledger: &Ledger, counts: &ShardCounts) {
    let scheduled = counts.scheduled_local + counts.scheduled_remote;
    let ended = counts.fired + counts.cancelled + counts.returned + counts.dropped;
    let is_sum = Some(counts.pending) == scheduled.checked_sub(ended);
    ledger.require(is_sum, || format!("the counts of a shard contradict each other: {counts:?}"));
}

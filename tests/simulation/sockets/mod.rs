//! Random histories of servers and clients on a simulated network. What a server does is compared,
//! after each step, with what the network knows and the code does not.
//!
//! Each seed has its own buffers, ticks and faults, and begins at a time of its own.

mod beats;
pub(crate) mod clients;
mod given;
pub(crate) mod laws;
pub(crate) mod rates;
pub(crate) mod servers;

use std::cell::{Cell, RefCell};
use std::iter;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use corewheel::sim::Simulation;
use corewheel::sim::net::{Net, Runtime};
use corewheel::{Fired, ShardId, ShutdownPolicy, TimerService, Timers};
use fastrand::Rng;

use self::laws::Seen;
use self::servers::{GUARDS, Guard};

/// No command stalls or holds anything for longer.
const FAULT_MAX: u64 = 400;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    /// A client connects. It does what its seed says.
    Open {
        guard: Guard,
        on: u8,
        seed: u64,
    },
    Run(Duration),
    HoldDriver {
        time: Duration,
    },
    Stall {
        on: u8,
        time: Duration,
    },
    StallWorker {
        on: u8,
        time: Duration,
    },
    StallShard {
        shard: u8,
        time: Duration,
    },
    /// The process of the server is stopped.
    Stop(Duration),
    /// Tasks are polled without a reason.
    WakeSome {
        on: u8,
    },
}

/// The commands of a seed. Some kinds of faults are switched off.
pub(crate) fn plan(rng: &mut Rng) -> Vec<Command> {
    let faults = rng.u8(..);
    let guards: Vec<_> = GUARDS.into_iter().filter(|_| rng.bool()).collect();
    let guards = if guards.is_empty() { GUARDS.to_vec() } else { guards };
    let command = |rng: &mut Rng| {
        let time = Duration::from_micros(rng.u64(..FAULT_MAX * 1_000));
        let on = rng.u8(..);
        let fault = rng.u8(..6);
        match rng.u8(..10) {
            0..=3 => {
                Command::Open { guard: guards[rng.usize(..guards.len())], on, seed: rng.u64(..) }
            }
            4..=6 => Command::Run(time),
            _ if faults & 1 << fault == 0 => Command::Run(time / 4),
            _ => match fault {
                0 => Command::HoldDriver { time },
                1 => Command::Stall { on, time },
                2 => Command::StallWorker { on, time },
                3 => Command::StallShard { shard: on, time },
                4 => Command::Stop(time),
                _ => Command::WakeSome { on },
            },
        }
    };
    (0..rng.usize(20..150)).map(|_| command(rng)).collect()
}

type Handler = fn(Fired<u8>, &Timers<u8>);

/// What the tasks of a history share.
pub(crate) struct World {
    pub(crate) time: corewheel::sim::Time,
    pub(crate) start: std::time::Instant,
    pub(crate) tick: Duration,
    /// The longest answer of a server.
    pub(crate) answer_max: usize,
    /// The most bytes that a client sends in a row.
    pub(crate) send_max: usize,
    /// When shards were held up, from when to when, in order.
    pub(crate) stalls: RefCell<Vec<(Duration, Duration)>>,
    pub(crate) violation: RefCell<Option<String>>,
    /// Timers that were armed and came, or were not needed.
    pub(crate) timers: Cell<u64>,
    pub(crate) ends: Cell<u64>,
}

impl World {
    pub(crate) fn now(&self) -> Duration {
        self.time.now() - self.start
    }

    /// The start of the tick with which the timer of a deadline comes.
    pub(crate) fn tick_of(&self, due: Duration) -> Duration {
        let ticks = due.as_nanos().div_ceil(self.tick.as_nanos());
        Duration::from_nanos((ticks * self.tick.as_nanos()) as u64)
    }

    /// For how long shards were held up since then, at most.
    pub(crate) fn held(&self, since: Duration) -> Duration {
        let stalls = self.stalls.borrow();
        stalls.iter().map(|(begin, end)| end.saturating_sub(since.max(*begin))).sum()
    }

    /// Notes the first thing that is not as it must be.
    pub(crate) fn violate(&self, text: String) {
        self.violation.borrow_mut().get_or_insert(text);
    }
}

/// How much a history has done.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Done {
    pub(crate) transfers: u64,
    pub(crate) timers: u64,
    pub(crate) ends: u64,
    pub(crate) steps: u64,
}

impl Done {
    pub(crate) fn add(&mut self, other: Self) {
        self.transfers += other.transfers;
        self.timers += other.timers;
        self.ends += other.ends;
        self.steps += other.steps;
    }
}

struct History {
    sim: Simulation<u8>,
    net: Net,
    world: Rc<World>,
    /// That of any thread comes first, then those of the shards.
    runtimes: Vec<Runtime>,
    seen: Vec<Rc<Seen>>,
    address: SocketAddr,
}

/// Runs the history of a seed.
pub(crate) fn run(seed: u64, commands: &[Command]) -> Done {
    let mut history = History::new(seed);
    for command in commands {
        history.execute(command);
    }
    history.finish()
}

/// Runs the history of a seed. Returns a line for each command, of what was done so far.
pub(crate) fn record(seed: u64, commands: &[Command]) -> Vec<String> {
    let mut history = History::new(seed);
    let execute = |command| {
        history.execute(command);
        let (elapsed, steps) = (history.sim.elapsed(), history.world.time.steps());
        let shards = history.sim.service().stats().shards;
        let counts: Vec<_> = shards.iter().map(|shard| shard.counts).collect();
        format!("{elapsed:?} {steps} {counts:?}")
    };
    let record = commands.iter().map(execute).collect();
    history.finish();
    record
}

/// A random one of these values.
pub(crate) fn one_of<V: Copy>(rng: &mut Rng, values: &[V]) -> V {
    values[rng.usize(..values.len())]
}

/// Settings with a random part of each.
pub(crate) fn settings(rng: &mut Rng) -> (corewheel::TimerServiceBuilder, Duration) {
    let tick = Duration::from_micros(one_of(rng, &[100, 1_000, 1_000, 10_000]));
    let builder =
        TimerService::beside_runtime().shards(rng.usize(1..=3)).tick(tick).capacity(2_000);
    (builder, tick)
}

/// A runtime with random settings, for each of the shards and one of its own before them.
pub(crate) fn runtimes<T: Send + 'static>(
    sim: &Simulation<T>,
    net: &Net,
    rng: &mut Rng,
) -> Vec<Runtime> {
    let shards = sim.service().shards().map(Some);
    let runtime = |shard: Option<ShardId>| {
        let (workers, events_max) = (rng.usize(1..=3), one_of(rng, &[1, 2, 5, 1_024]));
        let runtime = match shard {
            // The shard's turn comes after one look at the sockets, unless it is late.
            Some(shard) => sim.runtime_of(shard, net),
            None => net.runtime(workers).events_max(events_max),
        };
        runtime.budget(one_of(rng, &[1, 2, 8, 128])).reads_long(rng.bool())
    };
    iter::once(None).chain(shards).map(runtime).collect()
}

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(!seed);
        let (builder, tick) = settings(&mut rng);
        let sim = Simulation::start(seed, builder, |_| (|_, _| {}) as Handler);
        let mut sim = sim.expect("the settings are in range");
        let start = sim.now();
        // The service has run for up to a day, or for decades, when the first connection begins.
        let days = one_of(&mut rng, &[1, 1, 30_000]);
        sim.run_for(Duration::from_secs(rng.u64(1..days * 24 * 3_600)));
        let send_buffer = one_of(&mut rng, &[1, 7, 64, 1_024, 65_536]);
        let receive_buffer = one_of(&mut rng, &[1, 7, 64, 1_024, 65_536]);
        let portion_max = one_of(&mut rng, &[0, 0, 1, 50, 5_000]);
        let latency_max = Duration::from_millis(one_of(&mut rng, &[0, 0, 1, 30]));
        let segment = one_of(&mut rng, &[1, 100, 1_448, 65_483]);
        let ack_delay = Duration::from_millis(one_of(&mut rng, &[0, 0, 40]));
        let not_sent_lowat = one_of(&mut rng, &[0, 0, 0, 1, 30, 4_096]);
        let net = sim.net().send_buffer(send_buffer).receive_buffer(receive_buffer);
        let net = net.portion_max(portion_max).latency_max(latency_max).segment(segment);
        let net = net.ack_delay(ack_delay).not_sent_lowat(not_sent_lowat);
        // An answer takes at most a hundred writes.
        let portion = if portion_max == 0 { 1_000 } else { portion_max };
        let lowat = if not_sent_lowat == 0 { portion } else { not_sent_lowat };
        let portion = portion.min(send_buffer).min(receive_buffer).min(segment).min(lowat);
        let runtimes = runtimes(&sim, &net, &mut rng);
        let world = Rc::new(World {
            time: sim.time(),
            start,
            tick,
            answer_max: (2 * (send_buffer + receive_buffer)).min(100 * portion),
            send_max: (20 * receive_buffer).min(300),
            stalls: RefCell::default(),
            violation: RefCell::default(),
            timers: Cell::new(0),
            ends: Cell::new(0),
        });
        let address = SocketAddr::from(([10, 0, 0, 1], 80));
        Self { sim, net, world, runtimes, seen: Vec::new(), address }
    }

    fn runtime(&self, on: u8) -> &Runtime {
        &self.runtimes[usize::from(on) % self.runtimes.len()]
    }

    fn execute(&mut self, command: &Command) {
        if let Command::Stall { time, .. }
        | Command::StallShard { time, .. }
        | Command::Stop(time)
        | Command::StallWorker { time, .. } = *command
        {
            let now = self.world.now();
            self.world.stalls.borrow_mut().push((now, now + time));
        }
        match *command {
            Command::Open { guard, on, seed } => self.open(guard, on, seed),
            Command::Run(time) => self.run_for(time),
            Command::HoldDriver { time } => self.runtimes[0].hold_driver(time),
            Command::Stall { on, time } => self.runtime(on).stall(time),
            Command::StallWorker { on, time } => self.runtime(on).stall_worker(time),
            Command::StallShard { shard, time } => {
                let shards = self.sim.service().shards().count();
                self.sim.stall(ShardId::new((usize::from(shard) % shards) as u16), time);
            }
            Command::Stop(time) => self.sim.stop(&self.runtimes, time),
            Command::WakeSome { on } => self.runtime(on).wake_some(),
        }
    }

    fn open(&mut self, guard: Guard, on: u8, seed: u64) {
        let mut rng = Rng::with_seed(seed);
        let number = self.seen.len() as u16;
        // A listener each, so that the server knows which client it serves.
        let mut address = self.address;
        address.set_port(number + 1);
        let listener = self.net.listen(address).expect("each has an address of its own");
        let stream = self.net.connect(address).expect("the listener is there");
        let limit = Duration::from_millis(rng.u64(5..300));
        let other = Duration::from_millis(rng.u64(5..300));
        let limits = [limit, one_of(&mut rng, &[limit, other])];
        let witness = stream.peer_socket().expect("it is in the listener's queue");
        let asks = guard.may_ask() && rng.bool();
        let shards = self.sim.service().shards().count();
        let place = if guard.is_on_shard() { 1 + usize::from(on) % shards } else { 0 };
        let runtime = self.runtimes[place].clone();
        let witnesses = [witness, stream.socket()];
        let known = Rc::new(Seen::new(guard, asks, limits, witnesses, runtime.clone()));
        self.seen.push(Rc::clone(&known));
        let client = clients::client(Rc::clone(&self.world), Rc::clone(&known), stream, rng.fork());
        drop(self.sim.spawn(client));
        let world = Rc::clone(&self.world);
        let handle = self.sim.service().handle();
        let timers =
            guard.is_on_shard().then(|| self.sim.timers(ShardId::new(place as u16 - 1)).clone());
        drop(runtime.spawn(async move {
            let stream = listener.accept().await;
            known.opened.set(Some(world.now()));
            let end = servers::serve(&world, &known, stream, handle, timers, rng).await;
            known.end(&world, end);
        }));
    }

    /// When the last stall or hold of any shard or runtime ends.
    fn held_until(&self, runtime: &Runtime) -> Duration {
        let shards = self.sim.service().shards();
        let stalls = shards.filter_map(|shard| self.sim.stall_end(shard));
        stalls.max().unwrap_or_default().max(runtime.held_until())
    }

    fn step(&mut self) {
        if !self.sim.step() {
            for seen in &self.seen {
                if seen.is_over() {
                    seen.check_gone(&self.world);
                } else {
                    seen.check(&self.world, || self.held_until(&seen.runtime));
                }
            }
        }
        if let Some(violation) = self.world.violation.take() {
            panic!("{violation}");
        }
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

    /// Lets all connections end, and checks what they leave.
    fn finish(mut self) -> Done {
        // A client falls silent after so long, each limit is shorter than a second, and at the
        // least rate the longest answer takes less than the rest. So no connection is left that has
        // moved no byte for as long as this.
        let left = Duration::from_millis(FAULT_MAX) + clients::LIFE_MAX + Duration::from_mins(5);
        let mut transfers = None;
        while transfers != Some(self.net.transfers()) {
            transfers = Some(self.net.transfers());
            self.run_for(left);
        }
        for seen in &self.seen {
            seen.check_end();
        }
        let mut counted = laws::Counted::default();
        self.seen.iter().for_each(|seen| counted.add(seen));
        let stats = self.sim.service().stats();
        counted.check(&stats);
        assert_eq!(self.net.sockets(), 0, "sockets are left");
        let pending: u64 = stats.shards.iter().map(|shard| shard.counts.pending).sum();
        assert_eq!(pending, 0, "timers are left when all connections have ended");
        let done = Done {
            transfers: self.net.transfers(),
            timers: self.world.timers.get(),
            ends: self.world.ends.get(),
            steps: self.world.time.steps(),
        };
        drop(self.sim.service().begin_shutdown(ShutdownPolicy::Drop));
        self.sim.settle();
        done
    }
}

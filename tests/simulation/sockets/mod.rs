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

use std::cell::RefCell;
use std::iter;
use std::rc::Rc;
use std::time::Duration;

use corewheel::sim::Simulation;
use corewheel::sim::net::{Net, Runtime};
use corewheel::{ShardId, TimerService};
use fastrand::Rng;

use self::laws::Seen;
use self::servers::{GUARDS, Guard};
use crate::judge::{Done, Fault, Judge, check_no_timers, end, one_of, pair, start};

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
    Fault(Fault),
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
            _ => Command::Fault(match fault {
                0 => Fault::HoldDriver(time),
                1 => Fault::Stall { on, time },
                2 => Fault::StallWorker { on, time },
                3 => Fault::StallShard { shard: on, time },
                4 => Fault::Stop(time),
                _ => Fault::WakeSome { on },
            }),
        }
    };
    (0..rng.usize(20..150)).map(|_| command(rng)).collect()
}

/// What the tasks of a history share.
pub(crate) type World = Judge<Known>;

pub(crate) struct Known {
    pub(crate) tick: Duration,
    /// The longest answer of a server.
    pub(crate) answer_max: usize,
    /// The most bytes that a client sends in a row.
    pub(crate) send_max: usize,
    /// When shards were held up, from when to when, in order.
    pub(crate) stalls: RefCell<Vec<(Duration, Duration)>>,
}

impl World {
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
}

struct History {
    sim: Simulation<u8>,
    net: Net,
    world: Rc<World>,
    /// That of any thread comes first, then those of the shards.
    runtimes: Vec<Runtime>,
    seen: Vec<Rc<Seen>>,
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
        let mut sim = start(seed, builder);
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
        let known = Known {
            tick,
            answer_max: (2 * (send_buffer + receive_buffer)).min(100 * portion),
            send_max: (20 * receive_buffer).min(300),
            stalls: RefCell::default(),
        };
        let world = Rc::new(Judge::new(&sim, known));
        Self { sim, net, world, runtimes, seen: Vec::new() }
    }

    fn execute(&mut self, command: &Command) {
        match *command {
            Command::Open { guard, on, seed } => self.open(guard, on, seed),
            Command::Run(time) => self.run_for(time),
            Command::Fault(fault) => {
                if let Some(time) = fault.stalls_for() {
                    let now = self.world.now();
                    self.world.stalls.borrow_mut().push((now, now + time));
                }
                fault.execute(&mut self.sim, &self.runtimes);
            }
        }
    }

    fn open(&mut self, guard: Guard, on: u8, seed: u64) {
        let mut rng = Rng::with_seed(seed);
        let number = self.seen.len() as u16;
        let (listener, stream) = pair(&self.net, number);
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
        self.world.check();
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
        counted.check(&self.sim.service().stats());
        check_no_timers(&self.sim);
        let mut done = self.world.done();
        done.count("transfers", self.net.transfers());
        done.count("steps", self.world.time.steps());
        end(self.sim, &self.net);
        done
    }
}

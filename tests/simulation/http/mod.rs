//! Random histories of HTTP/1 and HTTP/2 servers of hyper on a simulated network, with hyper's
//! clients in it.
//!
//! An honest client sends each request at once, takes its response at a good rate, and asks again
//! before it is idle. It gets each response, whatever holds the server up. A client that stops is
//! cut within its bound.

mod clients;
mod frames;
mod given;
pub(crate) mod responses;
mod seen;
mod servers;
pub(crate) mod tunnels;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use corewheel::ShardId;
use corewheel::sim::Simulation;
use corewheel::sim::net::{Net, Runtime};
use fastrand::Rng;

use self::seen::{Limits, Seen};
use crate::judge::{Done, Fault, Judge, check_ended, check_no_timers, end, one_of, pair, start};
use crate::sockets::{runtimes, settings};

/// No fault lasts longer.
const FAULT_MAX: Duration = Duration::from_millis(400);
const REQUESTS_MAX: u64 = 40;
/// The least rates, in bytes a second.
const BODY_RATE: u64 = 2_000;
const WRITE_RATE: u64 = 8_000;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    Open {
        on: u8,
        seed: u64,
    },
    Run(Duration),
    Fault(Fault),
    CloseIdlest(usize),
    /// All connections are told to end within this time, and none begins any more.
    Drain(Duration),
}

pub(crate) fn plan(rng: &mut Rng) -> Vec<Command> {
    let command = |rng: &mut Rng| {
        let (time, on) = (FAULT_MAX.mul_f64(rng.f64()), rng.u8(..));
        match rng.u8(..14) {
            0..=3 => Command::Open { on, seed: rng.u64(..) },
            4..=6 => Command::Run(time),
            7 => Command::Fault(Fault::HoldDriver(time)),
            8 => Command::Fault(Fault::Stall { on, time }),
            9 => Command::Fault(Fault::StallWorker { on: 0, time }),
            10 => Command::Fault(Fault::StallShard { shard: on, time }),
            11 => Command::Fault(Fault::Stop(time)),
            12 => Command::CloseIdlest(rng.usize(1..5)),
            _ => Command::Fault(Fault::WakeSome { on }),
        }
    };
    let mut commands: Vec<_> = (0..rng.usize(10..40)).map(|_| command(rng)).collect();
    if rng.bool() {
        commands.push(Command::Drain(Duration::from_millis(rng.u64(..2_000))));
    }
    commands
}

/// What the tasks of a history share.
pub(crate) type World = Judge<Known>;

#[derive(Default)]
pub(crate) struct Known {
    /// How many bytes lie between the server's write and the client's read at most.
    buffers: u64,
    /// How much later than its time a deadline may come, while nothing is held up.
    slack: Duration,
    /// By how much the stamp of a touch may be later on a shard.
    reading: Duration,
    /// How long a connection goes on that was told to end.
    grace: Duration,
    handled: Cell<u64>,
    ended: Cell<u64>,
    answered: Cell<u64>,
    /// When connections were last told to make room; `None` if they never were.
    ordered_at: Cell<Option<Duration>>,
    /// The shards may not have carried that out.
    is_ordered: Cell<bool>,
    /// When the drain ends; `None` if the service does not drain.
    drained_at: Cell<Option<Duration>>,
    /// When a part of the server was held up, from when to when.
    holds: RefCell<Vec<(Duration, Duration)>>,
}

impl World {
    /// Whether a part of the server was held up for so long at once, since then: from the beginning
    /// of one fault to the end of any.
    fn was_held_for(&self, time: Duration, since: Duration) -> bool {
        let holds = self.holds.borrow();
        let is_one = |begin: Duration, end: Duration| end.saturating_sub(begin) >= time;
        let mut ends = holds.iter().map(|(_, end)| *end).filter(|end| *end >= since);
        ends.any(|end| holds.iter().any(|(begin, _)| is_one(*begin, end)))
    }

    fn has_large_buffers(&self) -> bool {
        self.buffers >= 2_048
    }

    fn is_ordered(&self) -> bool {
        self.is_ordered.get()
    }

    fn was_ordered(&self) -> bool {
        self.ordered_at.get().is_some()
    }

    fn drains(&self) -> bool {
        self.drained_at.get().is_some()
    }

    fn is_drained(&self) -> bool {
        self.drained_at.get().is_some_and(|end| end <= self.now())
    }
}

struct History {
    sim: Simulation<u8>,
    net: Net,
    world: Rc<World>,
    /// That of any thread comes first, then those of the shards.
    servers: Vec<Runtime>,
    clients: Runtime,
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

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(!seed);
        let (builder, tick) = settings(&mut rng);
        let mut sim = start(seed, builder);
        sim.run_for(Duration::from_secs(rng.u64(1..24 * 3_600)));
        let buffer = one_of(&mut rng, &[64, 1_024, 65_536]);
        let net = sim.net().send_buffer(buffer).receive_buffer(buffer);
        let net = net.portion_max(one_of(&mut rng, &[0, 500]));
        let net = net.segment(one_of(&mut rng, &[500, 1_448, 65_483]));
        let net = net.ack_delay(Duration::from_millis(one_of(&mut rng, &[0, 0, 40])));
        let net = net.not_sent_lowat(one_of(&mut rng, &[0, 0, 4_096]));
        let (servers, clients) = (runtimes(&sim, &net, &mut rng), net.runtime(2));
        let known = Known {
            buffers: 2 * buffer as u64,
            slack: 3 * tick + Duration::from_millis(20),
            reading: tick + Duration::from_millis(10),
            grace: Duration::from_hours(1),
            ..Known::default()
        };
        let world = Rc::new(Judge::new(&sim, known));
        Self { sim, net, world, servers, clients, seen: Vec::new() }
    }

    fn execute(&mut self, command: &Command) {
        match *command {
            Command::Open { on, seed } => self.open(on, seed),
            Command::Run(time) => self.run_for(time),
            Command::Fault(fault) => {
                if let Some(time) = fault.holds_for() {
                    let now = self.world.now();
                    self.world.holds.borrow_mut().push((now, now + time));
                }
                fault.execute(&mut self.sim, &self.servers);
            }
            Command::CloseIdlest(count) => {
                self.world.ordered_at.set(Some(self.world.now()));
                self.world.is_ordered.set(true);
                self.sim.service().close_idlest(count);
            }
            Command::Drain(window) => {
                self.world.drained_at.set(Some(self.world.now() + window));
                self.sim.service().drain(window);
            }
        }
    }

    fn open(&mut self, on: u8, seed: u64) {
        let mut rng = Rng::with_seed(seed);
        let number = self.seen.len() as u64;
        let (listener, stream) = pair(&self.net, number as u16);
        // Half of them are on any thread.
        let shards = self.servers.len() - 1;
        let place = if rng.bool() { 0 } else { 1 + usize::from(on) % shards };
        let runtime = self.servers[place].clone();
        let limit = Duration::from_millis(rng.u64(50..200));
        // Those are on any thread, where bodies have limits of their own.
        let is_patient = place == 0 && number.is_multiple_of(3);
        let limits = Limits {
            limit,
            frame: if is_patient { 3 * limit } else { limit },
            request: if rng.u8(..3) == 0 { 2 * limit } else { Duration::from_hours(1) },
            max_age: (rng.u8(..4) == 0).then(|| Duration::from_millis(rng.u64(100..3_000))),
        };
        let conn = Rc::new(Seen::new(number, rng.bool(), limits, stream.socket(), runtime.clone()));
        conn.asks.set(rng.bool());
        self.seen.push(Rc::clone(&conn));
        let (world, known) = (Rc::clone(&self.world), Rc::clone(&conn));
        let handle = self.sim.service().handle().untyped();
        let timers = (place > 0).then(|| self.sim.timers(ShardId::new(place as u16 - 1)).clone());
        drop(runtime.spawn(async move {
            let stream = listener.accept().await;
            let (shared, of_client) = (Rc::clone(&world), Rc::clone(&known));
            match timers {
                Some(timers) => {
                    servers::serve_on_shard(shared, of_client, stream, (timers, handle)).await;
                }
                None => servers::serve(shared, of_client, stream, handle).await,
            }
            known.end(&world);
        }));
        let (world, clients) = (Rc::clone(&self.world), self.clients.clone());
        drop(self.clients.spawn(async move {
            match rng.u8(..8) {
                0 => clients::silent(&world, &conn, stream, rng).await,
                1 if !conn.is_http2 => clients::stuck(&world, &conn, stream).await,
                2 if !conn.is_http2 => clients::trickling(&world, &conn, stream, rng).await,
                _ => clients::honest(&world, &conn, stream, &clients, rng).await,
            }
        }));
    }

    /// When the last stall or hold of any shard or runtime ends.
    fn held_until(&self) -> Duration {
        let shards = self.sim.service().shards();
        let stalls = shards.filter_map(|shard| self.sim.stall_end(shard));
        stalls.chain(self.servers.iter().map(Runtime::held_until)).max().unwrap_or_default()
    }

    fn step(&mut self) {
        if !self.sim.step() {
            for seen in self.seen.iter().filter(|seen| !seen.is_over()) {
                seen.check(&self.world, || self.held_until());
            }
            if self.world.is_ordered.get() {
                let since = self.world.ordered_at.get().max(Some(self.held_until()));
                let is_done = since.is_some_and(|at| self.world.now() > at + self.world.slack);
                self.world.is_ordered.set(!is_done);
            }
        }
        self.world.check();
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.sim.elapsed() + time;
        while self.sim.next_at().is_some_and(|at| at <= end) {
            self.step();
        }
        self.sim.run_for(end.saturating_sub(self.sim.elapsed()));
    }

    fn finish(mut self) -> Done {
        // Each client asks so often, each answer takes at most so long, and then it is idle.
        let longest = Duration::from_millis(200) * 130 * REQUESTS_MAX as u32;
        self.run_for(FAULT_MAX + longest);
        let world = &self.world;
        for seen in &self.seen {
            assert!(seen.is_over(), "{seen:?} has not ended");
        }
        assert_eq!(world.handled.get(), world.ended.get(), "requests have not ended");
        self.run_for(Duration::from_secs(3));
        let world = &self.world;
        let connections = self.seen.len() as u64;
        check_ended(&self.sim, connections);
        check_no_timers(&self.sim);
        let (requests, steps) = (world.handled.get(), world.time.steps());
        end(self.sim, &self.net);
        Done::of([("requests", requests), ("connections", connections), ("steps", steps)])
    }
}

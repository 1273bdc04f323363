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

use std::iter;
use std::rc::Rc;
use std::slice;
use std::time::Duration;

use corewheel::sim::Simulation;
use corewheel::sim::net::{Net, Runtime};
use corewheel::{ShardId, TimerService};
use fastrand::Rng;

use self::laws::Seen;
use self::servers::Guard;
use crate::judge::{Command, Fault, History, Judge, Kind, at_place, one_of, pair, start};

/// No command stalls or holds anything for longer.
const FAULT_MAX: u64 = 400;

/// The commands of a seed. Some kinds of faults are switched off.
pub(crate) fn plan(rng: &mut Rng) -> Vec<Command> {
    let faults = rng.u8(..);
    let command = |rng: &mut Rng| {
        let time = Duration::from_micros(rng.u64(..FAULT_MAX * 1_000));
        let on = rng.u8(..);
        let fault = rng.u8(..6);
        match rng.u8(..10) {
            0..=3 => Command::Open(on, rng.u64(..)),
            4..=6 => Command::Run(time),
            _ if faults & 1 << fault == 0 => Command::Run(time / 4),
            _ => Command::Fault(match fault {
                0 => Fault::HoldDriver(time),
                1 => Fault::Stall(on, time),
                2 => Fault::StallWorker(on, time),
                3 => Fault::StallShard(on, time),
                4 => Fault::Stop(time),
                _ => Fault::WakeSome(on),
            }),
        }
    };
    (0..rng.usize(20..150)).map(|_| command(rng)).collect()
}

/// What the tasks of a history share.
pub(crate) type World = Judge<Known>;

pub(crate) struct Known {
    /// Those of the servers. Some are switched off.
    guards: Vec<Guard>,
    pub(crate) tick: Duration,
    /// The longest answer of a server.
    pub(crate) answer_max: usize,
    /// The most bytes that a client sends in a row.
    pub(crate) send_max: usize,
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

impl Kind for Known {
    type Seen = Seen;

    fn new(seed: u64) -> History<Self> {
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
        let mut guards: Vec<_> = Guard::all().filter(|_| rng.bool()).collect();
        if guards.is_empty() {
            guards.extend(Guard::all());
        }
        let known = Self {
            guards,
            tick,
            answer_max: (2 * (send_buffer + receive_buffer)).min(100 * portion),
            send_max: (20 * receive_buffer).min(300),
        };
        History::of(sim, net, runtimes, known)
    }

    fn open(history: &mut History<Self>, on: usize, mut rng: Rng) {
        let world = Rc::clone(&history.world);
        let guard = world.guards[rng.usize(..world.guards.len())];
        let place = if guard.is_on_shard { 1 + on % (history.runtimes.len() - 1) } else { 0 };
        let runtime = history.runtimes[place].clone();
        let (listener, stream) = pair(&history.net, history.seen.len() as u16);
        let witness = stream.peer_socket().expect("it is in the listener's queue");
        let limit = Duration::from_millis(rng.u64(5..300));
        let other = Duration::from_millis(rng.u64(5..300));
        let seen = Rc::new(Seen {
            guard,
            asks: guard.may_ask() && rng.bool(),
            limit,
            stall: one_of(&mut rng, &[limit, other]),
            witness,
            client: stream.socket(),
            runtime: runtime.clone(),
            marks: laws::Marks::default(),
        });
        history.seen.push(Rc::clone(&seen));
        let client = clients::client(Rc::clone(&world), Rc::clone(&seen), stream, rng.fork());
        drop(history.sim.spawn(client));
        let on = history.timers(place);
        drop(runtime.spawn(async move {
            let stream = listener.accept().await;
            let end =
                at_place!(on, |place| servers::serve(&world, &seen, stream, place, rng).await);
            seen.end(&world, end);
        }));
    }

    fn check(history: &History<Self>, rests: bool) {
        for seen in history.seen.iter().filter(|_| rests) {
            if seen.is_over() {
                seen.check_gone(&history.world);
            } else {
                let runtimes = slice::from_ref(&seen.runtime);
                seen.check(&history.world, || history.held_until(runtimes));
            }
        }
    }

    fn finish(history: &mut History<Self>) {
        // A client falls silent after so long, each limit is shorter than a second, and at the
        // least rate the longest answer takes less than the rest. So no connection is left that has
        // moved no byte for as long as this.
        let left = Duration::from_millis(FAULT_MAX) + clients::LIFE_MAX + Duration::from_mins(5);
        let mut transfers = None;
        while transfers != Some(history.net.transfers()) {
            transfers = Some(history.net.transfers());
            history.run_for(left);
        }
        let mut counted = laws::Counted::default();
        for seen in &history.seen {
            seen.check_end();
            counted.add(seen);
        }
        counted.check(&history.sim.service().stats());
        history.world.count("transfers", history.net.transfers());
    }
}

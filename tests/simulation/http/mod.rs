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

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;

use self::seen::{Limits, Seen};
use crate::judge::{Command, Fault, History, Judge, Kind, at_place, one_of, pair, start};
use crate::sockets::{runtimes, settings};

/// No fault lasts longer.
const FAULT_MAX: Duration = Duration::from_millis(400);
const REQUESTS_MAX: u64 = 40;
/// The least rates, in bytes a second.
const BODY_RATE: u64 = 2_000;
const WRITE_RATE: u64 = 8_000;

pub(crate) fn plan(rng: &mut Rng) -> Vec<Command> {
    let command = |rng: &mut Rng| {
        let (time, on) = (FAULT_MAX.mul_f64(rng.f64()), rng.u8(..));
        match rng.u8(..14) {
            0..=3 => Command::Open(on, rng.u64(..)),
            4..=6 => Command::Run(time),
            7 => Command::Fault(Fault::HoldDriver(time)),
            8 => Command::Fault(Fault::Stall(on, time)),
            9 => Command::Fault(Fault::StallWorker(0, time)),
            10 => Command::Fault(Fault::StallShard(on, time)),
            11 => Command::Fault(Fault::Stop(time)),
            12 => Command::CloseIdlest(rng.usize(1..5)),
            _ => Command::Fault(Fault::WakeSome(on)),
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
    /// The shards may not have carried out the last order to make room.
    is_ordered: Cell<bool>,
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

    fn drains(&self) -> bool {
        self.drained_at.get().is_some()
    }
}

impl Kind for Known {
    type Seen = Seen;

    fn new(seed: u64) -> History<Self> {
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
        let runtimes = runtimes(&sim, &net, &mut rng);
        let known = Known {
            buffers: 2 * buffer as u64,
            slack: 3 * tick + Duration::from_millis(20),
            reading: tick + Duration::from_millis(10),
            grace: Duration::from_hours(1),
            ..Known::default()
        };
        History::of(sim, net, runtimes, known)
    }

    fn open(history: &mut History<Self>, on: usize, mut rng: Rng) {
        let number = history.seen.len() as u64;
        let (listener, stream) = pair(&history.net, number as u16);
        // Half of them are on any thread.
        let place = if rng.bool() { 0 } else { 1 + on % (history.runtimes.len() - 1) };
        let runtime = history.runtimes[place].clone();
        let limit = Duration::from_millis(rng.u64(50..200));
        // Those are on any thread, where bodies and requests have limits of their own.
        let is_patient = place == 0 && number.is_multiple_of(3);
        let is_short = rng.u8(..3) == 0 && place == 0;
        let limits = Limits {
            limit,
            frame: if is_patient { 3 * limit } else { limit },
            request: if is_short { 2 * limit } else { Duration::from_hours(1) },
            max_age: (rng.u8(..4) == 0).then(|| Duration::from_millis(rng.u64(100..3_000))),
        };
        let seen = Rc::new(Seen {
            number,
            is_http2: rng.bool(),
            is_on_shard: place > 0,
            limits,
            asks: rng.bool(),
            client: stream.socket(),
            runtime: runtime.clone(),
            marks: seen::Marks::default(),
        });
        history.seen.push(Rc::clone(&seen));
        let (world, known) = (Rc::clone(&history.world), Rc::clone(&seen));
        let (on, handle) = (history.timers(place), history.sim.service().handle().untyped());
        drop(runtime.spawn(async move {
            let stream = listener.accept().await;
            let (shared, of_client) = (Rc::clone(&world), Rc::clone(&known));
            at_place!(on, |place| servers::serve(shared, of_client, stream, place, handle).await);
            known.end(&world);
        }));
        let (world, clients) = (Rc::clone(&history.world), history.clients.clone());
        drop(history.clients.spawn(async move {
            match rng.u8(..8) {
                0 => clients::silent(&world, &seen, stream, rng).await,
                1 if !seen.is_http2 => clients::stuck(&world, &seen, stream).await,
                2 if !seen.is_http2 => clients::trickling(&world, &seen, stream, rng).await,
                _ => clients::honest(&world, &seen, stream, &clients, rng).await,
            }
        }));
    }

    fn check(history: &History<Self>, rests: bool) {
        let world = &history.world;
        let held_until = || history.held_until(&history.runtimes);
        for seen in history.seen.iter().filter(|seen| rests && !seen.is_over()) {
            seen.check(world, held_until);
        }
        if rests && world.is_ordered.get() {
            let since = world.ordered_at.get().max(Some(held_until()));
            let is_done = since.is_some_and(|at| world.now() > at + world.slack);
            world.is_ordered.set(!is_done);
        }
    }

    fn close_idlest(history: &mut History<Self>, count: usize) {
        history.world.is_ordered.set(true);
        history.close_idlest(count);
    }

    fn finish(history: &mut History<Self>) {
        // Each client asks so often, each answer takes at most so long, and then it is idle.
        let longest = Duration::from_millis(200) * 130 * REQUESTS_MAX as u32;
        history.run_for(FAULT_MAX + longest);
        for seen in &history.seen {
            assert!(seen.is_over(), "{seen:?} has not ended");
        }
        let (handled, ended) = (history.world.handled.get(), history.world.ended.get());
        assert_eq!(handled, ended, "requests have not ended");
        history.run_for(Duration::from_secs(3));
        history.check_ended();
        history.world.count("requests", handled);
    }
}

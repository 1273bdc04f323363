//! Random histories of QUIC connections in the simulated world of `corewheel::sim`: the datagrams
//! of both sides are lost, doubled, delayed and out of order, and the runtime of the server is held
//! up.
//!
//! Three laws. A timer of a connection comes no earlier than its deadline, and no later than a tick
//! and a pass after it, by a list of deadlines that this test keeps. What becomes of each
//! connection is the same with a plain runtime, whose timers are a list of wakers by their time.
//! Each attempt to connect ends, in a connection or in an error, as does each connection.
//!
//! Where datagrams are lost, quinn may give up the handshake of a connection whose time is long
//! enough for all losses, with a plain runtime as with ours (seed 176). Which datagrams are lost
//! depends on their order, so such a connection is counted, and is not compared.
//!
//! * `COREWHEEL_SIM_SECONDS` is eight times as long as to run, and a few seeds by default;
//! * `COREWHEEL_SIM_SEED` is the first seed.

#![cfg(all(target_os = "linux", not(corewheel_loom)))]

#[path = "../common/configs.rs"]
mod configs;
mod path;
mod runtimes;

use std::cell::{Cell, RefCell, RefMut};
use std::env;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use corewheel::sim::net::Runtime;
use corewheel::sim::{Simulation, explore};
use corewheel::{Fired, TimerService, Timers};
use corewheel_quinn::QuinnRuntime;
use fastrand::Rng;
use quinn::{Connection, ConnectionError, Endpoint, EndpointConfig, ServerConfig};

use self::configs::{certificate, of_client, of_server, transport};
use self::path::{Fates, Path, Socket};
use self::runtimes::{Plain, Spawned, Watched};

/// How long the histories of `cargo test` run.
const SEEDS: u64 = 40;
/// An idle time that outlives any losses.
const LONG_MS: u64 = 10_000;
const LONG: Duration = Duration::from_millis(LONG_MS);
/// What becomes of an echo on a connection that has ended.
const LOST: &str = "read error: connection lost";
/// Of QUIC.
const ACK_DELAY: Duration = Duration::from_millis(25);
/// How many timers decide when a transfer without losses has ended, at most.
const TIMERS_MAX: u32 = 20;
/// No fault lasts longer.
const FAULT_MAX: Duration = Duration::from_millis(150);

#[derive(Clone, Copy, Debug)]
enum Command {
    /// A client connects, sends so many bytes, and waits until they are back.
    Connect {
        length: u32,
    },
    Run(Duration),
    HoldDriver(Duration),
    Stall(Duration),
    WakeSome,
}

fn plan(rng: &mut Rng) -> Vec<Command> {
    let has_faults = rng.bool();
    let command = |rng: &mut Rng| {
        let time = FAULT_MAX.mul_f64(rng.f64());
        match rng.u8(..8) {
            0..=1 => Command::Connect { length: rng.u32(1..20_000) },
            2..=4 => Command::Run(time),
            5 if has_faults => Command::HoldDriver(time),
            6 if has_faults => Command::Stall(time),
            _ => Command::WakeSome,
        }
    };
    let mut commands = vec![Command::Connect { length: 3_000 }];
    commands.extend((0..rng.usize(2..10)).map(|_| command(rng)));
    commands
}

/// What became of a connection, as its client and its server have it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Outcome {
    /// How many bytes came back, or why they did not.
    echoed: Option<String>,
    client: Option<String>,
    server: Option<String>,
    /// When the attempt to connect has ended, when the bytes were back, and when the client's
    /// connection has ended.
    at: [Option<Duration>; 3],
}

/// What does not depend on which datagrams are lost.
fn is_same(ours: &Outcome, reference: &Outcome) -> bool {
    (&ours.echoed, &ours.client) == (&reference.echoed, &reference.client)
}

/// Whether all is the same, and about as soon: a tick decides which packets go in a flight, and a
/// flight more takes a round trip and a delayed acknowledgement.
fn is_as_soon(ours: &Outcome, reference: &Outcome, slack: Duration) -> bool {
    let is_soon = |(ours, reference): (&Option<Duration>, &Option<Duration>)| {
        let (Some(ours), Some(reference)) = (ours, reference) else { return ours == reference };
        ours.abs_diff(*reference) <= slack
    };
    is_same(ours, reference)
        && ours.server == reference.server
        && ours.at.iter().zip(&reference.at).all(is_soon)
}

type Outcomes = Rc<RefCell<Vec<Outcome>>>;

/// Whose timers and tasks the server and the client have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Whose {
    Ours,
    Reference,
}

struct History {
    sim: Simulation<u8>,
    server: Runtime,
    clients: Runtime,
    endpoints: [Endpoint; 2],
    watched: Watched,
    outcomes: Outcomes,
    /// How many connections the server has given up in their handshake.
    refused: Rc<Cell<usize>>,
    tick: Duration,
    /// When the last fault ends.
    held_until: Duration,
    start: Instant,
    idle: Duration,
    /// No datagram is lost, doubled or delayed by more than others.
    is_calm: bool,
    rtt: Duration,
}

impl History {
    fn new(seed: u64, whose: Whose) -> Self {
        let mut rng = Rng::with_seed(!seed);
        let tick = Duration::from_micros([100, 1_000, 1_000, 5_000][rng.usize(..4)]);
        let builder = TimerService::beside_runtime().shards(rng.usize(1..=2)).tick(tick);
        let handler: fn(Fired<u8>, &Timers<u8>) = |_, _| {};
        let sim = Simulation::start(seed, builder.capacity(200), |_| handler).unwrap();
        // What comes to a socket has room there.
        let net = sim.net().send_buffer(1 << 24).receive_buffer(1 << 24);
        let mut runtime =
            || net.runtime(rng.usize(1..=3)).events_max([1, 2, 1_024][rng.usize(..3)]);
        let (server, clients) = (runtime(), runtime());
        let start = sim.now();
        let watched = Watched::new(&sim);
        let rtt = Duration::from_millis(rng.u64(1..40));
        let idle = Duration::from_millis(if rng.bool() { rng.u64(300..2_000) } else { LONG_MS });
        let is_calm = rng.u8(..3) == 0;
        let fates = [(); 2].map(|()| Fates::new(&mut rng, rtt, is_calm));
        let path = Path::new(&sim, fates);
        let mut transport = transport(idle);
        transport.initial_rtt(rtt);
        if rng.u8(..3) == 0 {
            transport.keep_alive_interval(Some(idle / 3));
        }
        let transport = Arc::new(transport);
        let handle = sim.service().handle();
        let endpoint = |number: u8, on: &Runtime, server: Option<ServerConfig>| {
            let socket = Arc::new(Socket::new(&net, &path, number));
            let spawned = Spawned::new(on);
            let mut config = EndpointConfig::default();
            config.rng_seed(Some([number; 32]));
            match whose {
                Whose::Ours => {
                    let quinn = QuinnRuntime::new(handle);
                    let socket = quinn.wrap_socket(socket);
                    let runtime = Arc::new(watched.runtime(quinn, spawned));
                    Endpoint::new_with_abstract_socket(config, server, socket, runtime)
                }
                Whose::Reference => {
                    let runtime = Arc::new(Plain::new(&sim, spawned));
                    Endpoint::new_with_abstract_socket(config, server, socket, runtime)
                }
            }
            .unwrap()
        };
        let of_all = endpoint(1, &server, Some(of_server(&transport)));
        let mut client = endpoint(2, &clients, None);
        client.set_default_client_config(of_client(certificate(), &transport));
        let (endpoints, outcomes) = ([of_all, client], Outcomes::default());
        let accepting = endpoints[0].clone();
        let (runtime, shared) = (server.clone(), Rc::clone(&outcomes));
        let refused = Rc::new(Cell::new(0));
        let given_up = Rc::clone(&refused);
        drop(server.spawn(async move {
            while let Some(incoming) = accepting.accept().await {
                let (shared, given_up) = (Rc::clone(&shared), Rc::clone(&given_up));
                drop(runtime.spawn(async move {
                    match incoming.await {
                        Ok(connection) => echo_all(connection, &shared).await,
                        Err(ConnectionError::TimedOut) => given_up.set(given_up.get() + 1),
                        Err(_) => {}
                    }
                }));
            }
        }));
        Self {
            sim,
            server,
            clients,
            endpoints,
            watched,
            outcomes,
            refused,
            tick,
            held_until: Duration::ZERO,
            start,
            idle,
            is_calm,
            rtt,
        }
    }

    fn execute(&mut self, command: Command) {
        let now = self.sim.now() - self.start;
        if let Command::HoldDriver(time) | Command::Stall(time) = command {
            self.held_until = self.held_until.max(now + time);
        }
        match command {
            Command::Connect { length } => self.connect(length),
            Command::Run(time) => self.run_for(time),
            Command::HoldDriver(time) => self.server.hold_driver(time),
            Command::Stall(time) => self.server.stall(time),
            Command::WakeSome => self.server.wake_some(),
        }
    }

    fn connect(&mut self, length: u32) {
        let (endpoint, outcomes) = (self.endpoints[1].clone(), Rc::clone(&self.outcomes));
        let (number, time, start) = (outcomes.borrow().len(), self.sim.time(), self.start);
        outcomes.borrow_mut().push(Outcome::default());
        drop(self.clients.spawn(async move {
            let outcome = || RefMut::map(outcomes.borrow_mut(), |outcomes| &mut outcomes[number]);
            let now = || Some(time.now() - start);
            let connected = endpoint.connect(path::address(1), "localhost").unwrap().await;
            outcome().at[0] = now();
            let connection = match connected {
                Ok(connection) => connection,
                Err(error) => return outcome().client = Some(error.to_string()),
            };
            let echoed = match echo(&connection, number as u32, length).await {
                Ok(count) => count.to_string(),
                Err(error) => error.to_string(),
            };
            outcome().echoed = Some(echoed);
            outcome().at[1] = now();
            if number % 2 == 0 {
                connection.close(7_u32.into(), b"");
            }
            let closed = connection.closed().await.to_string();
            outcome().client = Some(closed);
            outcome().at[2] = now();
        }));
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.sim.elapsed() + time;
        while self.sim.next_at().is_some_and(|at| at <= end) {
            let now = self.sim.now();
            // Of a runtime that is held up until then, and a shard that turns after it.
            let slack = 2 * self.tick;
            let is_free = now > self.start + self.held_until + slack;
            self.watched.check(now.checked_sub(slack).filter(|_| is_free));
            self.sim.step();
        }
        self.sim.run_for(end.saturating_sub(self.sim.elapsed()));
    }

    fn finish(mut self) -> (Vec<Outcome>, usize, [bool; 2], Duration) {
        // Datagrams that were lost are sent again after times that double.
        self.run_for(Duration::from_secs(20) + 10 * self.idle);
        let check_all = |outcomes: &Outcomes, what: &str, is_over: fn(&Outcome) -> bool| {
            let outcomes = outcomes.borrow();
            assert!(outcomes.iter().all(is_over), "{what} does not end: {outcomes:?}");
        };
        check_all(&self.outcomes, "an attempt to connect", |it| it.at[0].is_some());
        for endpoint in &self.endpoints {
            endpoint.close(0_u32.into(), b"");
        }
        self.run_for(Duration::from_secs(5));
        check_all(&self.outcomes, "a connection", |it| it.client.is_some());
        let is_calm = self.is_calm && self.held_until.is_zero();
        let lives_long = self.is_calm || self.idle >= LONG;
        let slack = TIMERS_MAX * self.tick + 4 * self.rtt + 2 * ACK_DELAY;
        (self.outcomes.take(), self.refused.get(), [is_calm, lives_long], slack)
    }
}

type Failed = Box<dyn std::error::Error>;

async fn echo(connection: &Connection, number: u32, length: u32) -> Result<usize, Failed> {
    let (mut send, mut receive) = connection.open_bi().await?;
    let writes = async {
        let bytes = [&number.to_be_bytes()[..], &vec![7; length as usize]].concat();
        send.write_all(&bytes).await?;
        Ok::<_, Failed>(send.finish()?)
    };
    let (written, received) = tokio::join!(writes, receive.read_to_end(1 << 20));
    written?;
    let received = received?;
    let is_same = received[..4] == number.to_be_bytes() && received[4..].iter().all(|it| *it == 7);
    assert!(is_same, "other bytes than were sent");
    Ok(received.len() - 4)
}

/// Sends back what comes in a stream, and waits for the end of the connection.
async fn echo_all(connection: Connection, outcomes: &Outcomes) {
    let mut number = None;
    while let Ok((mut send, mut receive)) = connection.accept_bi().await {
        if let Ok(bytes) = receive.read_to_end(1 << 20).await {
            number = Some(u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize);
            let _ = send.write_all(&bytes).await;
            let _ = send.finish();
        }
    }
    if let Some(number) = number {
        outcomes.borrow_mut()[number].server = Some(connection.closed().await.to_string());
    }
}

/// Runs the history of a seed with our timers and with plain ones.
fn run(seed: u64, commands: &[Command]) -> usize {
    let of = |whose| {
        let mut history = History::new(seed, whose);
        for command in commands {
            history.execute(*command);
        }
        history.finish()
    };
    let ((ours, refused, [is_calm, lives_long], slack), (reference, refused_by_it, ..)) =
        (of(Whose::Ours), of(Whose::Reference));
    // The server knows no number of a connection that it has not accepted.
    let is_unaccepted = |it: &&Outcome| it.server.is_none() && it.echoed.as_deref() == Some(LOST);
    for (outcomes, refused) in [(&ours, refused), (&reference, refused_by_it)] {
        let unaccepted = outcomes.iter().filter(is_unaccepted).count();
        assert!(!lives_long || unaccepted <= refused, "{refused} given up: {outcomes:?}");
    }
    for (number, (ours, reference)) in ours.iter().zip(&reference).enumerate() {
        let agrees = match (is_calm, lives_long) {
            (true, _) => is_as_soon(ours, reference, slack),
            (false, true) => {
                is_same(ours, reference) || [ours, reference].iter().any(is_unaccepted)
            }
            // It may end as idle while datagrams are lost, or not.
            (false, false) => true,
        };
        assert!(agrees, "connection {number}: {ours:?}, and with a plain runtime {reference:?}");
    }
    ours.len()
}

/// Says which seed fails.
struct OfSeed(u64, Instant);

impl Drop for OfSeed {
    #[allow(clippy::print_stdout, reason = "a run says which seed has failed")]
    fn drop(&mut self) {
        if thread::panicking() {
            println!("seed {} fails after {:?}", self.0, self.1.elapsed());
        }
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "a run says what it has run")]
fn random_histories_of_quic_agree_with_a_plain_runtime() {
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _entered = tokio.enter();
    let variable = |name| env::var(name).ok().map(|it| it.parse().expect("it is a number"));
    let seconds: Option<u64> = variable("COREWHEEL_SIM_SECONDS").map(|it: u64| it / 8);
    let (first, begin) = (variable("COREWHEEL_SIM_SEED").unwrap_or(1), Instant::now());
    let goes_on = |seed: &u64| match seconds {
        Some(seconds) => begin.elapsed() < Duration::from_secs(seconds),
        None => *seed < first + SEEDS,
    };
    let (seeds, connections) = (Cell::new(0), Cell::new(0));
    explore((first..).take_while(goes_on), plan, |seed, commands| {
        let _seed = OfSeed(seed, begin);
        connections.set(connections.get() + run(seed, commands));
        seeds.set(seeds.get() + 1);
    });
    println!("{} seeds in {:?}, {} connections", seeds.get(), begin.elapsed(), connections.get());
}

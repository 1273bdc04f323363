//! Random histories of HTTP/1 and HTTP/2 servers of hyper on a simulated network, with hyper's
//! clients in it.
//!
//! An honest client sends each request at once, takes its response at a good rate, and asks again
//! before it is idle. It gets each response, whatever holds the server up. A client that stops is
//! cut within its bound.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use corewheel::adapters::hyper::{
    BodyLimits, BodyTimers, HyperTimer, RequestBody, TimedBody, TimedExchanges, TimedService,
};
use corewheel::sim::net::{Net, NetOptions, Runtime, RuntimeOptions, Stream};
use corewheel::sim::{Simulation, Step, Time};
use corewheel::stream::{StreamLimits, TimedIo};
use corewheel::{AnyHandle, Fired, ShutdownPolicy, Timers};
use fastrand::Rng;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1 as client1, http2 as client2};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::sockets::{one_of, runtime_options, settings};

/// No fault lasts longer.
const FAULT_MAX: Duration = Duration::from_millis(400);
const REQUESTS_MAX: u64 = 12;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    Open { seed: u64 },
    Run(Duration),
    HoldDriver(Duration),
    Stall(Duration),
    StallWorker(Duration),
    Stop(Duration),
    WakeSome,
}

pub(crate) fn plan(rng: &mut Rng) -> Vec<Command> {
    let command = |rng: &mut Rng| {
        let time = FAULT_MAX.mul_f64(rng.f64());
        match rng.u8(..12) {
            0..=3 => Command::Open { seed: rng.u64(..) },
            4..=6 => Command::Run(time),
            7 => Command::HoldDriver(time),
            8 => Command::Stall(time),
            9 => Command::StallWorker(time),
            10 => Command::Stop(time),
            _ => Command::WakeSome,
        }
    };
    (0..rng.usize(10..40)).map(|_| command(rng)).collect()
}

/// hyper's tasks run in a runtime of the simulation.
#[derive(Clone)]
struct InRuntime(Runtime);

impl<F: Future + 'static> hyper::rt::Executor<F> for InRuntime {
    fn execute(&self, future: F) {
        drop(self.0.spawn(future));
    }
}

/// What the tasks of a history share.
struct World {
    time: Time,
    limit: Duration,
    handled: Cell<u64>,
    ended: Cell<u64>,
    answered: Cell<u64>,
    connections: Cell<u64>,
    served: Cell<u64>,
    violation: RefCell<Option<String>>,
}

impl World {
    fn violate(&self, text: String) {
        self.violation.borrow_mut().get_or_insert(text);
    }
}

/// A request that is handled; its drop counts its end.
struct Handled(Rc<World>);

impl Drop for Handled {
    fn drop(&mut self) {
        self.0.ended.set(self.0.ended.get() + 1);
    }
}

type Body = RequestBody<TimedBody<Incoming>>;
type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Answers with as many bytes as the request's path says.
async fn answer(world: Rc<World>, request: Request<Body>) -> Result<Response<Full<Bytes>>, Failed> {
    world.handled.set(world.handled.get() + 1);
    let _handled = Handled(Rc::clone(&world));
    let length = request.uri().path()[1..].parse::<usize>()?;
    let _body = request.into_body().collect().await?;
    if length % 5 == 0 {
        // Longer than the idle time.
        world.time.sleep(world.limit + Duration::from_millis(3)).await;
    }
    Ok(Response::new(Full::new(vec![b'b'; length].into())))
}

async fn serve(
    world: Rc<World>,
    timers: AnyHandle,
    stream: Stream,
    is_http2: bool,
    runtime: Runtime,
) -> bool {
    let limit = world.limit;
    let limits = StreamLimits::default().first_byte(limit).head(limit).write_stall(limit);
    let stream = TimedIo::new(stream, timers, limits.idle(limit));
    let control = stream.control();
    let inner = service_fn(move |request| answer(Rc::clone(&world), request));
    let service = TimedService::new(inner, control).bodies_have_limits();
    let body_limits = BodyLimits::default().next_frame(limit);
    let service = TimedExchanges::new(service, BodyTimers::new(timers)).request_limits(body_limits);
    let io = TokioIo::new(stream);
    if is_http2 {
        let server = http2::Builder::new(InRuntime(runtime)).serve_connection(io, service);
        server.await.is_ok()
    } else {
        let mut server = http1::Builder::new();
        let server = server.timer(HyperTimer::new(timers)).serve_connection(io, service);
        server.await.is_ok()
    }
}

/// A client's way to send a request.
enum Sender {
    Http1(client1::SendRequest<Full<Bytes>>),
    Http2(client2::SendRequest<Full<Bytes>>),
}

impl Sender {
    async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }
}

/// Asks and takes the responses. True if it was served to its end.
async fn client(
    world: &World,
    stream: Stream,
    is_http2: bool,
    runtime: &Runtime,
    mut rng: Rng,
) -> hyper::Result<()> {
    let io = TokioIo::new(stream);
    let mut sender = if is_http2 {
        let (sender, conn) = client2::handshake(InRuntime(runtime.clone()), io).await?;
        drop(runtime.spawn(conn));
        Sender::Http2(sender)
    } else {
        let (sender, conn) = client1::handshake(io).await?;
        drop(runtime.spawn(conn));
        Sender::Http1(sender)
    };
    for _ in 0..rng.u64(1..=REQUESTS_MAX) {
        let length = one_of(&mut rng, &[0, 1, 100, 5_001, 60_003]);
        let body = vec![b'a'; one_of(&mut rng, &[0, 1, 3_000])];
        let request = Request::post(format!("/{length}")).header("host", "a");
        let request = request.body(Full::from(body)).expect("the request is valid");
        let mut body = sender.send(request).await?.into_body();
        let (mut received, is_slow) = (0, rng.bool());
        while let Some(frame) = body.frame().await {
            received += frame?.data_ref().map_or(0, Bytes::len);
            if is_slow {
                world.time.sleep(world.limit / 40).await;
            }
        }
        if received != length {
            world.violate(format!("{received} bytes of {length} came"));
        }
        world.answered.set(world.answered.get() + 1);
        // Before the idle time is over, which begins when the server's socket has accepted all.
        // What a slow client takes from there is idle time already.
        let pause = world.limit.saturating_sub(Duration::from_millis(1)).mul_f64(rng.f64());
        if !is_slow {
            world.time.sleep(one_of(&mut rng, &[Duration::ZERO, pause])).await;
        }
    }
    Ok(())
}

type Handler = fn(Fired<u8>, &Timers<u8>);

struct History {
    sim: Simulation<u8>,
    net: Net,
    world: Rc<World>,
    server: Runtime,
    clients: Runtime,
}

/// How much a history has done.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Done {
    pub(crate) requests: u64,
    pub(crate) connections: u64,
    pub(crate) steps: u64,
}

impl Done {
    pub(crate) fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.connections += other.connections;
        self.steps += other.steps;
    }
}

/// Runs the history of a seed.
pub(crate) fn run(seed: u64, commands: &[Command]) -> Done {
    let mut rng = Rng::with_seed(!seed);
    let (builder, _) = settings(&mut rng);
    let sim = Simulation::start(seed, builder, |_| (|_, _| {}) as Handler);
    let mut sim = sim.expect("the settings are in range");
    sim.run_for(Duration::from_secs(rng.u64(1..24 * 3_600)));
    let buffer = one_of(&mut rng, &[64, 1_024, 65_536]);
    let net = sim.net(NetOptions {
        send_buffer: buffer,
        receive_buffer: buffer,
        portion_max: one_of(&mut rng, &[0, 500]),
        latency_max: Duration::ZERO,
    });
    let server = net.runtime(runtime_options(&mut rng));
    let clients = net.runtime(RuntimeOptions::default());
    let world = Rc::new(World {
        time: sim.time(),
        limit: Duration::from_millis(rng.u64(50..200)),
        handled: Cell::new(0),
        ended: Cell::new(0),
        answered: Cell::new(0),
        connections: Cell::new(0),
        served: Cell::new(0),
        violation: RefCell::default(),
    });
    let mut history = History { sim, net, world, server, clients };
    for command in commands {
        history.execute(command);
    }
    history.finish()
}

impl History {
    fn execute(&mut self, command: &Command) {
        match *command {
            Command::Open { seed } => self.open(seed),
            Command::Run(time) => self.run_for(time),
            Command::HoldDriver(time) => self.server.hold_driver(time),
            Command::Stall(time) => self.server.stall(time),
            Command::StallWorker(time) => self.server.stall_worker(time),
            Command::Stop(time) => self.sim.stop(std::slice::from_ref(&self.server), time),
            Command::WakeSome => self.server.wake_some(),
        }
    }

    fn open(&mut self, seed: u64) {
        let mut rng = Rng::with_seed(seed);
        let is_http2 = rng.bool();
        let number = self.world.connections.get();
        self.world.connections.set(number + 1);
        let address = SocketAddr::from(([10, 0, 0, 1], number as u16 + 1));
        let listener = self.net.listen(address).expect("each has an address of its own");
        let (world, runtime) = (Rc::clone(&self.world), self.server.clone());
        let timers = self.sim.service().handle().untyped();
        drop(self.server.spawn(async move {
            let stream = listener.accept().await;
            serve(Rc::clone(&world), timers, stream, is_http2, runtime).await;
            world.served.set(world.served.get() + 1);
        }));
        let (net, world, clients) =
            (self.net.clone(), Rc::clone(&self.world), self.clients.clone());
        drop(self.clients.spawn(async move {
            let stream = net.connect(address).expect("the listener is there");
            match rng.u8(..4) {
                0 => {
                    // It sends a part of a request, or nothing, and waits.
                    let mut stream = stream;
                    let part = &b"POST /1 HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nabc"[..];
                    let length = rng.usize(..part.len());
                    let _ = stream.write_all(&part[..length]).await;
                    while stream.read(&mut [0; 64]).await.is_ok_and(|count| count > 0) {}
                }
                _ => {
                    if let Err(error) = client(&world, stream, is_http2, &clients, rng).await {
                        let kind = if is_http2 { "HTTP/2" } else { "HTTP/1" };
                        world.violate(format!("an honest client of {kind} is cut: {error:?}"));
                    }
                }
            }
        }));
    }

    fn step(&mut self) {
        if self.sim.step() == Step::Ran
            && let Some(violation) = self.world.violation.take()
        {
            panic!("{violation}");
        }
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
        let longest = self.world.limit * 130 * REQUESTS_MAX as u32;
        self.run_for(FAULT_MAX + longest);
        let world = &self.world;
        assert_eq!(world.served.get(), world.connections.get(), "connections have not ended");
        assert_eq!(world.handled.get(), world.ended.get(), "requests have not ended");
        self.run_for(Duration::from_secs(3));
        let world = &self.world;
        let stats = self.sim.service().stats();
        let ended: u64 = stats.deadlines.iter().map(|deadline| deadline.ended).sum();
        assert_eq!(ended + stats.connections_closed, world.connections.get());
        assert_eq!(self.net.sockets(), 0, "sockets are left");
        let pending: u64 = stats.shards.iter().map(|shard| shard.counts.pending).sum();
        assert_eq!(pending, 0, "timers are left when all connections have ended");
        let done = Done {
            requests: world.handled.get(),
            connections: world.connections.get(),
            steps: world.time.steps(),
        };
        drop(self.sim.service().begin_shutdown(ShutdownPolicy::Drop));
        self.sim.settle();
        done
    }
}

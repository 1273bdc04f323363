//! Random histories of connections with tunnels, and of HTTP/2 connections whose requests share the
//! window of the connection, while some handlers do not read their bodies yet.
//!
//! A tunnel with traffic is not idle, nor told to end as the idlest, and a drain leaves it its
//! window. A client that waits for the server's window gets its answer.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use corewheel::AnyHandle;
use corewheel::sim::net::{Runtime, Stream};
use corewheel::stream::StreamLimits;
use corewheel_http::hyper::{BodyLimits, TimedBody, TimedHttp};
use fastrand::Rng;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::{http1 as server1, http2 as server2};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::clients::Sender;
use super::servers::{Failed, InRuntime, drive, is_told};
use crate::judge::{Command, Fault, History, Judge, Kind, Place, one_of, pair, start};
use crate::sockets::settings;

/// No fault lasts longer.
const FAULT_MAX: Duration = Duration::from_millis(400);

pub(crate) fn plan(rng: &mut Rng) -> Vec<Command> {
    let has_faults = rng.bool();
    let command = |rng: &mut Rng| {
        let time = FAULT_MAX.mul_f64(rng.f64());
        match rng.u8(..10) {
            0..=2 => Command::Open(0, rng.u64(..)),
            3..=5 => Command::Run(time),
            6 => Command::CloseIdlest(1),
            7 => Command::Fault(Fault::HoldDriver(time)),
            8 if has_faults => {
                let faults = [Fault::Stall(0, time), Fault::StallWorker(0, time)];
                Command::Fault(one_of(rng, &faults))
            }
            _ => Command::Fault(Fault::WakeSome(0)),
        }
    };
    let mut commands: Vec<_> = (0..rng.usize(4..30)).map(|_| command(rng)).collect();
    if rng.bool() {
        commands.push(Command::Drain(Duration::from_millis(rng.u64(..1_000))));
    }
    commands
}

pub(crate) struct Known {
    slack: Duration,
    conns: RefCell<Vec<Rc<Seen>>>,
}

type World = Judge<Known>;

/// What a tunnel carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Traffic {
    /// The server sends back what it receives.
    Echo,
    FromClient,
    FromServer,
}

/// A connection, as its client knows it.
#[derive(Default, Debug)]
pub(crate) struct Seen {
    #[expect(dead_code, reason = "it is printed")]
    number: u16,
    is_http2: bool,
    limit: Duration,
    began: Duration,
    /// When it was last active: a byte of a tunnel was sent, or a request has begun or ended.
    last: Cell<Duration>,
    /// It was not active for its limit.
    was_idle: Cell<bool>,
    /// Requests that are not answered.
    requests: Cell<u32>,
    /// When the idlest were last told, when it had last been active; `None` if it was busy.
    last_at_order: Cell<Option<Duration>>,
    /// The client has done all that it does.
    is_done: Cell<bool>,
    is_served: Cell<bool>,
    /// Whether its socket is asked what the client has acknowledged.
    asks: bool,
    /// When the client has last sent what is not part of a request, nor of a tunnel: the end of a
    /// tunnel.
    sent_at: Cell<Duration>,
    told_at: Cell<Option<Duration>>,
    ended_at: Cell<Option<Duration>>,
}

impl Seen {
    fn moves(&self, world: &World) {
        let (now, last) = (world.now(), self.last.get());
        if self.requests.get() == 0 && now >= last + self.limit {
            self.was_idle.set(true);
        }
        self.last.set(now);
    }

    fn may_be_idle(&self, world: &World) -> bool {
        let is_over = self.requests.get() == 0 && world.now() >= self.last.get() + self.limit;
        self.was_idle.get() || is_over
    }

    /// The owner is told that it is idle.
    fn is_idle(&self, world: &World) {
        self.told_at.set(Some(world.now()));
        if !self.may_be_idle(world) {
            world.violate(format!("idle at {:?}: {self:?}", world.now()));
        }
    }

    /// The owner is told that the connection is to end.
    fn is_ordered(&self, world: &World) {
        self.told_at.set(Some(world.now()));
        if world.drained_at.get().is_some() {
            return;
        }
        let Some(at) = world.ordered_at.get() else { return };
        let Some(own) = self.last_at_order.get() else { return };
        // What comes while the server is held up comes for it when that is over.
        let held_until = world.held_until();
        let conns = world.conns.borrow();
        let idler = conns.iter().find(|other| {
            let last = other.last_at_order.get();
            let stays = last == Some(other.last.get()) && other.requests.get() == 0;
            // What the client has sent since is activity. One that asks its socket knows later that
            // the peer has all.
            let stays = stays && last > Some(other.sent_at.get());
            let stays = stays && other.is_served.get() && !other.asks;
            stays
                && other.told_at.get().is_none()
                && other.ended_at.get().is_none()
                && last.is_some_and(|last| held_until < last && last < own)
                && at + world.slack < other.last.get() + other.limit
        });
        if let Some(idler) = idler {
            world.violate(format!("{self:?} is told as the idlest, beside {idler:?}"));
        }
    }

    /// The client finds a tunnel or a request broken off.
    fn is_cut(&self, world: &World, what: &str, error: &dyn std::fmt::Debug) {
        let now = world.now();
        if !world.is_drained() && !self.may_be_idle(world) {
            world.violate(format!("{what} is cut at {now:?} by {error:?}: {self:?}"));
        }
    }
}

/// What the server does with a tunnel.
async fn tunnel_of_server(
    world: Rc<World>,
    seen: Rc<Seen>,
    (traffic, gap): (Traffic, Duration),
    tunnel: hyper::upgrade::OnUpgrade,
) {
    let Ok(tunnel) = tunnel.await else { return };
    let mut tunnel = TokioIo::new(tunnel);
    if traffic != Traffic::FromServer {
        let mut byte = [0];
        while tunnel.read(&mut byte).await.is_ok_and(|count| count > 0) {
            if traffic == Traffic::Echo && tunnel.write_all(&byte).await.is_err() {
                break;
            }
        }
        return;
    }
    // The client ends it.
    loop {
        world.time.sleep(gap).await;
        if tunnel.write_all(b"p").await.is_err() || tunnel.flush().await.is_err() {
            break;
        }
        seen.moves(&world);
    }
}

async fn handle(
    world: Rc<World>,
    seen: Rc<Seen>,
    runtime: Runtime,
    mut request: Request<TimedBody<Incoming>>,
) -> Result<Response<Full<Bytes>>, Failed> {
    let micros = |text: &str| text.parse().map(Duration::from_micros);
    if request.method() == Method::CONNECT {
        let header = |name: &str| request.headers()[name].to_str();
        let traffic = match header("traffic")? {
            "Echo" => Traffic::Echo,
            "FromClient" => Traffic::FromClient,
            _ => Traffic::FromServer,
        };
        let gap = micros(header("gap")?)?;
        let tunnel = hyper::upgrade::on(&mut request);
        drop(runtime.spawn(tunnel_of_server(world, seen, (traffic, gap), tunnel)));
        return Ok(Response::new(Full::default()));
    }
    world.time.sleep(micros(&request.uri().path()[1..])?).await;
    let body = request.into_body().collect().await?.to_bytes();
    Ok(Response::new(Full::new(Bytes::from(body.len().to_string()))))
}

async fn serve(
    world: Rc<World>,
    seen: Rc<Seen>,
    runtime: Runtime,
    (stream, timers): (Stream, AnyHandle),
    mut rng: Rng,
) {
    seen.is_served.set(true);
    seen.moves(&world);
    let limit = seen.limit;
    let limits = StreamLimits::default().first_byte(limit).head(limit).write_stall(limit);
    let limits = limits.max_age_grace(Duration::from_hours(1));
    let limits = if rng.bool() { limits.request_idle(limit) } else { limits.idle(limit) };
    let stream = timers.stream(stream, limits, seen.asks);
    let control = stream.control();
    let (shared, known, on) = (Rc::clone(&world), Rc::clone(&seen), runtime.clone());
    let service = service_fn(move |request| {
        handle(Rc::clone(&shared), Rc::clone(&known), on.clone(), request)
    });
    let service =
        TimedHttp::new(service, control.clone()).request(BodyLimits::default().next_frame(limit));
    let io = TokioIo::new(stream);
    let told = async {
        if is_told(&control).await {
            seen.is_idle(&world);
        } else {
            seen.is_ordered(&world);
        }
    };
    if seen.is_http2 {
        let mut server = server2::Builder::new(InRuntime(runtime));
        let stream_window = one_of(&mut rng, &[65_535, 1 << 20]);
        server.initial_connection_window_size(65_535).initial_stream_window_size(stream_window);
        drive!(server.serve_connection(io, service), told);
    } else {
        let serving = server1::Builder::new().serve_connection(io, service);
        drive!(serving.with_upgrades(), told);
    }
    seen.ended_at.set(Some(world.now()));
}

/// Opens a tunnel and uses it for a while.
async fn tunnel(world: &World, seen: &Seen, sender: &mut Sender<Full<Bytes>>, mut rng: Rng) {
    let traffic = one_of(&mut rng, &[Traffic::Echo, Traffic::FromClient, Traffic::FromServer]);
    // Shorter than the limit, which a turn of the shard may let end a tick earlier or later.
    let longest = (seen.limit.as_micros() as u64).saturating_sub(11_000);
    let gap = one_of(&mut rng, &[longest, longest / 2]);
    let request = Request::connect("a:1")
        .header("host", "a:1")
        .header("traffic", format!("{traffic:?}"))
        .header("gap", gap.to_string());
    let request = request.body(Full::default()).expect("the request is valid");
    seen.moves(world);
    let opened = match sender.send(request).await {
        Ok(response) => hyper::upgrade::on(response).await,
        Err(error) => Err(error),
    };
    let opened = match opened {
        Ok(opened) => opened,
        Err(error) => {
            if seen.told_at.get().is_none() {
                seen.is_cut(world, "a CONNECT", &error);
            }
            return;
        }
    };
    seen.moves(world);
    let mut tunnel = TokioIo::new(opened);
    let rounds = rng.u32(1..20);
    for _ in 0..rounds {
        let mut byte = [0];
        let mut moved = Ok(0);
        if traffic != Traffic::FromServer {
            world.time.sleep(Duration::from_micros(rng.u64(gap / 2..=gap))).await;
            seen.moves(world);
            moved = match tunnel.write_all(b"c").await {
                Ok(()) => tunnel.flush().await.map(|()| 1),
                Err(error) => Err(error),
            };
        }
        if moved.is_ok() && traffic != Traffic::FromClient {
            moved = tunnel.read_exact(&mut byte).await;
            if traffic == Traffic::Echo {
                seen.moves(world);
            }
        }
        if let Err(error) = moved {
            // A server that is kept from running sends late.
            let was_stalled = world.stalls.borrow().iter().any(|(_, end)| *end >= seen.began);
            let is_late = traffic != Traffic::FromClient && was_stalled;
            if !is_late {
                seen.is_cut(world, &format!("a tunnel {traffic:?}"), &error);
            }
            return;
        }
        world.count("bytes of tunnels", 1);
    }
    // The last byte goes before the end.
    world.time.sleep(Duration::from_millis(1)).await;
    seen.sent_at.set(world.now());
}

/// Sends a body as fast as the server's windows let it.
async fn upload(world: &World, seen: &Seen, mut sender: Sender<Full<Bytes>>, mut rng: Rng) {
    let length = one_of(&mut rng, &[1, 20_000, 70_000, 150_000]);
    let longest = 4 * seen.limit.as_micros() as u64;
    let random = rng.u64(..longest);
    let hold = one_of(&mut rng, &[0, 0, random]);
    let request =
        Request::post(format!("http://a/{hold}")).body(Full::new(vec![b'a'; length].into()));
    seen.moves(world);
    seen.requests.set(seen.requests.get() + 1);
    let answered = sender.send(request.expect("the request is valid")).await;
    let answered = match answered {
        Ok(response) => {
            response.into_body().collect().await.map(http_body_util::Collected::to_bytes)
        }
        Err(error) => Err(error),
    };
    match answered {
        Ok(body) if body == length.to_string().as_bytes() => {
            world.count("uploads", 1);
        }
        Ok(body) => world.violate(format!("{body:?} in place of {length}: {seen:?}")),
        Err(error) if seen.told_at.get().is_none() => seen.is_cut(world, "an upload", &error),
        Err(_) => {}
    }
    seen.moves(world);
    seen.requests.set(seen.requests.get() - 1);
}

async fn client(world: Rc<World>, seen: Rc<Seen>, runtime: Runtime, stream: Stream, mut rng: Rng) {
    let window = seen.is_http2.then_some(1 << 21);
    let mut sender = match Sender::new(stream, window, &runtime).await {
        Ok(sender) => sender,
        Err(error) => return seen.is_cut(&world, "a connection", &error),
    };
    seen.moves(&world);
    if let Sender::Http2(of_all) = &sender {
        let tasks: Vec<_> = (0..rng.u32(1..5))
            .map(|_| {
                let (world, seen, mut rng) = (Rc::clone(&world), Rc::clone(&seen), rng.fork());
                let mut sender = Sender::Http2(of_all.clone());
                runtime.spawn(async move {
                    if rng.bool() {
                        tunnel(&world, &seen, &mut sender, rng).await;
                    } else {
                        upload(&world, &seen, sender, rng).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
    } else {
        tunnel(&world, &seen, &mut sender, rng).await;
    }
    seen.is_done.set(true);
    // The server ends it as idle.
    while seen.ended_at.get().is_none() {
        world.time.sleep(seen.limit).await;
    }
}

impl Kind for Known {
    type Seen = Seen;

    fn new(seed: u64) -> History<Self> {
        let mut rng = Rng::with_seed(!seed);
        let (builder, tick) = settings(&mut rng);
        // The idlest of each shard are told to end.
        let builder = builder.shards(1);
        let sim = start(seed, builder);
        let net = sim.net().segment(one_of(&mut rng, &[1_448, 65_483]));
        let net = net.ack_delay(Duration::from_millis(one_of(&mut rng, &[0, 40])));
        let server = net.runtime(rng.usize(1..=3)).events_max(one_of(&mut rng, &[1, 2, 1_024]));
        let server = server.reads_long(rng.bool());
        let known = Self { slack: 2 * tick, conns: RefCell::default() };
        History::of(sim, net, vec![server], known)
    }

    fn close_idlest(history: &mut History<Self>, count: usize) {
        for seen in &history.seen {
            let is_free = seen.requests.get() == 0;
            seen.last_at_order.set(is_free.then_some(seen.last.get()));
        }
        history.close_idlest(count);
        // The shards carry it out before the next.
        history.run_for(Duration::from_millis(40));
    }

    fn open(history: &mut History<Self>, on: usize, mut rng: Rng) {
        let (world, now) = (&history.world, history.world.now());
        let number = history.seen.len() as u16;
        let (listener, stream) = pair(&history.net, number);
        let seen = Rc::new(Seen {
            number,
            is_http2: rng.u8(..4) > 0,
            limit: Duration::from_millis(rng.u64(50..200)),
            began: now,
            last: Cell::new(now),
            asks: rng.bool(),
            ..Seen::default()
        });
        history.seen.push(Rc::clone(&seen));
        world.conns.borrow_mut().push(Rc::clone(&seen));
        let (timers, server) = (history.sim.service().handle().untyped(), &history.runtimes[on]);
        let (shared, known, runtime) = (Rc::clone(world), Rc::clone(&seen), server.clone());
        let of_server = rng.fork();
        drop(server.spawn(async move {
            let stream = listener.accept().await;
            serve(shared, known, runtime, (stream, timers), of_server).await;
        }));
        let (shared, runtime) = (Rc::clone(world), history.clients.clone());
        drop(history.clients.spawn(client(shared, seen, runtime, stream, rng)));
    }

    fn check(_: &History<Self>, _: bool) {}

    fn finish(history: &mut History<Self>) {
        history.run_for(Duration::from_secs(60));
        for seen in &history.seen {
            assert!(seen.ended_at.get().is_some(), "it has not ended: {seen:?}");
        }
    }
}

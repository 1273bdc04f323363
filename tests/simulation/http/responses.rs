//! Random histories of responses of HTTP/2 through small windows of streams and of the connection.
//! The client writes its own frames, so that no library gives a window for it.
//!
//! A client that has given a window, or has received a byte of a response, is not cut within a
//! stall. One that does neither while a part of a frame is due is cut. A client that is not cut
//! receives all that it has asked for.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use corewheel::sim::net::{Runtime, Stream};
use corewheel::stream::StreamLimits;
use corewheel_http::hyper::TimedHttp;
use fastrand::Rng;
use hyper::body::{Body, Bytes, Frame};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

use super::frames::{Client, receive};
use super::servers::{Failed, InRuntime};
use crate::judge::{Command, Fault, History, Judge, Kind, Place, at_place, one_of, pair, start};
use crate::sockets::{runtimes, settings};

/// No fault lasts longer.
const FAULT_MAX: Duration = Duration::from_millis(400);

pub(crate) fn plan(rng: &mut Rng) -> Vec<Command> {
    let has_faults = rng.bool();
    let command = |rng: &mut Rng| {
        let (time, on) = (FAULT_MAX.mul_f64(rng.f64()), rng.u8(..));
        match rng.u8(..8) {
            0..=2 => Command::Open(on, rng.u64(..)),
            3 if has_faults => Command::Fault(Fault::HoldDriver(time)),
            4 if has_faults => Command::Fault(Fault::Stall(on, time)),
            5 if has_faults => Command::Fault(Fault::StallShard(on, time)),
            6 => Command::Fault(Fault::WakeSome(on)),
            _ => Command::Run(time),
        }
    };
    (0..rng.usize(4..20)).map(|_| command(rng)).collect()
}

pub(crate) struct Known {
    /// How much later than its time a deadline may come, while nothing is held up.
    slack: Duration,
}

pub(crate) type World = Judge<Known>;

/// A response, as its client knows it.
#[derive(Default, Debug)]
pub(super) struct Asked {
    /// The lengths of its frames.
    pub(super) frames: Vec<usize>,
    pub(super) received: usize,
    /// When its handler has returned it.
    pub(super) answered_at: Option<Duration>,
    /// When the client had all of it, or the server could know that its stream was reset.
    pub(super) over_at: Option<Duration>,
}

impl Asked {
    pub(super) fn is_over(&self) -> bool {
        self.over_at.is_some()
    }

    /// Whether at a time between these two the server had it, and the client had not all of it.
    fn waits_within(&self, begin: Duration, end: Duration) -> bool {
        self.answered_at.is_some_and(|at| at <= end) && self.over_at.is_none_or(|at| at >= begin)
    }

    /// Whether the server has taken a frame of which the client has a part.
    fn is_in_frame(&self) -> bool {
        let mut end = 0;
        let begins = self.frames.iter().any(|frame| {
            let is_it = end == self.received;
            end += frame;
            is_it
        });
        !self.is_over() && !begins && self.received < end
    }
}

/// A connection, as its client knows it.
#[derive(Default, Debug)]
pub(crate) struct Seen {
    #[expect(dead_code, reason = "it is printed")]
    number: u16,
    pub(super) stall: Duration,
    asks: bool,
    /// By the numbers of their streams.
    pub(super) responses: RefCell<BTreeMap<u32, Asked>>,
    /// When the client has last given a window.
    gave_at: Cell<Duration>,
    /// When it has last received bytes of a response.
    took_at: Cell<Duration>,
    /// When a stall without either was over, and until when the server was held up when the client
    /// gave or took after that: it may find the deadline before it finds that.
    excused: Cell<Option<(Duration, Duration)>>,
    /// When it has reset a stream.
    pub(super) reset_at: Cell<Duration>,
    pub(super) is_closed: Cell<bool>,
    ended_at: Cell<Option<Duration>>,
}

impl Seen {
    pub(super) fn is_over(&self) -> bool {
        self.ended_at.get().is_some()
    }

    /// When the client has last given or received anything.
    fn moved_at(&self) -> Duration {
        self.gave_at.get().max(self.took_at.get())
    }

    /// The client gives a window.
    pub(super) fn gives(&self, world: &World) {
        self.moves(world);
        self.gave_at.set(world.now());
    }

    /// The client receives bytes of a response.
    pub(super) fn takes(&self, world: &World) {
        self.moves(world);
        self.took_at.set(world.now());
    }

    fn moves(&self, world: &World) {
        let (due, held_until) = (self.moved_at() + self.stall, world.held_until());
        if due <= world.now() && due < held_until {
            self.excused.set(Some((due, held_until)));
        }
    }

    /// The server's task has ended.
    fn end(&self, world: &World) {
        let now = world.now();
        self.ended_at.set(Some(now));
        if self.is_closed.get() {
            return;
        }
        world.count("cut", 1);
        let excused = self.excused.get().filter(|(_, until)| now <= *until + world.slack);
        if now < self.moved_at() + self.stall && excused.is_none() {
            world.violate(format!("a client is cut at {now:?} that has given or taken: {self:?}"));
        }
        // Another response may have waited first.
        let responses = self.responses.borrow();
        let waits_within =
            |begin, end| responses.values().any(|asked| asked.waits_within(begin, end));
        let due = excused.map_or(now, |(due, _)| due);
        let begun = now.checked_sub(self.stall);
        let has_begun = begun.is_some_and(|end| waits_within(due.saturating_sub(self.stall), end));
        if !waits_within(due, now) || !has_begun {
            world.violate(format!("a client is cut at {now:?}, and no response waits: {self:?}"));
        }
    }

    /// Checks a connection when the clock has moved and no task can run.
    fn check(&self, world: &World) {
        let (now, responses) = (world.now(), self.responses.borrow());
        let since = self.moved_at().max(self.reset_at.get());
        let bound = self.stall + world.slack;
        let is_late = now > since.max(world.held_until()) + bound;
        if is_late && !self.is_over() && responses.values().any(Asked::is_in_frame) {
            world.violate(format!("a client that gives nothing is open at {now:?}: {self:?}"));
        }
    }
}

/// The body of a response.
struct Frames(VecDeque<usize>);

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = self.0.pop_front();
        Poll::Ready(frame.map(|length| Ok(Frame::data(vec![b'a'; length].into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }
}

/// Answers the request of the stream that its path says, after as long as that says.
async fn answer<B>(
    world: Rc<World>,
    seen: Rc<Seen>,
    request: Request<B>,
) -> Result<Response<Frames>, Failed> {
    let (stream, micros) = request.uri().path()[1..].split_once('/').ok_or("no path")?;
    world.time.sleep(Duration::from_micros(micros.parse()?)).await;
    let mut responses = seen.responses.borrow_mut();
    let asked = responses.get_mut(&stream.parse()?).ok_or("no stream")?;
    asked.answered_at = Some(world.now());
    Ok(Response::new(Frames(asked.frames.iter().copied().collect())))
}

async fn serve(
    world: Rc<World>,
    seen: Rc<Seen>,
    runtime: Runtime,
    stream: Stream,
    place: impl Place,
) {
    let limits = StreamLimits::default().write_stall(seen.stall);
    let stream = place.stream(stream, limits, seen.asks);
    let (shared, known) = (Rc::clone(&world), Rc::clone(&seen));
    let inner = service_fn(move |request| answer(Rc::clone(&shared), Rc::clone(&known), request));
    let service = TimedHttp::new(inner, stream.control());
    let server = http2::Builder::new(InRuntime(runtime));
    drop(server.serve_connection(TokioIo::new(stream), service).await);
    seen.end(&world);
}

impl Kind for Known {
    type Seen = Seen;

    fn new(seed: u64) -> History<Self> {
        let mut rng = Rng::with_seed(!seed);
        let (builder, tick) = settings(&mut rng);
        let sim = start(seed, builder);
        let net = sim.net().send_buffer(one_of(&mut rng, &[1_024, 65_536]));
        let net = net.segment(one_of(&mut rng, &[1_448, 65_483]));
        let runtimes = runtimes(&sim, &net, &mut rng);
        let known = Self { slack: 3 * tick + Duration::from_millis(20) };
        History::of(sim, net, runtimes, known)
    }

    fn open(history: &mut History<Self>, on: usize, mut rng: Rng) {
        let number = history.seen.len() as u16;
        let (listener, stream) = pair(&history.net, number);
        let now = history.world.now();
        let seen = Rc::new(Seen {
            number,
            stall: Duration::from_millis(rng.u64(50..200)),
            asks: rng.bool(),
            gave_at: Cell::new(now),
            took_at: Cell::new(now),
            reset_at: Cell::new(now),
            ..Seen::default()
        });
        history.seen.push(Rc::clone(&seen));
        let (world, known) = (Rc::clone(&history.world), Rc::clone(&seen));
        let (timers, runtime) = (history.timers(on), history.runtimes[on].clone());
        drop(history.runtimes[on].spawn(async move {
            let stream = listener.accept().await;
            at_place!(timers, |place| serve(world, known, runtime, stream, place).await);
        }));
        let (read, write) = tokio::io::split(stream);
        let world = Rc::clone(&history.world);
        drop(history.clients.spawn(receive(Rc::clone(&world), Rc::clone(&seen), read)));
        drop(history.clients.spawn(Client::new(world, seen, write, rng).run()));
    }

    fn check(history: &History<Self>, rests: bool) {
        history.seen.iter().filter(|_| rests).for_each(|seen| seen.check(&history.world));
    }

    fn finish(history: &mut History<Self>) {
        history.run_for(Duration::from_secs(60));
        for seen in &history.seen {
            assert!(seen.is_over(), "it has not ended: {seen:?}");
        }
        let (ended, cut) = (history.check_ended(), history.world.done().get("cut"));
        // A server that is held up may find a deadline before it finds that its client has left.
        assert!(ended >= cut, "{ended} were cut by a limit, and {cut} were cut");
    }
}

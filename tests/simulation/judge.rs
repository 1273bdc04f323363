//! What the histories have in common: how one starts and ends, the faults of its servers, its
//! clock, its first violation of a law, and how much it has done.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use corewheel::conn::{ConnTimers, Side};
use corewheel::sim::net::{Listener, Net, Runtime, Stream};
use corewheel::sim::{Simulation, Time};
use corewheel::stats::ShardStats;
use corewheel::stream::{StreamLimits, TimedIo};
use corewheel::{
    AnyHandle, ConnLimits, Fired, Handle, ShardId, ShutdownPolicy, TimeoutError, TimerService,
    TimerServiceBuilder, Timers,
};
use fastrand::Rng;
use tokio::io::{AsyncRead, ReadBuf};

/// How much histories have done, by what it is.
#[derive(Clone, Default, Debug)]
pub(crate) struct Done(BTreeMap<&'static str, u64>);

impl Done {
    pub(crate) fn of<const N: usize>(counts: [(&'static str, u64); N]) -> Self {
        Self(counts.into())
    }

    pub(crate) fn add(&mut self, other: Self) {
        for (what, count) in other.0 {
            self.count(what, count);
        }
    }

    pub(crate) fn count(&mut self, what: &'static str, count: u64) {
        *self.0.entry(what).or_default() += count;
    }

    pub(crate) fn get(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or_default()
    }
}

/// What the tasks of a history share. `K` is what else they know.
pub(crate) struct Judge<K> {
    pub(crate) time: Time,
    start: Instant,
    violation: RefCell<Option<String>>,
    done: RefCell<Done>,
    /// When a part of the server was held up, from when to when, in order.
    pub(crate) holds: RefCell<Vec<(Duration, Duration)>>,
    /// When threads of the server were kept from running.
    pub(crate) stalls: RefCell<Vec<(Duration, Duration)>>,
    /// When connections were last told to make room; `None` if they never were.
    pub(crate) ordered_at: Cell<Option<Duration>>,
    /// When the drain ends; `None` if the service does not drain.
    pub(crate) drained_at: Cell<Option<Duration>>,
    known: K,
}

impl<K> Deref for Judge<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.known
    }
}

impl<K> Judge<K> {
    /// The times of the history count from the start of the simulation.
    pub(crate) fn new<T: Send + 'static>(sim: &Simulation<T>, known: K) -> Self {
        let start = sim.now().checked_sub(sim.elapsed()).expect("it began before now");
        Self {
            time: sim.time(),
            start,
            violation: RefCell::default(),
            done: RefCell::default(),
            holds: RefCell::default(),
            stalls: RefCell::default(),
            ordered_at: Cell::default(),
            drained_at: Cell::default(),
            known,
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.time.now() - self.start
    }

    /// A law is violated. The first text counts.
    pub(crate) fn violate(&self, text: String) {
        self.violation.borrow_mut().get_or_insert(text);
    }

    /// Panics if a law was violated.
    pub(crate) fn check(&self) {
        if let Some(violation) = self.violation.take() {
            panic!("{violation}");
        }
    }

    pub(crate) fn count(&self, what: &'static str, count: u64) {
        self.done.borrow_mut().count(what, count);
    }

    pub(crate) fn done(&self) -> Done {
        self.done.borrow().clone()
    }

    /// When the last fault ends.
    pub(crate) fn held_until(&self) -> Duration {
        self.holds.borrow().iter().map(|(_, end)| *end).max().unwrap_or_default()
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.drained_at.get().is_some_and(|end| end <= self.now())
    }

    /// The output of a future, if it comes within this time.
    pub(crate) async fn within<F: Future>(&self, time: Duration, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = self.time.sleep(time) => None,
        }
    }
}

/// What keeps a part of a server from running, or polls its tasks without a reason. Numbers are
/// taken modulo how many runtimes or shards there are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The driver of the first runtime.
    HoldDriver(Duration),
    Stall(u8, Duration),
    StallWorker(u8, Duration),
    StallShard(u8, Duration),
    /// The process of the server is stopped.
    Stop(Duration),
    WakeSome(u8),
}

impl Fault {
    /// For how long it keeps threads from running.
    fn stalls_for(self) -> Option<Duration> {
        match self {
            Self::Stall(_, time)
            | Self::StallWorker(_, time)
            | Self::StallShard(_, time)
            | Self::Stop(time) => Some(time),
            Self::HoldDriver(_) | Self::WakeSome(_) => None,
        }
    }

    /// For how long it holds up a part of the server.
    fn holds_for(self) -> Option<Duration> {
        if let Self::HoldDriver(time) = self { Some(time) } else { self.stalls_for() }
    }

    fn execute(self, sim: &mut Simulation<u8>, runtimes: &[Runtime]) {
        let runtime = |on| &runtimes[usize::from(on) % runtimes.len()];
        match self {
            Self::HoldDriver(time) => runtimes[0].hold_driver(time),
            Self::Stall(on, time) => runtime(on).stall(time),
            Self::StallWorker(on, time) => runtime(on).stall_worker(time),
            Self::StallShard(shard, time) => {
                let shards = sim.service().shards().count();
                sim.stall(ShardId::new((usize::from(shard) % shards) as u16), time);
            }
            Self::Stop(time) => sim.stop(runtimes, time),
            Self::WakeSome(on) => runtime(on).wake_some(),
        }
    }
}

/// A command of a history of servers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    /// A client connects to a server on one of the runtimes. It does what this seed says.
    Open(u8, u64),
    Run(Duration),
    Fault(Fault),
    /// So many of the idlest connections are told to end.
    CloseIdlest(usize),
    /// All connections are told to end within this time, and none begins any more.
    Drain(Duration),
}

/// A history of servers and clients on a simulated network, whose tasks share `K`.
pub(crate) struct History<K: Kind> {
    pub(crate) sim: Simulation<u8>,
    pub(crate) net: Net,
    pub(crate) world: Rc<Judge<K>>,
    /// Those of the servers: that of any thread comes first, then those of the shards.
    pub(crate) runtimes: Vec<Runtime>,
    pub(crate) clients: Runtime,
    /// The connections that were opened.
    pub(crate) seen: Vec<Rc<K::Seen>>,
}

/// What the histories of one kind have of their own.
pub(crate) trait Kind: Sized {
    /// A connection, as the laws see it.
    type Seen;

    fn new(seed: u64) -> History<Self>;

    /// A client connects to a server on one of the runtimes.
    fn open(history: &mut History<Self>, on: usize, rng: Rng);

    /// Checks what a step has done. `rests` if the clock has moved, and no task can run.
    fn check(history: &History<Self>, rests: bool);

    fn close_idlest(history: &mut History<Self>, count: usize) {
        history.close_idlest(count);
    }

    /// Lets all connections end, and checks what they leave.
    fn finish(history: &mut History<Self>);
}

/// Runs the history of a seed.
pub(crate) fn run<K: Kind>(seed: u64, commands: &[Command]) -> Done {
    let mut history = K::new(seed);
    for command in commands {
        history.execute(*command);
    }
    history.finish()
}

/// Runs the history of a seed. Returns a line for each command, of what was done so far.
pub(crate) fn record<K: Kind>(seed: u64, commands: &[Command]) -> Vec<String> {
    let mut history = K::new(seed);
    let execute = |command: &Command| {
        history.execute(*command);
        so_far(&history.sim, history.world.time.steps())
    };
    let record = commands.iter().map(execute).collect();
    history.finish();
    record
}

impl<K: Kind> History<K> {
    pub(crate) fn of(sim: Simulation<u8>, net: Net, runtimes: Vec<Runtime>, known: K) -> Self {
        let (world, clients) = (Rc::new(Judge::new(&sim, known)), net.runtime(2));
        Self { sim, net, world, runtimes, clients, seen: Vec::new() }
    }

    fn execute(&mut self, command: Command) {
        let now = self.world.now();
        match command {
            Command::Open(on, seed) => {
                K::open(self, usize::from(on) % self.runtimes.len(), Rng::with_seed(seed));
            }
            Command::Run(time) => self.run_for(time),
            Command::Fault(fault) => {
                let until = |time| (now, now + time);
                self.world.holds.borrow_mut().extend(fault.holds_for().map(until));
                self.world.stalls.borrow_mut().extend(fault.stalls_for().map(until));
                fault.execute(&mut self.sim, &self.runtimes);
            }
            Command::CloseIdlest(count) => K::close_idlest(self, count),
            Command::Drain(window) => {
                self.world.drained_at.set(Some(now + window));
                self.sim.service().drain(window);
            }
        }
    }

    pub(crate) fn close_idlest(&self, count: usize) {
        self.world.ordered_at.set(Some(self.world.now()));
        self.sim.service().close_idlest(count);
    }

    fn step(&mut self) {
        let rests = !self.sim.step();
        K::check(self, rests);
        self.world.check();
    }

    /// Lets the time pass, and checks what each step has done.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.sim.elapsed().saturating_add(time);
        while self.sim.next_at().is_some_and(|at| at <= end) {
            self.step();
        }
        self.sim.leap(end.saturating_sub(self.sim.elapsed()));
        while self.sim.next_at().is_some_and(|at| at <= end) {
            self.step();
        }
    }

    /// When the last stall or hold of any shard or of these runtimes ends.
    pub(crate) fn held_until(&self, runtimes: &[Runtime]) -> Duration {
        let shards = self.sim.service().shards();
        let stalls = shards.filter_map(|shard| self.sim.stall_end(shard));
        stalls.chain(runtimes.iter().map(Runtime::held_until)).max().unwrap_or_default()
    }

    /// Where a connection of a runtime has its timers.
    pub(crate) fn timers(&self, on: usize) -> On {
        match on.checked_sub(1) {
            None => On::Any(self.sim.service().handle().untyped()),
            Some(shard) => On::Shard(self.sim.timers(ShardId::new(shard as u16)).clone()),
        }
    }

    /// Checks that each connection has ended by a limit or was closed. Returns how many by a limit.
    pub(crate) fn check_ended(&self) -> u64 {
        let stats = self.sim.service().stats();
        let ended: u64 = stats.deadlines.iter().map(|deadline| deadline.ended).sum();
        assert_eq!(ended + stats.connections_closed, self.seen.len() as u64);
        ended
    }

    fn finish(mut self) -> Done {
        K::finish(&mut self);
        let pending = |shard: &ShardStats| shard.counts.pending;
        let pending: u64 = self.sim.service().stats().shards.iter().map(pending).sum();
        assert_eq!(pending, 0, "timers are left when all connections have ended");
        assert_eq!(self.net.sockets(), 0, "sockets are left");
        drop(self.sim.service().begin_shutdown(ShutdownPolicy::Drop));
        self.sim.settle();
        self.world.count("connections", self.seen.len() as u64);
        self.world.count("steps", self.world.time.steps());
        self.world.done()
    }
}

/// Where the timers of a connection are.
pub(crate) enum On {
    /// On any thread.
    Any(AnyHandle),
    /// On the thread of the shard that serves it.
    Shard(Timers<u8>),
}

/// Evaluates an expression with a [`Place`].
macro_rules! at_place {
    ($on:expr, |$place:ident| $run:expr) => {
        match $on {
            $crate::judge::On::Any($place) => $run,
            $crate::judge::On::Shard($place) => $run,
        }
    };
}
pub(crate) use at_place;

/// What makes the timers of a connection.
pub(crate) trait Place {
    type Side: Side;

    fn connection(&self, limits: ConnLimits) -> ConnTimers<Self::Side>;

    fn limited<S>(&self, stream: S, limits: StreamLimits) -> TimedIo<S, Self::Side>;

    /// A stream that asks its socket what the peer has acknowledged, if `asks`.
    fn stream<S: AsRef<Stream>>(
        &self,
        stream: S,
        limits: StreamLimits,
        asks: bool,
    ) -> TimedIo<S, Self::Side> {
        let stream = self.limited(stream, limits);
        if asks { stream.with_simulated_socket() } else { stream }
    }

    fn timeout<F: Future>(
        &self,
        limit: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, TimeoutError>>;
}

impl Place for AnyHandle {
    type Side = Handle;

    fn connection(&self, limits: ConnLimits) -> ConnTimers<Handle> {
        (*self).connection(limits)
    }

    fn limited<S>(&self, stream: S, limits: StreamLimits) -> TimedIo<S> {
        TimedIo::new(stream, *self, limits)
    }

    async fn timeout<F: Future>(
        &self,
        limit: Duration,
        future: F,
    ) -> Result<F::Output, TimeoutError> {
        self.timeout(limit, future).await
    }
}

impl Place for Timers<u8> {
    type Side = Timers;

    fn connection(&self, limits: ConnLimits) -> ConnTimers {
        self.connection(limits).expect("there is room")
    }

    fn limited<S>(&self, stream: S, limits: StreamLimits) -> TimedIo<S, Timers> {
        TimedIo::on_shard(stream, self, limits).expect("there is room")
    }

    async fn timeout<F: Future>(
        &self,
        limit: Duration,
        future: F,
    ) -> Result<F::Output, TimeoutError> {
        self.timeout(limit, future).await
    }
}

/// One poll of a read.
pub(crate) fn poll_read(
    stream: &mut (impl AsyncRead + Unpin),
    cx: &mut Context<'_>,
    room: &mut [u8],
) -> Poll<io::Result<usize>> {
    let mut part = ReadBuf::new(room);
    let polled = Pin::new(stream).poll_read(cx, &mut part);
    polled.map_ok(|()| part.filled().len())
}

/// A simulation whose timers do nothing when they fire.
pub(crate) fn start<T: Send + 'static>(seed: u64, builder: TimerServiceBuilder) -> Simulation<T> {
    let handler: fn(Fired<T>, &Timers<T>) = |_, _| {};
    Simulation::start(seed, builder, |_| handler).expect("the settings are in range")
}

/// A simulation of one shard, for a given history.
pub(crate) fn given(seed: u64) -> Simulation<()> {
    start(seed, TimerService::beside_runtime().shards(1).capacity(100))
}

/// The listener of a connection, so that the server knows which client it serves, and the side that
/// has connected to it.
pub(crate) fn pair(net: &Net, number: u16) -> (Listener, Stream) {
    let address = SocketAddr::from(([10, 0, 0, 1], number + 1));
    let listener = net.listen(address).expect("each has an address of its own");
    (listener, net.connect(address).expect("the listener is there"))
}

/// A random one of these values.
pub(crate) fn one_of<V: Copy>(rng: &mut Rng, values: &[V]) -> V {
    values[rng.usize(..values.len())]
}

/// What a history has done so far, in words.
pub(crate) fn so_far<T: Send + 'static>(sim: &Simulation<T>, steps: u64) -> String {
    let shards = sim.service().stats().shards;
    let counts: Vec<_> = shards.iter().map(|shard| shard.counts).collect();
    format!("{:?} {steps} {counts:?}", sim.elapsed())
}

//! What the histories have in common: how one starts and ends, the faults of its servers, its
//! clock, its first violation of a law, and how much it has done.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::time::{Duration, Instant};

use corewheel::sim::net::{Listener, Net, Runtime, Stream};
use corewheel::sim::{Simulation, Time};
use corewheel::{Fired, ShardId, ShutdownPolicy, TimerService, TimerServiceBuilder, Timers};

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
        let (violation, done) = (RefCell::default(), RefCell::default());
        Self { time: sim.time(), start, violation, done, known }
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
}

/// What keeps a part of a server from running, or polls its tasks without a reason. Numbers are
/// taken modulo how many runtimes or shards there are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The driver of the first runtime.
    HoldDriver(Duration),
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
    WakeSome {
        on: u8,
    },
}

impl Fault {
    /// For how long it keeps threads from running.
    pub(crate) fn stalls_for(self) -> Option<Duration> {
        match self {
            Self::Stall { time, .. }
            | Self::StallWorker { time, .. }
            | Self::StallShard { time, .. }
            | Self::Stop(time) => Some(time),
            Self::HoldDriver(_) | Self::WakeSome { .. } => None,
        }
    }

    /// For how long it holds up a part of the server.
    pub(crate) fn holds_for(self) -> Option<Duration> {
        if let Self::HoldDriver(time) = self { Some(time) } else { self.stalls_for() }
    }

    pub(crate) fn execute<T: Send + 'static>(self, sim: &mut Simulation<T>, runtimes: &[Runtime]) {
        let runtime = |on| &runtimes[usize::from(on) % runtimes.len()];
        match self {
            Self::HoldDriver(time) => runtimes[0].hold_driver(time),
            Self::Stall { on, time } => runtime(on).stall(time),
            Self::StallWorker { on, time } => runtime(on).stall_worker(time),
            Self::StallShard { shard, time } => {
                let shards = sim.service().shards().count();
                sim.stall(ShardId::new((usize::from(shard) % shards) as u16), time);
            }
            Self::Stop(time) => sim.stop(runtimes, time),
            Self::WakeSome { on } => runtime(on).wake_some(),
        }
    }
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
pub(crate) fn one_of<V: Copy>(rng: &mut fastrand::Rng, values: &[V]) -> V {
    values[rng.usize(..values.len())]
}

/// Lets the time pass. `step` takes each step of the simulation, and checks what it has done.
pub(crate) fn run_for<T: Send + 'static>(
    sim: &mut Simulation<T>,
    time: Duration,
    mut step: impl FnMut(&mut Simulation<T>),
) {
    let end = sim.elapsed() + time;
    while sim.next_at().is_some_and(|at| at <= end) {
        step(sim);
    }
    sim.run_for(end.saturating_sub(sim.elapsed()));
}

/// Checks that each connection has ended by a limit or was closed. Returns how many by a limit.
pub(crate) fn check_ended<T: Send + 'static>(sim: &Simulation<T>, connections: u64) -> u64 {
    let stats = sim.service().stats();
    let ended: u64 = stats.deadlines.iter().map(|deadline| deadline.ended).sum();
    assert_eq!(ended + stats.connections_closed, connections);
    ended
}

pub(crate) fn check_no_timers<T: Send + 'static>(sim: &Simulation<T>) {
    let stats = sim.service().stats();
    let pending: u64 = stats.shards.iter().map(|shard| shard.counts.pending).sum();
    assert_eq!(pending, 0, "timers are left when all connections have ended");
}

/// Ends a history whose connections have ended.
pub(crate) fn end<T: Send + 'static>(mut sim: Simulation<T>, net: &Net) {
    assert_eq!(net.sockets(), 0, "sockets are left");
    drop(sim.service().begin_shutdown(ShutdownPolicy::Drop));
    sim.settle();
}

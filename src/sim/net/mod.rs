//! A network in a simulation: listeners and streams, the kernel below them, and the runtimes above.
//!
//! A server that takes any stream with tokio's traits runs in it as it is, with its clients beside
//! it. Between a byte and the task that reads it lies what lies there in production:
//!
//! - What comes to a socket lies in the kernel until the driver of its [`Runtime`] looks. Until
//!   then the socket says from memory that it is not ready, in every poll. A short read or write,
//!   and one that finds nothing, makes it forget that it was ready, as in tokio.
//! - A look takes so many events at a time, in the order in which they came. The driver may be
//!   [held](Runtime::hold_driver), and all threads may be [stalled](Runtime::stall), while the
//!   clock and the peers go on. [`Simulation::stop`] stops a whole process.
//! - Buffers are bounded. A write is accepted in portions, and a socket that was full is ready when
//!   a third of its send buffer is free. A byte stays there until the peer's socket acknowledges
//!   it, in lumps: of a segment, or of half a receive buffer that has filled. What a socket holds
//!   when it is closed stays until its peer has taken it, or the connection is reset.
//! - A task has a budget for each poll, and is [polled](Runtime::wake_some) without a reason.
//! - Each poll is on any thread of the runtime, in an order that the seed chooses.
//!
//! What a task does that no runtime has started, as by [`Simulation::spawn`], is outside: its
//! sockets see what comes at once. Clients of a server are such tasks.
//!
//! Why not the network of a crate that simulates servers: a deadline and a byte meet in the order
//! of the looks, the wake-ups and the timers, which such a network does not have.
//!
//! Not simulated: addresses that a route does not reach, packets that are lost, and the errors of a
//! system without memory. A connection is made at once.
//!
//! Cost: a read or a write costs a lock and a copy of its bytes.
//!
//! ```
//! use corewheel::TimerService;
//! use corewheel::sim::Simulation;
//! use corewheel::stream::{StreamLimits, TimedIo};
//! use std::net::SocketAddr;
//! use std::time::Duration;
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! for seed in 0..20 {
//!     let builder = TimerService::beside_runtime().shards(1).capacity(100);
//!     let mut sim: Simulation = Simulation::start(seed, builder, |_| |_, _| ())?;
//!     let (timers, time) = (sim.service().handle(), sim.time());
//!     let net = sim.net();
//!     let server = net.runtime(2);
//!     let address = SocketAddr::from(([10, 0, 0, 1], 80));
//!     let listener = net.listen(address)?;
//!     let served = server.spawn(async move {
//!         let limits = StreamLimits::default().read_idle(Duration::from_secs(30));
//!         let mut stream = TimedIo::new(listener.accept().await, timers, limits);
//!         let mut received = Vec::new();
//!         stream.read_to_end(&mut received).await.map(|_| received)
//!     });
//!     let client = sim.spawn(async move {
//!         let mut stream = net.connect(address)?;
//!         time.sleep(Duration::from_millis(29_999)).await;
//!         // The driver of the server looks only when the time is over.
//!         server.stall(Duration::from_secs(60));
//!         stream.write_all(b"in time").await
//!     });
//!     sim.run(client)?;
//!     assert_eq!(sim.run(served)?, b"in time", "seed {seed}");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod kernel;
mod options;
pub(super) mod runtime;
mod stream;
mod witness;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use self::kernel::World;
use self::options::Options;
pub use self::runtime::Runtime;
pub use self::stream::{Listener, Socket, Stream};
pub use self::witness::{Known, Progress};
use super::Simulation;
pub use super::executor::preempt;
use super::executor::{Alarm, Executor};
use crate::values::ids::ShardId;

/// A network of a simulation; made by [`Simulation::net`]. A clone is the same network. See the
/// [module](self) for an example.
#[derive(Clone)]
pub struct Net {
    executor: Executor,
    world: Arc<World>,
}

impl<T: Send + 'static> Simulation<T> {
    /// A network, without sockets.
    pub fn net(&self) -> Net {
        let executor = self.executor.clone();
        let (clock, rng) = (executor.clock().clone(), executor.fork_rng());
        let world = World::new(clock, executor.begun(), rng);
        let net = Net { executor: executor.clone(), world };
        let mover = net.clone();
        let thread = executor.add_thread();
        executor.spawn(thread, Box::pin(async move { mover.move_bytes().await }));
        net
    }

    /// A runtime on the thread of a shard, whose tasks use the [`Timers`](crate::Timers) of the
    /// shard.
    ///
    /// # Panics
    ///
    /// If the service has no such shard.
    pub fn runtime_of(&self, shard: ShardId, net: &Net) -> Runtime {
        let thread = self.shard(shard).thread;
        Runtime::new(&self.executor, &net.world, [thread].into())
    }

    /// Stops the process of all shards and of these runtimes for this long: none of their threads
    /// runs. The clock and the clients go on.
    pub fn stop(&self, runtimes: &[Runtime], time: Duration) {
        self.shards.iter().for_each(|shard| self.executor.stall(shard.thread, time));
        for runtime in runtimes {
            runtime.stall(time);
        }
    }
}

impl Net {
    /// A runtime with this many threads of its own, at least 1, which run its tasks. Each poll is
    /// on any of them.
    pub fn runtime(&self, workers: usize) -> Runtime {
        let threads = (0..workers.max(1)).map(|_| self.executor.add_thread()).collect();
        Runtime::new(&self.executor, &self.world, threads)
    }

    /// A listener.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if there is a listener with this address.
    pub fn listen(&self, address: SocketAddr) -> io::Result<Listener> {
        self.world.call(|kernel| kernel.listen(address))?;
        Ok(Listener { world: Arc::clone(&self.world), address })
    }

    /// Connects to a listener. The connection is there at once, also where the listener has not
    /// accepted it.
    ///
    /// # Errors
    ///
    /// `ConnectionRefused` if there is no listener with this address.
    pub fn connect(&self, address: SocketAddr) -> io::Result<Stream> {
        let runtime = runtime::here(&self.world);
        let id = self.world.call(|kernel| kernel.connect(address, runtime))?;
        Ok(Stream(Socket::of(&self.world, id)))
    }

    /// How many reads and writes have moved bytes.
    pub fn transfers(&self) -> u64 {
        self.world.call(|kernel| kernel.transfers())
    }

    /// How many sockets there are. A socket that its owner has closed counts until its peer has
    /// acknowledged what it has sent.
    pub fn sockets(&self) -> usize {
        self.world.call(|kernel| kernel.len())
    }

    /// Moves bytes to their peers when they come.
    async fn move_bytes(&self) {
        let mut alarm = None;
        poll_fn(|cx| {
            let waker = cx.waker().clone();
            let next = self.world.call(|kernel| kernel.move_due(waker));
            // An alarm before is dropped.
            alarm = next.map(|at| Alarm::new(&self.executor, at));
            if alarm.as_ref().is_some_and(|alarm| alarm.poll(cx).is_ready()) {
                cx.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        })
        .await;
    }
}

/// Settings, before the first connection. Each panics after it.
///
/// ```
/// use corewheel::sim::{Simulation, net::Net};
/// use std::time::Duration;
///
/// /// A write is accepted in parts of up to 100 bytes, and bytes come up to 20 ms later.
/// fn slow(sim: &Simulation) -> Net {
///     sim.net().portion_max(100).latency_max(Duration::from_millis(20))
/// }
/// ```
impl Net {
    /// How many bytes the send buffer of a socket holds, at least 1; by default 64 KiB. A byte
    /// stays in it until the peer has acknowledged it. A socket that was full is ready for a write
    /// when a third of them is free.
    #[must_use]
    pub fn send_buffer(self, bytes: usize) -> Self {
        self.with(|options| options.send_buffer = bytes.max(1))
    }

    /// How many bytes the receive buffer of a socket holds, at least 1; by default 64 KiB.
    #[must_use]
    pub fn receive_buffer(self, bytes: usize) -> Self {
        self.with(|options| options.receive_buffer = bytes.max(1))
    }

    /// The most bytes that one write accepts while there is room for more: each accepts a random
    /// part of it. 0 for no such limit, as by default.
    #[must_use]
    pub fn portion_max(self, bytes: usize) -> Self {
        self.with(|options| options.portion_max = bytes)
    }

    /// The longest way of a byte, zero by default. Each connection has a random part of it, which
    /// it keeps. A reset comes at once.
    #[must_use]
    pub fn latency_max(self, latency: Duration) -> Self {
        self.with(|options| options.latency_max = latency)
    }

    /// How many bytes a segment has at most, at least 1; by default 65,483, as on a loopback
    /// device. A receive buffer that was full gives a window when there is room for a segment, or
    /// for half of the buffer.
    #[must_use]
    pub fn segment(self, bytes: usize) -> Self {
        self.with(|options| options.segment = bytes.max(1))
    }

    /// For how long a socket keeps the acknowledgement of one segment back; zero by default. It
    /// acknowledges more than a segment at once.
    #[must_use]
    pub fn ack_delay(self, delay: Duration) -> Self {
        self.with(|options| options.ack_delay = delay)
    }

    /// A socket takes no byte while so many were accepted and not sent, and is ready for a write
    /// when there are less than half as many: `TCP_NOTSENT_LOWAT`. 0 for no such limit, as by
    /// default.
    #[must_use]
    pub fn not_sent_lowat(self, bytes: usize) -> Self {
        self.with(|options| options.not_sent_lowat = bytes)
    }

    fn with(self, change: impl FnOnce(&mut Options)) -> Self {
        self.world.call(|kernel| change(kernel.options()));
        self
    }
}

debug_fields!([] Net, |it| sockets: it.sockets());

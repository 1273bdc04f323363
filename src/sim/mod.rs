//! A whole service on simulated threads with a clock of its own, all of it from one seed, for
//! tests.
//!
//! A [`Simulation`] runs the code that a service runs in production: shards, lanes, mailboxes,
//! wake-ups and turns, and the futures of the test on an executor of its own. All of it runs on the
//! thread of the test. The seed decides which task runs next; the clock stands still while a task
//! can run, and then moves to the next moment at which one can, up to a century after the start. So
//! an hour of timeouts takes microseconds, and the same seed gives the same history, byte for byte.
//!
//! # A multi-thread server
//!
//! The tasks of a multi-thread server use the service by a [`Handle`](crate::Handle), which needs
//! no runtime. So [`spawn`](Simulation::spawn) runs the tasks of a whole server as they are, each
//! on a simulated thread of its own, and `tokio::io::duplex` takes the place of the sockets:
//!
//! ```
//! use corewheel::conn::Raced;
//! use corewheel::sim::Simulation;
//! use corewheel::{ConnLimits, Handle, RefusedKind, TimerService};
//! use std::time::Duration;
//! use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, duplex};
//!
//! #[derive(PartialEq, Debug)]
//! enum End {
//!     Idle,
//!     ByPeer,
//! }
//!
//! /// Echoes until the peer closes the connection or is silent for 30 s. On a server, each
//! /// connection is `tokio::spawn(echo(timers, stream))`.
//! async fn echo<S>(timers: Handle, mut stream: S) -> Result<End, RefusedKind>
//! where
//!     S: AsyncRead + AsyncWrite + Unpin,
//! {
//!     let limits = ConnLimits::default().read_idle(Duration::from_secs(30));
//!     let conn = timers.connection(limits);
//!     let mut buffer = [0; 1024];
//!     loop {
//!         let read = conn.race(std::pin::pin!(stream.read(&mut buffer))).await?;
//!         // The connection is not idle while its request is answered.
//!         let _request = conn.begin_request();
//!         match read {
//!             Raced::Done(Ok(count)) if count > 0 => {
//!                 conn.touch_read();
//!                 if stream.write_all(&buffer[..count]).await.is_err() {
//!                     return Ok(End::ByPeer);
//!                 }
//!             }
//!             Raced::Done(_) => return Ok(End::ByPeer),
//!             Raced::Event(_) | Raced::Closed => return Ok(End::Idle),
//!         }
//!     }
//! }
//!
//! for seed in 0..50 {
//!     let builder = TimerService::beside_runtime().shards(2).capacity(1_000);
//!     let mut sim: Simulation = Simulation::start(seed, builder, |_| |_, _| ())?;
//!     let timers = sim.service().handle();
//!     let connections: Vec<_> = (0..20)
//!         .map(|client| {
//!             let (mut stream, accepted) = duplex(64);
//!             let served = sim.spawn(echo(timers, accepted));
//!             let (time, mut rng) = (sim.time(), sim.rng());
//!             let talked = sim.spawn(async move {
//!                 let mut answer = [0; 4];
//!                 for _ in 0..5 {
//!                     time.sleep(Duration::from_millis(rng.u64(..29_990))).await;
//!                     stream.write_all(b"ping").await?;
//!                     stream.read_exact(&mut answer).await?;
//!                 }
//!                 let last = time.now();
//!                 // Every second client hangs up. The others are silent until the server does.
//!                 if client % 2 == 1 {
//!                     stream.read(&mut answer).await?;
//!                 }
//!                 Ok::<_, std::io::Error>(time.now() - last)
//!             });
//!             (client, served, talked)
//!         })
//!         .collect();
//!     for (client, served, talked) in connections {
//!         let is_silent = client % 2 == 1;
//!         let expected = if is_silent { End::Idle } else { End::ByPeer };
//!         assert_eq!(sim.run(served)?, expected, "seed {seed}, client {client}");
//!         let silent = sim.run(talked)?;
//!         assert_eq!(silent >= Duration::from_secs(30), is_silent);
//!         assert!(silent < Duration::from_millis(30_020));
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Sockets
//!
//! With the feature `tokio`, the module `net` has a network: a kernel, and runtimes that look there
//! late, for a few events at a time, or not at all for a while.
//!
//! # A service with its threads
//!
//! A [`Handle`](crate::Handle) sends to a shard over the lanes of its thread, and futures that
//! [`spawn_on`](TimerService::spawn_on) starts run on the thread of their shard:
//!
//! ```
//! use corewheel::TimerService;
//! use corewheel::sim::Simulation;
//! use std::time::Duration;
//!
//! for seed in 0..100 {
//!     let builder = TimerService::builder().shards(2).capacity(100);
//!     let mut sim = Simulation::<&str>::start(seed, builder, |_| |_, _| ())?;
//!     let (handle, shard) = (sim.service().handle(), sim.service().shard_for(seed));
//!     let time = sim.time();
//!     let request = sim.run(async move {
//!         let answer = async {
//!             time.sleep(Duration::from_secs(7)).await;
//!             "late"
//!         };
//!         handle.on(shard).timeout(Duration::from_secs(5), answer).await
//!     });
//!     assert!(request.is_err(), "the request times out after 5 s");
//!     assert!(sim.elapsed() < Duration::from_millis(5_002));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Faults
//!
//! [`stall`](Simulation::stall) keeps a shard's thread from running, [`leap`](Simulation::leap)
//! moves the clock at once, [`hold_lanes`](Simulation::hold_lanes) keeps requests on the way, and
//! [`kill`](Simulation::kill) ends a shard as the death of its thread does. Small capacities and
//! budgets, which the builder takes down to 1, make refusals and full lanes frequent.
//!
//! # What is checked
//!
//! After each step of a task the simulation checks the shard that has run: the invariants of its
//! wheel, that `pending = scheduled − fired − cancelled − returned − dropped`, that no timer fires
//! early, and that its tables are bounded. If its driver sleeps, it checks that no timer waits for
//! an earlier turn. [`check`](Simulation::check) does it for all shards. A violation is a panic.
//!
//! # Many seeds
//!
//! [`explore`] runs a list of commands for each seed. If one panics, it looks for a shorter list
//! that panics too, and prints both the seed and the list.
//!
//! A panic hook is quiet about panics of runs of [`explore`]. If a run aborts the process, as two
//! panics at once do, it prints the seed.
//!
//! # How to test a server with it
//!
//! - Give the parts of the server their time and their sockets as arguments. In the simulation a
//!   part is a task: it waits by the timers of the service or by [`Time::sleep`], and by channels
//!   that work on every executor, such as those of tokio's `sync`, `futures` or `async-channel`.
//! - Spawn the parts that use [`Timers`] with [`spawn_on`](TimerService::spawn_on), and those that
//!   use a [`Handle`](crate::Handle) with [`spawn`](Simulation::spawn).
//! - Choose commands at random (a request comes, a connection stalls, a shard dies), run them by
//!   [`explore`], and compare what the server did with a simple model after each of them.
//! - Keep the seed of each failure as a test.
//!
//! This is such a test of a cache whose entries live for a second. A shard is stalled at random,
//! and no entry may be gone early, nor outlive its time and the stall together.
//!
//! ```
//! use corewheel::sim::{Simulation, explore};
//! use corewheel::{ShardId, TimerService};
//! use corewheel_kit::keyed::KeyedTimers;
//! use fastrand::Rng;
//! use std::time::Duration;
//!
//! #[derive(Clone, Debug)]
//! enum Command {
//!     Insert(u8),
//!     Stall(Duration),
//!     Run(Duration),
//! }
//!
//! let plan = |rng: &mut Rng| {
//!     let mut command = |_| match rng.u8(..3) {
//!         0 => Command::Insert(rng.u8(..4)),
//!         1 => Command::Stall(Duration::from_millis(rng.u64(..500))),
//!         _ => Command::Run(Duration::from_millis(rng.u64(..700))),
//!     };
//!     (0..50).map(&mut command).collect::<Vec<_>>()
//! };
//! explore(0..20, plan, |seed, commands| {
//!     let (shard, life) = (ShardId::new(0), Duration::from_secs(1));
//!     let builder = TimerService::builder().shards(1).capacity(1_000);
//!     let mut sim = Simulation::<()>::start(seed, builder, |_| |_, _| ()).unwrap();
//!     let cache = KeyedTimers::<u8, u32>::new(&sim.timers(shard), |_expired, _cache| {});
//!     let mut inserted = [None; 4];
//!     for command in commands {
//!         match *command {
//!             Command::Insert(key) => {
//!                 cache.insert(key, 0, life).unwrap();
//!                 inserted[usize::from(key)] = Some(sim.elapsed());
//!             }
//!             Command::Stall(stall) => sim.stall(shard, stall),
//!             Command::Run(time) => sim.run_for(time),
//!         }
//!         let stalled_until = sim.stall_end(shard).unwrap_or_default();
//!         for (key, inserted) in (0..).zip(&inserted) {
//!             let Some(end) = inserted.map(|at| at + life) else { continue };
//!             let (now, tick) = (sim.elapsed(), Duration::from_millis(1));
//!             if cache.with(&key, |_| ()).is_some() {
//!                 assert!(now < end.max(stalled_until) + tick, "{key} outlives its time");
//!             } else {
//!                 assert!(now >= end, "{key} is gone early");
//!             }
//!         }
//!     }
//! });
//! ```
//!
//! # How to repeat the runs of this crate
//!
//! `tests/simulation` in the repository is such a test of the whole service. Its model of every
//! timer is checked after every step; its commands include stalls up to a year, leaps of the clock,
//! panics in callbacks and drops, threads that end or are forgotten, handles of another
//! service, shards that die, and shutdowns. Each of its seeds switches some kinds of commands off.
//!
//! ```text
//! COREWHEEL_SIM_SECONDS=3600 cargo test --release --test simulation -- --nocapture
//! COREWHEEL_SIM_SEED=7 cargo test --release --test simulation -- --nocapture
//! ```
//!
//! The first command runs for an hour on two cores, from the seed 1, and prints how many seeds that
//! were. The second one begins with the seed 7; a first seed that no run has had gives new
//! histories. `.ci/run` runs it for seven minutes.
//!
//! # What it cannot find
//!
//! Tasks are interleaved where they wait, and a push, a fence or a wake-up is one step. What two
//! threads do to each other inside of these is for a model checker, which checks the protocols
//! between the threads of this crate. `src/link/loom_tests` has the models, and `weakenings.md`
//! there lists which of them fails for each atomic and each fence that is weakened.
//! Files and blocking calls are not simulated; [`Reply::wait`](crate::Reply::wait) is an error,
//! since it would block the thread that runs the shards.

mod check;
mod executor;
mod explore;
mod host;
mod join;
#[cfg(all(feature = "tokio", unix))]
pub mod net;
#[cfg(not(all(feature = "tokio", unix)))]
mod no_net;
mod thread;
mod time;

use std::cell::Cell;
use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use self::executor::{END, Executor, Stepped, ThreadId};
pub use self::explore::explore;
use self::host::SimulatedHost;
use self::join::with_output;
pub use self::thread::Thread;
pub use self::time::Time;
use crate::clock::{ManualClock, saturating_nanos};
use crate::face::timers::Timers;
use crate::service::TimerService;
use crate::service::builder::TimerServiceBuilder;
use crate::shard::handler::Fired;
use crate::values::error::StartError;
use crate::values::ids::ShardId;
use fastrand::Rng;

/// The most steps in a row during which the clock stands still. More of them mean that tasks wake
/// each other for ever.
const STEPS_MAX: u32 = 50_000;

/// The longest time from the start of the service to that of its last shard, in nanoseconds.
const STARTS_MAX: u64 = 60 * 1_000_000_000;

/// A service on simulated threads. See the [module](self).
///
/// Every shard has a thread of its own, on which its driver and the futures run that
/// [`spawn_on`](TimerService::spawn_on) starts, and so has every future that [`spawn`](Self::spawn)
/// starts. When it is dropped, the test's futures are dropped first, and then the shards die.
pub struct Simulation<T: Send + 'static = Infallible> {
    seed: u64,
    executor: Executor,
    shards: Vec<Shard<T>>,
    service: Rc<TimerService<T>>,
    /// What a handler was given that it must not be given; `None` if there was nothing.
    violation: Rc<Cell<Option<String>>>,
    /// How many steps have run since the clock last moved.
    steps: u32,
}

struct Shard<T: Send + 'static> {
    thread: ThreadId,
    timers: Timers<T>,
}

/// How many nanoseconds the clock runs before the service starts: none, those of a while, or up to
/// so many that the simulation ends with the range of the clock.
fn age(rng: &mut Rng) -> u64 {
    let most = u64::MAX - END - STARTS_MAX;
    match rng.u32(..8) {
        0 => 0,
        1 => most,
        2..5 => rng.u64(..=most),
        _ => rng.u64(..3_600 * 1_000_000_000),
    }
}

impl<T: Send + 'static> Simulation<T> {
    /// Starts the service of `builder` on simulated threads, at a time that follows from the seed.
    /// `make_handler` is called once for each shard. The clock and the runtime of the builder are
    /// replaced.
    ///
    /// # Errors
    ///
    /// A setting is out of its limits, or there is no memory for the timers.
    pub fn start<H: FnMut(Fired<T>, &Timers<T>) + 'static>(
        seed: u64,
        builder: TimerServiceBuilder,
        make_handler: impl Fn(ShardId) -> H,
    ) -> Result<Self, StartError> {
        let clock = ManualClock::new();
        let mut rng = Rng::with_seed(!seed);
        // A tick begins when the simulation does, so that a test knows when each of them begins.
        let tick = saturating_nanos(builder.options.tick).max(1);
        let run_on = |nanos: u64| clock.advance(Duration::from_nanos(nanos / tick * tick));
        run_on(age(&mut rng));
        let service = Rc::new(builder.clock(&clock).start_attached_with::<T>()?);
        let executor = Executor::new(clock.clone(), Rng::with_seed(seed));
        let violation = Rc::new(Cell::new(None));
        let mut shards = Vec::new();
        let gap_max = STARTS_MAX / service.shards().count() as u64;
        for shard in service.shards() {
            run_on(rng.u64(..=gap_max));
            let attachment = service.attach(shard).expect("no other code has attached it");
            let thread = executor.add_thread();
            let (mut handler, found) = (make_handler(shard), Rc::clone(&violation));
            let checked = move |fired: Fired<T>, timers: &Timers<T>| {
                let (now, Fired { timer: handle, deadline, lateness, .. }) = (timers.now(), &fired);
                let is_true = now.checked_duration_since(*deadline) == Some(*lateness);
                // A shutdown may fire timers before their deadlines.
                if !is_true && !timers.core().is_closed() {
                    // A panic here would be contained by the shard.
                    let late =
                        format!("{handle:?} of {deadline:?} fires {lateness:?} late at {now:?}");
                    found.set(Some(late));
                }
                handler(fired, timers);
            };
            let host = SimulatedHost::new(&executor, thread);
            let (timers, driver) = thread.run(|| attachment.attach(host, checked))?;
            executor.spawn(thread, Box::pin(driver));
            shards.push(Shard { thread, timers });
        }
        executor.begin();
        Ok(Self { seed, executor, shards, service, violation, steps: 0 })
    }

    /// The service. [`shutdown`](TimerService::shutdown) would block and returns an error;
    /// [`begin_shutdown`](TimerService::begin_shutdown) is awaited by a task instead. A clone is
    /// for callbacks, which may shut the service down, too.
    pub fn service(&self) -> &Rc<TimerService<T>> {
        &self.service
    }

    /// A thread of the test, which has lanes of its own.
    pub fn thread(&self) -> Thread<T> {
        Thread::of(&self.service)
    }

    /// The timers of a shard, as code on the shard's own thread uses them. They stay usable when
    /// the shard has ended, as one whose commands are refused.
    ///
    /// # Panics
    ///
    /// If the service has no such shard.
    pub fn timers(&self, shard: ShardId) -> &Timers<T> {
        &self.shard(shard).timers
    }

    /// The clock of the simulation, for tasks.
    pub fn time(&self) -> Time {
        Time(self.executor.clone())
    }

    /// The simulated present.
    pub fn now(&self) -> Instant {
        self.executor.clock().now()
    }

    /// The simulated time since the start.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.executor.nanos())
    }

    /// Random numbers from the seed, for the test. Each call returns others.
    pub fn rng(&self) -> Rng {
        self.executor.fork_rng()
    }

    fn shard(&self, shard: ShardId) -> &Shard<T> {
        self.shards.get(usize::from(shard.number())).expect("the service has such a shard")
    }
}

/// Faults.
impl<T: Send + 'static> Simulation<T> {
    /// Keeps the thread of a shard from running for this long, however short or long: neither its
    /// driver nor its futures run. A stall of a shard that is stalled already ends with the later
    /// one.
    ///
    /// # Panics
    ///
    /// If the service has no such shard.
    pub fn stall(&self, shard: ShardId, stall: Duration) {
        self.executor.stall(self.shard(shard).thread, stall);
    }

    /// When the last stall of a shard ends or has ended, from the start; `None` if there was none.
    ///
    /// # Panics
    ///
    /// If the service has no such shard.
    pub fn stall_end(&self, shard: ShardId) -> Option<Duration> {
        self.executor.stalled_until(self.shard(shard).thread).map(Duration::from_nanos)
    }

    /// Moves the clock at once, as a stall of the whole process does. Tasks run in later steps.
    pub fn leap(&mut self, by: Duration) {
        self.executor.leap(by);
        self.steps = 0;
    }

    /// Keeps the requests to a shard in their lanes, as if they were still on the way, until it is
    /// called again with `false`. The turns of the shard go on without them.
    ///
    /// # Panics
    ///
    /// If the service has no such shard.
    pub fn hold_lanes(&self, shard: ShardId, holds: bool) {
        self.shard(shard).timers.core().hold_lanes(holds);
    }

    /// Ends a shard as the death of its thread does: its driver and its futures are dropped, and
    /// its timers with them. Each outstanding and later request is refused as `Closed`.
    ///
    /// # Panics
    ///
    /// If the service has no such shard.
    pub fn kill(&self, shard: ShardId) {
        self.executor.kill(self.shard(shard).thread);
    }
}

/// Running.
impl<T: Send + 'static> Simulation<T> {
    /// Starts a future on a simulated thread of its own, which ends with the future. It runs in the
    /// steps that follow, also if what this returns is dropped.
    ///
    /// Returns a future of its output: [`run`](Self::run) takes steps until that is ready, and
    /// other futures of the simulation await it. Cost: two allocations.
    ///
    /// # Panics
    ///
    /// A poll of the returned future panics if the output was taken before, and if the simulation
    /// has ended before `future` was done.
    pub fn spawn<F: Future + 'static>(
        &self,
        future: F,
    ) -> impl Future<Output = F::Output> + Unpin + use<T, F> {
        let (task, output) = with_output(future);
        self.executor.spawn(self.executor.add_thread(), Box::pin(task));
        output
    }

    /// Runs one task that can run, picked by the seed, until it waits. If no task can run, moves
    /// the clock to the next moment at which one can.
    ///
    /// Returns whether a task has run. If none has, and [`next_at`](Self::next_at) is `None`, no
    /// task can run any more.
    ///
    /// # Panics
    ///
    /// If a check fails or the task panics. A panic of a callback, a handler or a future of a shard
    /// is contained, as always.
    pub fn step(&mut self) -> bool {
        matches!(self.step_until(u64::MAX), Stepped::Ran(_))
    }

    fn step_until(&mut self, limit: u64) -> Stepped {
        let stepped = self.executor.step(limit);
        match stepped {
            Stepped::Ran(thread) => {
                self.steps += 1;
                let (steps, seed) = (self.steps, self.seed);
                let violation = self.violation.take();
                assert_eq!(violation, None, "seed {seed}: early, or with a wrong lateness");
                assert!(
                    steps < STEPS_MAX,
                    "seed {seed}: {steps} steps, and the clock stands still"
                );
                for shard in self.shards.iter().filter(|shard| shard.thread == thread) {
                    self.check_shard(shard);
                }
            }
            Stepped::Waited => self.steps = 0,
            Stepped::Resting => self.check(),
        }
        stepped
    }

    /// When the next step runs a task, from the start: the present if a task can run, else the time
    /// to which the clock will move. `None` if no task can run at any moment.
    pub fn next_at(&self) -> Option<Duration> {
        self.executor.next_at().map(Duration::from_nanos)
    }

    /// Takes steps until no task can run at the present moment. The clock does not move.
    ///
    /// # Panics
    ///
    /// As [`step`](Self::step) does.
    pub fn settle(&mut self) {
        let now = self.executor.nanos();
        while self.step_until(now) != Stepped::Resting {}
    }

    /// Takes steps until this much time has passed.
    ///
    /// # Panics
    ///
    /// As [`step`](Self::step) does.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.executor.nanos().saturating_add(saturating_nanos(time));
        while self.step_until(end) != Stepped::Resting {}
        let rest = end.saturating_sub(self.executor.nanos());
        self.leap(Duration::from_nanos(rest));
        self.settle();
    }

    /// Takes steps until a future is ready, and returns its output. The future runs between the
    /// steps, on the thread of the test.
    ///
    /// # Panics
    ///
    /// As [`step`](Self::step) does; and if the future is pending and no task can run any more.
    pub fn run<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut cx = Context::from_waker(Waker::noop());
        let mut rests = false;
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return output;
            }
            let seed = self.seed;
            assert!(!rests, "seed {seed}: a future waits, and nothing will wake it");
            rests = self.step_until(u64::MAX) == Stepped::Resting;
        }
    }
}

impl<T: Send + 'static> Drop for Simulation<T> {
    fn drop(&mut self) {
        self.executor.kill_all();
    }
}

debug_fields!([T: Send + 'static] Simulation<T>, |it| seed: it.seed,
    now: Duration::from_nanos(it.executor.nanos()));

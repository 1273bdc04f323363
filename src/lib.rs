//! A sharded, per-core timer service for high-throughput network servers.
//!
//! A timeout in a server on multi-thread tokio. The feature `tokio` of this crate lets no timeout
//! cut a client whose bytes came in time, also where the runtime was held up:
//!
//! ```no_run
//! use corewheel::{TimeoutError, TimerService};
//! use std::time::Duration;
//! use tokio::io::AsyncReadExt;
//! use tokio::net::TcpListener;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // One thread for each 8 cpus, beside the runtime.
//!     let service = TimerService::beside_runtime().start()?;
//!     // For every task: it is `Copy`, `Send` and `Sync`.
//!     let timers = service.handle();
//!     let listener = TcpListener::bind("127.0.0.1:7070").await?;
//!     loop {
//!         let (mut socket, _peer) = listener.accept().await?;
//!         tokio::spawn(async move {
//!             let mut request = [0; 4096];
//!             let read = socket.read(&mut request);
//!             match timers.timeout(Duration::from_secs(2), read).await {
//!                 Ok(length) => println!("{} bytes came", length?),
//!                 Err(TimeoutError::Elapsed) => println!("nothing came"),
//!                 Err(error) => println!("there is no timer: {error}"),
//!             }
//!             std::io::Result::Ok(())
//!         });
//!     }
//! }
//! ```
//!
//! The [`guide`] has a page for each kind of server, in the order in which to read them. The crate
//! needs Rust 1.85 or newer, and is tested on Linux.
//!
//! # A service and its shards
//!
//! A [`TimerService`] has a *shard* for each core: a timing wheel that one thread drives and no
//! other thread ever touches. Its settings are those of [`TimerServiceBuilder`]. There are two
//! ways to schedule on a shard:
//!
//! - [`Timers`] is a shard on its own core. It is `!Send`. Handlers and callbacks are given one,
//!   and so is the future that [`spawn_on`](TimerService::spawn_on) starts. A command takes effect
//!   at once, and its outcome is the return value.
//! - [`Handle`] reaches every shard from any thread: it is `Copy`, `Send` and `Sync`, so tasks that
//!   migrate between threads keep it, as those of multi-thread tokio do. A schedule, cancel or
//!   reset from another thread is a message to the shard, in a ring that only that thread fills, so
//!   no two threads that send wait for each other. A timer has its [`TimerId`] at once; the outcome
//!   of a cancel is a [`Reply`], a future that can also be waited for. A handle makes futures, too:
//!   [`sleep`](Handle::sleep), [`timeout`](Handle::timeout), [`interval`](Handle::interval). It has
//!   the deadlines of a [`connection`](Handle::connection).
//!   [`handle.on(id)`](Handle::on) chooses a shard. A guide is about
//!   [multi-thread tokio servers](guide::multi_thread_tokio).
//!
//! Why not one wheel behind a lock: every packet of every connection resets a deadline, and a lock
//! that all cores take for it is the most contended one of the server. Why not a wheel for each
//! core that only its core can reach: a connection's timers must be reachable from the threads that
//! work for it.
//!
//! # What a timer carries
//!
//! - A **value** of the service's type `T`, which is given to the handler that each shard was
//!   started with: [`schedule`](Timers::schedule). No allocation, no dynamic call, here or across
//!   threads.
//! - A **callback**, boxed once: [`schedule_fn`](Timers::schedule_fn).
//! - A **future** that waits: [`sleep`](Timers::sleep), [`timeout`](Timers::timeout),
//!   [`interval`](Timers::interval). A future of [`Timers`] is polled on the shard's thread, by an
//!   executor that runs there; a future of a [`Handle`] is polled on any thread, by any executor.
//!
//! # What to build with
//!
//! The types that hold many timers or values live on one shard and are `!Send`. Any thread reaches
//! one that [`Handle::keep`] has made on its shard, by a [`kept::Kept`]: a handle
//! that sends closures to it. The package `corewheel-kit` has a guide about a delayed job
//! queue beside tokio.
//!
//! | need | module or method |
//! |---|---|
//! | one deadline | [`schedule`](Timers::schedule), [`reset`](Timers::reset) |
//! | many timers with one deadline | [`deadline`](Timers::deadline), computed once |
//! | idle times, heartbeat, data rates, handshake and age of a connection | [`conn`] |
//! | a stream that ends when a peer is too slow | [`stream`], with the feature `tokio` or `hyper` |
//! | a callback that runs again and again | `corewheel-kit`: `repeat` |
//! | ticks for a future | [`interval`] |
//! | a callback later, and its result | [`schedule_task`](Timers::schedule_task) |
//! | values that are taken out when they are due | `corewheel-kit`: `DelayQueue` |
//! | an actor on a shard: a container that any thread uses | [`kept`] |
//! | timers and values by keys of your own | `corewheel-kit`: `KeyedTimers` |
//! | operations that wait for a key, or their deadline | `corewheel-kit`: `Purgatory` |
//! | timeouts that shrink under pressure, all at once | `corewheel-kit`: `ScaledTimeouts` |
//! | a structure of your own with many timers | [`part`] |
//! | handlers whose work is long | [a channel](guide::choosing#handlers-whose-work-is-long) |
//! | deadlines that must not come together, as a thundering herd | `corewheel-kit`: `Jitter` |
//! | deadlines that may come together | [`deadline_with_slack`](Handle::deadline_with_slack) |
//! | many timers at once | [`cancel_many`](Handle::cancel_many) |
//! | a thread that sees a stuck shard | `corewheel-kit`: `watch` |
//! | connections that go to another core | [`ConnTimers::pack`](conn::ConnTimers::pack) |
//! | a shard in an executor or a loop that is there already | [`attach`] |
//! | timers of a program that uses `tokio::time` | [`time`], with the feature `tokio` |
//! | timeouts in servers and clients of hyper, tower and axum | the package `corewheel-http` |
//! | timers of QUIC endpoints and connections | the package `corewheel-quinn` |
//! | the statistics over HTTP, as a page or for Prometheus | the package `corewheel-stats` |
//! | shards on glommio or compio | the packages `corewheel-glommio`, `corewheel-compio` |
//! | shards on another runtime | [`host`] |
//! | a sleep for an interface that has no error | [`fallback`] |
//! | a limit of your own that cuts nothing that came in time | [`pass`] |
//!
//! A [class](class::TimerClass) says what a timer is for, so that the [statistics](stats) can tell
//! requests from idle connections. The package `corewheel-stats` shows
//! them over HTTP.
//!
//! # What comes back
//!
//! - A **refusal returns the value**: [`Refused`] is `Full(value)` where there is no room,
//!   `Busy(value)` where the lane is full for a moment, `Closed(value)` after the end. Its
//!   [`kind`](Refused::kind) is an error without the value, into which `?` converts it for a boxed
//!   error.
//! - An **outcome tells the truth**: [`CancelOutcome`], [`ResetOutcome`]. After `Cancelled` the
//!   timer has not fired and will not. A [`TimerId`] whose timer is gone does no harm: a cancel or
//!   reset by it returns `Stale`.
//! - The builder refuses a **bad setting** with a [`ConfigError`] that names the field, its value,
//!   the limit and the remedy. A delay that does not fit means never; none panics.
//! - A **shutdown** gives every accepted timer an outcome, by a [`ShutdownPolicy`]:
//!   [`TimerService::shutdown`].
//!
//! # Calls that block
//!
//! Each of these may be called in a task, as in `#[tokio::main]`, but blocks the worker that runs
//! the task:
//!
//! - [`start`](TimerServiceBuilder::start) and [`start_with`](TimerServiceBuilder::start_with),
//!   until the shards run: milliseconds. A server calls them before it accepts connections.
//! - [`shutdown`](TimerService::shutdown), and the drop of a service that was not shut down, until
//!   the callbacks of the shards are done. A task awaits
//!   [`begin_shutdown`](TimerService::begin_shutdown), or calls `shutdown` in `spawn_blocking`.
//! - [`Reply::wait`], until the shard has replied. A task awaits the reply.
//!
//! On a thread that drives a shard, `shutdown` and `wait` could last for ever: there they return an
//! error that says so, and a drop does not wait.
//!
//! # Tests
//!
//! - With a [`ManualClock`](clock::ManualClock) and shards in a loop of the test's own ([`attach`])
//!   time passes only when the test says so. Many examples of these pages do it that way.
//!   [`run_until_idle`](clock::ManualClock::run_until_idle) goes from deadline to deadline, with
//!   the tasks of the test.
//! - The module [`sim`], with the feature of that name, runs a whole multi-thread server on
//!   simulated threads, for many seeds.
//! - With the feature `test-util`, [`time`], and hyper's timer and the layer of tower of
//!   `corewheel-http`, follow tokio's clock where a test has paused it.
//!
//! A timer by a clock that the test moves:
//!
//! ```
//! use corewheel::clock::ManualClock;
//! use corewheel::{CancelOutcome, TimerService};
//! use std::time::Duration;
//!
//! // One shard, in a loop of the test, by a clock that the test moves.
//! let clock = ManualClock::new();
//! let builder = TimerService::builder().shards(1).clock(&clock);
//! let service = builder.start_attached_with::<u64>()?;
//! let attachment = service.attach(service.shard_for(0))?;
//! let mut shard = attachment.into_loop(|fired, _timers| {
//!     println!("request {} has timed out", fired.payload);
//! })?;
//!
//! let timers = shard.timers().clone();
//! let request = timers.schedule(Duration::from_millis(30), 7)?;
//! clock.advance(Duration::from_millis(10));
//! let _next = shard.turn();
//! // The response has come. The timer will not fire, and its payload comes back.
//! let outcome = timers.cancel(request);
//! let CancelOutcome::Cancelled { remaining, payload } = outcome else { panic!("{outcome:?}") };
//! assert_eq!((remaining, payload.into_value()), (Duration::from_millis(20), Some(7)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Cost
//!
//! On its own core a timer costs a clock reading and a few cache lines, and no allocation unless it
//! carries a callback. From another thread it costs its shard as much, and its sender a push and a
//! fence; many timers of one message share both. A shard with nothing due sleeps. Each type says
//! what it costs on top.
//!
//! # Features
//!
//! None is on by default. The default build runs shards on plain threads or in loops of the
//! caller's own, and needs no runtime and no HTTP server. Futures that
//! [`spawn_on`](TimerService::spawn_on) starts need a shard on a runtime, or in a loop of the
//! caller's own. Tokio is such a runtime, by the feature of its name, and glommio, by the package
//! `corewheel-glommio`.
//! Values, callbacks and the futures of a [`Handle`] need none. No feature compiles C.
//!
//! | feature | brings | costs |
//! |---|---|---|
//! | `tokio` | shards on tokio; [`time`]; [`stream`]; no timeout cuts what came in time | tokio |
//! | `hyper` | [`stream`], whose `TimedIo` then has hyper's traits of streams | hyper |
//! | `pinning` | the service's own threads are pinned: see [`settings`] | `core_affinity` |
//! | `serde` | the statistics implement `Serialize` | serde and its procedural macro |
//! | `sim` | [`sim`]: a simulation of the service, for tests | nothing |
//! | `test-util` | [`time`] follows tokio's paused clock, for tests | `tokio`, its `test-util` |
//!
//! What one core owns, wheel and slab and counters, is [`corewheel_shard`], which knows no thread,
//! no clock and no atomic.
//!
//! [`stream`]: stream/index.html
//! [`time`]: time/index.html
//! [`sim`]: sim/index.html
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

// First, for its macro.
#[macro_use]
mod values;

pub mod clock;
pub mod conn;
mod directory;
mod driver;
mod face;
pub mod fallback;
pub mod guide;
mod kit;
mod link;
pub mod pass;
mod service;
mod shard;
#[cfg(feature = "sim")]
pub mod sim;
pub mod stats;
#[cfg(any(feature = "hyper", feature = "tokio"))]
pub mod stream;
#[cfg(feature = "tokio")]
pub mod time;

pub use crate::clock::when::{Deadline, When};
#[doc(no_inline)]
pub use crate::conn::{ConnEvent, ConnLimits, ConnTimers, DeadlineKind};
pub use crate::driver::runtime::Runtime;
pub use crate::driver::{attach, host};
pub use crate::face::handle::sleep::{Sleep, Timeout};
pub use crate::face::handle::{AnyHandle, Handle};
pub use crate::face::part;
pub use crate::face::reply::Reply;
pub use crate::face::report as shutdown;
pub use crate::face::timers::Timers;
pub use crate::kit::{interval, kept};
pub use crate::service::TimerService;
pub use crate::service::builder::TimerServiceBuilder;
pub use crate::shard::handler::Fired;
pub use crate::shard::timers::Payload;
pub use crate::values::error::{ConfigError, ReplyError, ShardError, StartError, TimeoutError};
pub use crate::values::ids::{ShardId, TimerId};
pub use crate::values::outcome::{CancelOutcome, ResetOutcome};
pub use crate::values::refused::{Refused, RefusedKind};
pub use crate::values::shutdown::ShutdownPolicy;
pub use crate::values::{class, settings};

/// The README's code, compiled.
#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../README.md")]
struct Readme;

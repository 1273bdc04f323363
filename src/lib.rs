//! A sharded, per-core timer service for high-throughput network servers.
//!
//! This page explains the parts in the order in which one needs them: [what a shard
//! is](#a-service-and-its-shards), [what a timer holds](#what-a-timer-holds), [what to build
//! with](#what-to-build-with), [what comes back](#what-comes-back) when something is ended or
//! refused, [how a test looks](#tests), and [what it costs](#what-it-costs).
//!
//! # A service and its shards
//!
//! A [`TimerService`] has a *shard* for each core: a timing wheel that one thread owns and no other
//! thread ever touches. Its settings are those of [`TimerServiceBuilder`]. There are two ways to a
//! shard:
//!
//! - [`Timers`] is a shard on its own core. It is `!Send`. Handlers and callbacks are given one,
//!   and so is what [`spawn_on`](TimerService::spawn_on) starts. A command takes effect at once,
//!   and its outcome is the return value.
//! - [`Client`] reaches every shard from any thread, by messages over single-producer
//!   single-consumer rings. It is `Send`; each thread has its own. A timer has its [`TimerHandle`]
//!   at once; what became of a cancel is an [`Answer`], to be awaited or waited for.
//!
//! The methods have the same names on both. With `_at` they take a moment instead of a delay; those
//! of a client end in `_on` where they are told the [`ShardId`].
//!
//! ```
//! use corewheel::{CancelOutcome, Fired, ManualClock, TimerService, Timers};
//! use std::time::Duration;
//!
//! // One shard, in a loop of our own, by a clock that we move; `start_with` starts threads.
//! let clock = ManualClock::new();
//! let builder = TimerService::builder().shards(1).clock(clock.clock());
//! let service = builder.start_attached::<u64>()?;
//! let attachment = service.attach(service.shards().next().unwrap())?;
//! let mut shard = attachment.into_loop(|timer: Fired<u64>, _timers: &Timers<u64>| {
//!     println!("request {} has timed out", timer.task);
//! })?;
//!
//! let timers = shard.timers().clone();
//! let request = timers.schedule(Duration::from_millis(30), 7)?;
//! clock.advance(Duration::from_millis(10));
//! let _next = shard.turn();
//! // The answer has come. The timer will not fire, and what it held comes back.
//! let outcome = timers.cancel(request);
//! let CancelOutcome::Cancelled { remaining, task } = outcome else { panic!("{outcome:?}") };
//! assert_eq!((remaining, task.into_value()), (Duration::from_millis(20), Some(7)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Why not one wheel behind a lock: every packet of every connection moves a deadline, and a lock
//! that all cores take for it is the most contended one of the server. Why not one wheel for each
//! core without a way in: a connection's timers must be reachable from the threads that work for
//! it.
//!
//! # What a timer holds
//!
//! - A **value** of the service's type `T`, given to the [`Handler`] that each shard was started
//!   with: [`schedule`](Timers::schedule). No allocation, no dynamic call, here or across threads.
//! - A **callback**, boxed once: [`schedule_fn`](Timers::schedule_fn).
//! - A **future** that waits: [`sleep`](Timers::sleep), [`timeout`](Timers::timeout),
//!   [`interval`](Timers::interval). These need an executor on the shard, glommio or tokio.
//!
//! # What to build with
//!
//! What holds many timers or values (connections, queues, keyed timers, operations, scaled
//! timeouts) lives on one shard and is `!Send`. Another thread reaches it by a callback that it
//! sends to that shard, with [`schedule_fn_on`](Client::schedule_fn_on).
//!
//! | need | type |
//! |---|---|
//! | one deadline | a [`TimerHandle`]: [`schedule`], [`reset`], [`cancel`] |
//! | many timers with one deadline | a [`Deadline`], worked out once: [`deadline_in`] |
//! | idle times, heartbeat, handshake and age of a connection | [`ConnTimers`] |
//! | something that comes again | [`Repeat`] for callbacks, [`Interval`] and [`Plan`] for futures |
//! | a task later, and its result | [`schedule_task`], [`Scheduled`] |
//! | values that are taken out when their time has come | [`DelayQueue`] |
//! | timers by keys of your own, alone or in groups | [`KeyedTimers`] |
//! | an operation that an event completes, or its deadline | [`Purgatory`] |
//! | timeouts that shrink under pressure, all at once | [`ScaledTimeouts`] and [`Scale`] |
//! | handlers that would hold up the core | [`ToSink`], `OnTaskQueue` on glommio |
//! | deadlines that must not come together | [`Jitter`], [`Spread`] |
//! | deadlines that may come together | [`deadline_with_slack`] |
//! | many timers at once | [`cancel_many`], [`schedule_many_on`], [`Batch`], [`TimerGroup`] |
//! | timers that go to another core | [`move_to`], [`drain_shard`], [`ConnTimers::pack`] |
//!
//! [`schedule`]: Timers::schedule
//! [`reset`]: Timers::reset
//! [`cancel`]: Timers::cancel
//! [`deadline_in`]: Timers::deadline_in
//! [`schedule_task`]: Timers::schedule_task
//! [`deadline_with_slack`]: Timers::deadline_with_slack
//! [`cancel_many`]: Client::cancel_many
//! [`schedule_many_on`]: Client::schedule_many_on
//! [`move_to`]: Client::move_to
//! [`drain_shard`]: Client::drain_shard
//!
//! A [`TimerClass`] says what a timer is for, so that [`ServiceStats`] can tell requests from idle
//! connections. `StatsEndpoint` shows the statistics over HTTP.
//!
//! # What comes back
//!
//! - A **refusal returns the value**: [`ScheduleError`], [`InsertError`], [`WatchError`] and the
//!   others are `Full(value)`, when there is no room, or `Closed(value)`, when the shard has ended.
//!   Nothing waits for room by itself.
//! - An **outcome tells the truth**: [`CancelOutcome`], [`ResetOutcome`], [`StopOutcome`]. After
//!   `Cancelled` the task has not run and will not. A handle whose timer is gone is harmless and
//!   answered as stale.
//! - A **bad setting** is a [`ConfigError`] that names the field, its value, the limit and what to
//!   do. A delay that does not fit means never; none panics.
//! - A **shutdown** gives every timer that was accepted an outcome, by a [`ShutdownPolicy`]:
//!   [`TimerService::shutdown`].
//!
//! # Tests
//!
//! With a [`ManualClock`] and shards in a loop of the test's own
//! ([`Attachment::into_loop`]) time passes only when the test says so. The examples on these pages
//! do it that way.
//!
//! # What it costs
//!
//! On its own core a timer costs a clock reading and a few cache lines, and no allocation unless it
//! is a callback. From elsewhere it costs its owner the same, and its sender a push and a fence; in
//! a [`Batch`] the fence is shared by 64. A shard with nothing due sleeps. What the parts on top
//! cost is said with each.
//!
//! # The map
//!
//! For who reads the sources. Arrows point down the first three groups only: nothing there knows a
//! driver, an endpoint or what is built on top.
//!
//! - [`corewheel_shard`] is what one core owns: wheel, slab, what is due, counters. It knows no
//!   thread, no clock and no atomic.
//! - `lane`, `across`, `overflow`, `bell`, `gate`, `brake` and `mesh` are where threads meet, and
//!   nowhere else do they; `sync` is the atomics that they use, `loom_tests` are for the model
//!   checker, and `clock` reads the time.
//! - `contain` runs callbacks and drops values of the user, so that a panic ends there.
//! - `core` is what a shard's thread holds, `turn` is one turn of it: drain the lanes, advance,
//!   deliver, publish, say what is next. `task` is what a timer can hold.
//! - `driver` takes the turns: on glommio, on tokio, on a plain thread, in somebody's own loop.
//!   `start`, `attach` and `spawn` set it up, by what `builder` and `config` were told; `limits`
//!   tries out beforehand what the host still has for it.
//! - `timers`, `client`, `handle`, `sleep`, `interval`, `service` and `shutdown` are what users
//!   hold, `error` and `capacity` what they are told when it cannot be.
//! - `conn`: the deadlines of connections, of which touching one is a store.
//! - `many`, `group` and `moving`: many commands at once, timers that end together, timers that go
//!   to live on another shard.
//! - `class`: names for what timers are for; `class_stats` is what is counted for them, `classed`
//!   schedules by them.
//! - `sink` and `task_queue`: values of timers that others work on, elsewhere.
//! - `purgatory`: operations that complete by an event or by their deadline.
//! - `scaled`: timeouts that shrink under pressure, all at once, by the shard's `scale`.
//! - `repeat` runs callbacks again and again, `scheduled` runs one whose result is awaited, `herd`
//!   spreads deadlines or gathers them.
//! - `delay_queue`: values that come out when their time has come, as what is `expired`.
//! - `keyed`: timers that are known by keys of the caller's own, alone or in groups.
//! - `stats` and `endpoint` show what is going on.
#![forbid(unsafe_code)]

mod across;
mod attach;
mod bell;
mod brake;
mod builder;
mod capacity;
mod class;
mod class_stats;
mod classed;
mod client;
mod clock;
mod config;
mod conn;
mod contain;
mod core;
mod delay_queue;
mod driver;
#[cfg(feature = "endpoint")]
mod endpoint;
mod error;
mod expired;
mod gate;
mod group;
mod handle;
mod herd;
mod interval;
mod keyed;
mod lane;
mod limits;
#[cfg(all(test, corewheel_loom))]
mod loom_tests;
mod many;
mod mesh;
mod moving;
mod overflow;
mod purgatory;
mod repeat;
mod scale;
mod scaled;
mod scheduled;
mod service;
mod shutdown;
mod sink;
mod sleep;
mod spawn;
mod start;
mod stats;
mod sync;
mod task;
#[cfg(all(feature = "glommio", target_os = "linux"))]
mod task_queue;
mod timers;
mod turn;

pub use crate::attach::Attachment;
pub use crate::builder::{TimerServiceBuilder, no_tasks};
pub use crate::class::{TimerClass, UnknownClass};
pub use crate::class_stats::{ClassCounts, ClassStats};
pub use crate::classed::{Classed, ClassedClient};
pub use crate::client::many::{Answers, AnswersFuture};
pub use crate::client::{Answer, AnswerFuture, Batch, Client, Refused};
pub use crate::clock::{Clock, ManualClock};
pub use crate::config::{Placement, Runtime, TurnBudget};
pub use crate::conn::{
    AdoptError, ArmError, ConnError, ConnLimits, ConnTimers, DeadlineKind, IdleEvent, PackedConn,
    Raced, ReadInProgress, WriteInProgress,
};
pub use crate::delay_queue::DelayQueue;
pub use crate::driver::own_loop::{ShardLoop, Sleep as LoopSleep};
#[cfg(feature = "endpoint")]
pub use crate::endpoint::{EndpointError, StatsEndpoint, StatsEndpointBuilder};
pub use crate::error::{
    AttachError, Closed, ConfigError, Elapsed, ScheduleError, ScheduleManyError, ShutdownError,
    SleepError, SpawnError, StartError, TimeoutError, WaitError,
};
pub use crate::expired::{DelayKey, Expired, InsertError};
pub use crate::group::TimerGroup;
pub use crate::handle::{ShardId, TimerHandle};
pub use crate::herd::{Jitter, Spread};
pub use crate::interval::{Interval, MissedTickBehavior, Plan};
pub use crate::keyed::{Inserted, KeyedTimers, WeakKeyedTimers};
pub use crate::moving::{DrainError, DrainReport, MoveError};
pub use crate::purgatory::{
    Completion, Operation, OperationFn, OperationId, Purgatory, PurgatoryBuilder, PurgatoryStats,
    Watch, WatchError, WeakPurgatory,
};
pub use crate::repeat::{OnPanic, Periodic, PeriodicRun, RemotePeriodic, Repeat, StopOutcome};
pub use crate::scale::Scale;
pub use crate::scaled::{ScaledStats, ScaledTimeout, ScaledTimeouts, WeakScaledTimeouts};
pub use crate::scheduled::{RemoteScheduled, RemoteScheduledFuture, Scheduled, TaskError};
pub use crate::service::{Spawned, StatsSource, TimerService};
pub use crate::shutdown::{Returned, ShardReport, ShutdownPolicy, ShutdownReport};
pub use crate::sink::{Sink, SinkError, SinkPolicy, ToSink};
pub use crate::sleep::{RemoteSleep, Sleep};
pub use crate::stats::{Bucket, ServiceStats, ShardCounts, ShardState, ShardStats, Times};
pub use crate::task::{
    Callback, CancelOutcome, Fired, Handler, LocalCall, RemoteTask, ResetOutcome, SendCall, Task,
};
#[cfg(all(feature = "glommio", target_os = "linux"))]
pub use crate::task_queue::OnTaskQueue;
pub use crate::timers::{Deadline, Timers};
pub use crate::turn::Turn;
pub use corewheel_shard::{Tick, TimerKey, WheelKind};

/// The README's code, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

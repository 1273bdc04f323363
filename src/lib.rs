//! A sharded, per-core timer service for high-throughput network servers.
//!
//! Each core owns a timing wheel that no other thread ever touches; whoever is elsewhere sends
//! messages over single-producer single-consumer rings to the shard that owns the timer. A
//! [`TimerService`] is the place to begin, [`Timers`] is a shard on its own core, [`Client`] is the
//! same from any thread.
//!
//! Why not one wheel behind a lock: every packet of every connection moves a deadline, and a lock
//! that all cores take for it is the most contended one of the server. Why not one wheel for each
//! core without lanes: a connection's timers must be reachable from the threads that work for it.
//!
//! # The map
//!
//! - [`corewheel_shard`] is what one core owns: wheel, slab, what is due, counters. It knows no
//!   thread, no clock and no atomic.
//! - `lane`, `across`, `overflow`, `bell`, `gate`, `brake` and `mesh` are where threads meet, and
//!   nowhere else do they.
//! - `core` is what a shard's thread holds, `turn` is one turn of it: drain the lanes, advance,
//!   deliver, publish, say what is next.
//! - `driver` takes the turns: on glommio, on tokio, on a plain thread, in somebody's own loop.
//! - `timers`, `client`, `sleep`, `interval` and `service` are what users hold.
//! - `conn`: the deadlines of connections, of which touching one is a store.
//! - `many`, `group` and `moving`: many commands at once, timers that end together, timers that go
//!   to live on another shard.
//! - `class`: names for what timers are for, told apart in the statistics.
//! - `sink` and `task_queue`: values of timers that others work on, elsewhere.
//! - `purgatory`: operations that complete by an event or by their deadline.
//! - `scaled`: timeouts that shrink under pressure, all at once.
//! - `repeat` runs callbacks again and again, `scheduled` runs one whose result is awaited, `herd`
//!   spreads deadlines or gathers them.
//! - `delay_queue`: values that come out when their time has come.
//! - `keyed`: timers that are known by keys of the caller's own, alone or in groups.
//! - `stats` and `endpoint` show what is going on.
//!
//! Arrows point down this list's first three lines only: nothing there knows a driver, a future or
//! an endpoint.
//!
//! # What it costs
//!
//! On its own core a timer costs a clock reading and a few cache lines, and no allocation unless it
//! is a callback. From elsewhere it costs its owner the same, and its sender a push and a fence; in
//! a [`Batch`] the fence is shared by 64. A shard with nothing due sleeps.
#![forbid(unsafe_code)]

mod across;
mod attach;
mod bell;
mod brake;
mod builder;
mod capacity;
mod class;
mod class_stats;
mod client;
mod clock;
mod config;
mod conn;
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
pub use crate::class::{Classed, ClassedClient, TimerClass, UnknownClass};
pub use crate::class_stats::{ClassCounts, ClassStats};
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

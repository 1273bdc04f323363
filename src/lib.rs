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
//! The rooms of the sources, from the bottom up: a room uses rooms that are listed before it, and
//! none that is listed after it.
//!
//! | room | owns |
//! |---|---|
//! | `values` | names of shards and timers, errors, outcomes, settings |
//! | `clock` | the one place that reads a clock; ticks to instants and back |
//! | `link` | how threads meet: lane, wake-up, mailbox; knows no timer |
//! | `stats` | counters, histograms, classes, publishing |
//! | `directory` | which shards there are, how each is reached, which run on this thread |
//! | `shard` | what one shard's thread runs: state, turn, requests, migration, shutdown |
//! | `face` | `Timers`, `Client`, their futures and the types of callbacks |
//! | `driver` | takes the turns: glommio, tokio, thread, the user's own loop |
//! | `conn` | connection timers |
//! | `kit` | what else is built from timers |
//! | `service` | builder, start, shutdown |
//! | `endpoint` | statistics over HTTP |
//!
//! What one core owns, wheel and slab and counters, is [`corewheel_shard`], which knows no thread,
//! no clock and no atomic.
#![forbid(unsafe_code)]

mod clock;
mod conn;
mod directory;
mod driver;
#[cfg(feature = "endpoint")]
mod endpoint;
mod face;
mod kit;
mod link;
mod service;
mod shard;
mod stats;
mod values;

pub use crate::clock::{Clock, ManualClock};
pub use crate::conn::{
    AdoptError, ArmError, ConnError, ConnLimits, ConnTimers, DeadlineKind, IdleEvent, PackedConn,
    Raced, ReadInProgress, WriteInProgress,
};
pub use crate::driver::attach::Attachment;
pub use crate::driver::own_loop::{ShardLoop, Sleep as LoopSleep};
#[cfg(feature = "endpoint")]
pub use crate::endpoint::{EndpointError, StatsEndpoint, StatsEndpointBuilder};
pub use crate::face::callback::{Callback, Fired, Handler, LocalCall, RemoteTask, SendCall, Task};
pub use crate::face::classed::{Classed, ClassedClient};
pub use crate::face::client::many::{Answers, AnswersFuture};
pub use crate::face::client::{Answer, AnswerFuture, Batch, Client, Refused};
pub use crate::face::report::{Returned, ShardReport, ShutdownReport};
pub use crate::face::sleep::{RemoteSleep, Sleep};
pub use crate::face::timers::{Deadline, Timers};
pub use crate::kit::delay_queue::DelayQueue;
pub use crate::kit::group::TimerGroup;
pub use crate::kit::herd::{Jitter, Spread};
pub use crate::kit::interval::{Interval, MissedTickBehavior, Plan};
pub use crate::kit::keyed::{Inserted, KeyedTimers, WeakKeyedTimers};
pub use crate::kit::purgatory::{
    Completion, Operation, OperationFn, OperationId, Purgatory, PurgatoryBuilder, PurgatoryStats,
    Watch, WatchError, WeakPurgatory,
};
pub use crate::kit::repeat::{OnPanic, Periodic, PeriodicRun, RemotePeriodic, Repeat, StopOutcome};
pub use crate::kit::scaled::{ScaledStats, ScaledTimeout, ScaledTimeouts, WeakScaledTimeouts};
pub use crate::kit::scheduled::{RemoteScheduled, RemoteScheduledFuture, Scheduled, TaskError};
pub use crate::kit::sink::{Sink, SinkError, SinkPolicy, ToSink};
#[cfg(all(feature = "glommio", target_os = "linux"))]
pub use crate::kit::task_queue::OnTaskQueue;
pub use crate::service::builder::{TimerServiceBuilder, no_tasks};
pub use crate::service::{Spawned, StatsSource, TimerService};
pub use crate::shard::turn::Turn;
pub use crate::stats::class::{ClassCounts, ClassStats};
pub use crate::stats::counts::ShardCounts;
pub use crate::stats::times::{Bucket, Times};
pub use crate::stats::{ServiceStats, ShardStats};
pub use crate::values::class::{TimerClass, UnknownClass};
pub use crate::values::error::{
    AttachError, Closed, ConfigError, Elapsed, ScheduleError, ScheduleManyError, ShutdownError,
    SleepError, SpawnError, StartError, TimeoutError, WaitError,
};
pub use crate::values::expired::{DelayKey, Expired, InsertError};
pub use crate::values::handle::{ShardId, TimerHandle};
pub use crate::values::migration::{DrainError, DrainReport, MoveError};
pub use crate::values::outcome::{CancelOutcome, ResetOutcome};
pub use crate::values::scale::Scale;
pub use crate::values::settings::{Placement, Runtime, TurnBudget};
pub use crate::values::shutdown::ShutdownPolicy;
pub use crate::values::state::ShardState;
pub use corewheel_shard::{Tick, TimerKey, WheelKind};

/// The README's code, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! A sharded, per-core timer service for high-throughput network servers.
#![forbid(unsafe_code)]

mod bell;
mod gate;
mod sync;

#[cfg(not(corewheel_loom))]
mod client;
#[cfg(not(corewheel_loom))]
mod clock;
#[cfg(not(corewheel_loom))]
mod config;
#[cfg(not(corewheel_loom))]
mod core;
#[cfg(not(corewheel_loom))]
mod driver;
#[cfg(not(corewheel_loom))]
mod error;
#[cfg(not(corewheel_loom))]
mod handle;
#[cfg(not(corewheel_loom))]
mod lane;
#[cfg(not(corewheel_loom))]
mod mesh;
#[cfg(not(corewheel_loom))]
mod service;
#[cfg(not(corewheel_loom))]
mod sleep;
#[cfg(not(corewheel_loom))]
mod start;
#[cfg(not(corewheel_loom))]
mod stats;
#[cfg(not(corewheel_loom))]
mod task;
#[cfg(not(corewheel_loom))]
mod timers;
#[cfg(not(corewheel_loom))]
mod turn;

#[cfg(not(corewheel_loom))]
mod exports {
    pub use crate::client::{Answer, AnswerFuture, Batch, Client, Refused, RemoteSleep};
    pub use crate::clock::{Clock, ManualClock};
    pub use crate::config::{Placement, Runtime, TurnBudget};
    pub use crate::driver::own_loop::{ShardLoop, Sleep as LoopSleep};
    pub use crate::error::{
        AttachError, Closed, ConfigError, Elapsed, ScheduleError, ShutdownError, SleepError,
        SpawnError, StartError, TimeoutError, WaitError,
    };
    pub use crate::handle::{ShardId, TimerHandle};
    pub use crate::service::{
        Attachment, Returned, ShardReport, ShutdownPolicy, ShutdownReport, Spawned, StatsSource,
        TimerService, TimerServiceBuilder, no_tasks,
    };
    pub use crate::sleep::Sleep;
    pub use crate::stats::{Bucket, ServiceStats, ShardCounts, ShardState, ShardStats, Times};
    pub use crate::task::{
        Callback, CancelOutcome, Fired, Handler, LocalCall, RemoteTask, ResetOutcome, SendCall,
        Task,
    };
    pub use crate::timers::Timers;
    pub use crate::turn::Turn;
    pub use corewheel_shard::{Tick, TimerKey, WheelKind};
}
#[cfg(not(corewheel_loom))]
pub use exports::*;

//! Settings of a service that are seldom changed: how much one turn may do, and which wheel it
//! has. The scale of its timeouts is set while it runs.
//!
//! ```
//! use corewheel::settings::{TurnBudget, WheelKind};
//! use corewheel::{ShutdownPolicy, TimerService};
//! use std::time::Duration;
//!
//! let budget = TurnBudget { time_max: Some(Duration::from_micros(200)), ..TurnBudget::default() };
//! let service = TimerService::builder()
//!     .shards(1)
//!     .unpinned()
//!     .wheel(WheelKind::Hierarchical)
//!     .budget(budget)
//!     .start()?;
//! let _report = service.shutdown(ShutdownPolicy::Drop)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The other settings are plain values: see [`TimerServiceBuilder`](crate::TimerServiceBuilder).

use std::time::Duration;

pub use corewheel_shard::WheelKind;
use corewheel_shard::{Budget, ShardConfig, TickLength};

use super::class::Classes;
pub use super::scale::Scale;
pub use super::warning_limits::WarningLimits;

/// How much later than the activity of a connection on a shard its stamp may be, apart from a tick
/// and the time for which the thread is held up, in nanoseconds.
pub(crate) const STAMP_SPAN: u64 = 10_000_000;

/// How much one turn of a shard may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct TurnBudget {
    /// The most requests that are received from lanes, at least one of each lane.
    pub requests_max: u32,
    /// The most timers that are delivered; scaled timeouts count as timers.
    pub expired_max: u32,
    /// The most entries of the wheel that are looked at.
    pub work_max: u32,
    /// For how long timers are delivered, including the work of their handlers; at least one timer
    /// is delivered. `None` sets no limit beside the counts.
    ///
    /// Set it where handlers do work of their own and other tasks of the server must not wait for
    /// 384 of them. Shorter than a microsecond means one timer a turn.
    pub time_max: Option<Duration>,
}

impl Default for TurnBudget {
    /// 1,024 requests, 384 timers, 1,024 entries, any time.
    fn default() -> Self {
        let Budget { expired_max, work_max } = Budget::default();
        Self { requests_max: 1_024, expired_max, work_max, time_max: None }
    }
}

/// The settings of a service, checked and converted.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) shards: usize,
    pub(crate) tick: TickLength,
    pub(crate) shard: ShardConfig,
    pub(crate) lane_capacity: usize,
    /// The keys of a shard that other threads hold in advance at first, all together.
    pub(crate) grant_share: usize,
    /// The most keys of a shard that a thread holds in advance.
    pub(crate) grant_window: usize,
    pub(crate) budget: TurnBudget,
    /// Beyond how many nanoseconds a delivery is late.
    pub(crate) lateness_bound: u64,
    pub(crate) overrun: Duration,
    pub(crate) warnings: WarningLimits,
    /// With how many requests a lane counts as flooded.
    pub(crate) lane_flood: u64,
    pub(crate) name: String,
    /// Not left to the host, so futures know what they run on.
    pub(crate) is_runtime_chosen: bool,
    pub(crate) classes: Classes,
    /// The cpu of each shard, where it is pinned.
    pub(crate) cpus: Vec<Option<usize>>,
}

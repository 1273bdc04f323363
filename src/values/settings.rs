//! The settings of a service, checked and worked out, and the types that they are made of.

use std::time::Duration;

use corewheel_shard::{Budget, ShardConfig, TickLength};

use super::class::Classes;

/// What the shards of a service run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Runtime {
    /// Glommio where `io_uring` works, else tokio, else plain threads. Found out once, at the
    /// start, and logged with the reason.
    ///
    /// A shard takes seven open files, two threads and 6 MiB of address space on glommio, four open
    /// files and a thread on tokio, and a thread without an executor. Where a limit of the process
    /// or the container does not leave as much for all shards, the next runtime is tried.
    #[default]
    Auto,
    /// A glommio executor for each shard. It takes 0.5 MB of memory and seven descriptors, and 256
    /// of them start in 0.2 s: the service registers 256 KiB with the rings of each for direct
    /// reads and writes of files, where glommio's own default of 10 MiB takes 10 MB a shard and
    /// seconds. A server whose files need more attaches the shards to executors of its own.
    Glommio,
    /// A current-thread tokio runtime with a `LocalSet` for each shard.
    Tokio,
    /// A plain thread for each shard: callbacks and typed timers only, no futures. After a stall,
    /// as at any time, a turn receives what other threads have sent before it delivers.
    Thread,
}

/// Where the threads of a service run. Without effect on attached shards.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Placement {
    /// Shard `n` is pinned to the `n`th of the cpus that the process may use, and round again if
    /// there are more shards than cpus.
    #[default]
    Pinned,
    /// Shard `n` is pinned to the `n`th of these.
    Cpus(Vec<usize>),
    /// The scheduler decides.
    Unpinned,
}

/// How much one turn of a shard may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TurnBudget {
    /// The most requests that are taken off lanes, at least one of each lane. The timers that a
    /// drain moves count as requests; a drain moves one at least.
    pub requests_max: u32,
    /// The most timers that are delivered; scaled timeouts count as timers.
    pub expired_max: u32,
    /// The most entries of the wheel that are looked at.
    pub work_max: u32,
    /// For how long timers are delivered, what their handlers do included; one at least is. `None`
    /// leaves it at the counts.
    ///
    /// Set it where handlers do work of their own and the server's other tasks must not wait for
    /// 512 of them. Shorter than a microsecond means one timer a turn.
    pub time_max: Option<Duration>,
}

impl Default for TurnBudget {
    /// 1,024 requests, 512 timers, 1,024 entries, any time.
    fn default() -> Self {
        let Budget { expired_max, work_max } = Budget::default();
        Self { requests_max: 1_024, expired_max, work_max, time_max: None }
    }
}

impl TurnBudget {
    pub(crate) fn of_wheel(self) -> Budget {
        Budget { expired_max: self.expired_max, work_max: self.work_max }
    }
}

/// The settings of a service, checked and worked out.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) shards: usize,
    pub(crate) tick: TickLength,
    pub(crate) shard: ShardConfig,
    pub(crate) lane_capacity: usize,
    /// The most keys that a client holds in advance.
    pub(crate) grant_window: usize,
    pub(crate) budget: TurnBudget,
    pub(crate) lateness_bound: Duration,
    pub(crate) overrun: Duration,
    pub(crate) name: String,
    pub(crate) spin: Duration,
    pub(crate) classes: Classes,
    /// The cpu of each shard, where it is pinned.
    pub(crate) cpus: Vec<Option<usize>>,
}

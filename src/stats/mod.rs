//! What each shard has done, is doing and how late it was, readable from any thread.
//!
//! A shard keeps its counts in plain numbers and stores them once a turn, relaxed, into a line of
//! atomics of its own ([`Published`](publish::Published)); what its own core's tasks do while it
//! sleeps between turns is stored as they do it. A reader takes no lock that the shard's turn takes
//! and sends it nothing. The counts of one reading were stored together: a reader that comes while
//! the shard stores them reads again.
//!
//! Cost: publishing is some fifty stores a turn, and a few hundred where something fired since.

pub(crate) mod class;
pub(crate) mod counts;
pub(crate) mod publish;
pub(crate) mod times;

use std::time::Duration;

use serde::Serialize;

use self::class::ClassStats;
pub(crate) use self::counts::ShardCounts;
use self::times::Times;
use crate::values::handle::ShardId;
use crate::values::scale::Scale;
use crate::values::state::ShardState;

/// One shard at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct ShardStats {
    /// Which shard.
    pub shard: ShardId,
    /// Whether it takes timers.
    pub state: ShardState,
    /// By what its scaled timeouts are scaled.
    pub scale: Scale,
    /// What it has counted.
    #[serde(flatten)]
    pub counts: ShardCounts,
    /// What it has counted for each class of timers, in the order in which the builder was told of
    /// them.
    pub classes: Vec<ClassStats>,
    /// How long after their deadline, rounded up to a tick, timers and scaled timeouts were
    /// delivered.
    pub lateness: Times,
    /// How long timers from other threads were under way to the shard.
    pub ring_delay: Times,
}

/// A service at one moment: a plain value.
///
/// ```
/// # use corewheel::{Fired, ManualClock, TimerService, Timers};
/// # let clock = ManualClock::new();
/// # let service: TimerService<u64> =
/// #     TimerService::builder().shards(1).clock(clock.clock()).start_attached()?;
/// # let shard = service.attach(service.shards().next().unwrap())?;
/// # let mut shard = shard.into_loop(|_: Fired<u64>, _: &Timers<u64>| {})?;
/// # let timers = shard.timers().clone();
/// # use std::time::Duration;
/// timers.schedule(Duration::from_millis(5), 1)?;
/// timers.schedule(Duration::from_secs(60), 2)?;
/// clock.advance(Duration::from_millis(7));
/// let _next = shard.turn();
///
/// let stats = service.stats();
/// let shard = &stats.shards[0];
/// assert_eq!((shard.counts.fired, shard.counts.pending, shard.counts.late), (1, 1, 0));
/// assert!(shard.lateness.p99_ns >= 2_000_000, "it came 2 ms after its time");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct ServiceStats {
    /// The service's name.
    pub name: String,
    /// What its shards run on.
    pub runtime: &'static str,
    /// The length of a tick in nanoseconds.
    pub tick_ns: u64,
    /// The bound beyond which a delivery counts as late, in nanoseconds.
    pub lateness_bound_ns: u64,
    /// How long the service has been up.
    pub uptime: Duration,
    /// Its shards, in order.
    pub shards: Vec<ShardStats>,
}

impl ServiceStats {
    /// The classes of timers, all shards together, in the order in which the builder was told of
    /// them.
    pub fn classes(&self) -> Vec<ClassStats> {
        ClassStats::sum(self.shards.iter().map(|shard| &*shard.classes))
    }
}

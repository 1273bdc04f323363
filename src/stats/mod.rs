//! Statistics of a service, readable from any thread.
//!
//! ```
//! use corewheel::TimerService;
//! use corewheel::clock::ManualClock;
//! use std::time::Duration;
//!
//! let clock = ManualClock::new();
//! let service = TimerService::builder().shards(1).clock(&clock).start_attached_with::<u64>()?;
//! let attachment = service.attach(service.shards().next().unwrap())?;
//! let mut shard = attachment.into_loop(|_, _| {})?;
//! shard.timers().schedule(Duration::from_millis(5), 1)?;
//! shard.timers().schedule(Duration::from_secs(60), 2)?;
//! clock.advance(Duration::from_millis(7));
//! let _next = shard.turn();
//!
//! let stats = service.stats();
//! let shard = &stats.shards[0];
//! assert_eq!((shard.counts.fired, shard.counts.pending, shard.counts.late), (1, 1, 0));
//! assert!(shard.lateness.p99_ns >= 2_000_000, "it was delivered 2 ms after its deadline");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`ServiceStats`] is a plain value, which serde can serialize. `StatsEndpoint` serves it over
//! HTTP. A [`StatsSource`] reads the statistics where the service itself is not at hand.
//!
//! A shard keeps its counts in plain numbers and stores them once a turn, relaxed, into a line of
//! atomics of its own; commands on its own core, between turns, store the counts that they change.
//! A reader takes no lock that the shard's turn takes and sends it nothing. The counts of one
//! reading were stored together: a reader that comes while the shard stores them reads again.
//!
//! Cost: publishing is some fifty stores a turn, and a few hundred where a timer fired since.

pub(crate) mod class;
pub(crate) mod counts;
#[cfg(all(test, corewheel_loom))]
mod loom_tests;
pub(crate) mod publish;
pub(crate) mod times;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::class::{ClassLateness, ClassStats};
pub use self::counts::ShardCounts;
pub use self::times::{Bucket, Times};
use crate::values::handle::ShardId;
use crate::values::scale::Scale;
pub use crate::values::state::ShardState;

/// One shard at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ShardStats {
    /// The id of the shard.
    pub shard: ShardId,
    /// Whether it takes timers.
    pub state: ShardState,
    /// The scale of its scaled timeouts.
    pub scale: Scale,
    /// The counts of the shard.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub counts: ShardCounts,
    /// The counts of the shard for each class of timers, in the order in which the builder was
    /// given the classes.
    pub classes: Vec<ClassStats>,
    /// How long after their deadline, rounded up to a tick, timers and scaled timeouts were
    /// delivered.
    pub lateness: Times,
    /// How long timers from other threads were on the way to the shard.
    pub ring_delay: Times,
}

/// A service at one moment: a plain value. See the [module](self) for an example.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ServiceStats {
    /// The service's name.
    pub name: String,
    /// The runtime of its shards: `glommio`, `tokio`, `thread` or `attached`.
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
    /// The classes of timers, all shards together, in the order in which the builder was given
    /// them.
    pub fn classes(&self) -> Vec<ClassStats> {
        ClassStats::sum(self.shards.iter().map(|shard| &*shard.classes))
    }
}

/// Reads the statistics of a service, from any thread and also after the
/// [`TimerService`](crate::TimerService) is dropped; made by
/// [`TimerService::stats_source`](crate::TimerService::stats_source).
#[derive(Clone)]
pub struct StatsSource(Arc<dyn Fn() -> ServiceStats + Send + Sync>);

impl StatsSource {
    pub(crate) fn new(read: impl Fn() -> ServiceStats + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// The statistics at this moment.
    pub fn read(&self) -> ServiceStats {
        (self.0)()
    }
}

impl fmt::Debug for StatsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StatsSource(..)")
    }
}

//! The report of a shutdown: the counts of each shard, and the timers that it returns.
//!
//! ```
//! use corewheel::clock::ManualClock;
//! use corewheel::shutdown::Returned;
//! use corewheel::{ShutdownPolicy, TimerService};
//! use std::time::Duration;
//!
//! let clock = ManualClock::new();
//! let service = TimerService::builder().shards(1).clock(&clock).start_attached_with()?;
//! let attachment = service.attach(service.shard_for(0))?;
//! let mut shard = attachment.into_loop(|fired, _| println!("{} has fired", fired.payload))?;
//! shard.timers().schedule(Duration::from_millis(5), "a short timer")?;
//! shard.timers().schedule(Duration::from_secs(60), "a long timer")?;
//! clock.advance(Duration::from_millis(5));
//! let _ = shard.turn();
//!
//! // `TimerService::shutdown` does this for all shards.
//! let report = shard.shutdown(ShutdownPolicy::Return);
//! assert_eq!((report.counts.fired, report.counts.returned), (1, 1));
//! for Returned { payload, .. } in report.returned {
//!     assert_eq!(payload.into_value(), Some("a long timer"));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Every timer that the service has accepted is accounted for: it has fired, was cancelled, or is
//! returned or dropped by the [`ShutdownPolicy`](crate::ShutdownPolicy) and counted.

use std::time::Instant;

use crate::clock::Timeline;
use crate::shard::request::Report;
use crate::shard::timers::{Payload, SendCall};
use crate::stats::{ClassStats, ShardCounts};
use crate::values::ids::{ShardId, TimerId};

/// A timer that a shutdown returns.
#[derive(Debug)]
#[non_exhaustive]
pub struct Returned<T: 'static> {
    /// The timer's id, which is stale now.
    pub timer: TimerId,
    /// The deadline of the timer.
    pub deadline: Instant,
    /// The payload. A callback or future of the shard's own core is [`Payload::Local`].
    pub payload: Payload<T, SendCall<T>>,
}

/// How one shard ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct ShardReport<T: 'static> {
    /// The id of the shard.
    pub shard: ShardId,
    /// The shard's counts, from its start to its end.
    pub counts: ShardCounts,
    /// The counts of each class of timers, in the order of the builder.
    pub classes: Vec<ClassStats>,
    /// The number of timers that did not fire: `counts.returned + counts.dropped`.
    pub unfired: u64,
    /// The timers that the shutdown returns.
    pub returned: Vec<Returned<T>>,
}

impl<T: 'static> ShardReport<T> {
    /// The report of a shard that was never driven.
    pub(crate) fn empty(shard: ShardId, classes: Vec<ClassStats>) -> Self {
        let counts = ShardCounts::default();
        Self { shard, counts, classes, unfired: 0, returned: Vec::new() }
    }

    /// The report of a shard of this service.
    pub(crate) fn new(report: Report<T>, time: &Timeline) -> Self {
        let Report { shard, counts, classes, mut returned } = report;
        let returned = returned.take().into_iter().map(|timer| Returned {
            timer: timer.timer,
            deadline: time.instant(timer.deadline),
            payload: timer.payload,
        });
        let returned = returned.collect();
        Self { shard, counts, classes, unfired: counts.returned + counts.dropped, returned }
    }
}

/// How a service ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct ShutdownReport<T: 'static> {
    /// The shards that this shutdown has ended, in order.
    pub shards: Vec<ShardReport<T>>,
    /// The shards that had ended before, or ended meanwhile without a report.
    pub dead: Vec<ShardId>,
}

impl<T> ShutdownReport<T> {
    /// All timers that the shutdown returns.
    pub fn into_returned(self) -> impl Iterator<Item = Returned<T>> {
        self.shards.into_iter().flat_map(|shard| shard.returned)
    }
}

//! The report of a shutdown: the statistics of each shard, and the timers that it returns.
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
//! let counts = report.shards[0].counts;
//! assert_eq!((counts.fired, counts.returned), (1, 1));
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
use crate::stats::ShardStats;
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

/// How a service, or one shard of it, ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct ShutdownReport<T: 'static> {
    /// The shards that this shutdown has ended, in order, each with its counts from its start to
    /// its end. Timers that did not fire are its `returned` and its `dropped` ones.
    pub shards: Vec<ShardStats>,
    /// The timers that the shutdown returns.
    pub returned: Vec<Returned<T>>,
    /// The shards that had ended before, or ended meanwhile without a report.
    pub dead: Vec<ShardId>,
}

impl<T> ShutdownReport<T> {
    pub(crate) const fn new() -> Self {
        Self { shards: Vec::new(), returned: Vec::new(), dead: Vec::new() }
    }

    /// Adds the report of a shard.
    pub(crate) fn add(&mut self, report: Report<T>, time: &Timeline) {
        let Report { stats, mut returned } = report;
        self.shards.push(stats);
        self.returned.extend(returned.take().into_iter().map(|timer| Returned {
            timer: timer.timer,
            deadline: time.instant(timer.deadline),
            payload: timer.payload,
        }));
    }
}

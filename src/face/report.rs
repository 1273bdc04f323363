//! How a service ends: what becomes of what is pending, and what is told about it.

use std::time::Instant;

use super::callback::RemoteTask;
use super::stored::Stored;
use crate::clock::Timeline;
use crate::shard::shutdown::Report;
use crate::stats::ShardCounts;
use crate::stats::class::ClassStats;
use crate::values::handle::{ShardId, TimerHandle};

/// A timer that was handed back by a shutdown.
#[derive(Debug)]
#[non_exhaustive]
pub struct Returned<T: 'static> {
    /// What it was known by.
    pub handle: TimerHandle,
    /// When it would have been due.
    pub deadline: Instant,
    /// What it was scheduled with.
    pub task: RemoteTask<T>,
}

/// How one shard ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct ShardReport<T: 'static> {
    /// Which shard.
    pub shard: ShardId,
    /// What it has counted from beginning to end.
    pub counts: ShardCounts,
    /// The same for each class of timers, in the order in which the builder was told of them.
    pub classes: Vec<ClassStats>,
    /// How many timers were handed back or dropped.
    pub unfired: u64,
    /// Those that were handed back.
    pub returned: Vec<Returned<T>>,
}

impl<T: 'static> ShardReport<T> {
    /// The report of a shard that was never driven.
    pub(crate) fn empty(shard: ShardId, classes: Vec<ClassStats>) -> Self {
        let counts = ShardCounts::default();
        Self { shard, counts, classes, unfired: 0, returned: Vec::new() }
    }

    /// The report of a shard of this service.
    pub(crate) fn new(report: Report<Stored<T>>, time: &Timeline) -> Self {
        let Report { shard, counts, classes, mut returned } = report;
        let returned = returned.take().into_iter().map(|timer| Returned {
            handle: timer.handle,
            deadline: time.instant(timer.deadline),
            task: timer.payload,
        });
        let returned = returned.collect();
        Self { shard, counts, classes, unfired: counts.returned, returned }
    }
}

/// How a service ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct ShutdownReport<T: 'static> {
    /// The shards that were at work until now, in order.
    pub shards: Vec<ShardReport<T>>,
    /// The shards that had ended before, or died meanwhile.
    pub dead: Vec<ShardId>,
}

impl<T> ShutdownReport<T> {
    pub(crate) fn new(
        answers: impl IntoIterator<Item = (ShardId, Option<ShardReport<T>>)>,
    ) -> Self {
        let mut report = Self { shards: Vec::new(), dead: Vec::new() };
        for (shard, answer) in answers {
            match answer {
                Some(answer) => report.shards.push(answer),
                None => report.dead.push(shard),
            }
        }
        report
    }

    /// All timers that were handed back.
    pub fn into_returned(self) -> impl Iterator<Item = Returned<T>> {
        self.shards.into_iter().flat_map(|shard| shard.returned)
    }
}

//! How a service ends: what becomes of what is pending, and what is told about it.

use std::time::Instant;

use crate::class_stats::ClassStats;
use crate::contain::drop_each;
use crate::handle::{ShardId, TimerHandle};
use crate::stats::ShardCounts;
use crate::task::RemoteTask;

/// What a shutdown does with timers that have not fired.
///
/// ```
/// use corewheel::{Runtime, ShardId, ShutdownPolicy, TimerService};
/// use corewheel::{Fired, Timers};
/// use std::time::Duration;
///
/// let service = TimerService::builder()
///     .shards(1)
///     .runtime(Runtime::Thread)
///     .start_with(|_| |_: Fired<&str>, _: &Timers<&str>| {})?;
/// service.client().schedule_on(ShardId::new(0), Duration::from_secs(60), "a lease")?;
///
/// let report = service.shutdown(ShutdownPolicy::Return)?;
/// let counts = report.shards[0].counts;
/// assert_eq!((counts.returned, counts.pending), (1, 0));
/// let leases = report.into_returned().filter_map(|timer| timer.task.into_value());
/// assert_eq!(leases.collect::<Vec<_>>(), ["a lease"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShutdownPolicy {
    /// Hands them back in the report.
    Return,
    /// Fires them now, in the order of their deadlines. What they schedule is refused.
    Fire,
    /// Drops them and counts them.
    Drop,
}

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

impl<T> ShardReport<T> {
    pub(crate) fn new(
        shard: ShardId,
        counts: &ShardCounts,
        classes: Vec<ClassStats>,
        returned: Vec<Returned<T>>,
    ) -> Self {
        Self { shard, counts: *counts, classes, unfired: counts.returned, returned }
    }
}

/// A report on its way to a caller. If it is dropped unread, so are the tasks in it, one at a time.
pub(crate) struct UnreadReport<T: 'static>(Option<ShardReport<T>>);

impl<T> UnreadReport<T> {
    pub(crate) fn new(report: ShardReport<T>) -> Self {
        Self(Some(report))
    }

    fn read(mut self) -> Option<ShardReport<T>> {
        self.0.take()
    }
}

impl<T> Drop for UnreadReport<T> {
    fn drop(&mut self) {
        drop_each(self.0.take().into_iter().flat_map(|report| report.returned));
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
        answers: impl IntoIterator<Item = (ShardId, Option<UnreadReport<T>>)>,
    ) -> Self {
        let mut report = Self { shards: Vec::new(), dead: Vec::new() };
        for (shard, answer) in answers {
            match answer.and_then(UnreadReport::read) {
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

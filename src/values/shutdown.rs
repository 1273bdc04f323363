//! What a shutdown does with the timers that are pending.

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

//! The policy of a shutdown for pending timers.

/// The outcome of the timers that are pending when a shard is shut down.
///
/// ```
/// use corewheel::{Runtime, ShardId, ShutdownPolicy, TimerService};
/// use std::time::Duration;
///
/// let service = TimerService::builder()
///     .shards(1)
///     .runtime(Runtime::Thread)
///     .start_with(|_| |_fired, _timers| {})?;
/// service.handle().on(ShardId::new(0)).schedule(Duration::from_secs(60), "a lease")?;
///
/// let report = service.shutdown(ShutdownPolicy::Return)?;
/// let counts = report.shards[0].counts;
/// assert_eq!((counts.returned, counts.pending), (1, 0));
/// let leases = report.returned.into_iter().filter_map(|timer| timer.payload.into_value());
/// assert_eq!(leases.collect::<Vec<_>>(), ["a lease"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShutdownPolicy {
    /// The report hands the timers back; they count as `returned`.
    Return,
    /// The timers fire now, in the order of their deadlines. A timer that they schedule is refused.
    Fire,
    /// The timers are dropped; they count as `dropped`.
    Drop,
}

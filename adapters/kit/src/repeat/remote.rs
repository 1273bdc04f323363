//! Periodic callbacks on a shard, for other threads.

use std::sync::Arc;
use std::time::Instant;

use corewheel::{Handle, RefusedCall, TimerId, Timers, When};

use super::options::Body;
use super::phase::{Own, Phase, Shared};
use super::repeating::Repeating;
use super::{PeriodicRun, StopOutcome};

/// A callback that begins the runs.
pub(crate) type Begin<T> = Box<dyn FnOnce(&Timers<T>) + Send>;

/// A callback that runs periodically on a shard, for other threads; made by
/// [`HandleExt::repeat`](crate::HandleExt::repeat) and
/// [`HandleExt::repeat_by_plan`](crate::HandleExt::repeat_by_plan).
///
/// `Send` and `Sync`. It does not own the callback: when it and all its clones are dropped, the
/// callback goes on.
#[derive(Clone, Debug)]
pub struct RemotePeriodic {
    first: TimerId,
    shared: Arc<Shared>,
}

impl RemotePeriodic {
    /// Stops the callback, at once and without waiting for the shard.
    ///
    /// A stop cannot be refused: after `Stopped` the callback is not running and will not run. Any
    /// handle of the service will do. It asks the shard to drop the callback and to free its timer,
    /// which the shard does in its next turn. Before the first run it does so within a second, as
    /// [`Handle::cancel_detached`] says.
    pub fn stop<T: Send + 'static>(&self, handle: Handle<T>) -> StopOutcome {
        let (phase, outcome) = self.shared.stop();
        match (phase, self.shared.free.get()) {
            (Phase::First, _) => handle.cancel_detached(self.first),
            (Phase::Waits, Some(free)) => free(),
            _ => {}
        }
        outcome
    }

    /// Whether the callback will not run again.
    pub fn is_over(&self) -> bool {
        self.shared.phase() == Phase::Over
    }
}

/// Begins a periodic callback from any thread.
pub(crate) fn begin<T, F, N>(
    handle: Handle<T>,
    first: impl When,
    mut body: Body<F, N>,
) -> Result<RemotePeriodic, RefusedCall<Begin<T>>>
where
    T: Send + 'static,
    F: FnMut(&mut PeriodicRun<'_, T>) + Send + 'static,
    N: FnMut(Instant) -> Option<Instant> + Send + 'static,
{
    let (clock, due) = (handle.clock(), handle.instant_of(first));
    let aim = body.aim(&clock, due);
    let deadline = handle.deadline_with_slack(aim, body.slack);
    let own = Own::new(true);
    let shared = Arc::clone(&own.0);
    let begin = move |timers: &Timers<T>| {
        let timers = timers.with_class_of(handle);
        Repeating::begin_now(&timers, body, clock, (due, aim), own);
    };
    Ok(RemotePeriodic { first: handle.schedule_fn(deadline, begin)?, shared })
}

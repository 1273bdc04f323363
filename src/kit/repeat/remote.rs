//! Periodic callbacks on a shard, for other threads.

use std::sync::Arc;
use std::time::Instant;

use super::options::Body;
use super::phase::{Own, Phase, Shared};
use super::repeating::Repeating;
use super::{PeriodicRun, Repeat, StopOutcome};
use crate::{Handle, RefusedCall, TimerId, Timers, When};

/// A callback that begins the runs.
type Begin<T> = Box<dyn FnOnce(&Timers<T>) + Send>;

/// A callback that runs periodically on a shard, for other threads; made by
/// [`Handle::repeat`] and [`Handle::repeat_by_plan`].
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

/// Periodic callbacks.
impl<T: Send + 'static> Handle<T> {
    /// Runs a callback periodically on the shard of this handle, or of this thread, as
    /// [`Timers::repeat`] does there. The instant of its first run is computed on the calling
    /// thread.
    ///
    /// ```
    /// use corewheel::repeat::{Repeat, StopOutcome};
    /// use corewheel::{ShutdownPolicy, TimerService};
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    ///
    /// let service = TimerService::builder().shards(1).start()?;
    /// let handle = service.handle();
    /// let shard = handle.on(service.shards().next().unwrap());
    ///
    /// let (sender, beats) = mpsc::channel();
    /// let every = Repeat::at_fixed_rate(Duration::from_millis(2))?;
    /// let heartbeat = shard.repeat(every, move |run| {
    ///     // The receiver is gone at the end of this example.
    ///     let _ = sender.send(run.number());
    /// })?;
    /// assert_eq!((beats.recv()?, beats.recv()?), (0, 1));
    /// // It was waiting, or is running for the last time.
    /// assert_ne!(heartbeat.stop(handle), StopOutcome::AlreadyOver);
    /// assert_ne!(heartbeat.stop(handle), StopOutcome::Stopped);
    /// service.shutdown(ShutdownPolicy::Drop)?;
    /// assert!(heartbeat.is_over());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Full`, `Busy`, `Closed` or `NoSuchShard`, with a callback that begins the runs, the first
    /// of them at once, where it is run. After its first run was accepted, no later run is refused.
    pub fn repeat<F>(
        &self,
        repeat: Repeat,
        call: F,
    ) -> Result<RemotePeriodic, RefusedCall<Begin<T>>>
    where
        F: FnMut(&mut PeriodicRun<'_, T>) + Send + 'static,
    {
        self.begin(repeat.first_due(), repeat.with(call))
    }

    /// Runs a callback by a plan on the shard of this handle, or of this thread, as
    /// [`Timers::repeat_by_plan`] does there.
    ///
    /// # Errors
    ///
    /// The errors of [`repeat`](Self::repeat).
    pub fn repeat_by_plan<W: When, F, N>(
        &self,
        first: W,
        next: N,
        call: F,
    ) -> Result<RemotePeriodic, RefusedCall<Begin<T>>>
    where
        F: FnMut(&mut PeriodicRun<'_, T>) + Send + 'static,
        N: FnMut(Instant) -> Option<Instant> + Send + 'static,
    {
        self.begin(first, Body::planned(next, call))
    }

    fn begin<F, N>(
        &self,
        first: impl When,
        mut body: Body<F, N>,
    ) -> Result<RemotePeriodic, RefusedCall<Begin<T>>>
    where
        F: FnMut(&mut PeriodicRun<'_, T>) + Send + 'static,
        N: FnMut(Instant) -> Option<Instant> + Send + 'static,
    {
        let (handle, clock, due) = (*self, self.clock(), self.instant_of(first));
        let aim = body.aim(&clock, due);
        let deadline = self.deadline_with_slack(aim, body.slack);
        let own = Own::new(true);
        let shared = Arc::clone(&own.0);
        let begin = move |timers: &Timers<T>| {
            let timers = timers.with_class_of(handle);
            Repeating::begin_now(&timers, body, clock, (due, aim), own);
        };
        Ok(RemotePeriodic { first: self.schedule_fn(deadline, begin)?, shared })
    }
}

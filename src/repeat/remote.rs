//! Periodic callbacks on a shard, from elsewhere.

use std::sync::Arc;
use std::time::Instant;

use super::options::Body;
use super::{Course, PeriodicRun, Repeat, StopOutcome};
use crate::brake::{Brake, Stop};
use crate::class::ClassId;
use crate::client::Client;
use crate::error::ScheduleError;
use crate::handle::{ShardId, TimerHandle};
use crate::herd::slacken;
use crate::task::SendCall;
use crate::timers::Timers;

/// A callback that runs periodically on a shard, as another thread knows it; made by
/// [`Client::repeat_on`] and [`Client::repeat_by_plan_on`].
///
/// `Send` and `Sync`. It does not own the callback: when it and all its clones are dropped, the
/// callback goes on.
#[derive(Clone, Debug)]
pub struct RemotePeriodic {
    first: TimerHandle,
    brake: Arc<Brake>,
}

impl RemotePeriodic {
    /// Stops the callback and says what that came to, at once and without waiting for the shard.
    ///
    /// It cannot be refused, and takes effect at once: after `Stopped` the callback is not running
    /// and will not. Any client of the service will do; it tells the shard to drop the callback and
    /// free its timer when it next comes by.
    pub fn stop<T: Send + 'static>(&self, client: &Client<T>) -> StopOutcome {
        match self.brake.stop() {
            Stop::Over => StopOutcome::AlreadyOver,
            Stop::Runs => StopOutcome::LastRun,
            Stop::Waited(timer) => {
                let later = timer.map(|timer| TimerHandle::new(self.shard(), timer));
                client.cancel_detached(later.unwrap_or(self.first));
                StopOutcome::Stopped
            }
        }
    }

    /// Whether it will not run again.
    pub fn is_over(&self) -> bool {
        self.brake.is_over()
    }

    /// The shard that it runs on.
    pub fn shard(&self) -> ShardId {
        self.first.shard()
    }
}

/// The brake of one callback, which is over when the callback is dropped.
pub(super) struct BrakeOfOne(Arc<Brake>);

impl BrakeOfOne {
    pub(super) fn begin(&self) -> bool {
        self.0.begin()
    }

    pub(super) fn rest(&self, timer: corewheel_shard::TimerKey) -> bool {
        self.0.rest(timer)
    }

    pub(super) fn end(&self) {
        self.0.end();
    }
}

impl Drop for BrakeOfOne {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Periodic callbacks.
impl<T: Send + 'static> Client<T> {
    /// Runs a callback periodically on a shard, as [`Timers::repeat`] does there. The moment of its
    /// first run is worked out here, so the way to the shard is part of it and not on top of it.
    ///
    /// ```
    /// use corewheel::{PeriodicRun, Repeat, ShutdownPolicy, StopOutcome, TimerService};
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    ///
    /// let service = TimerService::builder().shards(1).start()?;
    /// let client = service.client();
    /// let shard = service.shards().next().unwrap();
    ///
    /// let (sender, beats) = mpsc::channel();
    /// let every = Repeat::at_fixed_rate(Duration::from_millis(2))?;
    /// let heart = client.repeat_on(shard, every, move |run: &mut PeriodicRun<'_>| {
    ///     // Nobody listens any more at the end of this.
    ///     let _ = sender.send(run.number());
    /// })?;
    /// assert_eq!((beats.recv()?, beats.recv()?), (0, 1));
    /// // It was waiting, or is running for the last time.
    /// assert_ne!(heart.stop(&client), StopOutcome::AlreadyOver);
    /// assert_ne!(heart.stop(&client), StopOutcome::Stopped);
    /// service.shutdown(ShutdownPolicy::Drop)?;
    /// assert!(heart.is_over());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with what would have begun it on its shard: run by hand it begins with a
    /// run at once. Once it was accepted it cannot be refused.
    pub fn repeat_on<F>(
        &self,
        shard: ShardId,
        repeat: Repeat,
        call: F,
    ) -> Result<RemotePeriodic, ScheduleError<SendCall<T>>>
    where
        F: FnMut(&mut PeriodicRun<'_, T>) + Send + 'static,
    {
        let due = repeat.first(&self.directory().clock, self.now());
        self.begin_on(shard, due, repeat.with(call), ClassId::NONE)
    }

    /// Runs a callback by a plan on a shard, as [`Timers::repeat_by_plan`] does there.
    ///
    /// # Errors
    ///
    /// As for [`repeat_on`](Self::repeat_on).
    pub fn repeat_by_plan_on<F, N>(
        &self,
        shard: ShardId,
        first: Instant,
        next: N,
        call: F,
    ) -> Result<RemotePeriodic, ScheduleError<SendCall<T>>>
    where
        F: FnMut(&mut PeriodicRun<'_, T>) + Send + 'static,
        N: FnMut(Instant) -> Option<Instant> + Send + 'static,
    {
        self.begin_on(shard, first, Body::planned(next, call), ClassId::NONE)
    }

    pub(super) fn begin_on<F, N>(
        &self,
        shard: ShardId,
        due: Instant,
        mut body: Body<F, N>,
        class: ClassId,
    ) -> Result<RemotePeriodic, ScheduleError<SendCall<T>>>
    where
        F: FnMut(&mut PeriodicRun<'_, T>) + Send + 'static,
        N: FnMut(Instant) -> Option<Instant> + Send + 'static,
    {
        let directory = self.directory();
        let aim = body.aim(&directory.clock, due);
        let at = if body.slack.is_zero() {
            aim
        } else {
            let nanos = directory.clock.nanos_at(aim);
            let tick = slacken(directory, directory.tick.ceil(nanos), nanos, body.slack);
            directory.clock.instant(directory.tick.start_of(tick))
        };
        let brake = Arc::new(Brake::new());
        let one = BrakeOfOne(Arc::clone(&brake));
        let begin = move |timers: &Timers<T>| {
            // The first timer's callback is this, the later ones' is the course's own.
            let (_, call) = Course::new(body, class, (due, aim), Some(one));
            call(timers, 0);
        };
        let (deadline, now) = (self.tick_at(at), self.nanos());
        let first = self.schedule_call(class, shard, deadline, now, Box::new(begin))?;
        Ok(RemotePeriodic { first, brake })
    }
}

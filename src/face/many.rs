//! Many commands at once on a shard's own core, and moves to another.

use std::time::{Duration, Instant};

use crate::face::callback::Task;
use crate::face::timers::Timers;
use crate::values::class::ClassId;
use crate::values::error::ScheduleManyError;
use crate::values::handle::{ShardId, TimerHandle};
use crate::values::migration::MoveError;
use crate::values::outcome::CancelOutcome;

impl<T: Send + 'static> Timers<T> {
    /// Ends timers of this shard, and returns what became of each, in the order in which they are
    /// given. The clock is read once.
    ///
    /// Those of other services are answered with `Foreign`, those of other shards with `Elsewhere`,
    /// and nothing is done. For timers of several shards there is
    /// [`Client::cancel_many`](crate::Client::cancel_many), or a [`TimerGroup`](crate::TimerGroup).
    pub fn cancel_many(&self, timers: &[TimerHandle]) -> Vec<CancelOutcome<Task<T>>> {
        let now = self.core().nanos_near();
        let cancel = |timer: &TimerHandle| {
            if timer.home() != self.core().home() {
                return self.cancel_not_here(*timer);
            }
            self.core().cancel(timer.key(), now)
        };
        timers.iter().map(cancel).collect()
    }

    /// Schedules typed timers, each to be given to the service's handler on this core after its
    /// delay: all of them, or none. The handles come in the order of the timers.
    ///
    /// As many as the shard has room for; what is reserved for clients is not touched.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with all timers.
    pub fn schedule_many(
        &self,
        timers: impl IntoIterator<Item = (Duration, T)>,
    ) -> Result<Vec<TimerHandle>, ScheduleManyError<(Duration, T)>> {
        let timers = timers.into_iter().collect();
        let now = self.core().nanos_near();
        self.core().schedule_all(ClassId::NONE, timers, |delay| {
            self.core().time().deadline_after(now, delay)
        })
    }

    /// The same, each for a moment. Those that have passed fire in the next turn.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with all timers.
    pub fn schedule_many_at(
        &self,
        timers: impl IntoIterator<Item = (Instant, T)>,
    ) -> Result<Vec<TimerHandle>, ScheduleManyError<(Instant, T)>> {
        self.core().schedule_all(ClassId::NONE, timers.into_iter().collect(), |at| {
            self.core().deadline_at(at)
        })
    }

    /// Moves a timer of this shard to another, with its deadline, and returns its new name. See
    /// [`Client::move_to`](crate::Client::move_to).
    ///
    /// ```
    /// use std::time::Duration;
    /// use corewheel::{Fired, ManualClock, TimerService, Timers};
    ///
    /// let clock = ManualClock::new();
    /// let builder = TimerService::builder().shards(2).clock(clock.clock());
    /// let service = builder.start_attached::<&str>()?;
    /// let mut shards = Vec::new();
    /// for shard in service.shards() {
    ///     let print = |fired: Fired<&str>, timers: &Timers<&str>| {
    ///         println!("{} fires on {:?}", fired.task, timers.shard_id());
    ///     };
    ///     shards.push(service.attach(shard)?.into_loop(print)?);
    /// }
    /// let [here, there] = [0, 1].map(|n: usize| shards[n].timers().clone());
    ///
    /// // A connection that was accepted here goes to the other core.
    /// let idle = here.schedule(Duration::from_secs(30), "idle")?;
    /// let moved = here.move_to(idle, there.shard_id())?;
    /// assert_eq!(here.moved_to(idle), Some(moved));
    /// assert_eq!(here.len(), 0);
    ///
    /// clock.advance(Duration::from_secs(30));
    /// let _ = shards[1].turn(); // idle fires on shard 1
    /// assert_eq!(there.len(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Why it stays where it is.
    pub fn move_to(&self, timer: TimerHandle, shard: ShardId) -> Result<TimerHandle, MoveError> {
        if timer.home() != self.core().home() {
            let foreign = self.core().is_foreign(timer);
            let elsewhere = MoveError::Elsewhere(timer.shard());
            return Err(if foreign { MoveError::Foreign } else { elsewhere });
        }
        self.core().migrate_to(timer.key(), shard)
    }

    /// The name of a timer that was moved from this shard, for as long as that is remembered; it
    /// may have been moved on from there.
    pub fn moved_to(&self, timer: TimerHandle) -> Option<TimerHandle> {
        if timer.home() != self.core().home() {
            return None;
        }
        self.core().migrated_to(timer.key())
    }
}

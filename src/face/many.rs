//! Bulk commands on a shard's own core, and migration of a timer to another shard.

use crate::clock::when::When;
use crate::face::timers::Timers;
use crate::shard::callback::Payload;
use crate::values::ids::{ShardId, TimerId};
use crate::values::migration::MigrateError;
use crate::values::outcome::CancelOutcome;
use crate::values::refused::Refused;

impl<T: Send + 'static> Timers<T> {
    /// Cancels timers of this shard, and returns the outcome of each, in the order of the ids.
    /// The clock is read once.
    ///
    /// A timer of another service is left as it is and its outcome is `Foreign`; that of a timer of
    /// another shard is `Elsewhere`. After the end of the shard the outcomes are those of
    /// [`cancel`](Self::cancel) then. For timers of several shards there is
    /// [`Handle::cancel_many`](crate::Handle::cancel_many), or a
    /// [`TimerGroup`](crate::group::TimerGroup).
    pub fn cancel_many(&self, timers: &[TimerId]) -> Vec<CancelOutcome<Payload<T>>> {
        let now = self.core().nanos_near();
        let cancel = |timer: &TimerId| {
            if timer.home() != self.core().home() {
                return self.cancel_not_here(*timer);
            }
            self.core().cancel(timer.key(), now).map(Payload::into_local)
        };
        timers.iter().map(cancel).collect()
    }

    /// Schedules timers that carry values: all of them, or none. The ids come in the order of
    /// the timers. The clock is read once.
    ///
    /// The number of timers is limited by the room of the shard. Slots that are reserved for
    /// threads are not used.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with all timers.
    pub fn schedule_many<W: When>(
        &self,
        timers: impl IntoIterator<Item = (W, T)>,
    ) -> Result<Vec<TimerId>, Refused<Vec<(W, T)>>> {
        let timers = timers.into_iter().collect();
        let now = self.core().nanos_near();
        let tick_of = |when| self.core().time().tick_of(when, || now);
        self.core().schedule_all(self.class(), timers, tick_of)
    }

    /// Migrates a timer of this shard to another, with its deadline, and returns its new id.
    /// See [`Handle::migrate`](crate::Handle::migrate).
    ///
    /// ```
    /// use std::time::Duration;
    /// use corewheel::clock::ManualClock;
    /// use corewheel::{Fired, TimerService, Timers};
    ///
    /// let clock = ManualClock::new();
    /// let builder = TimerService::builder().shards(2).clock(&clock);
    /// let service = builder.start_attached_with::<&str>()?;
    /// let mut shards = Vec::new();
    /// for shard in service.shards() {
    ///     let print = |fired: Fired<&str>, timers: &Timers<&str>| {
    ///         println!("{} fires on {:?}", fired.payload, timers.shard_id());
    ///     };
    ///     shards.push(service.attach(shard)?.into_loop(print)?);
    /// }
    /// let [here, there] = [0, 1].map(|n: usize| shards[n].timers().clone());
    ///
    /// // A connection that was accepted here goes to the other core.
    /// let idle = here.schedule(Duration::from_secs(30), "idle")?;
    /// let migrated = here.migrate(idle, there.shard_id())?;
    /// assert_eq!(here.migrated_to(idle), Some(migrated));
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
    /// The reason why the timer stays on this shard.
    pub fn migrate(&self, timer: TimerId, shard: ShardId) -> Result<TimerId, MigrateError> {
        if timer.home() != self.core().home() {
            let foreign = self.core().is_foreign(timer);
            let elsewhere = MigrateError::Elsewhere(timer.shard());
            return Err(if foreign { MigrateError::Foreign } else { elsewhere });
        }
        self.core().migrate_to(timer.key(), shard)
    }

    /// The new id of a timer that has migrated from this shard, for as long as the shard
    /// remembers it. The timer may have migrated further since.
    pub fn migrated_to(&self, timer: TimerId) -> Option<TimerId> {
        if timer.home() != self.core().home() {
            return None;
        }
        self.core().migrated_to(timer.key())
    }
}

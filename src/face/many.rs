//! Bulk commands on a shard's own core.

use crate::clock::when::When;
use crate::face::timers::Timers;
use crate::shard::callback::Payload;
use crate::values::ids::TimerId;
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
}

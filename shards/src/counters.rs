//! The counters of a shard since it was made.

/// The counters of one shard: sums, which only grow.
///
/// After every operation, `pending = scheduled − fired − cancelled − returned`, where `scheduled`
/// is the sum of [`scheduled_local`] and [`scheduled_remote`].
///
/// [`scheduled_local`]: Self::scheduled_local
/// [`scheduled_remote`]: Self::scheduled_remote
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Timers scheduled by [`Shard::schedule`](crate::Shard::schedule).
    pub scheduled_local: u64,
    /// Timers that arrived for a granted key, those included that a cancel overtook.
    pub scheduled_remote: u64,
    /// Timers handed out by [`Shard::pop_expired`](crate::Shard::pop_expired).
    pub fired: u64,
    /// Timers cancelled before they fired.
    pub cancelled: u64,
    /// Of the cancelled timers, those whose cancel came before the timer arrived.
    pub overtaken: u64,
    /// Timers returned by [`Shard::drain`](crate::Shard::drain).
    pub returned: u64,
    /// Schedules refused because the shard was full.
    pub refused: u64,
    /// Cancels and resets whose key named no pending timer.
    pub stale: u64,
    /// Resets to a later or equal deadline, which is one store: the entry of the timer stays where
    /// it is.
    pub reset_lazy: u64,
    /// Resets to an earlier deadline, which takes a new entry.
    pub reset_relinked: u64,
    /// Entries filed again because time came closer to their deadline, or because the timer had
    /// been reset to a later deadline or was postponed.
    pub cascaded: u64,
    /// Entries that [`Shard::soonest`](crate::Shard::soonest) has filed again, since their timers
    /// had been reset to a later deadline; each leaves a stale entry.
    pub refiled: u64,
    /// Entries that [`Shard::soonest`](crate::Shard::soonest) has looked at.
    pub searched: u64,
    /// Stale entries dropped.
    pub swept: u64,
}

impl Counters {
    /// How many timers are pending according to these counters.
    pub const fn pending(&self) -> u64 {
        self.scheduled_local + self.scheduled_remote - self.fired - self.cancelled - self.returned
    }
}

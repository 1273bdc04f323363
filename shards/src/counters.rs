//! What a shard has done since it was made.

/// Counts of one shard: plain numbers that only grow. All of them are sums but [`pending_max`],
/// which is a maximum.
///
/// After every step, `pending = scheduled − fired − cancelled − returned`, where `scheduled` is
/// [`scheduled_local`] and [`scheduled_remote`] together.
///
/// [`pending_max`]: Self::pending_max
/// [`scheduled_local`]: Self::scheduled_local
/// [`scheduled_remote`]: Self::scheduled_remote
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Timers scheduled by [`Shard::schedule`](crate::Shard::schedule).
    pub scheduled_local: u64,
    /// Timers that came after their granted key, cancelled ones included.
    pub scheduled_remote: u64,
    /// Timers handed out as expired.
    pub fired: u64,
    /// Timers cancelled before they fired.
    pub cancelled: u64,
    /// Of the cancelled, those whose cancel came before the timer did.
    pub overtaken: u64,
    /// Timers handed back unfired by [`Shard::drain`](crate::Shard::drain).
    pub returned: u64,
    /// Schedules refused because the shard was full.
    pub refused: u64,
    /// Cancels and resets whose key named no pending timer.
    pub stale: u64,
    /// Deadlines moved by a store: the entry stays where it is.
    pub reset_lazy: u64,
    /// Deadlines moved earlier, which takes a new entry.
    pub reset_relinked: u64,
    /// Entries filed anew as time came closer to their deadline, or because it had been moved.
    pub cascaded: u64,
    /// Stale entries dropped.
    pub swept: u64,
    /// The most timers that were pending at once.
    pub pending_max: u64,
}

impl Counters {
    /// What is pending by these counts.
    pub const fn pending(&self) -> u64 {
        self.scheduled_local + self.scheduled_remote - self.fired - self.cancelled - self.returned
    }
}

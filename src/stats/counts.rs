//! The counts of a shard.

use std::sync::atomic::{AtomicU64, Ordering};

use corewheel_shard::Counters;

/// Defines counts of a shard once: the plain numbers that its turn writes, the atomics that it
/// publishes them in, and the conversion between the two. Fields in braces are public, and not
/// published.
macro_rules! counts {
    (
        $(#[doc = $about:literal])*
        struct $counts:ident, published in $published:ident:
        $({ $($(#[doc = $beside_doc:literal])* $beside:ident: $type:ty,)* })?
        $($(#[doc = $doc:literal])* $name:ident,)*
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        #[non_exhaustive]
        pub struct $counts {
            $($($(#[doc = $beside_doc])* pub $beside: $type,)*)?
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(super) struct $published {
            $(pub(super) $name: AtomicU64,)*
        }

        impl $published {
            #[inline]
            pub(super) fn store(&self, counts: &$counts) {
                // Relaxed: each count stands for itself.
                $(self.$name.store(counts.$name, Ordering::Relaxed);)*
            }

            pub(super) fn load(&self) -> $counts {
                $counts {
                    $($($beside: <$type>::default(),)*)?
                    $($name: self.$name.load(Ordering::Relaxed),)*
                }
            }
        }

        impl $counts {
            /// Every count with its name, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Every count, in the same order.
            #[cfg(feature = "endpoint")]
            #[allow(dead_code, reason = "counts of a class are added up by name")]
            pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut u64> {
                [$(&mut self.$name,)*].into_iter()
            }

            /// The documentation of each count, in the same order.
            #[cfg(feature = "endpoint")]
            pub(crate) fn descriptions() -> impl Iterator<Item = &'static str> {
                [$(concat!($($doc),*),)*].into_iter()
            }
        }
    };
}

pub(super) use counts;

counts! {
    /// The counts of one shard. The gauges (`pending`, `granted`, `capacity`, `lanes`,
    /// `lane_depth`, `lane_depth_max`, `exhausted_row`, `stall_last_ns`, `overrun_last_ns`,
    /// `scaled_pending`, `connections`) go up and down, and `pending_max` is a maximum. All others
    /// are sums, which only grow.
    ///
    /// In every reading `pending = scheduled_local + scheduled_remote − fired − cancelled −
    /// returned − dropped`.
    struct ShardCounts, published in PublishedCounts:

    /// Timers pending now. Those on the way from another thread are not counted, and a shard that
    /// sleeps leaves them on the way until the first of them, or of its own, is due.
    pending,
    /// The most timers that were pending at once.
    pending_max,
    /// Slots reserved for timers that other threads may still send.
    granted,
    /// The most timers that the shard holds.
    capacity,
    /// Timers scheduled on the shard's own core.
    scheduled_local,
    /// Timers received from other threads.
    scheduled_remote,
    /// Timers delivered.
    fired,
    /// Timers cancelled.
    cancelled,
    /// Timers whose cancel arrived first; they count as cancelled too.
    overtaken,
    /// Futures of handles that ended before the shard took over their timers; they count as
    /// cancelled too.
    ended_young,
    /// Connections that were packed for another shard. Their timers count as cancelled too, and as
    /// scheduled on the shard that adopts them.
    migrated_out,
    /// Pending timers that a shutdown returned in its report.
    returned,
    /// Pending timers that were dropped when the shard ended, by the policy of the shutdown or
    /// because its driver ended without a shutdown.
    dropped,
    /// Schedules refused for want of room, on this core and from other threads.
    refused,
    /// Cancels and resets whose handle named no pending timer.
    stale,
    /// Resets to a later deadline, by one store.
    reset_lazy,
    /// Resets to an earlier deadline, by a new entry.
    reset_relinked,
    /// Entries filed again: time came closer, or the timer was reset to later or postponed.
    cascaded,
    /// Stale entries dropped.
    swept,
    /// Callbacks and handlers that panicked.
    panicked,
    /// Callbacks and handlers that took longer than the service's `overrun` limit.
    overrun,
    /// How long the last of them took, in nanoseconds.
    overrun_last_ns,
    /// Timers delivered later than the service's lateness bound.
    late,
    /// Values of timers handed to a sink or to another task queue.
    sink_sent,
    /// Values that a sink or a task queue refused, because it was full or has ended.
    sink_refused,
    /// Values scheduled again after they were refused.
    sink_retried,
    /// Values dropped after they were refused.
    sink_dropped,
    /// Turns.
    turns,
    /// Turns that left work behind because their budget was used up.
    turns_exhausted,
    /// The last turns in a row whose budget for expired timers was used up.
    exhausted_row,
    /// Rows of such turns that grew as long as the service's limits warn of.
    exhausted_rows,
    /// The time that turns took, in nanoseconds.
    busy_ns,
    /// Turns that began later than they were due, by more than the service's limits warn of. A turn
    /// is not due before the turn before it has ended.
    stalls,
    /// By how much such turns began too late, in nanoseconds.
    stalled_ns,
    /// By how much the last of them began too late, in nanoseconds.
    stall_last_ns,
    /// Requests received from lanes.
    requests,
    /// Lanes open when the last turn was over. A shard that sleeps sees new lanes and threads that
    /// are gone in its next turn.
    lanes,
    /// Threads that have a nursery for timers of this shard now: threads that have waited by a
    /// handle, until they have ended and the last of their timers has.
    nurseries,
    /// Requests that waited in lanes when the last turn was over.
    lane_depth,
    /// The most requests that waited in one lane at the end of a turn, of the turns in the 5 to
    /// 10 s before the end of the last one.
    lane_depth_max,
    /// Turns that left more requests in a lane than the service's limits warn of.
    lanes_flooded,
    /// Wake-ups of the shard by other threads.
    wakeups_made,
    /// Sends of other threads without a wake-up, as the shard was awake or would be awake in time.
    wakeups_saved,
    /// Scaled timeouts pending now. All timeouts of one `ScaledTimeouts` share one timer of the
    /// shard.
    scaled_pending,
    /// Scaled timeouts delivered. The timers that they have count under `fired`.
    scaled_fired,
    /// Connections that have a handle ([`ConnTimers`](crate::ConnTimers)) now. Each open connection
    /// has one timer.
    connections,
}

impl ShardCounts {
    /// Takes over the counts of the shard's wheel.
    #[inline]
    pub(crate) fn take_over(&mut self, counters: &Counters) {
        self.pending = counters.pending();
        self.pending_max = counters.pending_max;
        self.scheduled_local = counters.scheduled_local;
        self.scheduled_remote = counters.scheduled_remote;
        self.fired = counters.fired;
        self.cancelled = counters.cancelled;
        self.overtaken = counters.overtaken;
        // The wheel counts all timers that are taken out at the end, also those that are dropped.
        self.returned = counters.returned - self.dropped;
        self.stale = counters.stale;
        self.reset_lazy = counters.reset_lazy;
        self.reset_relinked = counters.reset_relinked;
        self.cascaded = counters.cascaded;
        self.swept = counters.swept;
    }

    #[inline]
    pub(crate) fn note_sent(&mut self) {
        self.sink_sent += 1;
    }
}

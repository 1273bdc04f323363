//! The counts of a shard.

use std::sync::atomic::{AtomicU64, Ordering};

use corewheel_shard::Counters;
use serde::Serialize;

/// Defines counts of a shard once: the plain numbers that its turn writes, the atomics that it
/// publishes them in, and the way between the two.
macro_rules! counts {
    (
        $(#[doc = $about:literal])*
        struct $counts:ident, published in $published:ident:
        $($(#[doc = $doc:literal])* $name:ident,)*
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
        #[non_exhaustive]
        pub struct $counts {
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
                $counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl $counts {
            /// Every count with its name, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// What each of them means: the lines of its documentation, in the same order.
            #[cfg(feature = "endpoint")]
            pub(crate) fn descriptions() -> impl Iterator<Item = &'static str> {
                [$(concat!($($doc),*),)*].into_iter()
            }
        }
    };
}

pub(super) use counts;

counts! {
    /// What one shard has counted. The gauges (`pending`, `granted`, `capacity`, `lanes`,
    /// `lane_depth`, `scaled_pending`, `connections`) go up and down. All others only grow: they
    /// are sums, but for `pending_max`, which is a maximum.
    struct ShardCounts, published in PublishedCounts:

    /// Timers pending now. Those on the way from another thread are not counted, and a shard that
    /// sleeps leaves them on the way until the first of them, or of its own, is due.
    pending,
    /// The most timers that were pending at once.
    pending_max,
    /// Slots reserved for timers that clients may still send.
    granted,
    /// Timers that fit.
    capacity,
    /// Timers scheduled on the shard's own core.
    scheduled_local,
    /// Timers that came from other threads.
    scheduled_remote,
    /// Timers delivered.
    fired,
    /// Timers cancelled.
    cancelled,
    /// Timers whose cancel came before they did; they count as cancelled too.
    overtaken,
    /// Timers that went to live on another shard; they count as cancelled too, and there as timers
    /// from other threads. One that found the other shard closed and came back counts as well, and
    /// as scheduled here.
    moved_out,
    /// Timers handed back or dropped unfired at shutdown.
    returned,
    /// Schedules refused for want of room, on this core and by clients.
    refused,
    /// Cancels and resets whose handle named no pending timer.
    stale,
    /// Deadlines moved later, by one store.
    reset_lazy,
    /// Deadlines moved earlier, by a new entry.
    reset_relinked,
    /// Entries filed anew as time came closer.
    cascaded,
    /// Stale entries dropped.
    swept,
    /// Callbacks and handlers that panicked.
    panicked,
    /// Callbacks and handlers that took longer than the service's `overrun` limit.
    overrun,
    /// Timers delivered later than the service's lateness bound.
    late,
    /// Values of timers handed to a sink or to another task queue.
    sink_sent,
    /// Values that these refused, for want of room or because they are gone.
    sink_refused,
    /// Values scheduled again after they were refused.
    sink_retried,
    /// Values dropped after they were refused.
    sink_dropped,
    /// Turns.
    turns,
    /// Turns that left work behind because their budget was used up.
    turns_exhausted,
    /// Requests taken off lanes.
    requests,
    /// Lanes open now.
    lanes,
    /// Requests that waited in lanes when the last turn was over.
    lane_depth,
    /// Times that a client woke the shard.
    bells_rung,
    /// Times that a client found the shard awake, or about to be in time.
    bells_saved,
    /// Scaled timeouts pending now. For each minimum and maximum they have one timer.
    scaled_pending,
    /// Scaled timeouts delivered. The timers that they have count under `fired`.
    scaled_fired,
    /// Connections now that have deadlines, or had some and are not dropped. Each of them has one
    /// timer.
    connections,
}

impl ShardCounts {
    /// Takes over what the shard's wheel has counted.
    #[inline]
    pub(crate) fn take_over(&mut self, counters: &Counters) {
        self.pending = counters.pending();
        self.pending_max = counters.pending_max;
        self.scheduled_local = counters.scheduled_local;
        self.scheduled_remote = counters.scheduled_remote;
        self.fired = counters.fired;
        self.cancelled = counters.cancelled;
        self.overtaken = counters.overtaken;
        self.returned = counters.returned;
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

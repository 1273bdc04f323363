//! The counts of a shard.

use std::sync::atomic::{AtomicU64, Ordering};

use corewheel_shard::Counters;

/// Defines counts of a shard once, a row for each: the plain numbers that its turn writes, the
/// atomics that it publishes them in, and the conversion between the two.
///
/// A row says whether the count is a `sum`, a `gauge` or a `maximum`, and with `part` that a part
/// of the shard writes it. Fields in braces are public, and not published.
macro_rules! counts {
    (
        $(#[doc = $about:literal])*
        struct $counts:ident, published in $published:ident:
        $({ $($(#[doc = $beside_doc:literal])* $beside:ident: $type:ty,)* })?
        $($(#[doc = $doc:literal])* $name:ident: $kind:ident $($part:ident)?,)*
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        #[non_exhaustive]
        pub struct $counts {
            $($($(#[doc = $beside_doc])* pub $beside: $type,)*)?
            $(
                $(#[doc = $doc])*
                #[doc = ""]
                #[doc = counts!(@about $kind)]
                pub $name: u64,
            )*
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

            /// Stores the counts that parts write.
            #[inline]
            #[allow(dead_code, reason = "no part writes counts of a class")]
            pub(super) fn store_parts(&self, counts: &$counts) {
                // Relaxed, as above.
                $($(counts!(@$part self.$name.store(counts.$name, Ordering::Relaxed));)?)*
                let _ = counts;
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

            /// What the counts are, in the same order as [`iter`](Self::iter): the documentation
            /// of each, and whether it is a gauge. A gauge goes down, too, or is the greatest or
            /// last of some values. Any other count only grows, and adds up over shards.
            ///
            /// ```
            /// use corewheel::stats::ShardCounts;
            ///
            /// let zero = ShardCounts::default();
            /// let mut rows = ShardCounts::rows().zip(zero.iter());
            /// assert!(rows.any(|((_about, is_gauge), (name, _))| name == "pending" && is_gauge));
            /// ```
            pub fn rows() -> impl Iterator<Item = (&'static str, bool)> {
                [$((concat!($($doc),*), counts!(@is_gauge $kind)),)*].into_iter()
            }

            /// Adds the counts of another shard.
            #[allow(dead_code, reason = "nothing adds the counts of shards up")]
            fn add_counts(&mut self, other: &Self) {
                $(counts!(@add $kind self.$name, other.$name);)*
            }
        }
    };
    (@add maximum $sum:expr, $more:expr) => { $sum = $sum.max($more) };
    (@add $kind:ident $sum:expr, $more:expr) => { $sum += $more };
    (@is_gauge sum) => { false };
    (@is_gauge gauge) => { true };
    (@is_gauge maximum) => { true };
    (@about sum) => { "A sum, which only grows." };
    (@about gauge) => { "A gauge, which goes up and down; it adds up over shards." };
    (@about maximum) => { "A gauge; of several shards, the greatest counts." };
    (@part $store:expr) => { $store };
}

pub(super) use counts;

counts! {
    /// The counts of one shard.
    ///
    /// In every reading `pending = scheduled_local + scheduled_remote − fired − cancelled −
    /// returned − dropped`.
    struct ShardCounts, published in PublishedCounts:

    /// Timers pending now. Those on the way from another thread are not counted, and a shard that
    /// sleeps leaves them on the way until the first of them, or of its own, is due.
    pending: gauge,
    /// Slots reserved for timers that other threads may still send.
    granted: gauge,
    /// The most timers that the shard holds.
    capacity: gauge,
    /// Timers scheduled on the shard's own core.
    scheduled_local: sum,
    /// Timers received from other threads.
    scheduled_remote: sum,
    /// Timers delivered.
    fired: sum,
    /// Timers cancelled.
    cancelled: sum,
    /// Timers whose cancel arrived first; they count as cancelled too.
    overtaken: sum,
    /// Futures that ended before the shard's thread filed their timers; they count as cancelled
    /// too.
    ended_young: sum,
    /// Connections that were packed for another shard. Their timers count as cancelled too, and as
    /// scheduled on the shard that adopts them.
    migrated_out: sum part,
    /// Pending timers that a shutdown returned in its report.
    returned: sum,
    /// Pending timers that were dropped when the shard ended: by the policy of the shutdown,
    /// because its driver ended without a shutdown, or as futures waited for them.
    dropped: sum,
    /// Schedules refused for want of room, on this core and from other threads.
    refused: sum,
    /// Cancels and resets whose handle named no pending timer.
    stale: sum,
    /// Resets to a later deadline, by one store.
    reset_lazy: sum,
    /// Resets to an earlier deadline, by a new entry.
    reset_relinked: sum,
    /// Callbacks and handlers that panicked.
    panicked: sum,
    /// Callbacks and handlers that took longer than the service's `overrun` limit.
    overrun: sum,
    /// How long the last of them took, in nanoseconds.
    overrun_last_ns: maximum,
    /// Timers delivered later than the service's lateness bound.
    late: sum,
    /// Turns.
    turns: sum,
    /// Turns that left work behind because their budget was used up.
    turns_exhausted: sum,
    /// The last turns in a row whose budget for expired timers was used up.
    exhausted_row: maximum,
    /// Rows of such turns that grew as long as the service's limits warn of.
    exhausted_rows: sum,
    /// The time that turns took, in nanoseconds.
    busy_ns: sum,
    /// Turns that began later than they were due, by more than the service's limits warn of. A turn
    /// is not due before the turn before it has ended.
    stalls: sum,
    /// By how much such turns began too late, in nanoseconds.
    stalled_ns: sum,
    /// By how much the last of them began too late, in nanoseconds.
    stall_last_ns: maximum,
    /// Requests received from lanes.
    requests: sum,
    /// Lanes open when the last turn was over. A shard that sleeps sees new lanes and threads that
    /// are gone in its next turn.
    lanes: gauge,
    /// Threads that have timers of futures for this shard now: threads that have waited by a
    /// future, until they have ended and the last of their timers has.
    threads: gauge,
    /// Requests that waited in lanes when the last turn was over.
    lane_depth: gauge,
    /// The most requests that waited in one lane at the end of a turn, of the turns in the 5 to
    /// 10 s before the end of the last one.
    lane_depth_max: maximum,
    /// Turns that left more requests in a lane than the service's limits warn of.
    lanes_flooded: sum,
    /// Wake-ups of the shard by other threads.
    wakeups_made: sum,
    /// Sends of other threads without a wake-up, as the shard was awake or would be awake in time.
    wakeups_saved: sum,
    /// Connections that have a handle ([`ConnTimers`](crate::ConnTimers)) now. Each open connection
    /// has one timer.
    connections: gauge part,
}

/// A command of the shard's own thread, between turns.
pub(super) const COMMAND: u8 = 1;
/// An act for threads, which takes over what they have counted.
pub(super) const ACT: u8 = 2;
/// The end of a turn, which publishes all counts.
const TURN: u8 = 4;

/// Defines which counts are those of the shard's wheel, and the events that publish them. A turn
/// publishes all.
macro_rules! counters {
    ($($name:ident: |$counters:ident| $value:expr, $events:expr;)*) => {
        impl ShardCounts {
            /// Takes over the counts of the shard's wheel.
            #[inline]
            pub(crate) fn take_over(&mut self, counters: &Counters) {
                $(self.$name = { let $counters = counters; $value };)*
                // The wheel counts all timers that are taken out at the end, also those that are
                // dropped.
                self.returned = counters.returned - self.dropped;
            }
        }

        impl PublishedCounts {
            /// Stores the counts that an event changes.
            #[inline(always)]
            pub(super) fn store_at(&self, event: u8, counters: &Counters) {
                // Relaxed, as in a turn.
                $(if $events & event != 0 {
                    let $counters = counters;
                    self.$name.store($value, Ordering::Relaxed);
                })*
            }
        }
    };
}

counters! {
    pending: |counters| counters.pending(), COMMAND | ACT;
    scheduled_local: |counters| counters.scheduled_local, COMMAND | ACT;
    scheduled_remote: |counters| counters.scheduled_remote, ACT;
    fired: |counters| counters.fired, ACT;
    cancelled: |counters| counters.cancelled, COMMAND | ACT;
    overtaken: |counters| counters.overtaken, TURN;
    stale: |counters| counters.stale, COMMAND;
    reset_lazy: |counters| counters.reset_lazy, COMMAND;
    reset_relinked: |counters| counters.reset_relinked, COMMAND;
}

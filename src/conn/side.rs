//! The two sides of a connection's timers: a shard's own thread, and any thread.
//!
//! A side says where the facts of a connection lie, how a change of them wakes, and what a wait can
//! fail with. All else is written once, over the side: the handle, its guards and its transfers.
//!
//! Why not a side in each call, as a value: a touch would branch, and a handle that goes from
//! thread to thread, of 8 bytes, would be as large as one on a shard, of 24.
//!
//! Invariants: both sides have the same events, by the same [rules](super::rules).

use std::task::{Context, Poll};

use super::kinds::Direction;
use super::limits::{ConnEvent, ConnLimits, Wanted};
use super::measured::Progress;
use super::moment::Moment;
use super::rules::{self, Facts, Held, Place};
use crate::clock::Timeline;
use crate::face::part::PartHandle;
use crate::stats::tally::Tally;
use crate::values::refused::RefusedKind;

/// Where the tasks of a connection run, by what makes its timers. No other type can implement it.
///
/// - [`Timers`](crate::Timers): the tasks stay on the thread of a shard.
/// - [`Handle`](crate::Handle): the tasks go from thread to thread, as on a multi-thread tokio
///   runtime. The timers of the connection, its guards and its transfers are `Send` and `Sync`.
#[allow(private_bounds, reason = "what a side does is internal, and names internal types")]
pub trait Side: Sealed {
    /// What a wait returns: on a shard `V` itself; on any thread a `Result`, as there may be no
    /// timer to wait for.
    type Polled<V>;
}

/// Whether a task may wait while a change makes the first deadline earlier, so that the timer of
/// the connection is reset. On a shard, the turn that finds the deadline wakes the task.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wakes {
    Task,
    /// The caller polls for events before it waits.
    Nothing,
}

/// What a side does.
pub(super) trait Sealed: Clone + 'static {
    type Conn: Connection;

    fn polled<V>(result: Result<V, <Self::Conn as Connection>::Error>) -> Self::Polled<V>
    where
        Self: Side;
}

/// Refers to the facts of one connection. It does not keep the connection open.
pub(super) trait Connection: Clone + 'static {
    type Place<'a>: Place;
    /// Why a poll has no timer to wait for.
    type Error: Into<RefusedKind>;

    /// Counts a handle among those that keep the connection open.
    fn add_owner(&self);
    /// A handle was dropped. The last one closes the connection.
    fn drop_owner(&self);
    /// False if the connection was closed before.
    fn close(&self) -> bool;
    /// `None` if the service had ended when the connection began.
    fn time(&self) -> Option<&Timeline>;
    /// The present in nanoseconds since the clock's epoch, or a little later.
    fn now(&self) -> u64;

    /// The activity stamp of what has happened before [`now`](Self::now) has returned this; of what
    /// happens now, if that is `None`.
    fn stamp_at(&self, now: Option<u64>) -> Moment;
    /// Stamps the connection with what [`stamp_at`](Self::stamp_at) has returned.
    fn stamp(&self, direction: Direction, stamp: Moment);
    /// Does both, and returns the stamp.
    #[inline]
    fn touch(&self, direction: Direction, now: Option<u64>) -> Moment {
        let stamp = self.stamp_at(now);
        self.stamp(direction, stamp);
        stamp
    }
    /// Sets the stamps that are given, in their order. Each is later than the one before,
    /// and not later than the present.
    fn stamp_all(&self, stamps: rules::Stamps);
    /// Something has begun that holds idle deadlines back.
    fn begin(&self, held: Held);
    /// Something has ended that held idle deadlines back, at the time of a stamp, or now.
    fn end(&self, held: Held, at: Option<Moment>);
    fn add(progress: &Progress, bytes: u64);

    fn look<R>(&self, look: impl FnOnce(&mut Facts<'_, Self::Place<'_>>) -> R) -> R;
    /// Changes deadlines. The change returns when the first of those is due that may be earlier
    /// now: `NEVER` if none may be, 0 if that is not known.
    fn change<R>(
        &self,
        wakes: Wakes,
        change: impl FnOnce(&mut Facts<'_, Self::Place<'_>>) -> (R, u64),
    ) -> R;
    fn with_limits<R>(&self, look: impl FnOnce(&ConnLimits) -> R) -> R;
    fn store_limits(&self, limits: ConnLimits);
    /// Whether there is nothing to wait for. Then the task that has polled for events need not
    /// look, and is woken when a limit is set or a deadline is armed.
    fn leave_unwatched(&self) -> bool {
        false
    }
    /// When a deadline of an open connection is due.
    fn due(&self, kind: usize) -> u64 {
        self.look(|facts| rules::open_due(facts, kind))
    }

    /// Counts something of the connection's deadlines.
    fn with_tally(&self, count: impl FnOnce(&Tally));

    /// Takes the next event that has come and is wanted, of a kind that data in a socket does not
    /// refute.
    fn take(&self, wanted: impl Wanted) -> Option<ConnEvent>;
    /// Takes the next event that has come and is wanted; `None` if the connection is closed.
    /// Otherwise the task waits, for events of all kinds, and so it may be several tasks that wait
    /// for different kinds through one waker.
    ///
    /// The caller has polled what the deadlines guard since there were so many
    /// [`looks`](crate::pass::looks); `None` if it does not know what they guard.
    fn poll(
        &self,
        cx: &mut Context<'_>,
        looks: Option<u64>,
        wanted: impl Wanted,
    ) -> Poll<Result<Option<ConnEvent>, Self::Error>>;

    /// The budget of polls, if the side has one; on any thread, the task's runtime has its own.
    #[inline]
    fn budget(&self) -> Option<&PartHandle> {
        None
    }
}

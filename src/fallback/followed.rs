//! A sleep that follows the clock of the tokio runtime that polls it, where a test has paused that
//! clock. The feature `test-util` brings that; without it, this is the sleep of the service.
//!
//! Invariants: a service by a manual clock has the time of that clock in any runtime.
//!
//! Cost: none without the feature; with it, see [`tokio_clock`](super::tokio_clock).

use std::task::{Context, Poll};
#[cfg(any(feature = "hyper", feature = "tower"))]
use std::time::Duration;
#[cfg(any(feature = "hyper", feature = "tokio"))]
use std::time::Instant;

use super::SleepOrKept;
#[cfg(feature = "test-util")]
use super::tokio_clock::{self, Follower};
#[cfg(any(feature = "hyper", feature = "tower"))]
use crate::face::handle::AnyHandle;

/// Whether sleeps go by a clock that no test has paused.
pub(crate) fn is_system_time() -> bool {
    #[cfg(feature = "test-util")]
    return tokio_clock::is_system_time();
    #[cfg(not(feature = "test-util"))]
    true
}

/// The present moment: by the clock of the runtime that the calling thread is in, with the feature
/// `test-util`, and by the system's clock otherwise.
#[cfg(feature = "tokio")]
pub(crate) fn now() -> Instant {
    #[cfg(feature = "test-util")]
    return tokio_clock::now();
    #[cfg(not(feature = "test-util"))]
    crate::clock::now()
}

/// The present by a clock that a test has paused; `None` if sleeps go by the clock of the service.
#[cfg(all(feature = "test-util", any(feature = "hyper", feature = "tower")))]
fn paused(handle: AnyHandle) -> Option<Instant> {
    let is_manual = || handle.with_reach(|reach| reach.time().clock().is_manual());
    let is_paused = !is_system_time() && is_manual() != Some(true);
    is_paused.then(tokio_clock::now)
}

/// The present by the clock of a handle's service, or a little later: a reading of the near clock
/// of the calling thread. The system's time if the service has ended and this thread has not used
/// it before.
#[cfg(feature = "hyper")]
#[inline]
pub(crate) fn present(handle: AnyHandle) -> Instant {
    #[cfg(feature = "test-util")]
    if let Some(now) = paused(handle) {
        return now;
    }
    let read = handle.with_reach(|reach| reach.time().instant_of(reach.nanos()));
    read.unwrap_or_else(crate::clock::now)
}

/// A [`SleepOrKept`] that follows a clock that a test has paused.
pub(crate) struct FollowedSleep {
    sleep: SleepOrKept,
    #[cfg(feature = "test-util")]
    follower: Follower,
}

impl FollowedSleep {
    #[allow(clippy::inline_always, reason = "as for what it is made of")]
    #[inline(always)]
    pub(crate) fn of(sleep: SleepOrKept) -> Self {
        Self {
            sleep,
            #[cfg(feature = "test-util")]
            follower: Follower::default(),
        }
    }

    /// The sleep guards a future: see [`Sleep::guard`](crate::face::handle::sleep::Sleep::guard).
    #[cfg(any(feature = "tokio", feature = "tower"))]
    #[inline]
    pub(crate) fn guarding(mut self) -> Self {
        self.sleep.guard();
        self
    }

    /// Whether the runtime has looked at its sockets since the deadline.
    #[cfg(any(feature = "tokio", feature = "tower"))]
    pub(crate) fn is_proven(&self, looks: u64) -> bool {
        self.sleep.is_proven(looks)
    }

    /// A sleep that is done when `delay` has passed from now. A delay that does not fit never has.
    #[cfg(any(feature = "hyper", feature = "tower"))]
    pub(crate) fn after(handle: AnyHandle, delay: Duration) -> Self {
        #[cfg(feature = "test-util")]
        if let Some(deadline) = paused(handle).and_then(|now| now.checked_add(delay)) {
            return Self::of(SleepOrKept::new(handle, deadline));
        }
        Self::of(SleepOrKept::after(handle, delay))
    }

    #[cfg(feature = "hyper")]
    pub(crate) fn handle(&self) -> AnyHandle {
        self.sleep.handle()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn deadline(&self) -> Instant {
        self.sleep.deadline()
    }

    /// Whether the deadline is one by the system's clock, so that a runtime may have been held up
    /// when it came.
    #[cfg(any(feature = "hyper", feature = "tower"))]
    pub(crate) fn is_of_system(&self) -> bool {
        !self.sleep.is_manual() && is_system_time()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn is_kept(&self) -> bool {
        self.sleep.is_kept()
    }

    /// Whether the deadline has come, for a sleep that was polled or reset.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_elapsed(&self) -> bool {
        let is_elapsed = || now() >= self.sleep.done_at();
        #[cfg(feature = "test-util")]
        let is_elapsed = || self.follower.is_elapsed(is_elapsed);
        is_elapsed()
    }

    /// Waits until another deadline instead, also after the sleep was done. The task that has
    /// polled it is woken at the new deadline.
    #[cfg(any(feature = "hyper", feature = "tokio"))]
    pub(crate) fn reset(&mut self, deadline: Instant) {
        self.sleep.reset(deadline);
        #[cfg(feature = "test-util")]
        if !self.sleep.is_manual() {
            self.follower.reset(deadline);
        }
    }

    /// As [`reset`](Self::reset), without a timer of tokio before the next poll.
    #[cfg(feature = "tokio")]
    pub(crate) fn reset_unbegun(&mut self, deadline: Instant) {
        self.sleep.reset(deadline);
        #[cfg(feature = "test-util")]
        {
            // Until the next poll there is no timer to which a paused clock advances.
            self.follower = Follower::default();
        }
    }

    /// Is done when the deadline has come. Else the task is woken then.
    #[allow(clippy::inline_always, reason = "as for what it calls")]
    #[inline(always)]
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        #[cfg(feature = "test-util")]
        if !self.sleep.is_manual() {
            let Self { sleep, follower } = self;
            return follower.poll(sleep.deadline(), cx, |cx| sleep.poll(cx));
        }
        self.sleep.poll(cx)
    }
}

#[cfg(feature = "tower")]
debug_fields!([] FollowedSleep, |it| sleep: it.sleep);

//! A sleep that follows the clock of the tokio runtime that polls it, where a test has paused that
//! clock. The feature `test-util` brings that; without it, this is the sleep of the service.
//!
//! Invariants: a service by a manual clock has the time of that clock in any runtime.
//!
//! Cost: none without the feature; with it, see [`tokio_clock`](super::tokio_clock).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::SleepOrKept;
#[cfg(feature = "test-util")]
use super::tokio_clock::{self, Follower};
use crate::face::handle::{AnyHandle, Handle};

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
#[cfg(feature = "test-util")]
fn paused(handle: AnyHandle) -> Option<Instant> {
    let is_manual = || handle.with_reach(|reach| reach.time().clock().is_manual());
    let is_paused = !is_system_time() && is_manual() != Some(true);
    is_paused.then(tokio_clock::now)
}

/// An [`InfallibleSleep`](super::InfallibleSleep) that follows tokio's clock in tests: for an
/// adapter whose users test their programs in a runtime with a paused clock.
///
/// With the feature `test-util`, it follows the clock of the current-thread tokio runtime that
/// polls it, once a test has paused that clock, as [`time`](../time/index.html) does. So `advance`
/// moves it, and a runtime in which no task can run moves its clock to the deadline. A service by a
/// [`ManualClock`](crate::clock::ManualClock) has the time of that clock in any runtime. Without
/// the feature, all is as for the other sleep, and costs the same.
///
/// ```
/// # #[cfg(feature = "test-util")] {
/// use corewheel::TimerService;
/// use corewheel::fallback::FollowingSleep;
/// use std::time::Duration;
///
/// let service = TimerService::builder().shards(1).start().unwrap();
/// let timers = service.handle();
/// let mut runtime = tokio::runtime::Builder::new_current_thread();
/// runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
///     let (hour, began) = (Duration::from_secs(3_600), FollowingSleep::now(timers));
///     // No task can run, so the paused clock moves.
///     FollowingSleep::after(timers, hour).await;
///     assert!(FollowingSleep::now(timers) - began >= hour);
/// });
/// # }
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct FollowingSleep {
    sleep: SleepOrKept,
    #[cfg(feature = "test-util")]
    follower: Follower,
}

impl FollowingSleep {
    /// A sleep until an instant of the clock that [`now`](Self::now) reads. A deadline that has
    /// passed is done at the first poll.
    ///
    /// The timer is on a shard of the handle's service, as for
    /// [`InfallibleSleep::until`](super::InfallibleSleep::until).
    pub fn until<T: 'static>(timers: Handle<T>, deadline: Instant) -> Self {
        Self::of(SleepOrKept::new(timers.untyped(), deadline))
    }

    /// The sleep guards a future: see [`Sleep::guard`](crate::face::handle::sleep::Sleep::guard).
    #[cfg(feature = "tokio")]
    #[inline]
    pub(crate) fn guarding(mut self) -> Self {
        self.sleep.guard();
        self
    }

    /// Whether the runtime has looked at its sockets since the deadline.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_proven(&self, looks: u64) -> bool {
        self.sleep.is_proven(looks)
    }

    /// A sleep that is done when `delay` has passed from this call. A delay that does not fit never
    /// has.
    pub fn after<T: 'static>(timers: Handle<T>, delay: Duration) -> Self {
        let timers = timers.untyped();
        #[cfg(feature = "test-util")]
        if let Some(deadline) = paused(timers).and_then(|now| now.checked_add(delay)) {
            return Self::of(SleepOrKept::new(timers, deadline));
        }
        Self::of(SleepOrKept::after(timers, delay))
    }

    /// The present by the clock that sleeps follow which are polled here, or up to some
    /// microseconds later: a reading of the near clock of this thread, where no test has paused a
    /// clock. It is never behind the clock of the service. A thread that has not used the service
    /// before its end reads the system's clock.
    #[inline]
    pub fn now<T: 'static>(timers: Handle<T>) -> Instant {
        let timers = timers.untyped();
        #[cfg(feature = "test-util")]
        if let Some(now) = paused(timers) {
            return now;
        }
        let read = timers.with_reach(|reach| reach.time().instant_of(reach.nanos()));
        read.unwrap_or_else(crate::clock::now)
    }

    #[allow(clippy::inline_always, reason = "as for what it is made of")]
    #[inline(always)]
    pub(crate) fn of(sleep: SleepOrKept) -> Self {
        Self {
            sleep,
            #[cfg(feature = "test-util")]
            follower: Follower::default(),
        }
    }

    /// Waits until another deadline instead, also after the sleep was done. The task that has
    /// polled it is woken at the new deadline.
    pub fn reset(&mut self, deadline: Instant) {
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

    /// When it is done; see [`InfallibleSleep::deadline`](super::InfallibleSleep::deadline).
    pub fn deadline(&self) -> Instant {
        self.sleep.deadline()
    }

    /// The handle of which it was made.
    pub fn handle(&self) -> AnyHandle {
        self.sleep.handle()
    }

    /// Whether the fallback thread keeps the deadline, as the service had no timer at the last
    /// poll.
    pub fn is_kept(&self) -> bool {
        self.sleep.is_kept()
    }

    /// Whether the deadline is one by the system's clock, so that a runtime may have been held up
    /// when it came: whether a limit asks for a [`Pass`](crate::pass::Pass) before it cuts
    /// anything. A clock that a test moves needs none.
    pub fn needs_pass(&self) -> bool {
        !self.sleep.is_manual() && is_system_time()
    }

    /// Whether the deadline has come, for a sleep that was polled or reset.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_elapsed(&self) -> bool {
        let is_elapsed = || now() >= self.sleep.done_at();
        #[cfg(feature = "test-util")]
        let is_elapsed = || self.follower.is_elapsed(is_elapsed);
        is_elapsed()
    }

    /// Is done when the deadline has come. Else the task is woken then.
    #[allow(clippy::inline_always, reason = "as for what it calls")]
    #[inline(always)]
    pub(crate) fn poll_done(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        #[cfg(feature = "test-util")]
        if !self.sleep.is_manual() {
            let Self { sleep, follower } = self;
            return follower.poll(sleep.deadline(), cx, |cx| sleep.poll(cx));
        }
        self.sleep.poll(cx)
    }
}

impl Future for FollowingSleep {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_done(cx)
    }
}

debug_fields!([] FollowingSleep, |it| deadline: it.deadline(), is_kept: it.is_kept());

const _: () = {
    const fn is_any_threads<X: Send + Sync + Unpin + 'static>() {}
    is_any_threads::<FollowingSleep>();
    #[cfg(not(feature = "test-util"))]
    assert!(size_of::<FollowingSleep>() == size_of::<SleepOrKept>());
};

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

/// A sleep whose output is `()`, for interfaces that have no error: neither a full shard nor the
/// end of the service refuses it.
///
/// ```
/// use corewheel::TimerService;
/// use corewheel::fallback::InfallibleSleep;
/// use std::time::{Duration, Instant};
///
/// let service = TimerService::builder().shards(1).start()?;
/// let timers = service.handle();
/// // After the end of a service its `sleep` returns an error.
/// drop(service);
/// let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// runtime.block_on(async {
///     let (began, delay) = (Instant::now(), Duration::from_millis(2));
///     assert!(timers.sleep(delay).await.is_err());
///     InfallibleSleep::after(timers, delay).by_service().await;
///     assert!(began.elapsed() >= delay);
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It is done when its deadline has come, and not before; where the service has a timer, at most a
/// tick later. A poll after that finds it done. Where the service has none, see the
/// [module](crate::fallback).
///
/// It is `Send`, `Sync` and `Unpin`: any thread may poll it, by any executor. The timer is
/// scheduled at the first poll before the deadline, and cancelled when the sleep is dropped.
///
/// # A paused clock
///
/// It goes by the clock of the service. With the feature `test-util`, it follows the clock of the
/// current-thread tokio runtime that polls it, once a test has paused that clock, as
/// [`time`](../time/index.html) does. So `advance` moves it, and a runtime in which no task can run
/// moves its clock to the deadline. A service by a
/// [`ManualClock`](crate::clock::ManualClock) has the time of that clock in any runtime.
///
/// ```
/// # #[cfg(feature = "test-util")] {
/// use corewheel::TimerService;
/// use corewheel::fallback::InfallibleSleep;
/// use std::time::Duration;
///
/// let service = TimerService::builder().shards(1).start().unwrap();
/// let timers = service.handle();
/// let mut runtime = tokio::runtime::Builder::new_current_thread();
/// runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
///     let (hour, began) = (Duration::from_secs(3_600), InfallibleSleep::now(timers));
///     // No task can run, so the paused clock moves.
///     InfallibleSleep::after(timers, hour).await;
///     assert!(InfallibleSleep::now(timers) - began >= hour);
/// });
/// # }
/// ```
///
/// # Cost
///
/// That of a [`Sleep`](crate::Sleep), and 16 bytes more; with the feature `test-util`, also a timer
/// of tokio in a current-thread runtime. The fallback thread takes a lock and O(log n) for each of
/// n sleeps that it keeps.
#[must_use = "futures do nothing unless they are polled"]
pub struct InfallibleSleep {
    sleep: SleepOrKept,
    /// `None` if it goes by the clock of the service only.
    #[cfg(feature = "test-util")]
    follower: Option<Follower>,
}

impl InfallibleSleep {
    /// A sleep until an instant of the clock that [`now`](Self::now) reads. A deadline that has
    /// passed is done at the first poll.
    ///
    /// The timer is on a shard of the handle's service: [`Handle::on`] chooses it, and with
    /// [`Handle::of_class`] the statistics count it for a class.
    pub fn until<T: 'static>(timers: Handle<T>, deadline: Instant) -> Self {
        Self::of(SleepOrKept::new(timers.untyped(), deadline))
    }

    /// Goes by the clock of the service, also in a runtime whose clock is paused.
    pub fn by_service(self) -> Self {
        Self {
            #[cfg(feature = "test-util")]
            follower: None,
            ..self
        }
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
            follower: Some(Follower::default()),
        }
    }

    /// Waits until another deadline instead, also after the sleep was done. The task that has
    /// polled it is woken at the new deadline. A sleep that the fallback thread keeps tries its
    /// shard again at the next poll.
    ///
    /// A reset to later sends nothing to the shard.
    pub fn reset(&mut self, deadline: Instant) {
        self.sleep.reset(deadline);
        #[cfg(feature = "test-util")]
        if let Some(follower) = self.follower.as_mut().filter(|_| !self.sleep.is_manual()) {
            follower.reset(deadline);
        }
    }

    /// As [`reset`](Self::reset), without a timer of tokio before the next poll.
    #[cfg(feature = "tokio")]
    pub(crate) fn reset_unbegun(&mut self, deadline: Instant) {
        self.sleep.reset(deadline);
        #[cfg(feature = "test-util")]
        {
            // Until the next poll there is no timer to which a paused clock advances.
            self.follower = Some(Follower::default());
        }
    }

    /// When it is done, or 292 years after the first service of the process began, if that is
    /// earlier.
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

    /// How many sleeps, timeouts and ticks of the process the fallback thread has had to keep so
    /// far, because a shard was full or had ended: those of this type, of `time`, and of the
    /// adapters.
    pub fn fallback_count() -> u64 {
        super::thread::fallback_count()
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
        if let Some(follower) = &self.follower {
            return follower.is_elapsed(is_elapsed);
        }
        is_elapsed()
    }

    /// Is done when the deadline has come. Else the task is woken then.
    #[allow(clippy::inline_always, reason = "as for what it calls")]
    #[inline(always)]
    pub(crate) fn poll_done(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        #[cfg(feature = "test-util")]
        if let Some(follower) = self.follower.as_mut().filter(|_| !self.sleep.is_manual()) {
            let sleep = &mut self.sleep;
            return follower.poll(sleep.deadline(), cx, |cx| sleep.poll(cx));
        }
        self.sleep.poll(cx)
    }
}

impl Future for InfallibleSleep {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_done(cx)
    }
}

debug_fields!([] InfallibleSleep, |it| deadline: it.deadline(), is_kept: it.is_kept());

const _: () = {
    const fn is_any_threads<X: Send + Sync + Unpin + 'static>() {}
    is_any_threads::<InfallibleSleep>();
    #[cfg(not(feature = "test-util"))]
    assert!(size_of::<InfallibleSleep>() == size_of::<SleepOrKept>());
};

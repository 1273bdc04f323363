//! The sleep of the fallback that users have.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::SleepOrKept;
use crate::face::handle::{AnyHandle, Handle};

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
///     InfallibleSleep::after(timers, delay).await;
///     assert!(began.elapsed() >= delay);
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It is done when its deadline has come by the clock of the service, and not before; where the
/// service has a timer, at most a tick later. A poll after that finds it done. Where the service
/// has none, see the [module](crate::fallback). It goes by the clock of the service, and not by
/// that of a tokio runtime, also while a test has paused it.
///
/// It is `Send`, `Sync` and `Unpin`: any thread may poll it, by any executor. The timer is
/// scheduled at the first poll before the deadline, and cancelled when the sleep is dropped.
///
/// # Cost
///
/// That of a [`Sleep`](crate::Sleep), and 16 bytes more. The fallback thread takes a lock and
/// O(log n) for each of n sleeps that it keeps.
#[must_use = "futures do nothing unless they are polled"]
pub struct InfallibleSleep(SleepOrKept);

impl InfallibleSleep {
    /// A sleep until an instant. A deadline that has passed is done at the first poll.
    ///
    /// The timer is on a shard of the handle's service: [`Handle::on`] chooses it, and with
    /// [`Handle::of_class`] the statistics count it for a class.
    pub fn until<T: 'static>(timers: Handle<T>, deadline: Instant) -> Self {
        Self(SleepOrKept::new(timers.untyped(), deadline))
    }

    /// A sleep that is done when `delay` has passed from this call. A delay that does not fit never
    /// has.
    pub fn after<T: 'static>(timers: Handle<T>, delay: Duration) -> Self {
        Self(SleepOrKept::after(timers.untyped(), delay))
    }

    /// Waits until another deadline instead, also after the sleep was done. The task that has
    /// polled it is woken at the new deadline. A sleep that the fallback thread keeps tries its
    /// shard again at the next poll.
    ///
    /// A reset to later sends nothing to the shard.
    pub fn reset(&mut self, deadline: Instant) {
        self.0.reset(deadline);
    }

    /// When it is done, or 292 years after the first service of the process began, if that is
    /// earlier.
    pub fn deadline(&self) -> Instant {
        self.0.deadline()
    }

    /// Whether the fallback thread keeps the deadline, as the service had no timer at the last
    /// poll.
    pub fn is_kept(&self) -> bool {
        self.0.is_kept()
    }

    /// How many sleeps, timeouts and ticks of the process the fallback thread has had to keep so
    /// far, because a shard was full or had ended: those of this type and of [`FollowingSleep`], of
    /// `time`, and of the adapters.
    ///
    /// [`FollowingSleep`]: super::FollowingSleep
    pub fn fallback_count() -> u64 {
        super::thread::fallback_count()
    }

    /// The handle of which it was made.
    pub fn handle(&self) -> AnyHandle {
        self.0.handle()
    }
}

impl Future for InfallibleSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll(cx)
    }
}

debug_fields!([] InfallibleSleep, |it| deadline: it.deadline(), is_kept: it.is_kept());

const _: () = {
    const fn is_any_threads<X: Send + Sync + Unpin + 'static>() {}
    is_any_threads::<InfallibleSleep>();
};

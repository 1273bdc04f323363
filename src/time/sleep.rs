//! The sleep of the drop-in for `tokio::time`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::task::coop;
use tokio::time::Instant;

use super::service;
use crate::fallback::InfallibleSleep;

/// The longest delay that is added to the present: about 30 years, as tokio has it. Not every
/// system can represent instants that are further away.
const DELAY_MAX: Duration = Duration::from_secs(30 * 365 * 24 * 3_600);

/// A delay, at most [`DELAY_MAX`].
pub(super) fn at_most_max(delay: Duration) -> Duration {
    delay.min(DELAY_MAX)
}

/// Waits for a time, as `tokio::time::sleep` does. The time counts from this call. A time of more
/// than 30 years counts as 30 years.
///
/// # Panics
///
/// [The default service](super#the-service) cannot start. No runtime is needed.
pub fn sleep(duration: Duration) -> Sleep {
    Sleep::after(at_most_max(duration))
}

/// Waits until a deadline, as `tokio::time::sleep_until` does.
///
/// # Panics
///
/// [The default service](super#the-service) cannot start. No runtime is needed.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep::of(InfallibleSleep::until(service::handle(), deadline.into_std()))
}

/// Waits for a deadline; made by [`sleep`] and [`sleep_until`], with the methods of
/// `tokio::time::Sleep`.
///
/// It is [`corewheel::Sleep`](crate::Sleep) with tokio's output, and like it `Send`, `Sync`,
/// `'static` and, unlike tokio's, `Unpin`. It is never done before its deadline, and is done up to
/// a tick after it. It returns no error: where the service has no timer for it,
/// [a thread](super#refused-timers) keeps its deadline.
///
/// As tokio's, it takes part in the cooperative scheduling of tokio's tasks.
///
/// # Cost
///
/// At most 120 bytes, and what [`corewheel::Sleep`](crate::Sleep) costs. With the feature
/// `test-util`, also a timer of tokio in a current-thread runtime.
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct Sleep {
    pub(super) timer: InfallibleSleep,
    /// Whether it was polled or reset.
    has_begun: bool,
}

impl Sleep {
    /// A sleep that is done when `delay` has passed from now. Its deadline is by the near clock,
    /// and so up to some microseconds later, which only [`Self::deadline`] shows.
    #[allow(clippy::inline_always, reason = "as for what it calls")]
    #[inline(always)]
    pub(super) fn after(delay: Duration) -> Self {
        // A clock that may be paused says what the time is.
        if cfg!(feature = "test-util") {
            return sleep_until(service::present_of_service() + delay);
        }
        let (due, deadline) = service::due_after(delay);
        Self::of(InfallibleSleep::until_due(service::handle(), due, deadline))
    }

    #[allow(clippy::inline_always, reason = "as for what it is made of")]
    #[inline(always)]
    fn of(timer: InfallibleSleep) -> Self {
        Self { timer, has_begun: false }
    }

    /// The deadline.
    pub fn deadline(&self) -> Instant {
        self.timer.deadline().into()
    }

    /// Whether the deadline has come. As with tokio's, it is `false` before the sleep is polled or
    /// reset for the first time.
    pub fn is_elapsed(&self) -> bool {
        self.has_begun && self.timer.is_elapsed()
    }

    /// Waits until another deadline instead, also after it was done. The task that has polled it
    /// is woken at the new deadline.
    pub fn reset(mut self: Pin<&mut Self>, deadline: Instant) {
        self.has_begun = true;
        self.timer.reset(deadline.into_std());
    }

    /// Sets the deadline, and leaves whether the sleep has begun as it is.
    pub(super) fn reset_unbegun(&mut self, deadline: Instant) {
        self.timer.reset_unbegun(deadline.into_std());
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let budget = ready!(coop::poll_proceed(cx));
        self.has_begun = true;
        ready!(self.timer.poll_done(cx));
        budget.made_progress();
        Poll::Ready(())
    }
}

debug_fields!([] Sleep, |it| deadline: it.deadline(), is_kept: it.timer.is_kept());

const _: () = {
    const fn is_any_threads<X: Send + Sync + Unpin + 'static>() {}
    is_any_threads::<Sleep>();
    // As the documentation of the module says.
    #[cfg(all(not(feature = "test-util"), target_pointer_width = "64"))]
    assert!(size_of::<Sleep>() == 64 && size_of::<super::Interval>() == 88);
};

//! The timeout of the drop-in for `tokio::time`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::task::coop;
use tokio::time::Instant;

use super::error::Elapsed;
use super::sleep::{Sleep, sleep_until};
use crate::fallback::InfallibleSleep;
use crate::pass::Guarded;

/// The longest timeout in seconds, 136 years. A longer one never ends.
const TIMEOUT_SECS_MAX: u64 = u32::MAX as u64;

/// Gives a future a time, as `tokio::time::timeout` does. The time counts from this call. The
/// future is polled before the time is looked at, so a value that is ready wins. So does one for
/// which the data lay in a socket at the deadline, see
/// [`corewheel::Timeout`](crate::Timeout#in-time).
///
/// # Errors
///
/// The future returns [`Elapsed`] if the time was up.
///
/// # Panics
///
/// [The default service](super#the-service) cannot start. No runtime is needed.
pub fn timeout<F: IntoFuture>(duration: Duration, future: F) -> Timeout<F::IntoFuture> {
    // Not every system can represent instants that are further away, and they never come.
    let may_come = duration.as_secs() <= TIMEOUT_SECS_MAX;
    Timeout::new(future.into_future(), may_come.then(|| Sleep::after(duration)))
}

/// Gives a future time until a deadline, as `tokio::time::timeout_at` does. The future is polled
/// before the time is looked at, also where the deadline has passed.
///
/// # Errors
///
/// The future returns [`Elapsed`] if the time was up.
///
/// # Panics
///
/// [The default service](super#the-service) cannot start. No runtime is needed.
pub fn timeout_at<F: IntoFuture>(deadline: Instant, future: F) -> Timeout<F::IntoFuture> {
    Timeout::new(future.into_future(), Some(sleep_until(deadline)))
}

pin_project! {
    /// Gives a future time until a deadline; made by [`timeout`] and [`timeout_at`], with the
    /// methods of `tokio::time::Timeout`.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    #[derive(Debug)]
    pub struct Timeout<T> {
        #[pin]
        value: Guarded<T, Option<InfallibleSleep>>,
    }
}

impl<T> Timeout<T> {
    /// `delay` is `None` for a deadline that never comes.
    #[inline]
    fn new(value: T, delay: Option<Sleep>) -> Self {
        Self { value: Guarded::new(value, delay.map(|sleep| sleep.timer)) }
    }

    /// The future.
    pub fn get_ref(&self) -> &T {
        self.value.get_ref()
    }

    /// The future.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// The future, without a timeout.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: Future> Future for Timeout<T> {
    type Output = Result<T::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(self.project().value.poll(cx));
        if result.is_err() {
            // The budget of the task is looked at where the time is up, and not before each poll.
            // The decision has waited long enough for one.
            if let Poll::Ready(budget) = coop::poll_proceed(cx) {
                budget.made_progress();
            }
        }
        Poll::Ready(result.map_err(|_| Elapsed(())))
    }
}

//! The sleep of the drop-in for `tokio::time`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use corewheel_shard::Tick;
use tokio::task::coop;

use super::fallback::Kept;
use super::instant::{Instant, present};
use super::service;
use crate::face::handle::sleep::SharedSleep;
use crate::values::refused::RefusedKind;

/// The longest delay that is added to the present: about 30 years, as tokio has it. Not every
/// system can represent instants that are further away.
const DELAY_MAX: Duration = Duration::from_hours(24 * 365 * 30);

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
    sleep_until(present() + at_most_max(duration))
}

/// Waits until a deadline, as `tokio::time::sleep_until` does.
///
/// # Panics
///
/// [The default service](super#the-service) cannot start. No runtime is needed.
pub fn sleep_until(deadline: Instant) -> Sleep {
    let shared = service::handle().sleep(deadline);
    Sleep { deadline, shared, kept: None, has_begun: false }
}

/// Waits for a deadline; made by [`sleep`] and [`sleep_until`], with the methods of
/// `tokio::time::Sleep`.
///
/// It is a [`SharedSleep`] with tokio's output, and like it `Send`, `Sync`, `'static` and, unlike
/// tokio's, `Unpin`. It is never done before its deadline, and is done up to a tick after it. It
/// returns no error: where the service has no timer for it,
/// [a thread](super#refused-timers) keeps its deadline.
///
/// As tokio's, it takes part in the cooperative scheduling of tokio's tasks.
///
/// # Cost
///
/// At most 120 bytes, and what a [`SharedSleep`] costs.
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct Sleep {
    deadline: Instant,
    shared: SharedSleep,
    /// The deadline in the map of the fallback thread; `None` unless the service had no timer.
    kept: Option<Box<Kept>>,
    /// Whether it was polled or reset.
    has_begun: bool,
}

impl Sleep {
    /// The deadline.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether the deadline has come. As with tokio's, it is `false` before the sleep is polled or
    /// reset for the first time.
    pub fn is_elapsed(&self) -> bool {
        self.has_begun && present() >= self.done_at()
    }

    /// Waits until another deadline instead, also after it was done. The task that has polled it
    /// is woken at the new deadline.
    pub fn reset(mut self: Pin<&mut Self>, deadline: Instant) {
        self.has_begun = true;
        self.reset_unbegun(deadline);
    }

    /// Sets the deadline, and leaves whether the sleep has begun as it is.
    pub(super) fn reset_unbegun(&mut self, deadline: Instant) {
        self.deadline = deadline;
        self.shared.reset(deadline);
        // A deadline that has come is forgotten, and the next poll tries the service again.
        self.kept.take_if(|kept| !kept.reset(deadline.into_std()));
    }

    /// When a poll finds the sleep done: the deadline, rounded up to a tick of the service.
    fn done_at(&self) -> Instant {
        let time = self.shared.handle().time().filter(|_| self.kept.is_none());
        let Some(time) = time else { return self.deadline };
        time.instant(time.deadline_at(self.deadline.into_std())).into()
    }

    /// Polls the sleep without a look at the budget of the tokio task.
    pub(super) fn poll_unbudgeted(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.has_begun = true;
        if let Some(kept) = &self.kept {
            let is_pending = present() < self.deadline && kept.set_waker(cx.waker().clone());
            return if is_pending { Poll::Pending } else { Poll::Ready(()) };
        }
        // A thread that ends cannot reach the service, and converts no deadline to a tick.
        if self.shared.deadline_tick() == Tick::NEVER {
            self.shared.reset(self.deadline);
        }
        match ready!(Pin::new(&mut self.shared).poll(cx)) {
            Ok(()) => Poll::Ready(()),
            Err(refused) => self.poll_refused(refused, cx),
        }
    }

    /// Polls a sleep for which the service has no timer.
    #[cold]
    fn poll_refused(&mut self, refused: RefusedKind, cx: &mut Context<'_>) -> Poll<()> {
        if present() >= self.deadline {
            return Poll::Ready(());
        }
        match Kept::new(self.deadline.into_std(), cx.waker().clone(), refused) {
            Ok(kept) => self.kept = Some(Box::new(kept)),
            // The next poll tries again.
            Err(waker) => waker.wake(),
        }
        Poll::Pending
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let budget = ready!(coop::poll_proceed(cx));
        ready!(self.poll_unbudgeted(cx));
        budget.made_progress();
        Poll::Ready(())
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep")
            .field("deadline", &self.deadline)
            .field("is_kept", &self.kept.is_some())
            .finish_non_exhaustive()
    }
}

const _: () = {
    const fn is_any_threads<X: Send + Sync + Unpin + 'static>() {}
    is_any_threads::<Sleep>();
    assert!(size_of::<Sleep>() <= 120);
};

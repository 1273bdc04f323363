//! A future that has time until a deadline, and is judged after a pass.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::{Pass, looks};
use crate::values::error::TimeoutError;
use crate::values::refused::RefusedKind;

/// Ready when it is decided that a future is late. An error where there is no timer.
pub(crate) type Decided = Poll<Result<(), RefusedKind>>;

/// When the time of a future is up.
pub(crate) trait Limit {
    /// Prepares the deadline for a future that it guards.
    fn guard(&mut self) {}

    /// Decides, when the deadline has passed, about a future that was pending in a poll since
    /// there were so many `looks`.
    fn poll_late(&mut self, pass: &mut Pass, looks: u64, cx: &mut Context<'_>) -> Decided;
}

/// A limit that `None` does not have.
impl<L: Limit> Limit for Option<L> {
    fn guard(&mut self) {
        self.iter_mut().for_each(Limit::guard);
    }

    fn poll_late(&mut self, pass: &mut Pass, looks: u64, cx: &mut Context<'_>) -> Decided {
        self.as_mut().map_or(Poll::Pending, |limit| limit.poll_late(pass, looks, cx))
    }
}

pin_project! {
    /// A future that has time until a deadline `D`: a [`Sleep`](crate::Sleep), as in a
    /// [`Timeout`](crate::Timeout), or an
    /// [`InfallibleSleep`](crate::fallback::InfallibleSleep). It is `Send` and `Sync` if the future
    /// is.
    ///
    /// A value that is ready at the same time as the deadline wins, and so does one for which the
    /// data lay in a socket then: see [`Timeout`](crate::Timeout#in-time).
    ///
    /// Its output is an error if the time is up, and if there is no timer, which an
    /// `InfallibleSleep` does not say.
    #[must_use = "a future does nothing unless it is awaited"]
    #[derive(Debug)]
    pub struct Guarded<F, D> {
        #[pin]
        future: F,
        limit: D,
        pass: Pass,
    }
}

#[allow(private_bounds, reason = "how a deadline decides is internal")]
impl<F, D: Limit> Guarded<F, D> {
    /// Gives a future time until a deadline.
    #[inline]
    pub fn new(future: F, mut deadline: D) -> Self {
        deadline.guard();
        Self { future, limit: deadline, pass: Pass::NONE }
    }
}

impl<F, D> Guarded<F, D> {
    /// The future.
    pub fn get_ref(&self) -> &F {
        &self.future
    }

    /// The future.
    pub fn get_mut(&mut self) -> &mut F {
        &mut self.future
    }

    /// The deadline.
    pub fn deadline(&self) -> &D {
        &self.limit
    }

    /// The future, without a deadline.
    pub fn into_inner(self) -> F {
        self.future
    }
}

#[allow(private_bounds, reason = "as above")]
impl<F: Future, D: Limit> Future for Guarded<F, D> {
    type Output = Result<F::Output, TimeoutError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let looks = looks();
        // The future first: a value that is there at the deadline is there in time.
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        this.limit
            .poll_late(this.pass, looks, cx)
            .map(|late| Err(late.map_or_else(TimeoutError::NoTimer, |()| TimeoutError::Elapsed)))
    }
}

//! The time for an answer of another server.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use corewheel::TimeoutError;
use corewheel::conn::Side;
use corewheel::stream::StreamControl;

use super::Exchange;

impl Exchange {
    /// Waits for the answer of another server to the request, for a time that begins when the
    /// consumer of the request's body has had all of it. Until then the limits of that body count:
    /// where one ends the exchange, the wait is over. A time of zero never ends.
    ///
    /// The time is up when the stream of the connection, which has this control, was read to its
    /// end, as for [`StreamControl::timeout`].
    ///
    /// # Errors
    ///
    /// `Elapsed` if the time was up or the exchange has ended, of which
    /// [`request_limit_reached`](Self::request_limit_reached) says the limit, and otherwise why
    /// there is no timer.
    pub async fn in_time<F: Future, M: Side>(
        &self,
        control: &StreamControl<M>,
        time: Duration,
        answer: F,
    ) -> Result<F::Output, TimeoutError> {
        if !self.core.kind.has_body {
            if time.is_zero() {
                return Ok(answer.await);
            }
            return control.timeout(time, answer).await;
        }
        let mut answer = pin!(answer);
        let mut ended = pin!(self.ended());
        // A body whose exchange has ended is no part of an answer.
        let mut either = pin!(poll_fn(|cx| match answer.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Ok(answer)),
            Poll::Pending => ended.as_mut().poll(cx).map(|()| Err(TimeoutError::Elapsed)),
        }));
        if time.is_zero() {
            return either.await;
        }
        let mut left = time;
        loop {
            match control.timeout(left, either.as_mut()).await {
                Ok(answered) => return answered,
                Err(TimeoutError::Elapsed) => {}
                Err(error) => return Err(error),
            }
            // A body that has ended meanwhile has left the rest of the time to the answer.
            let complete_at = self.core.lock().complete_at;
            let now = self.core.connection.clock.now();
            let passed = complete_at.map(|at| now.saturating_duration_since(at));
            left = passed.map_or(time, |passed| time.saturating_sub(passed));
            if left.is_zero() {
                return Err(TimeoutError::Elapsed);
            }
        }
    }
}

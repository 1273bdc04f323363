//! tokio-util's `DelayQueue`: tokio's hierarchical wheel over a slab, driven by one `Sleep`.
//!
//! It knows no clock but tokio's, so it lives in a runtime whose clock is paused and moved by hand.
//! Each `advance` enters that runtime, which is part of its figures where time goes on.

use std::future::poll_fn;
use std::mem;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::{self, Instant};
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;

use crate::{Payload, Timers};

thread_local! {
    /// One for all queues of a thread, since a thread has one runtime at a time. It is entered for
    /// good, so that entering it is in no figure.
    static RUNTIME: &'static Runtime = {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = Box::leak(Box::new(runtime.expect("a runtime with a clock and no more")));
        mem::forget(runtime.enter());
        runtime
    };
}

/// A [`DelayQueue`] with tokio's tick of one millisecond.
pub struct TokioQueue {
    queue: DelayQueue<Payload>,
    epoch: Instant,
}

impl TokioQueue {
    #[inline]
    fn instant(&self, tick: u64) -> Instant {
        self.epoch + Duration::from_millis(tick)
    }
}

impl Timers for TokioQueue {
    const NAME: &'static str = "tokio-util DelayQueue";
    const FIFO: bool = false;
    type Handle = Key;

    fn with_capacity(capacity: usize) -> Self {
        RUNTIME.with(|_| Self { queue: DelayQueue::with_capacity(capacity), epoch: Instant::now() })
    }

    fn schedule(&mut self, deadline: u64, payload: Payload) -> Key {
        let at = self.instant(deadline);
        self.queue.insert_at(payload, at)
    }

    fn cancel(&mut self, key: Key) -> Payload {
        self.queue.remove(&key).into_inner()
    }

    fn reset(&mut self, key: Key, deadline: u64) -> Key {
        let at = self.instant(deadline);
        self.queue.reset_at(&key, at);
        key
    }

    fn advance(&mut self, now: u64, mut fired: impl FnMut(Payload)) {
        let at = self.instant(now);
        RUNTIME.with(|runtime| {
            runtime.block_on(async {
                let ahead = at.saturating_duration_since(Instant::now());
                if !ahead.is_zero() {
                    time::advance(ahead).await;
                }
                poll_fn(|context| {
                    while let Poll::Ready(Some(expired)) = self.queue.poll_expired(context) {
                        fired(expired.into_inner());
                    }
                    Poll::Ready(())
                })
                .await;
            });
        });
    }

    fn next_deadline(&mut self) -> Option<u64> {
        let key = self.queue.peek()?;
        Some(self.queue.deadline(&key).duration_since(self.epoch).as_millis() as u64)
    }

    fn pending(&self) -> usize {
        self.queue.len()
    }
}

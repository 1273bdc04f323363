//! Delay queues.

mod drops;
mod histories;
mod hosts;
mod shutdown;
mod values;
mod waiting;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use corewheel_kit::queue::DelayQueue;

use corewheel_test_support::{Lab, builder};

fn lab() -> Lab<()> {
    Lab::new(builder(1))
}

fn queue<V>(lab: &Lab<()>) -> DelayQueue<V> {
    DelayQueue::new(lab.timers())
}

/// Takes all values that are due.
fn due<V>(queue: &DelayQueue<V>) -> Vec<V> {
    std::iter::from_fn(|| queue.try_next()).map(|expired| expired.value).collect()
}

fn poll<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(waker)) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

//! Delay queues.

mod drops;
mod histories;
mod hosts;
mod shutdown;
mod values;
mod waiting;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use corewheel_kit::queue::DelayQueue;

use corewheel_test_support::{Alarm, Lab, builder};

fn lab() -> Lab<()> {
    Lab::new(builder(1))
}

/// A queue on a shard, and a waker that counts.
fn scene<V>() -> (Lab<()>, DelayQueue<V>, Arc<Alarm>, Waker) {
    let lab = lab();
    let queue = queue(&lab);
    let (alarm, waker) = Alarm::new();
    (lab, queue, alarm, waker)
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

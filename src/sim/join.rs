//! The output of a future that a test has spawned.
//!
//! Why not a `JoinHandle` of tokio, whose output is a `Result`: a panic of a future is a panic of
//! the step that runs it, so there is no error to return.

use std::future::{Future, poll_fn};
use std::pin::Pin;

/// A task that runs a future to its end, and a future of its output.
pub(super) fn with_output<F: Future>(
    future: F,
) -> (impl Future<Output = ()>, impl Future<Output = F::Output> + Unpin) {
    let (sender, mut receiver) = oneshot::async_channel();
    // If no future waits for the output, the task drops it.
    let task = async move { drop(sender.send(future.await)) };
    let output = poll_fn(move |cx| {
        Pin::new(&mut receiver).poll(cx).map(|output| {
            output
                .expect("the simulation runs until the future is done, whose output is taken once")
        })
    });
    (task, output)
}

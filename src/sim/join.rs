//! The output of a future that a test has spawned.
//!
//! Why not a `JoinHandle` of tokio, whose output is a `Result`: a panic of a future is a panic of
//! the step that runs it, so there is no error to return.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The output of a future on a simulated thread; made by
/// [`Simulation::spawn`](super::Simulation::spawn).
///
/// It is a future: [`Simulation::run`](super::Simulation::run) takes steps until it is ready, and
/// other futures of the simulation await it. If it is dropped, the spawned future still runs, and
/// its output is dropped.
///
/// # Panics
///
/// A poll panics if the output was taken before, and if the simulation has ended before the future
/// was done.
pub struct JoinHandle<O>(pub(super) oneshot::AsyncReceiver<O>);

impl<O> JoinHandle<O> {
    /// Whether the future has ended: it has returned, or the simulation has dropped it.
    pub fn is_finished(&self) -> bool {
        self.0.has_message() || self.0.is_closed()
    }
}

impl<O> Future for JoinHandle<O> {
    type Output = O;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<O> {
        Pin::new(&mut self.0).poll(cx).map(|output| {
            output
                .expect("the simulation runs until the future is done, whose output is taken once")
        })
    }
}

debug_fields!([O] JoinHandle<O>, |it| finished: it.is_finished());

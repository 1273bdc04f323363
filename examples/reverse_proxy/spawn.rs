//! Where the tasks of a connection run.

use std::future::Future;

use hyper::rt::Executor;

/// Starts tasks as the mode of the proxy has them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spawner {
    /// On every thread of the runtime.
    AllThreads,
    /// On the thread that starts the task, which drives a shard.
    ThisThread,
}

impl Spawner {
    pub(crate) fn spawn(self, task: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::AllThreads => drop(tokio::spawn(task)),
            Self::ThisThread => drop(tokio::task::spawn_local(task)),
        }
    }
}

impl<F> Executor<F> for Spawner
where
    F: Future + Send + 'static,
{
    fn execute(&self, task: F) {
        self.spawn(async move { drop(task.await) });
    }
}

//! A shard on a current-thread tokio runtime, in a `LocalSet` or in a `LocalRuntime`.
//!
//! Both have the scheduler of the current-thread runtime, and `spawn_local` works in both, so the
//! driver does not know which of the two it runs in.
//!
//! Tokio's timers count in milliseconds and round up, so a tick shorter than one costs up to a
//! millisecond of lateness here.
//!
//! A stopped `epoll_wait` returns `EINTR`, and tokio then looks at its timers without having looked
//! at its sockets; and it takes no more than [`EVENTS_MAX`] events from `epoll` at a time. So a
//! driver that is late has tokio look at its sockets, as often as there may be events, before it
//! delivers anything.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;
use tokio::time::Sleep;

use super::Driven;
use super::executor::{Host, drive};
use super::limits::{self, Needs};
use crate::face::host::Values;
use crate::face::stored::LocalFuture;

/// How many events tokio takes from `epoll` at a time by default.
const EVENTS_MAX: usize = 1_024;

/// One tokio timer, used over and over.
#[derive(Default)]
pub(crate) struct TokioHost {
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Host for TokioHost {
    fn arm(&mut self, after: Duration) {
        let at = tokio::time::sleep(after);
        match &mut self.alarm {
            Some(alarm) => alarm.as_mut().reset(at.deadline()),
            None => self.alarm = Some(Box::pin(at)),
        }
    }

    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.alarm.as_mut().map_or(Poll::Pending, |alarm| alarm.as_mut().poll(cx))
    }

    async fn step_aside(&mut self) {
        tokio::task::yield_now().await;
    }

    async fn read_sockets(&mut self, connections: usize) {
        // A task that yields goes on after the runtime has looked at its sockets.
        for _ in 0..2 + connections / EVENTS_MAX {
            tokio::task::yield_now().await;
        }
        // Tasks run in the order in which they became ready, so this one runs after the tasks that
        // have something to read. It does nothing that could fail.
        let _ = tokio::task::spawn_local(async {}).await;
    }

    fn spawn(&self, future: LocalFuture) {
        tokio::task::spawn_local(future);
    }
}

/// A runtime for one shard.
pub(crate) fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Open files of a runtime.
const FILES: usize = 4;
/// Open files that are needed once: for signals, where the process uses them, and two to spare.
const FILES_ONCE: usize = 4;

/// The needs of so many runtimes, with this much address space for each.
pub(crate) fn needs(runtimes: usize, memory_each: usize) -> Needs {
    let files = FILES * runtimes + FILES_ONCE;
    Needs { files, threads: runtimes, memories: runtimes, memory_each }
}

/// Why there is no runtime, and a remedy.
pub(crate) fn no_runtime(error: &io::Error) -> String {
    format!("a runtime cannot be made ({error}); {}", limits::of_files())
}

/// Runs a shard on this thread until it is shut down.
pub(crate) fn run<T, V>(runtime: &Runtime, driven: Driven<T>, values: V)
where
    T: Send + 'static,
    V: Values<T>,
{
    LocalSet::new().block_on(runtime, drive(driven, values, TokioHost::default()));
}

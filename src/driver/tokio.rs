//! A shard on a current-thread tokio runtime with a `LocalSet`.
//!
//! Tokio's timers count in milliseconds and round up, so a tick shorter than one costs up to a
//! millisecond of lateness here.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;
use tokio::time::Sleep;

use super::Undertaker;
use super::executor::{Host, drive};
use crate::mesh::LocalFuture;
use crate::task::Handler;

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

    fn spawn(&self, future: LocalFuture) {
        tokio::task::spawn_local(future);
    }
}

/// A runtime for one shard.
pub(crate) fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Runs a shard on this thread until it is shut down.
pub(crate) fn run<T, H>(runtime: &Runtime, undertaker: Undertaker<T>, handler: H)
where
    T: Send + 'static,
    H: Handler<T>,
{
    LocalSet::new().block_on(runtime, drive(undertaker, handler, TokioHost::default()));
}

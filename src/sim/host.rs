//! The host of a simulated shard's driver: its alarm, and the sockets of its thread.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use super::executor::{Alarm, Executor, ThreadId};
use crate::clock::saturating_nanos;
use crate::driver::host::Host;
use crate::shard::timers::LocalFuture;

/// The host of a shard's driver.
pub(super) struct SimulatedHost {
    executor: Executor,
    thread: ThreadId,
    alarm: Option<Alarm>,
    /// Whether the sockets were looked at since the alarm has gone off.
    has_looked: bool,
}

impl SimulatedHost {
    pub(super) fn new(executor: &Executor, thread: ThreadId) -> Self {
        Self { executor: executor.clone(), thread, alarm: None, has_looked: false }
    }
}

impl Host for SimulatedHost {
    fn arm(&mut self, after: Duration) {
        let at = self.executor.nanos().saturating_add(saturating_nanos(after));
        self.alarm = Some(Alarm::new(&self.executor, at));
        self.has_looked = false;
    }

    /// A runtime takes its sockets before its timers, so the tasks that have something to read run
    /// before the driver.
    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(alarm) = &self.alarm else { return Poll::Pending };
        if alarm.poll(cx).is_pending() {
            return Poll::Pending;
        }
        if !self.has_looked && self.executor.look(self.thread) {
            self.has_looked = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// On the thread of a runtime, tasks run in order, so those that the look has made ready run
    /// before the driver goes on. Without sockets, the seed says whether they run before it.
    async fn read_sockets(&mut self, _connections: usize) {
        self.executor.hand_out_all(self.thread);
        self.step_aside().await;
    }

    async fn step_aside(&mut self) {
        let mut has_yielded = false;
        poll_fn(|cx| {
            if has_yielded {
                return Poll::Ready(());
            }
            has_yielded = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    fn spawn(&self, future: LocalFuture) {
        self.executor.spawn(self.thread, future);
    }
}

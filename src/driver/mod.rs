//! What runs the turns of a shard: the same loop over three kinds of thread.
//!
//! A driver decides nothing about timers. It calls [`turn`] and then waits, for as long as the turn
//! says or until the bell rings. The loops over executors differ only in their [`Host`]: the alarm
//! that they set, how they step aside for other tasks, and how they spawn.

#[cfg(all(feature = "glommio", target_os = "linux"))]
pub(crate) mod glommio;
pub(crate) mod own_loop;
pub(crate) mod thread;
#[cfg(feature = "tokio")]
pub(crate) mod tokio;

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use corewheel_shard::Tick;

use crate::core::contain;
use crate::mesh::LocalFuture;
use crate::service::ShutdownPolicy;
use crate::stats::ShardState;
use crate::task::Handler;
use crate::timers::Timers;
use crate::turn::{Turn, turn};

/// What a driver needs of the executor that it runs in.
pub(crate) trait Host {
    /// Sets the one alarm.
    fn arm(&mut self, after: Duration);
    /// Whether the alarm has gone off.
    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()>;
    /// Lets other tasks of the executor run.
    async fn step_aside(&mut self);
    /// Starts a future beside the driver.
    fn spawn(&self, future: LocalFuture);
}

/// The longest that an alarm is set for; it is then set again.
const ALARM_MAX: Duration = Duration::from_hours(24);

/// Runs a shard until it is shut down.
pub(crate) async fn drive<T, H, X>(timers: Timers<T>, mut handler: H, mut host: X)
where
    T: Send + 'static,
    H: Handler<T>,
    X: Host,
{
    let _here = OnShardThread::enter();
    let undertaker = Undertaker(timers.clone());
    let core = timers.core();
    // When the alarm is set for, in nanoseconds; it is left alone unless it must be earlier.
    let mut armed_for = None;
    loop {
        let turn = turn(&timers, &mut handler);
        for job in core.take_jobs() {
            let spawned = contain(core.id(), || host.spawn(job(timers.clone())));
            core.note_delivery(spawned, 0);
        }
        match turn {
            Turn::More => host.step_aside().await,
            Turn::Next(tick) => sleep(&timers, tick, &mut host, &mut armed_for).await,
            Turn::Idle => sleep(&timers, Tick::NEVER, &mut host, &mut armed_for).await,
            Turn::Closed => break,
        }
    }
    drop(undertaker);
}

async fn sleep<T, X>(timers: &Timers<T>, until: Tick, host: &mut X, armed_for: &mut Option<u64>)
where
    T: Send + 'static,
    X: Host,
{
    let core = timers.core();
    let mut asleep = false;
    poll_fn(|cx| {
        if !asleep {
            if !core.fall_asleep(until, cx.waker()) {
                return Poll::Ready(());
            }
            asleep = true;
            if until < Tick::NEVER {
                let at = core.directory().tick.start_of(until);
                if armed_for.is_none_or(|earlier| at < earlier) {
                    let after = Duration::from_nanos(at.saturating_sub(core.nanos()));
                    host.arm(after.min(ALARM_MAX));
                    *armed_for = Some(at);
                }
            }
        } else if !core.door().bell.stay_asleep(cx.waker()) {
            core.wake_up();
            return Poll::Ready(());
        }
        if armed_for.is_some() && host.poll_alarm(cx).is_ready() {
            *armed_for = None;
            core.wake_up();
            return Poll::Ready(());
        }
        Poll::Pending
    })
    .await;
}

/// Sees to it that a shard whose driver ends without a shutdown is known to be dead: its lanes are
/// closed, and whoever waits for an answer is told so.
pub(crate) struct Undertaker<T: Send + 'static>(pub(crate) Timers<T>);

impl<T: Send + 'static> Drop for Undertaker<T> {
    fn drop(&mut self) {
        let core = self.0.core();
        if core.close(ShardState::Dead) {
            let report = core.clear_out(ShutdownPolicy::Drop);
            let lost = report.counts.returned;
            tracing::error!(shard = core.id().number(), lost, "a shard ended without a shutdown");
        }
    }
}

thread_local! {
    /// How many shards this thread drives.
    static SHARDS_HERE: Cell<usize> = const { Cell::new(0) };
}

/// Whether this thread drives a shard, so that it must not block for one.
pub(crate) fn is_shard_thread() -> bool {
    SHARDS_HERE.with(Cell::get) > 0
}

/// While it lives, this thread drives a shard.
#[derive(Debug)]
pub(crate) struct OnShardThread(
    // Counts for this thread alone.
    std::marker::PhantomData<*const ()>,
);

impl OnShardThread {
    pub(crate) fn enter() -> Self {
        SHARDS_HERE.with(|here| here.set(here.get() + 1));
        Self(std::marker::PhantomData)
    }
}

impl Drop for OnShardThread {
    fn drop(&mut self) {
        // A thread-local may be gone when the last things of a thread are dropped.
        let _ = SHARDS_HERE.try_with(|here| here.set(here.get() - 1));
    }
}

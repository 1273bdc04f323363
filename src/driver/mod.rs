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

use std::any::Any;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::task::{Context, Poll};
use std::time::Duration;

use corewheel_shard::Tick;
use slab::Slab;

use crate::core::contain;
use crate::mesh::LocalFuture;
use crate::shutdown::ShutdownPolicy;
use crate::spawn::contained;
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

/// Runs a shard until it is shut down. The thread counts as the shard's from this call on.
pub(crate) fn drive<T, H, X>(
    undertaker: Undertaker<T>,
    handler: H,
    host: X,
) -> impl Future<Output = ()>
where
    T: Send + 'static,
    H: Handler<T>,
    X: Host,
{
    let here = OnShardThread::enter(&undertaker);
    async move {
        take_turns(undertaker.timers(), handler, host).await;
        drop(undertaker);
        drop(here);
    }
}

async fn take_turns<T, H, X>(timers: &Timers<T>, mut handler: H, mut host: X)
where
    T: Send + 'static,
    H: Handler<T>,
    X: Host,
{
    let core = timers.core();
    // When the alarm is set for, in nanoseconds; it is left alone unless it must be earlier.
    let mut armed_for = None;
    loop {
        let turn = turn(timers, &mut handler);
        for job in core.take_jobs() {
            let spawn = || host.spawn(Box::pin(contained(timers.clone(), job(timers.clone()))));
            core.note_delivery(contain(core.id(), spawn), 0);
        }
        match turn {
            Turn::More => host.step_aside().await,
            Turn::Next(tick) => sleep(timers, tick, &mut host, &mut armed_for).await,
            Turn::Idle => sleep(timers, Tick::NEVER, &mut host, &mut armed_for).await,
            Turn::Closed => return,
        }
    }
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
/// closed, and whoever waits for an answer is told so. Made together with the shard.
pub(crate) struct Undertaker<T: Send + 'static>(Timers<T>);

impl<T: Send + 'static> Undertaker<T> {
    pub(crate) fn new(timers: Timers<T>) -> Self {
        Self(timers)
    }

    pub(crate) fn timers(&self) -> &Timers<T> {
        &self.0
    }
}

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
    /// The shards that this thread drives. What is left when the thread ends is that of an executor
    /// that has died and has kept the driver's future, as some do.
    static SHARDS_HERE: RefCell<Slab<Box<dyn Any>>> = const { RefCell::new(Slab::new()) };
}

/// Whether this thread drives a shard, so that it must not block for one.
pub(crate) fn is_shard_thread() -> bool {
    // A thread-local may be gone when the last things of a thread are dropped.
    SHARDS_HERE.try_with(|here| !here.borrow().is_empty()).unwrap_or(false)
}

/// While it lives, this thread drives a shard.
#[derive(Debug)]
pub(crate) struct OnShardThread {
    index: usize,
    // Counts for this thread alone.
    _here: PhantomData<*const ()>,
}

impl OnShardThread {
    pub(crate) fn enter<T: Send + 'static>(undertaker: &Undertaker<T>) -> Self {
        let last = Box::new(Undertaker::new(undertaker.timers().clone()));
        let index = SHARDS_HERE.with(|here| here.borrow_mut().insert(last));
        Self { index, _here: PhantomData }
    }
}

impl Drop for OnShardThread {
    fn drop(&mut self) {
        let last = SHARDS_HERE.try_with(|here| here.borrow_mut().try_remove(self.index));
        drop(last);
    }
}

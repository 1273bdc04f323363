//! What runs the turns of a shard: the same loop over three kinds of thread.
//!
//! A driver decides nothing about timers. It takes a [turn](crate::turn) and then waits, for as
//! long as the turn says or until the bell rings. The loops over executors differ only in their
//! host: the alarm that they set, how they step aside for other tasks, and how they spawn.

#[cfg(any(feature = "tokio", all(feature = "glommio", target_os = "linux")))]
pub(crate) mod executor;
#[cfg(all(feature = "glommio", target_os = "linux"))]
pub(crate) mod glommio;
pub(crate) mod own_loop;
pub(crate) mod thread;
#[cfg(feature = "tokio")]
pub(crate) mod tokio;

use std::any::Any;
use std::cell::RefCell;
use std::marker::PhantomData;

use slab::Slab;

use crate::contain::Contained;
use crate::shutdown::ShutdownPolicy;
use crate::stats::ShardState;
use crate::task::{Fired, Handler};
use crate::timers::Timers;

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

/// A handler whose `Drop` is contained, as some executors die of a panic, or abort the process.
pub(crate) struct Kept<H>(Contained<H>);

impl<H> Kept<H> {
    pub(crate) fn new(handler: H) -> Self {
        Self(Contained::new(handler))
    }
}

impl<T: Send + 'static, H: Handler<T>> Handler<T> for Kept<H> {
    #[inline]
    fn expired(&mut self, fired: Fired<T>, timers: &Timers<T>) {
        self.0.get_mut().expired(fired, timers);
    }

    fn closing(&mut self, timers: &Timers<T>) {
        self.0.get_mut().closing(timers);
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

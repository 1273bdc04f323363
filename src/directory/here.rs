//! The shards that the calling thread drives.

use std::any::Any;
use std::cell::RefCell;
use std::marker::PhantomData;

use slab::Slab;

thread_local! {
    /// A guard for each shard that this thread drives. A guard that is left when the thread ends is
    /// that of an executor that has died and has kept the driver's future, as some executors do.
    static SHARDS: RefCell<Slab<Box<dyn Any>>> = const { RefCell::new(Slab::new()) };
}

/// Whether the calling thread drives a shard of any service, so that it must not block for one.
pub(crate) fn is_shard_thread() -> bool {
    // A thread-local may be gone when the last values of a thread are dropped.
    SHARDS.try_with(|shards| !shards.borrow().is_empty()).unwrap_or(false)
}

/// While it lives, the thread that made it drives a shard.
#[derive(Debug)]
pub(crate) struct OnShardThread {
    index: usize,
    // Counts for this thread alone.
    _not_send: PhantomData<*const ()>,
}

impl OnShardThread {
    /// Keeps `guard` until the value is dropped or the thread ends.
    pub(crate) fn enter(guard: impl Any) -> Self {
        let guard: Box<dyn Any> = Box::new(guard);
        let index = SHARDS.with(|shards| shards.borrow_mut().insert(guard));
        Self { index, _not_send: PhantomData }
    }
}

impl Drop for OnShardThread {
    fn drop(&mut self) {
        let guard = SHARDS.try_with(|shards| shards.borrow_mut().try_remove(self.index));
        drop(guard);
    }
}

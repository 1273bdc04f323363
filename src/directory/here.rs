//! The shards that the calling thread drives.

use std::any::Any;
use std::cell::RefCell;
use std::marker::PhantomData;

use slab::Slab;

thread_local! {
    /// A guard for each shard that this thread drives. If an executor dies without dropping the
    /// driver's future, the guard of its shard is still here when the thread ends.
    static SHARDS: RefCell<Slab<Box<dyn Any>>> = const { RefCell::new(Slab::new()) };
}

/// Whether the calling thread drives a shard of any service. Such a thread must not block for a
/// reply.
pub(crate) fn is_shard_thread() -> bool {
    // The thread-local may be destroyed before other values of the thread are dropped.
    SHARDS.try_with(|shards| !shards.borrow().is_empty()).unwrap_or(false)
}

/// A guard of a thread that drives a shard while the guard lives.
#[derive(Debug)]
pub(crate) struct OnShardThread {
    index: usize,
    // The index is one of this thread.
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

//! A purgatory, for what must not keep it alive.

use std::fmt;
use std::hash::Hash;
use std::rc::{Rc, Weak};

use super::{Inner, Operation, Purgatory};

/// A [`Purgatory`] that is not kept alive by this; made by [`Purgatory::downgrade`].
///
/// ```
/// # use corewheel::{Fired, OperationFn, Purgatory, TimerService};
/// # use std::time::Duration;
/// # let service = TimerService::builder().shards(1).start_attached::<()>()?;
/// # let shard = service.attach(service.shards().next().unwrap())?;
/// # let shard = shard.into_loop(|_: Fired<()>, _: &_| {})?;
/// let purgatory = Purgatory::<u32, OperationFn, ()>::new(shard.timers());
/// // When this operation is done, the operations that wait for key 2 may be.
/// let weak = purgatory.downgrade();
/// let operation = OperationFn::new(|| false, move |_how| {
///     if let Some(purgatory) = weak.upgrade() {
///         purgatory.check_and_complete(&2);
///     }
/// });
/// let _watch = purgatory.try_complete_else_watch(operation, Duration::from_secs(1), [1])?;
/// let weak = purgatory.downgrade();
/// drop(purgatory);
/// assert!(weak.upgrade().is_none(), "the operation did not keep it alive");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WeakPurgatory<K, Op, T = std::convert::Infallible>(Weak<Inner<K, Op, T>>)
where
    K: Hash + Eq + 'static,
    Op: Operation,
    T: Send + 'static;

impl<K, Op, T> WeakPurgatory<K, Op, T>
where
    K: Hash + Eq + 'static,
    Op: Operation,
    T: Send + 'static,
{
    pub(super) fn of(purgatory: &Purgatory<K, Op, T>) -> Self {
        Self(Rc::downgrade(&purgatory.0))
    }

    /// The purgatory, if anything else still keeps it alive.
    pub fn upgrade(&self) -> Option<Purgatory<K, Op, T>> {
        self.0.upgrade().map(Purgatory)
    }
}

impl<K, Op, T> Clone for WeakPurgatory<K, Op, T>
where
    K: Hash + Eq + 'static,
    Op: Operation,
    T: Send + 'static,
{
    fn clone(&self) -> Self {
        Self(Weak::clone(&self.0))
    }
}

impl<K, Op, T> fmt::Debug for WeakPurgatory<K, Op, T>
where
    K: Hash + Eq + 'static,
    Op: Operation,
    T: Send + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakPurgatory(..)")
    }
}

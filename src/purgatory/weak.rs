//! A purgatory, for what must not keep it alive.

use std::fmt;
use std::hash::Hash;
use std::rc::{Rc, Weak};

use super::{Inner, Operation, Purgatory};

/// A [`Purgatory`] that is not kept alive by this; made by [`Purgatory::downgrade`].
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

//! What does not keep keyed timers alive, and what all that name them have in common.

use std::fmt;
use std::hash::Hash;
use std::rc::{Rc, Weak};

use super::{Inner, KeyedTimers};

/// [`KeyedTimers`] that are not kept alive by this; made by [`KeyedTimers::downgrade`].
pub struct WeakKeyedTimers<K, V, G = (), T = std::convert::Infallible>(Weak<Inner<K, V, G, T>>)
where
    K: Hash + Eq + 'static,
    V: 'static,
    G: Hash + Eq + 'static,
    T: Send + 'static;

impl<K, V, G, T> WeakKeyedTimers<K, V, G, T>
where
    K: Hash + Eq + 'static,
    V: 'static,
    G: Hash + Eq + 'static,
    T: Send + 'static,
{
    pub(super) fn new(timers: &KeyedTimers<K, V, G, T>) -> Self {
        Self(Rc::downgrade(&timers.0))
    }

    /// The timers, if anything else still keeps them alive.
    pub fn upgrade(&self) -> Option<KeyedTimers<K, V, G, T>> {
        self.0.upgrade().map(KeyedTimers)
    }
}

impl<K, V, G, T> Clone for KeyedTimers<K, V, G, T>
where
    K: Hash + Eq + 'static,
    V: 'static,
    G: Hash + Eq + 'static,
    T: Send + 'static,
{
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<K, V, G, T> Clone for WeakKeyedTimers<K, V, G, T>
where
    K: Hash + Eq + 'static,
    V: 'static,
    G: Hash + Eq + 'static,
    T: Send + 'static,
{
    fn clone(&self) -> Self {
        Self(Weak::clone(&self.0))
    }
}

impl<K, V, G, T> fmt::Debug for KeyedTimers<K, V, G, T>
where
    K: Hash + Eq + 'static,
    V: 'static,
    G: Hash + Eq + 'static,
    T: Send + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedTimers")
            .field("len", &self.len())
            .field("groups", &self.groups())
            .finish_non_exhaustive()
    }
}

impl<K, V, G, T> fmt::Debug for WeakKeyedTimers<K, V, G, T>
where
    K: Hash + Eq + 'static,
    V: 'static,
    G: Hash + Eq + 'static,
    T: Send + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakKeyedTimers(..)")
    }
}

//! Values that are lent to a closure of the user.
//!
//! The table is borrowed while the closure runs. A method that the closure calls finds that and
//! panics before it changes anything. A timer that fires meanwhile, since the closure takes a turn
//! of the shard, cannot be taken out of the table; it is deferred until the closure has returned.
//!
//! Why not values that are taken out of the table and put back: each entry would need a state for
//! that, and a closure that panics would lose its value.
//!
//! Invariants: while no value is lent, each entry has a pending timer unless the shard is closed.
//!
//! Cost: a borrow more than a lookup.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

use super::KeyedTimers;

/// Lending values.
impl<K: Hash + Eq, V, G: Hash + Eq> KeyedTimers<K, V, G> {
    /// Lends the value of a key to a closure, and returns what the closure returns. `None` if there
    /// is no such key. The deadline does not change.
    ///
    /// A key whose deadline has passed is there until its timer is delivered: see
    /// [`due`](Self::due).
    ///
    /// Cost: a lookup; nothing is moved or cloned.
    ///
    /// # Panics
    ///
    /// If the closure uses these timers, or panics itself. Key, value and timer stay.
    pub fn with<Q, R>(&self, key: &Q, visit: impl FnOnce(&mut V) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.0.hasher.hash_one(key);
        // Dropped after the table is released, and also if the closure panics.
        let _fires = FireOnDrop(self);
        let mut table = self.table();
        let entry = table.find(hash, |known| known.borrow() == key)?;
        table.get(entry).map(|known| visit(&mut known.value))
    }
}

/// Fires the entries that were deferred when a value is no longer lent.
struct FireOnDrop<'a, K: 'static, V: 'static, G: 'static>(&'a KeyedTimers<K, V, G>);

impl<K, V, G> Drop for FireOnDrop<'_, K, V, G> {
    fn drop(&mut self) {
        let Self(KeyedTimers(inner)) = self;
        // A closed shard fires no timer any more, and the entries stay.
        if inner.deferred.borrow().is_empty() || inner.shard.is_closed() {
            return;
        }
        // The table is still borrowed if a closure that is lent a value has called a method.
        let Ok(mut table) = inner.table.try_borrow_mut() else { return };
        let deferred = inner.deferred.take().into_iter().map(|entry| table.remove(entry));
        let deferred: Vec<_> = deferred.collect();
        drop(table);
        for ended in deferred {
            self.0.end(ended);
        }
    }
}

#[cold]
pub(super) fn used_while_lent() -> ! {
    panic!(
        "keyed timers are used by a closure that is lent one of their values, or by `Hash` or `Eq` \
         of a key; use them when the closure has returned"
    )
}

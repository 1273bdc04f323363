//! Values that are lent to a closure of the user.
//!
//! The table is borrowed while the closure runs. A method that the closure calls finds that and
//! panics before it changes anything. A timer that fires meanwhile, since the closure takes a turn
//! of the shard, cannot be taken out of the table; it is deferred.
//!
//! Why not values that are taken out of the table and put back: each entry would need a state for
//! that, and a closure that panics would lose its value.
//!
//! Invariants: while no value is lent, each entry has a pending timer unless the shard is closed.
//!
//! Cost: a borrow more than a lookup.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use super::KeyedTimers;
use super::table::Table;

/// Lending values.
impl<K: Hash + Eq, V, G: Hash + Eq> KeyedTimers<K, V, G> {
    /// Lends the value of a key to a closure, and returns what the closure returns. `None` if there
    /// is no such key. The deadline does not change.
    ///
    /// A key whose deadline has passed is there until its timer is delivered: see
    /// [`contains`](Self::contains).
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
        self.lend(|table| {
            let entry = table.find(hash, |known| known.borrow() == key)?;
            table.get(entry).map(|known| visit(&mut known.value))
        })
    }

    /// Lends each key and its value to a closure, in no particular order.
    ///
    /// # Panics
    ///
    /// If the closure uses these timers, or panics itself. Keys, values and timers stay.
    pub fn for_each(&self, mut visit: impl FnMut(&K, &mut V)) {
        self.lend(|table| table.for_each(|known| visit(&known.key, &mut known.value)));
    }
}

impl<K, V, G> KeyedTimers<K, V, G> {
    /// Runs code of the user that is lent values of the table.
    fn lend<R>(&self, run: impl FnOnce(&mut Table<K, V, G>) -> R) -> R {
        // Dropped after the table is released, and also if the closure panics.
        let _restore = RestoreOnDrop(self);
        run(&mut self.table())
    }

    /// The timer of an entry has fired in a turn that a closure takes while it is lent a value. A
    /// timer without a deadline keeps the place until the closure returns; the slot of the timer
    /// that has just fired is free, so only a closed shard refuses it.
    #[cold]
    pub(super) fn defer(&self, entry: u32) {
        if let Ok(timer) = self.0.shard.schedule(Duration::MAX, entry) {
            self.0.deferred.borrow_mut().push((entry, timer));
        }
    }

    /// Gives the entries that were deferred their deadlines back: they fire in the next turn.
    #[cold]
    fn restore_deferred(&self) {
        // The table is still borrowed if a closure that is lent a value has called a method.
        let Ok(mut table) = self.0.table.try_borrow_mut() else { return };
        // The driver is woken when all of them are restored.
        let _compound = self.0.shard.compound();
        for (entry, timer) in self.0.deferred.take() {
            if let Some(known) = table.get(entry) {
                known.timer = timer;
                let _restored = self.0.shard.reset(timer, known.deadline);
            }
        }
        drop(table);
    }
}

/// Restores the deferred entries when a value is no longer lent.
struct RestoreOnDrop<'a, K: 'static, V: 'static, G: 'static>(&'a KeyedTimers<K, V, G>);

impl<K, V, G> Drop for RestoreOnDrop<'_, K, V, G> {
    fn drop(&mut self) {
        if !self.0.0.deferred.borrow().is_empty() {
            self.0.restore_deferred();
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

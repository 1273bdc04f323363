//! The tasks that wait for a value of a queue.
//!
//! Each task has a place, which it leaves when its future is done or dropped. All waiting tasks are
//! woken at once, and the first that polls takes the value: most queues have one consumer.
//!
//! Invariants: wakers are cloned, woken and dropped while nothing is borrowed.
//!
//! Cost: O(1) for each method but [`Waiters::wake_all`], which is O(places).

use std::cell::{Cell, RefCell};
use std::task::Waker;

use corewheel::part::PartHandle;
use slab::Slab;

#[derive(Default)]
pub(super) struct Waiters {
    places: RefCell<Slab<Option<Waker>>>,
    /// How many places hold a waker.
    waiting: Cell<usize>,
    /// The buffer of the wakers that are being woken, kept for its memory.
    woken: RefCell<Vec<Waker>>,
}

impl Waiters {
    /// Makes a place for one task.
    pub(super) fn enter(&self) -> usize {
        self.places.borrow_mut().insert(None)
    }

    /// Takes a place away, with its waker.
    pub(super) fn leave(&self, place: usize, shard: &PartHandle) {
        let waker = self.places.borrow_mut().remove(place);
        self.forget(waker, shard);
    }

    /// Stores a waker, which the next [`wake_all`](Self::wake_all) wakes.
    pub(super) fn register(&self, place: usize, waker: &Waker, shard: &PartHandle) {
        let is_known = |known: &Waker| known.will_wake(waker);
        if self.places.borrow()[place].as_ref().is_some_and(is_known) {
            return;
        }
        let waker = waker.clone();
        let old = self.places.borrow_mut()[place].replace(waker);
        self.waiting.set(self.waiting.get() + 1);
        self.forget(old, shard);
    }

    /// Drops the waker of a place.
    #[inline]
    pub(super) fn unregister(&self, place: usize, shard: &PartHandle) {
        if self.is_waiting() {
            let waker = self.places.borrow_mut()[place].take();
            self.forget(waker, shard);
        }
    }

    /// Whether any task waits.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.get() > 0
    }

    /// Takes all wakers out and hands each to `wake`.
    pub(super) fn wake_all(&self, wake: impl FnMut(Waker)) {
        if !self.is_waiting() {
            return;
        }
        let mut woken = self.woken.take();
        woken.extend(self.places.borrow_mut().iter_mut().filter_map(|(_, waker)| waker.take()));
        self.waiting.set(self.waiting.get() - woken.len());
        woken.drain(..).for_each(wake);
        self.woken.replace(woken);
    }

    fn forget(&self, waker: Option<Waker>, shard: &PartHandle) {
        self.waiting.set(self.waiting.get() - usize::from(waker.is_some()));
        shard.drop_each(waker);
    }
}

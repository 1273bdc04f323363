//! The tasks that wait for a value of a queue.
//!
//! Each task has a place, which it leaves when its future is done or dropped. All waiting tasks are
//! woken at once, and the first that polls takes the value: most queues have one consumer.
//!
//! Invariants: wakers are cloned, woken and dropped while nothing is borrowed.
//!
//! Cost: O(1) for each method but [`Waiters::wake_all`], which is O(places).

use std::cell::RefCell;
use std::task::Waker;

use slab::Slab;

#[derive(Default)]
pub(super) struct Waiters {
    places: RefCell<Slab<Option<Waker>>>,
    /// The buffer of the wakers that are being woken, kept for its memory.
    woken: RefCell<Vec<Waker>>,
}

impl Waiters {
    /// Makes a place for one task.
    pub(super) fn enter(&self) -> usize {
        self.places.borrow_mut().insert(None)
    }

    /// Takes a place away, and returns its waker, for the caller to drop.
    pub(super) fn leave(&self, place: usize) -> Option<Waker> {
        self.places.borrow_mut().remove(place)
    }

    /// Stores a waker, which the next [`wake_all`](Self::wake_all) wakes. Returns the waker before,
    /// for the caller to drop.
    pub(super) fn register(&self, place: usize, waker: &Waker) -> Option<Waker> {
        let is_known = |known: &Waker| known.will_wake(waker);
        if self.places.borrow()[place].as_ref().is_some_and(is_known) {
            return None;
        }
        let waker = waker.clone();
        self.places.borrow_mut()[place].replace(waker)
    }

    /// Takes the waker of a place, for the caller to drop.
    pub(super) fn unregister(&self, place: usize) -> Option<Waker> {
        self.places.borrow_mut()[place].take()
    }

    /// Takes all wakers out and hands each to `wake`.
    pub(super) fn wake_all(&self, wake: impl FnMut(Waker)) {
        let mut woken = self.woken.take();
        woken.extend(self.places.borrow_mut().iter_mut().filter_map(|(_, waker)| waker.take()));
        woken.drain(..).for_each(wake);
        self.woken.replace(woken);
    }
}

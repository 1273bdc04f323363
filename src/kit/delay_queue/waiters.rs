//! The tasks that wait for a queue.
//!
//! Each has a place, which it leaves when it has what it wanted or is dropped. All of them are
//! woken at once, and who comes first is served: a queue has one consumer, mostly. Wakers are
//! cloned, woken and dropped while nothing is borrowed.

use std::cell::{Cell, RefCell};
use std::task::Waker;

use slab::Slab;

use crate::values::contain::drop_each;

#[derive(Default)]
pub(super) struct Waiters {
    places: RefCell<Slab<Option<Waker>>>,
    /// How many of them hold a waker.
    waiting: Cell<usize>,
    /// Room for those that are woken.
    woken: RefCell<Vec<Waker>>,
}

impl Waiters {
    /// A place for one task.
    pub(super) fn enter(&self) -> usize {
        self.places.borrow_mut().insert(None)
    }

    pub(super) fn leave(&self, place: usize) {
        let waker = self.places.borrow_mut().remove(place);
        self.forget(waker);
    }

    /// Has this woken the next time that all are.
    pub(super) fn wait(&self, place: usize, waker: &Waker) {
        let is_known = |known: &Waker| known.will_wake(waker);
        if self.places.borrow()[place].as_ref().is_some_and(is_known) {
            return;
        }
        let waker = waker.clone();
        let old = self.places.borrow_mut()[place].replace(waker);
        self.waiting.set(self.waiting.get() + 1);
        self.forget(old);
    }

    /// Does not have it woken any more.
    #[inline]
    pub(super) fn rest(&self, place: usize) {
        if self.is_waiting() {
            let waker = self.places.borrow_mut()[place].take();
            self.forget(waker);
        }
    }

    /// Whether anybody waits.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.get() > 0
    }

    /// Hands everybody's waker to `wake`.
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

    fn forget(&self, waker: Option<Waker>) {
        self.waiting.set(self.waiting.get() - usize::from(waker.is_some()));
        drop_each(waker);
    }
}

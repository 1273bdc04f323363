//! The table of a thread: how it reaches the services that it uses.
//!
//! Invariant: an entry that is in use is taken out of `last`; a nested call finds it among all
//! entries.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::here::Reach;
use crate::values::ids::ServiceId;

/// How one thread reaches the services that it uses.
pub(super) struct Reaches {
    /// The entry that the thread has used last. `None` while it is in use.
    last: Cell<Option<Rc<Reach>>>,
    all: RefCell<Vec<Rc<Reach>>>,
}

impl Reaches {
    pub(super) const fn new() -> Self {
        Self { last: Cell::new(None), all: RefCell::new(Vec::new()) }
    }

    /// Takes the entry of a service, to be put back when it was used. Why not a clone: most calls
    /// find the entry that was used last, and would count it up and down.
    #[inline]
    pub(super) fn take(&self, service: ServiceId) -> Option<Rc<Reach>> {
        match self.last.take() {
            Some(last) if last.is_of(service) => Some(last),
            _ => self.search(service),
        }
    }

    #[inline]
    pub(super) fn put_back(&self, reach: Rc<Reach>) {
        self.last.set(Some(reach));
    }

    /// Looks at the entry that was used last, if it is not in use. `look` must not use the table.
    #[inline]
    pub(super) fn look_at_last<R>(&self, look: impl FnOnce(&Reach) -> Option<R>) -> Option<R> {
        let last = self.last.take();
        let seen = last.as_deref().and_then(look);
        self.last.set(last);
        seen
    }

    #[inline(never)]
    pub(super) fn search(&self, service: ServiceId) -> Option<Rc<Reach>> {
        self.all.borrow().iter().find(|reach| reach.is_of(service)).cloned()
    }

    pub(super) fn push(&self, reach: Rc<Reach>) {
        self.all.borrow_mut().push(reach);
    }

    /// Takes the entries out that are `gone`.
    pub(super) fn take_gone(&self, gone: impl Fn(&Reach) -> bool) -> Vec<Rc<Reach>> {
        let last = self.last.take();
        let mut all = self.all.borrow_mut();
        all.extract_if(.., |reach| gone(reach)).chain(last).collect()
    }
}

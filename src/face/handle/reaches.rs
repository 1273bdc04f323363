//! The table of a thread: how it reaches the services that it uses.
//!
//! Invariant: the entry of the service that the thread has used first stays until the thread ends,
//! also if the service ends, so that it is used without a count of its users. A simulated thread
//! has no such entry, as its table is that of a thread which lives on.
//!
//! Cost: a comparison for the service that was used first, and a search for another one.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use super::here::Reach;
use crate::values::ids::ServiceId;

/// How one thread reaches the services that it uses.
pub(super) struct Reaches {
    first: OnceCell<Rc<Reach>>,
    others: RefCell<Vec<Rc<Reach>>>,
}

impl Reaches {
    pub(super) const fn new() -> Self {
        Self { first: OnceCell::new(), others: RefCell::new(Vec::new()) }
    }

    /// The entry of a service, if the thread has used that service first.
    #[inline]
    pub(super) fn first(&self, service: ServiceId) -> Option<&Rc<Reach>> {
        self.first.get().filter(|first| first.is_of(service))
    }

    /// The entry of a service that the thread has not used first.
    #[inline(never)]
    pub(super) fn other(&self, service: ServiceId) -> Option<Rc<Reach>> {
        self.others.borrow().iter().find(|reach| reach.is_of(service)).cloned()
    }

    pub(super) fn add(&self, reach: Rc<Reach>) {
        if reach.is_simulated() {
            self.others.borrow_mut().push(reach);
            return;
        }
        let not_first = self.first.set(reach).err();
        self.others.borrow_mut().extend(not_first);
    }

    /// Takes the entries out that are `gone`, but for the first.
    pub(super) fn take_gone(&self, gone: impl Fn(&Reach) -> bool) -> Vec<Rc<Reach>> {
        let (mut others, mut taken) = (self.others.borrow_mut(), Vec::new());
        while let Some(at) = others.iter().position(|reach| gone(reach)) {
            taken.push(others.remove(at));
        }
        taken
    }
}

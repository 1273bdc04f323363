//! What timers carry, which tell the ledger when they are dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Id, Ledger};
use crate::commands::Temper;

/// A payload: a value, or what a callback captures.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: Id,
    pub(crate) temper: Temper,
    is_armed: bool,
}

impl Job {
    pub(super) fn new(id: Id, temper: Temper) -> Self {
        Self { id, temper, is_armed: true }
    }

    /// The payload has come back, or was delivered: its drop means nothing.
    pub(crate) fn disarm(mut self) {
        self.is_armed = false;
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.is_armed {
            return;
        }
        Ledger::with(|ledger| ledger.dropped(self.id));
        if std::thread::panicking() {
            Ledger::violate_unwinding("a value");
        } else {
            assert!(self.temper != Temper::PanicsWhenDropped, "on purpose");
        }
    }
}

/// Drops a value that may panic on purpose.
pub(crate) fn drop_contained<V>(value: V) {
    // The panic's message is of no interest.
    drop(catch_unwind(AssertUnwindSafe(|| drop(value))));
}

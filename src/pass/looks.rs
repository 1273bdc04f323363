//! Which looks at sockets were proven, and until when.
//!
//! A future decides by a look only if it is polled after that. So it reads how many looks there
//! were, polls what it guards, and then asks for a [`Proof`] within that number.

#![cfg_attr(
    not(all(feature = "tokio", unix)),
    allow(dead_code, reason = "there is no runtime whose looks are proven")
)]

use std::sync::Arc;
use std::task::Waker;

#[cfg(not(all(test, corewheel_loom)))]
use crossbeam_utils::CachePadded;

use super::Wait;
use crate::link::sync::{AtomicU64, Ordering};

/// How many looks were proven, by all runtimes. A pass that its host cannot prove counts as one.
pub(crate) struct Looks(AtomicU64);

#[cfg(not(all(test, corewheel_loom)))]
pub(crate) static LOOKS: CachePadded<Looks> = CachePadded::new(Looks::new());
#[cfg(all(test, corewheel_loom))]
loom::lazy_static! {
    pub(crate) static ref LOOKS: Looks = Looks::new();
}

/// The count before the first look, so that each caller knows of more than none.
pub(super) const FIRST: u64 = 1;

impl Looks {
    #[cfg(not(all(test, corewheel_loom)))]
    const fn new() -> Self {
        Self(AtomicU64::new(FIRST))
    }

    #[cfg(all(test, corewheel_loom))]
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(FIRST))
    }

    #[inline]
    pub(super) fn count(&self) -> u64 {
        // Acquire: pairs with `add`, so that what is polled from now on has the readiness that
        // these looks have handed out.
        self.0.load(Ordering::Acquire)
    }

    /// A look has handed out what sockets held at `until`, in nanoseconds.
    pub(crate) fn add(&self, until: u64) -> Proof {
        // Release: see `count`.
        let look = self.0.fetch_add(1, Ordering::Release) + 1;
        Proof { look, until }
    }
}

/// The last look of a runtime that was proven for timers.
#[derive(Clone, Copy)]
pub(crate) struct Proof {
    look: u64,
    until: u64,
}

impl Proof {
    /// There was no look.
    pub(crate) const NONE: Self = Self { look: u64::MAX, until: 0 };

    /// Whether the look has handed out what the sockets held at `time`, and was within the first
    /// `looks`.
    pub(crate) fn is_of(self, looks: u64, time: u64) -> bool {
        self.look <= looks && time <= self.until
    }
}

/// What is woken when a look has handed out what sockets held when a host was asked.
#[derive(Default)]
pub(crate) struct Written {
    pub(crate) waits: Vec<Arc<Wait>>,
    /// Of futures whose timers were due by `until`, in nanoseconds since the first epoch.
    pub(crate) due: Vec<Waker>,
    /// 0 if there is none. It had passed when the host was asked.
    pub(crate) until: u64,
}

impl Written {
    pub(crate) fn is_empty(&self) -> bool {
        self.waits.is_empty() && self.due.is_empty()
    }

    pub(crate) fn append(&mut self, mut other: Self) {
        self.waits.append(&mut other.waits);
        self.due.append(&mut other.due);
        self.until = self.until.max(other.until);
    }
}

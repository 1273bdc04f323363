//! The scaled timeouts of one shard: which of them are due, and their part in the shard's turns.
//!
//! Timeouts that are due are delivered by a turn one by one, as timers are, and not all together by
//! the timer that their range has in the wheel: so many may be due at once that a turn must end
//! before they do.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use corewheel_shard::Tick;

use crate::face::Core;
use crate::face::timers::Timers;
use crate::shard::hooks::Part;
use crate::stats::ShardCounts;
use crate::values::scale::Scale;

/// Timeouts of one minimum and one maximum. Its methods are called while nothing is borrowed.
pub(super) trait Range {
    /// The shard's scale has changed.
    fn rescale(&self);
    /// Whether one is due by this tick. If not, the range has made sure that it is told when.
    fn is_due(&self, tick: Tick) -> bool;
    /// Delivers the first one, and asks to be looked at again.
    fn deliver(&self, now: u64);
}

/// The most ranges of a shard: a change of the scale tells as many, one after the other.
pub(super) const RANGES_MAX: usize = 1_024;

/// All scaled timeouts of a shard. The part holds the shard's timers until the shard ends and lets
/// go of its parts.
pub(super) struct ScaledPart<T: Send + 'static> {
    timers: Timers<T>,
    ranges: RefCell<Vec<Weak<dyn Range>>>,
    /// The ranges of which something is due, in the order in which they take their turns.
    due: RefCell<VecDeque<Weak<dyn Range>>>,
    pending: Cell<u64>,
    fired: Cell<u64>,
}

impl<T: Send + 'static> ScaledPart<T> {
    /// The scaled timeouts of the shard of these timers.
    pub(super) fn of(timers: &Timers<T>) -> Rc<Self> {
        timers.core().parts().get_or_register(|_| Self {
            timers: timers.clone(),
            ranges: RefCell::default(),
            due: RefCell::default(),
            pending: Cell::default(),
            fired: Cell::default(),
        })
    }

    fn core(&self) -> &Core<T> {
        self.timers.core()
    }

    /// Adds a range. False if there are too many.
    pub(super) fn add_range(&self, range: Weak<dyn Range>) -> bool {
        let mut ranges = self.ranges.borrow_mut();
        ranges.retain(|range| range.strong_count() > 0);
        let fits = ranges.len() < RANGES_MAX;
        if fits {
            ranges.push(range);
        }
        fits
    }

    /// A range of which something is due, until [`Range::is_due`] is false.
    pub(super) fn add_due(&self, range: Weak<dyn Range>) {
        self.due.borrow_mut().push_back(range);
    }

    /// The next range of which something is due; takes it out of the queue.
    fn pop_due(&self, tick: Tick) -> Option<Rc<dyn Range>> {
        loop {
            let range = self.due.borrow_mut().pop_front()?;
            if let Some(range) = range.upgrade()
                && range.is_due(tick)
            {
                return Some(range);
            }
        }
    }

    /// Counts a timeout that is delivered, so late in nanoseconds, as a timer is counted.
    pub(super) fn note_fired(&self, late: u64) {
        self.fired.set(self.fired.get() + 1);
        self.core().note_lateness(late);
    }

    /// So many timeouts have come.
    #[inline]
    pub(super) fn add_pending(&self, count: u64) {
        self.set_pending(self.pending.get() + count);
    }

    /// So many are gone.
    #[inline]
    pub(super) fn remove_pending(&self, count: u64) {
        self.set_pending(self.pending.get() - count);
    }

    #[inline]
    fn set_pending(&self, pending: u64) {
        self.pending.set(pending);
        self.core().publish_gauge(|counts| counts.scaled_pending = pending);
    }
}

impl<T: Send + 'static> Part for ScaledPart<T> {
    fn has_work(&self) -> bool {
        !self.due.borrow().is_empty()
    }

    fn deliver(&self, now: u64, tick: Tick) -> bool {
        let range = self.pop_due(tick);
        range.as_ref().inspect(|range| range.deliver(now)).is_some()
    }

    fn publish(&self, counts: &mut ShardCounts) {
        (counts.scaled_pending, counts.scaled_fired) = (self.pending.get(), self.fired.get());
    }

    /// O(ranges), whatever is pending.
    fn scale_changed(&self, _scale: Scale) {
        let ranges: Vec<_> = self.ranges.borrow().iter().filter_map(Weak::upgrade).collect();
        for range in ranges {
            // It may be the last reference to the range, whose values are the user's to drop.
            self.core().contain(|| {
                range.rescale();
                drop(range);
            });
        }
    }
}

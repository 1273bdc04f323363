//! The scaled timeouts of one shard: the ranges that are due, and their part in the shard's turns.
//!
//! A turn delivers timeouts that are due one by one, alternating with timers. Why not all of them
//! when the timer of their range fires: so many may be due at once that a turn must end before they
//! do.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::time::Duration;

use corewheel::Timers;
use corewheel::part::{Gauges, Part, PartHandle, Wants};
use corewheel::settings::Scale;

/// Timeouts of one minimum and one maximum. Nothing is borrowed while a method runs.
pub(super) trait Range {
    /// The shard's scale has changed.
    fn rescale(&self);
    /// Whether a timeout is due in the turn that began at this time of the service's clock. If not,
    /// the range has a timer for its first one and leaves the queue of ranges that are due.
    fn is_due(&self, turn: Duration) -> bool;
    /// Delivers the first timeout, and puts the range into the queue again.
    fn deliver(self: Rc<Self>, now: Duration);
}

/// The most ranges of a shard. A change of the scale visits all of them.
pub(super) const RANGES_MAX: usize = 1_024;

/// All scaled timeouts of a shard. The part holds the shard until the shard ends and drops its
/// parts.
pub(super) struct ScaledPart {
    shard: PartHandle,
    ranges: RefCell<Vec<Weak<dyn Range>>>,
    /// The ranges in which a timeout is due, in the order in which they deliver.
    due: RefCell<VecDeque<Weak<dyn Range>>>,
    /// When the present turn began.
    turn: Cell<Duration>,
    pending: Cell<u64>,
    fired: Cell<u64>,
}

impl ScaledPart {
    /// The scaled timeouts of a shard.
    pub(super) fn of<T: Send + 'static>(timers: &Timers<T>) -> Rc<Self> {
        timers.shared_part(|shard| Self {
            turn: Cell::new(shard.since_start()),
            shard,
            ranges: RefCell::default(),
            due: RefCell::default(),
            pending: Cell::default(),
            fired: Cell::default(),
        })
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

    /// Puts a range in which a timeout is due into the queue.
    pub(super) fn push_due(&self, range: Weak<dyn Range>) {
        self.due.borrow_mut().push_back(range);
    }

    /// Takes the next range out of the queue in which a timeout is due.
    fn pop_due(&self) -> Option<Rc<dyn Range>> {
        loop {
            let range = self.due.borrow_mut().pop_front()?;
            if let Some(range) = range.upgrade() {
                if range.is_due(self.turn.get()) {
                    return Some(range);
                }
            }
        }
    }

    /// A timeout was started.
    #[inline]
    pub(super) fn note_started(&self) {
        self.set_pending(self.pending.get() + 1);
    }

    /// Timeouts have ended without being delivered.
    #[inline]
    pub(super) fn note_cancelled(&self, count: usize) {
        self.set_pending(self.pending.get() - count as u64);
    }

    /// A timeout is delivered.
    pub(super) fn note_fired(&self) {
        self.fired.set(self.fired.get() + 1);
        self.set_pending(self.pending.get() - 1);
    }

    #[inline]
    fn set_pending(&self, pending: u64) {
        self.pending.set(pending);
        self.shard.publish();
    }
}

impl Part for ScaledPart {
    fn takes_turns(&self) -> bool {
        true
    }

    fn turn_begins(&self, now: Duration) {
        self.turn.set(now);
    }

    fn wants(&self) -> Wants {
        if self.due.borrow().is_empty() { Wants::Nothing } else { Wants::Delivery }
    }

    fn deliver(self: Rc<Self>, now: Duration) {
        if let Some(range) = self.pop_due() {
            range.deliver(now);
        }
    }

    fn publish(&self, gauges: &mut Gauges<'_>) {
        gauges.set("scaled_pending", self.pending.get());
        gauges.set("scaled_fired", self.fired.get());
    }

    /// O(ranges), however many timeouts are pending.
    fn scale_changed(&self, _scale: Scale) {
        let ranges: Vec<_> = self.ranges.borrow().iter().filter_map(Weak::upgrade).collect();
        for range in ranges {
            // This may be the last reference to the range, whose values are the user's to drop.
            self.shard.contain(|| {
                range.rescale();
                drop(range);
            });
        }
    }
}

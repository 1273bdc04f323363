//! What a shard knows of its scaled timeouts: by what they are scaled, whom a change of that
//! concerns, and which of them are due.
//!
//! Those that are due are delivered by a turn one by one, as timers are, and not all together by
//! the timer that their class has in the wheel: so many may be due at once that a turn must end
//! before they do.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use corewheel_shard::Tick;

use super::{Core, Delivery};
use crate::class::ClassId;
use crate::scale::Scale;

/// Timeouts of one minimum and one maximum. Its methods are called while nothing is borrowed.
pub(crate) trait Class {
    /// The shard's scale is another one now.
    fn rescale(&self);
    /// Whether one is due by this tick. If not, the class has seen to it that it is told when.
    fn is_due(&self, tick: Tick) -> bool;
    /// Delivers the first one, and asks to be looked at again.
    fn deliver(&self, now: u64);
}

pub(super) struct Scaling {
    scale: Cell<Scale>,
    /// What was left at the door.
    wanted: Cell<Scale>,
    classes: RefCell<Vec<Weak<dyn Class>>>,
    /// Those of which something is due, in the order in which they take their turns.
    due: RefCell<VecDeque<Weak<dyn Class>>>,
    /// The last delivery was of a scaled timeout.
    was_last: Cell<bool>,
    pending: Cell<u64>,
    fired: Cell<u64>,
}

/// The most classes of a shard: as many are told of a new scale, one after the other.
pub(crate) const CLASSES_MAX: usize = 1_024;

impl Scaling {
    pub(super) fn new() -> Self {
        Self {
            scale: Cell::default(),
            wanted: Cell::default(),
            classes: RefCell::default(),
            due: RefCell::default(),
            was_last: Cell::default(),
            pending: Cell::default(),
            fired: Cell::default(),
        }
    }

    /// To be taken over by [`Core::rescale`] when nothing is borrowed.
    pub(super) fn want(&self, scale: Scale) {
        self.wanted.set(scale);
    }

    #[inline]
    pub(super) fn is_due(&self) -> bool {
        !self.due.borrow().is_empty()
    }

    /// How many wait, and how many were delivered.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.pending.get(), self.fired.get())
    }
}

impl<T: Send + 'static> Core<T> {
    pub(crate) fn scale(&self) -> Scale {
        self.scaling.scale.get()
    }

    /// Sets the scale from this core, at once.
    pub(crate) fn set_scale(&self, scale: Scale) {
        // What somebody else has left at the door came before.
        self.door().visitors().scale = scale;
        self.scaling.want(scale);
        self.rescale();
    }

    /// Adds a class of scaled timeouts. False if there are too many.
    pub(crate) fn add_class(&self, class: Weak<dyn Class>) -> bool {
        let mut classes = self.scaling.classes.borrow_mut();
        classes.retain(|class| class.strong_count() > 0);
        let fits = classes.len() < CLASSES_MAX;
        if fits {
            classes.push(class);
        }
        fits
    }

    /// Takes over the scale that is wanted. O(classes), whatever is pending.
    pub(crate) fn rescale(&self) {
        let wanted = self.scaling.wanted.get();
        if self.scaling.scale.replace(wanted) == wanted {
            return;
        }
        let classes: Vec<Rc<dyn Class>> =
            self.scaling.classes.borrow().iter().filter_map(Weak::upgrade).collect();
        for class in classes {
            // It may wake the driver, by a waker that is the user's, or be the last of its class.
            self.contain(|| {
                class.rescale();
                drop(class);
            });
        }
    }

    /// A class of which something is due, until [`Class::is_due`] says that there is no more.
    pub(crate) fn add_due(&self, class: Weak<dyn Class>) {
        self.scaling.due.borrow_mut().push_back(class);
    }

    /// What is to be delivered next: timers and scaled timeouts take turns, so that neither keeps
    /// the other waiting, and of those not more than so many.
    #[inline]
    pub(crate) fn next_delivery(
        &self,
        now: u64,
        tick: Tick,
        scaled_max: &mut usize,
    ) -> Option<Delivery<T>> {
        if self.scaling.is_due() {
            return self.next_of_both(now, tick, scaled_max);
        }
        self.pop(now)
    }

    #[inline(never)]
    fn next_of_both(&self, now: u64, tick: Tick, scaled_max: &mut usize) -> Option<Delivery<T>> {
        let was_last = self.scaling.was_last.replace(false);
        if was_last && let Some(timer) = self.pop(now) {
            return Some(timer);
        }
        if *scaled_max > 0
            && let Some(class) = self.pop_due(tick)
        {
            *scaled_max -= 1;
            self.scaling.was_last.set(true);
            self.state.borrow_mut().delivering = ClassId::NONE;
            return Some(Delivery::Scaled(class));
        }
        if was_last { None } else { self.pop(now) }
    }

    /// The next class of which something is due, and takes it out of the queue.
    fn pop_due(&self, tick: Tick) -> Option<Rc<dyn Class>> {
        loop {
            let class = self.scaling.due.borrow_mut().pop_front()?;
            if let Some(class) = class.upgrade()
                && class.is_due(tick)
            {
                return Some(class);
            }
        }
    }

    /// A scaled timeout is delivered, so late. Counted as a timer is.
    pub(crate) fn note_scaled(&self, late: u64) {
        self.scaling.fired.set(self.scaling.fired.get() + 1);
        let mut state = self.state.borrow_mut();
        state.lateness.record(late);
        if u128::from(late) > self.directory.settings.lateness_bound.as_nanos() {
            state.counts.late += 1;
        }
    }

    /// So many scaled timeouts have come.
    #[inline]
    pub(crate) fn add_scaled(&self, count: u64) {
        self.set_scaled(self.scaling.pending.get() + count);
    }

    /// So many are gone.
    #[inline]
    pub(crate) fn remove_scaled(&self, count: u64) {
        self.set_scaled(self.scaling.pending.get() - count);
    }

    #[inline]
    fn set_scaled(&self, pending: u64) {
        self.scaling.pending.set(pending);
        // When it is closed, there is no turn any more that would.
        if self.asleep_until.get() > Tick::ZERO || self.closed.get() {
            self.door().published.store_scaled(pending);
        }
    }
}

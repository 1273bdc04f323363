//! The hooks by which types that are built from timers take part in the turns of a shard. The shard
//! names none of these types.
//!
//! A [`Part`] is registered once for a shard and belongs to it until the shard ends. A [`Message`]
//! comes from another thread for a part. A [`CloseListener`] is called only when the shard ends.
//!
//! Cost: one dynamic call for each part in each step of a turn; nothing without parts.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use corewheel_shard::Tick;

use crate::stats::ShardCounts;
use crate::values::scale::Scale;

/// A part of a shard: it takes part in the turns. Unless a method says otherwise, the state of the
/// shard is not borrowed while it runs.
pub(crate) trait Part: 'static {
    /// Called at the beginning of a turn. `now` is in nanoseconds.
    fn turn_begins(&self, _now: u64) {}

    /// When the part wants the next turn at the latest; [`Tick::NEVER`] if it wants none.
    fn next_turn(&self) -> Tick {
        Tick::NEVER
    }

    /// Whether the part has an item to deliver. Another turn follows at once then, and no driver
    /// falls asleep.
    fn has_work(&self) -> bool {
        false
    }

    /// Makes one delivery that is due by `tick`. False if none is due: then `has_work` must be
    /// false until a delivery is due again. False also if the part has done enough in this turn:
    /// then `has_work` stays true, and the next turn follows at once.
    fn deliver(&self, _now: u64, _tick: Tick) -> bool {
        false
    }

    /// Until when an expired timer of this part is postponed; `None` if it is to be delivered now.
    /// The state of the shard is borrowed meanwhile.
    fn postpone(&self, _index: u32) -> Option<Tick> {
        None
    }

    /// Delivers a timer of this part. No other code has run since the timer's slot became free.
    fn expired(&self, _index: u32) {}

    /// Writes the part's counts, which have `part` in their rows. The state of the shard is
    /// borrowed meanwhile.
    fn publish(&self, _counts: &mut ShardCounts) {}

    /// Called when the shard's scale has changed.
    fn scale_changed(&self, _scale: Scale) {}

    /// Called during a shutdown when the shard is closed to requests but still has its timers.
    fn closing(&self) {}

    /// Called when the shard has ended and has no timers any more. `is_dead` if its driver ended
    /// without a shutdown.
    fn closed(&self, _is_dead: bool) {}

    /// Whether the part runs futures of the user's. Such a part is closed after the others.
    fn runs_futures(&self) -> bool {
        false
    }
}

/// The number of a part within its shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PartId(u8);

impl PartId {
    /// The part and the index of one of its timers, as one word.
    pub(super) fn with_index(self, index: u32) -> u64 {
        u64::from(self.0) << 32 | u64::from(index)
    }
}

/// The parts of one shard, in the order in which they were registered.
#[derive(Default)]
pub(crate) struct Parts {
    registered: RefCell<Vec<Registered>>,
    /// Whether the shard has ended. It registers no part any more then.
    ended: Cell<bool>,
    listeners: RefCell<Vec<Weak<dyn CloseListener>>>,
}

#[derive(Clone)]
struct Registered {
    part: Rc<dyn Part>,
    any: Rc<dyn Any>,
}

impl Parts {
    /// The part of type `X`; `make` makes it if none is registered yet. A shard has at most 256
    /// types of parts.
    pub(crate) fn get_or_register<X: Part>(&self, make: impl FnOnce(PartId) -> X) -> Rc<X> {
        if let Some(known) = self.get::<X>() {
            return known;
        }
        let number = u8::try_from(self.registered.borrow().len()).expect("parts are a few types");
        let part = Rc::new(make(PartId(number)));
        let registered =
            Registered { part: Rc::clone(&part) as _, any: Rc::clone(&part) as Rc<dyn Any> };
        if !self.ended.get() {
            self.registered.borrow_mut().push(registered);
        }
        part
    }

    /// The part of type `X`; `None` if none is registered.
    pub(crate) fn get<X: Part>(&self) -> Option<Rc<X>> {
        let parts = self.registered.borrow();
        parts.iter().find_map(|known| Rc::clone(&known.any).downcast::<X>().ok())
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.registered.borrow().is_empty()
    }

    /// Calls `call` for each part. Code of the user may run in it and register more parts.
    pub(super) fn for_each(&self, mut call: impl FnMut(&dyn Part)) {
        let mut index = 0;
        while let Some(part) = self.at(index) {
            call(&*part);
            index += 1;
        }
    }

    /// Like [`for_each`](Self::for_each), for calls that run no code of the user.
    #[inline]
    pub(super) fn fold<A>(&self, start: A, mut call: impl FnMut(A, &dyn Part) -> A) -> A {
        self.registered.borrow().iter().fold(start, |sum, known| call(sum, &*known.part))
    }

    fn at(&self, index: usize) -> Option<Rc<dyn Part>> {
        self.registered.borrow().get(index).map(|known| Rc::clone(&known.part))
    }

    /// Until when the timer of a part is postponed; `None` if it is to be delivered now.
    #[inline]
    pub(super) fn postpone(&self, part: PartId, index: u32) -> Option<Tick> {
        self.registered.borrow().get(usize::from(part.0))?.part.postpone(index)
    }

    /// Delivers a timer of a part, as [`PartId::with_index`] has put it.
    pub(super) fn expired(&self, timer: u64) {
        if let Some(part) = self.at((timer >> 32) as usize) {
            part.expired(timer as u32);
        }
    }

    /// All parts in the order in which they are closed: the parts that run futures come last, since
    /// these futures must see that everything else of the shard has ended.
    pub(super) fn in_closing_order(&self) -> Vec<Rc<dyn Part>> {
        let parts = self.registered.borrow();
        let mut parts: Vec<_> = parts.iter().map(|known| Rc::clone(&known.part)).collect();
        parts.sort_by_key(|part| part.runs_futures());
        parts
    }

    /// Takes all parts out. They may hold references to the shard.
    pub(super) fn take_all(&self) -> Vec<Rc<dyn Part>> {
        self.ended.set(true);
        self.registered.take().into_iter().map(|known| known.part).collect()
    }
}

/// A message from another thread to a part of a shard. It travels as a request on a lane.
pub(crate) trait Message: Send {
    /// Gives the message to its part, on the shard's thread and with nothing borrowed. A message
    /// whose part is not there is dropped.
    fn receive(self: Box<Self>, parts: &Parts);

    /// The message, for a sender that must return its contents as the shard is closed.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

/// A type that must know when its shard ends, but has no timer that would return then.
pub(crate) trait CloseListener {
    /// Called when the shard has ended and no timer fires any more. Nothing is borrowed meanwhile.
    fn closed(&self);
}

impl Parts {
    /// Registers a listener that is called when the shard ends. A listener that is dropped before
    /// need not be removed.
    pub(crate) fn on_close(&self, listener: Weak<dyn CloseListener>) {
        let mut listeners = self.listeners.borrow_mut();
        // Listeners that were dropped are removed before the list grows.
        if listeners.len() == listeners.capacity() {
            listeners.retain(|known| known.strong_count() > 0);
        }
        listeners.push(listener);
    }

    pub(super) fn take_listeners(&self) -> Vec<Weak<dyn CloseListener>> {
        self.listeners.take()
    }
}

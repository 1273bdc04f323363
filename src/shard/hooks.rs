//! How what is built from timers takes part in the turns of a shard, which names none of its users.
//!
//! A [`Part`] is registered once for a shard and belongs to it until the shard ends. A
//! [`CloseListener`] is told of the end only.
//!
//! Cost: one dynamic call for each part in each step of a turn; nothing where there is no part.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use corewheel_shard::Tick;

use crate::stats::ShardCounts;
use crate::values::scale::Scale;

/// Something that takes part in the turns of a shard. Unless a method says otherwise, the state of
/// the shard is not borrowed while it runs.
pub(crate) trait Part: 'static {
    /// A turn begins, at `now` in nanoseconds.
    fn turn_begins(&self, _now: u64) {}

    /// When the part wants the next turn, if no timer does before.
    fn next_turn(&self) -> Tick {
        Tick::NEVER
    }

    /// Whether the part has something to deliver.
    fn has_work(&self) -> bool {
        false
    }

    /// Delivers one of what is due by a tick. False if nothing is; then `has_work` is false until
    /// something is due again.
    fn deliver(&self, _now: u64, _tick: Tick) -> bool {
        false
    }

    /// Until when a timer of this part is put off that has expired; `None` if it is to be
    /// delivered. The state of the shard is borrowed meanwhile.
    fn postpone(&self, _index: u32) -> Option<Tick> {
        None
    }

    /// A timer of this part is delivered. No other code has run since its slot became free.
    fn expired(&self, _index: u32) {}

    /// Writes the part's gauges. The state of the shard is borrowed meanwhile.
    fn publish(&self, _counts: &mut ShardCounts) {}

    /// The shard's scale has changed.
    fn scale_changed(&self, _scale: Scale) {}

    /// The shard is being shut down and accepts nothing any more; its timers are still there.
    fn closing(&self) {}

    /// The shard has ended, and its timers are gone. `is_dead` if its driver ended without a
    /// shutdown.
    fn closed(&self, _is_dead: bool) {}
}

/// The number of a part within its shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PartId(u8);

/// The parts of one shard, in the order in which they were registered.
#[derive(Default)]
pub(crate) struct Parts {
    registered: RefCell<Vec<Registered>>,
    /// The shard has ended, and keeps no part any more.
    ended: Cell<bool>,
    listeners: RefCell<Vec<Weak<dyn CloseListener>>>,
}

#[derive(Clone)]
struct Registered {
    part: Rc<dyn Part>,
    any: Rc<dyn Any>,
}

impl Parts {
    /// The part of this type, made by `make` if there is none yet. At most 256 types of parts.
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

    /// The part of this type, if it is registered.
    pub(crate) fn get<X: Part>(&self) -> Option<Rc<X>> {
        let parts = self.registered.borrow();
        parts.iter().find_map(|known| Rc::clone(&known.any).downcast::<X>().ok())
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.registered.borrow().is_empty()
    }

    /// Calls `call` for each part. Code of the user may run in it and register further parts.
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

    /// Until when the timer of a part is put off.
    #[inline]
    pub(super) fn postpone(&self, part: PartId, index: u32) -> Option<Tick> {
        self.registered.borrow().get(usize::from(part.0))?.part.postpone(index)
    }

    /// Delivers a timer of a part.
    pub(super) fn expired(&self, part: PartId, index: u32) {
        if let Some(part) = self.at(usize::from(part.0)) {
            part.expired(index);
        }
    }

    /// Takes all parts out, which may hold what refers to the shard.
    pub(super) fn take_all(&self) -> Vec<Rc<dyn Part>> {
        self.ended.set(true);
        self.registered.take().into_iter().map(|known| known.part).collect()
    }
}

/// Something that is told when its shard ends, and holds no timer that would tell it.
pub(crate) trait CloseListener {
    /// The shard has ended: no timer fires any more. Nothing is borrowed meanwhile.
    fn closed(&self);
}

impl Parts {
    /// Has a listener told when the shard ends. A listener that is dropped before need not be taken
    /// back.
    pub(crate) fn on_close(&self, listener: Weak<dyn CloseListener>) {
        let mut listeners = self.listeners.borrow_mut();
        // Listeners that are gone are removed before the list grows.
        if listeners.len() == listeners.capacity() {
            listeners.retain(|known| known.strong_count() > 0);
        }
        listeners.push(listener);
    }

    pub(super) fn take_listeners(&self) -> Vec<Weak<dyn CloseListener>> {
        self.listeners.take()
    }
}

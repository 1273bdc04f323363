//! The parts of a shard, by their numbers.
//!
//! Invariants: the number of a part is not given to another while a timer holds it, so a timer
//! whose part has left calls nothing. No code of a part runs while anything here is borrowed.
//!
//! Cost: a counted reference for each call of a part. After a timer that is of no part, a load: the
//! parts are asked for a delivery when a turn begins to deliver, when no timer is left, after a
//! timer or the work of a part, and after [`PartHandle::wake`](crate::part::PartHandle::wake).

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use corewheel_shard::Tick;
use slab::Slab;

use super::part::{Part, PartId, Wants};
use crate::values::contain::{contain, drop_each};
use crate::values::ids::ShardId;

/// A part, also after its number was given to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    id: PartId,
    /// How many parts were made before it.
    serial: u64,
}

impl Entry {
    #[inline]
    pub(super) fn id(self) -> PartId {
        self.id
    }
}

/// The parts of one shard.
pub(crate) struct Parts {
    shard: ShardId,
    known: RefCell<Slab<Known>>,
    /// Those that take part in turns, in the order in which they were made. A part that is gone
    /// stays there until the next turn begins.
    turning: RefCell<Rc<Turning>>,
    /// Whether a part has left since the last turn began.
    has_left: Cell<bool>,
    /// Those that the shard keeps alive, one of each type.
    kept: RefCell<Vec<Rc<dyn Any>>>,
    /// Whether the shard has ended. It keeps no part any more then.
    pub(super) ended: Cell<bool>,
    /// How many parts were made.
    made: Cell<u64>,
    /// Whether a part may want to deliver an item in this turn.
    may_deliver: Cell<bool>,
    /// Parts whose last owner has dropped them while the shard called them. Their drop is code of
    /// the user, so it waits until nothing is borrowed.
    ownerless: RefCell<Vec<Rc<dyn Part>>>,
}

/// A pass over them goes on with those that it has begun with.
type Turning = Vec<(Entry, Weak<dyn Part>)>;

struct Known {
    serial: u64,
    of: TypeId,
    /// `None` while the part is made, and when it has left. Twice, since Rust 1.85 cannot cast a
    /// `dyn Part` to the `dyn Any` that [`Parts::find`] needs.
    part: Option<(Weak<dyn Part>, Weak<dyn Any>)>,
    has_left: bool,
    takes_turns: bool,
    /// How many of its timers are pending.
    pending: u32,
}

impl Parts {
    pub(super) fn new(shard: ShardId) -> Self {
        Self {
            shard,
            known: RefCell::default(),
            turning: RefCell::default(),
            has_left: Cell::new(false),
            kept: RefCell::default(),
            ended: Cell::new(false),
            made: Cell::new(0),
            may_deliver: Cell::new(false),
            ownerless: RefCell::default(),
        }
    }

    /// Makes a place for a part of this type.
    pub(super) fn enter(&self, of: TypeId) -> Entry {
        let serial = self.made.get();
        self.made.set(serial + 1);
        let mut known = self.known.borrow_mut();
        let vacant = known.vacant_entry();
        let id = PartId::new(vacant.key());
        let (has_left, takes_turns) = (false, false);
        vacant.insert(Known { serial, of, part: None, has_left, takes_turns, pending: 0 });
        Entry { id, serial }
    }

    /// Puts a part into its place.
    pub(super) fn place<P: Part>(&self, entry: Entry, part: &Rc<P>, takes_turns: bool) {
        let any: Weak<dyn Any> = Rc::downgrade(part) as _;
        let part: Weak<dyn Part> = Rc::downgrade(part) as _;
        if takes_turns && !self.ended.get() {
            Rc::make_mut(&mut *self.turning.borrow_mut()).push((entry, Weak::clone(&part)));
        }
        if let Some(known) = self.known.borrow_mut().get_mut(entry.id.number()) {
            if known.serial == entry.serial {
                (known.part, known.takes_turns) = (Some((part, any)), takes_turns);
            }
        }
    }

    /// A part leaves. Its timers that are pending call nothing.
    pub(super) fn leave(&self, entry: Entry) {
        let mut places = self.known.borrow_mut();
        let number = entry.id.number();
        let Some(known) = places.get_mut(number) else { return };
        if known.serial == entry.serial {
            (known.part, known.has_left) = (None, true);
            self.has_left.set(true);
            if known.pending == 0 {
                places.remove(number);
            }
        }
    }

    /// A timer of a part is pending.
    #[inline]
    pub(super) fn note_scheduled(&self, part: PartId) {
        if let Some(known) = self.known.borrow_mut().get_mut(part.number()) {
            known.pending += 1;
        }
    }

    /// A timer of a part is pending no more.
    #[inline]
    pub(super) fn note_ended(&self, part: PartId) {
        end_timer(&mut self.known.borrow_mut(), part.number());
    }

    /// Whether a part is of this type.
    pub(crate) fn is_of<P: Part>(&self, entry: Entry) -> bool {
        let known = self.known.borrow();
        known.get(entry.id.number()).is_some_and(|known| known.of == TypeId::of::<P>())
    }

    /// A part of a type. `None` if it has left, or is of another type.
    pub(crate) fn find<P: Part>(&self, entry: Entry) -> Option<Rc<P>> {
        let part = {
            let known = self.known.borrow();
            let known = known.get(entry.id.number())?;
            let (_, any) = known.part.as_ref().filter(|_| known.serial == entry.serial)?;
            any.upgrade()?
        };
        part.downcast().ok()
    }

    /// A part; `None` if it has left.
    pub(super) fn at(&self, entry: Entry) -> Option<Rc<dyn Part>> {
        let known = self.known.borrow();
        let known = known.get(entry.id.number())?;
        let (part, _) = known.part.as_ref().filter(|_| known.serial == entry.serial)?;
        part.upgrade()
    }

    /// The part of a type that the shard keeps.
    pub(crate) fn shared<P: Part>(&self) -> Option<Rc<P>> {
        let kept = self.kept.borrow();
        let part = kept.iter().find(|part| part.as_ref().is::<P>())?;
        Rc::clone(part).downcast().ok()
    }

    /// Keeps a part alive until the shard ends.
    pub(super) fn keep(&self, part: Rc<dyn Any>) {
        if !self.ended.get() {
            self.kept.borrow_mut().push(part);
        }
    }

    /// The part of a type that the shard keeps; `make` makes it if there is none. For a part that
    /// has neither timers nor messages.
    pub(crate) fn get_or_keep<P: Part>(&self, make: impl FnOnce() -> P) -> Rc<P> {
        if let Some(known) = self.shared::<P>() {
            return known;
        }
        let entry = self.enter(TypeId::of::<P>());
        let part = Rc::new(make());
        self.place(entry, &part, part.takes_turns());
        self.keep(Rc::clone(&part) as _);
        part
    }
}

/// The parts that take part in turns.
impl Parts {
    /// Whether no part takes part in turns.
    #[inline]
    pub(super) fn none_turns(&self) -> bool {
        self.turning.borrow().is_empty()
    }

    /// Forgets the parts that have left.
    #[inline]
    pub(super) fn forget_left(&self) {
        if self.has_left.take() {
            let known = self.known.borrow();
            let is_here = |entry: &Entry| {
                let known = known.get(entry.id.number());
                known.is_some_and(|known| known.serial == entry.serial && !known.has_left)
            };
            Rc::make_mut(&mut *self.turning.borrow_mut()).retain(|(entry, _)| is_here(entry));
        }
    }

    /// Calls `call` for each part that takes part in turns, until it returns false. Code of the
    /// user may run in it and make more parts. A panic is logged, and counts as true.
    pub(super) fn each(&self, mut call: impl FnMut(PartId, &Rc<dyn Part>) -> bool) {
        let turning = Rc::clone(&self.turning.borrow());
        for (entry, part) in turning.iter() {
            let Some(part) = part.upgrade() else { continue };
            let mut goes_on = true;
            contain(self.shard, || goes_on = call(entry.id, &part));
            self.give_back(part);
            if !goes_on {
                return;
            }
        }
    }

    /// Drops a reference to a part that the shard has called, later if it is the last one.
    #[inline]
    fn give_back(&self, part: Rc<dyn Part>) {
        if Rc::strong_count(&part) == 1 {
            self.ownerless.borrow_mut().push(part);
        }
    }

    /// Drops the parts that have lost their last owner while the shard called them. Runs code of
    /// the user.
    #[inline]
    pub(super) fn drop_ownerless(&self) {
        if !self.ownerless.borrow().is_empty() {
            drop_each(self.ownerless.take());
        }
    }

    /// A part may want to deliver an item in this turn.
    #[inline]
    pub(super) fn ask_again(&self) {
        self.may_deliver.set(true);
    }

    /// The first part that wants to deliver an item in this turn, if a part may have begun to want
    /// that since the last call.
    #[inline]
    pub(super) fn delivering(&self) -> Option<Rc<dyn Part>> {
        if self.may_deliver.get() { self.find_delivering() } else { None }
    }

    /// The first part that wants to deliver an item in this turn. If a part panics when it is
    /// asked, none is asked again in this turn, unless a part calls for it.
    pub(super) fn find_delivering(&self) -> Option<Rc<dyn Part>> {
        if self.none_turns() {
            self.may_deliver.set(false);
            return None;
        }
        let (mut delivering, mut asked, mut answered) = (None, 0, 0);
        self.each(|_, part| {
            asked += 1;
            if part.wants() == Wants::Delivery {
                delivering = Some(Rc::clone(part));
            }
            answered += 1;
            delivering.is_none()
        });
        self.may_deliver.set(delivering.is_some() && asked == answered);
        delivering
    }

    /// What the parts want of turns to come.
    #[inline]
    pub(super) fn wanted(&self) -> Wanted {
        let mut wanted = Wanted { has_work: false, turn_by: Tick::NEVER };
        if !self.none_turns() {
            self.each(|_, part| {
                match part.wants() {
                    Wants::Nothing => {}
                    Wants::TurnBy(by) => wanted.turn_by = wanted.turn_by.min(by.0),
                    Wants::Delivery | Wants::NextTurn => wanted.has_work = true,
                }
                true
            });
        }
        wanted
    }
}

/// What parts want of turns to come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Whether a part has left work for a turn that follows at once.
    pub(super) has_work: bool,
    /// When a part wants the next turn at the latest; [`Tick::NEVER`] if none does.
    pub(super) turn_by: Tick,
}

/// The timers of parts, and the end.
impl Parts {
    /// Until when the timer of a part is postponed; `None` if it is to be delivered now.
    #[inline]
    pub(super) fn postpone(&self, part: PartId, index: u32) -> Option<Tick> {
        let part = {
            let known = self.known.borrow();
            let known = known.get(part.number()).filter(|known| known.takes_turns)?;
            known.part.as_ref()?.0.upgrade()?
        };
        let mut postponed = None;
        contain(self.shard, || postponed = part.postpone(index));
        // The state of the shard is borrowed.
        self.give_back(part);
        postponed.map(|until| until.0)
    }

    /// Delivers a timer of a part, as [`PartId::with_index`] has put it.
    pub(super) fn expired(&self, timer: u64) {
        let part = {
            let mut places = self.known.borrow_mut();
            let known = end_timer(&mut places, (timer >> 32) as usize);
            known.and_then(|known| known.part.as_ref()?.0.upgrade())
        };
        if let Some(part) = part {
            self.ask_again();
            part.expired(timer as u32);
        }
    }

    /// All parts in the order in which they are closed: in that in which they were made, but those
    /// that run futures last, since these futures must see that everything else of the shard has
    /// ended.
    pub(super) fn in_closing_order(&self) -> Vec<Rc<dyn Part>> {
        let known = self.known.borrow();
        let mut parts: Vec<_> = known
            .iter()
            .filter_map(|(_, known)| Some((known.serial, known.part.as_ref()?.0.upgrade()?)))
            .collect();
        drop(known);
        parts.sort_by_key(|(serial, part)| (part.runs_futures(), *serial));
        parts.into_iter().map(|(_, part)| part).collect()
    }

    /// Takes out the parts that the shard keeps. They may hold references to the shard.
    pub(super) fn take_kept(&self) -> Vec<Rc<dyn Any>> {
        self.ended.set(true);
        self.turning.take();
        self.kept.take()
    }
}

/// A timer of a part is pending no more. `None` if the part has left, and this was its last timer.
#[inline]
fn end_timer(places: &mut Slab<Known>, number: usize) -> Option<&mut Known> {
    let known = places.get_mut(number)?;
    known.pending -= 1;
    if known.pending == 0 && known.has_left {
        places.remove(number);
        return None;
    }
    places.get_mut(number)
}

/// A message to a part of a shard. From another thread it travels as a request on a lane; on the
/// shard's own thread `LocalShard::receive` gives it to the part.
pub(crate) trait Message: Send {
    /// Gives the message to its part, on the shard's thread and with nothing borrowed. A message
    /// whose part has left is dropped.
    fn receive(self: Box<Self>, parts: &Parts);

    /// The message, for a sender that must return its contents as the shard is closed.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Silent;

    impl Part for Silent {}

    fn add(parts: &Parts) -> (Entry, Rc<Silent>) {
        let (entry, part) = (parts.enter(TypeId::of::<Silent>()), Rc::new(Silent));
        parts.place(entry, &part, true);
        (entry, part)
    }

    #[test]
    fn number_of_a_part_is_not_reused_while_its_timers_are_pending() {
        let parts = Parts::new(ShardId::new(0));
        let ((first, _one), (second, _two)) = (add(&parts), add(&parts));
        (0..2).for_each(|_| parts.note_scheduled(first.id()));
        parts.leave(first);
        let (third, _three) = add(&parts);
        assert!(third.id() != first.id(), "two pending timers hold the first number");
        parts.note_ended(first.id());
        parts.expired(first.id().with_index(1));
        let (fourth, _four) = add(&parts);
        assert_eq!(fourth.id(), first.id(), "the number is free after its last timer");
        assert_ne!(fourth, first);
        assert!(parts.find::<Silent>(first).is_none() && parts.find::<Silent>(fourth).is_some());
        // It has left already, so this is no call of the part that has its number now.
        parts.leave(first);
        assert!(parts.find::<Silent>(fourth).is_some());
        parts.leave(second);
        assert_eq!(add(&parts).0.id(), second.id(), "the part had no timer");
    }

    #[test]
    fn part_that_has_left_takes_part_in_no_turn() {
        let parts = Parts::new(ShardId::new(0));
        let ((first, one), (_, _two)) = (add(&parts), add(&parts));
        let called = || {
            let mut called = 0;
            parts.each(|_, _| {
                called += 1;
                true
            });
            called
        };
        assert_eq!(called(), 2);
        drop(one);
        parts.leave(first);
        assert_eq!(called(), 1);
        parts.forget_left();
        assert_eq!((called(), parts.turning.borrow().len()), (1, 1));
    }

    #[test]
    fn number_of_a_part_keeps_three_bytes_and_no_more() {
        for number in [0, 255, 256, 65_536, (1 << 24) - 1] {
            let id = PartId::new(number);
            assert_eq!(id.number(), number);
            assert_eq!(id.with_index(7), (number as u64) << 32 | 7);
        }
        assert!(std::panic::catch_unwind(|| PartId::new(1 << 24)).is_err());
    }
}

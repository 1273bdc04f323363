//! Timers that carry callbacks: each its own, or many timers one that they share.
//!
//! An owner of many timers leaves its callback here once and is known by a number, which each of
//! its timers holds beside a number of its own. So such a timer costs what one with a typed value
//! costs. Why not a counted reference in each: it takes a place in the table of callbacks, another
//! cache line for every timer that comes and goes.
//!
//! Invariants: an owner's number is not given to another while a timer holds it, so a timer whose
//! owner has gone calls nothing.

use std::cell::Cell;
use std::rc::Rc;

use corewheel_shard::{Tick, TimerKey};
use slab::Slab;

use super::Core;
use super::callback::{Call, LocalCall, RepeatedCall, SharedCall};
use super::stored::Stored;
use crate::values::class::ClassId;
use crate::values::ids::TimerId;
use crate::values::refused::Refused;

/// An owner of many timers that share a callback; made by [`Core::enter_owner`], and given back to
/// [`Core::leave_owner`].
pub(crate) struct Owner {
    /// None if there was none left; then each timer has a place in the table of callbacks.
    number: Option<u16>,
    call: SharedCall,
    class: Cell<ClassId>,
}

impl Owner {
    /// Its timers from now on are of this class.
    pub(crate) fn set_class(&self, class: ClassId) {
        self.class.set(class);
    }
}

/// The owners of a shard, by their numbers.
pub(super) struct Owners(Slab<Known>);

struct Known {
    /// Gone when the owner is.
    call: Option<SharedCall>,
    pending: u32,
}

impl Owners {
    pub(crate) fn new() -> Self {
        Self(Slab::new())
    }

    fn enter(&mut self, call: &SharedCall) -> Option<u16> {
        let vacant = self.0.vacant_entry();
        let number = u16::try_from(vacant.key()).ok()?;
        vacant.insert(Known { call: Some(call.clone()), pending: 0 });
        Some(number)
    }

    fn leave(&mut self, number: u16) {
        let number = usize::from(number);
        self.0[number].call = None;
        if self.0[number].pending == 0 {
            self.0.remove(number);
        }
    }

    #[inline]
    fn note_scheduled(&mut self, number: u16) {
        self.0[usize::from(number)].pending += 1;
    }

    /// A timer of this owner is pending no more.
    #[inline]
    fn note_ended(&mut self, number: u16) {
        let known = &mut self.0[usize::from(number)];
        known.pending -= 1;
        if known.pending == 0 && known.call.is_none() {
            self.0.remove(usize::from(number));
        }
    }

    /// A timer of this owner has fired. Returns the callback, `None` if the owner is gone.
    #[inline]
    pub(crate) fn take(&mut self, owner: u16) -> Option<SharedCall> {
        let call = self.0[usize::from(owner)].call.clone();
        self.note_ended(owner);
        call
    }
}

/// Timers with a callback each.
impl<T: Send + 'static> Core<T> {
    pub(crate) fn schedule_call(
        &self,
        class: ClassId,
        deadline: Tick,
        call: LocalCall<T>,
    ) -> Result<TimerId, Refused<LocalCall<T>>> {
        if self.is_closed() {
            return Err(self.why_closed().of(call));
        }
        let index = self.state().tables.calls.insert(Call::Local(call)) as u32;
        match self.schedule(class, deadline, Stored::Call(index)) {
            Ok(key) => Ok(self.timer_of(key)),
            Err(_) => match self.state().tables.calls.remove(index as usize) {
                Call::Local(call) => Err(Refused::Full(call)),
                _ => unreachable!("a refusal returns what was given"),
            },
        }
    }
}

/// Timers that share a callback.
impl<T: Send + 'static> Core<T> {
    /// A timer that calls `call` with `number`. `None` if the shard is full or closed.
    pub(crate) fn schedule_shared(
        &self,
        class: ClassId,
        deadline: Tick,
        call: &SharedCall,
        number: u32,
    ) -> Option<TimerKey> {
        if self.is_closed() {
            return None;
        }
        self.schedule_entry(class, deadline, Call::Shared(call.clone(), number))
    }

    /// A timer that runs a callback which later timers run again. `None` if the shard is full or
    /// closed.
    pub(crate) fn schedule_repeated(
        &self,
        class: ClassId,
        deadline: Tick,
        call: &RepeatedCall<T>,
    ) -> Option<TimerKey> {
        if self.is_closed() {
            return None;
        }
        self.schedule_entry(class, deadline, Call::Repeated(Rc::clone(call)))
    }

    fn schedule_entry(&self, class: ClassId, deadline: Tick, call: Call<T>) -> Option<TimerKey> {
        let index = self.state().tables.calls.insert(call) as u32;
        let key = self.schedule(class, deadline, Stored::Call(index)).ok();
        if key.is_none() {
            let call = self.state().tables.calls.remove(index as usize);
            drop(call);
        }
        key
    }

    /// Ends a timer of this file, if it has not fired. Reads no clock, as no caller asks what was
    /// left of its time.
    #[inline]
    pub(crate) fn cancel_shared(&self, key: TimerKey) {
        match self.cancel_unread(key) {
            Some(Stored::Shared(owner, _)) => self.state().tables.owners.note_ended(owner),
            Some(Stored::Call(index)) => {
                let call = self.state().tables.calls.remove(index as usize);
                drop(call);
            }
            _ => {}
        }
    }

    /// Makes an owner, whose timers call `call`, each with its number.
    pub(crate) fn enter_owner(&self, call: SharedCall) -> Owner {
        let number = self.state().tables.owners.enter(&call);
        Owner { number, call, class: Cell::default() }
    }

    /// An owner goes. Timers of it that are pending call nothing.
    pub(crate) fn leave_owner(&self, owner: &mut Owner) {
        if let Some(number) = owner.number.take() {
            self.state().tables.owners.leave(number);
        }
    }

    /// A timer of an owner. `None` if the shard is full or closed.
    #[inline]
    pub(crate) fn schedule_owned(
        &self,
        deadline: Tick,
        owner: &Owner,
        number: u32,
    ) -> Option<TimerKey> {
        let class = owner.class.get();
        let Some(owner_number) = owner.number else {
            return self.schedule_shared(class, deadline, &owner.call, number);
        };
        if self.is_closed() {
            return None;
        }
        // The driver is woken when the owner knows of its timer.
        let _compound = self.compound();
        let key = self.schedule(class, deadline, Stored::Shared(owner_number, number)).ok()?;
        self.state().tables.owners.note_scheduled(owner_number);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> SharedCall {
        Rc::new(|_| {})
    }

    #[test]
    fn number_of_an_owner_is_not_reused_while_its_timers_are_pending() {
        let mut owners = Owners::new();
        let (first, second) = (owners.enter(&call()).unwrap(), owners.enter(&call()).unwrap());
        (0..3).for_each(|_| owners.note_scheduled(first));
        assert!(owners.take(first).is_some());
        owners.leave(first);
        let third = owners.enter(&call()).unwrap();
        assert!(third != first && third != second, "two pending timers hold the first number");
        owners.note_ended(first);
        assert!(owners.take(first).is_none(), "the callback of an owner that has left is called");
        assert_eq!(owners.enter(&call()), Some(first), "the number is free after its last timer");
        owners.leave(second);
        assert_eq!(owners.enter(&call()), Some(second), "the owner had no timer");
    }

    #[test]
    fn leave_of_an_owner_drops_its_callback_while_timers_are_pending() {
        let (mut owners, call) = (Owners::new(), call());
        let number = owners.enter(&call).unwrap();
        owners.note_scheduled(number);
        assert_eq!(Rc::strong_count(&call), 2);
        owners.leave(number);
        assert_eq!(Rc::strong_count(&call), 1, "a pending timer keeps the callback");
    }

    #[test]
    fn enter_returns_none_when_all_numbers_are_taken() {
        let (mut owners, call) = (Owners::new(), call());
        assert!((0..=u16::MAX).all(|number| owners.enter(&call) == Some(number)));
        assert_eq!(owners.enter(&call), None);
        owners.leave(9);
        assert_eq!(owners.enter(&call), Some(9));
    }
}

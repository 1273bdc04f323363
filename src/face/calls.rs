//! Timers that call back: with a callback each, or many with one that they share.
//!
//! An owner of many timers leaves its callback here once and is known by a number, which each of
//! its timers holds beside a number of its own. So such a timer costs what one with a typed value
//! costs. Why not a counted reference in each: it takes a place in the table of callbacks, another
//! cache line for every timer that comes and goes.
//!
//! Invariants: an owner's number is not given to another while a timer holds it, so a timer whose
//! owner has gone calls nothing.

use std::cell::Cell;

use corewheel_shard::{Tick, TimerKey};
use slab::Slab;

use super::Core;
use super::callback::{Call, LocalCall, SharedCall};
use super::stored::Stored;
use crate::values::class::ClassId;
use crate::values::error::ScheduleError;
use crate::values::handle::TimerHandle;

/// Who has many timers that call the same; made by [`Core::enter_owner`], and to be given back to
/// [`Core::leave_owner`].
pub(crate) struct Owner<T: 'static> {
    /// None if there was none left; then each timer has a place in the table of callbacks.
    number: Option<u16>,
    call: SharedCall<T>,
    class: Cell<ClassId>,
}

impl<T> Owner<T> {
    /// Its timers from now on are of this class.
    pub(crate) fn set_class(&self, class: ClassId) {
        self.class.set(class);
    }
}

/// The owners of a shard, by their numbers.
pub(super) struct Owners<T: 'static>(Slab<Known<T>>);

struct Known<T: 'static> {
    /// Gone when the owner is.
    call: Option<SharedCall<T>>,
    pending: u32,
}

impl<T> Owners<T> {
    pub(super) fn new() -> Self {
        Self(Slab::new())
    }

    fn enter(&mut self, call: &SharedCall<T>) -> Option<u16> {
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

    /// The same, and what it is to call: nothing if the owner has gone.
    #[inline]
    pub(super) fn take(&mut self, owner: u16, number: u32) -> Option<Call<T>> {
        let call = self.0[usize::from(owner)].call.clone();
        self.note_ended(owner);
        Some(Call::Shared(call?, number))
    }
}

/// Timers with a callback each.
impl<T: Send + 'static> Core<T> {
    pub(crate) fn schedule_call(
        &self,
        class: ClassId,
        deadline: Tick,
        call: LocalCall<T>,
    ) -> Result<TimerHandle, ScheduleError<LocalCall<T>>> {
        if self.is_closed() {
            return Err(ScheduleError::Closed(call));
        }
        let index = self.state().tables.calls.insert(Call::Local(call)) as u32;
        match self.schedule(class, deadline, Stored::Call(index)) {
            Ok(key) => Ok(self.handle_of(key)),
            Err(_) => match self.state().tables.calls.remove(index as usize) {
                Call::Local(call) => Err(ScheduleError::Full(call)),
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
        call: &SharedCall<T>,
        number: u32,
    ) -> Option<TimerKey> {
        if self.is_closed() {
            return None;
        }
        let call = Call::Shared(call.clone(), number);
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
    pub(crate) fn enter_owner(&self, call: SharedCall<T>) -> Owner<T> {
        let number = self.state().tables.owners.enter(&call);
        Owner { number, call, class: Cell::default() }
    }

    /// An owner goes. Timers of it that are pending call nothing.
    pub(crate) fn leave_owner(&self, owner: &mut Owner<T>) {
        if let Some(number) = owner.number.take() {
            self.state().tables.owners.leave(number);
        }
    }

    /// A timer of an owner. `None` if the shard is full or closed.
    #[inline]
    pub(crate) fn schedule_owned(
        &self,
        deadline: Tick,
        owner: &Owner<T>,
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
    use std::rc::Rc;

    use super::*;

    fn call() -> SharedCall<()> {
        Rc::new(|_, _| {})
    }

    #[test]
    fn a_number_is_not_given_again_while_a_timer_of_its_owner_is_pending() {
        let mut owners = Owners::new();
        let (first, second) = (owners.enter(&call()).unwrap(), owners.enter(&call()).unwrap());
        (0..3).for_each(|_| owners.note_scheduled(first));
        assert!(matches!(owners.take(first, 7), Some(Call::Shared(_, 7))));
        owners.leave(first);
        let third = owners.enter(&call()).unwrap();
        assert!(third != first && third != second, "two timers still have it");
        owners.note_ended(first);
        assert!(owners.take(first, 8).is_none(), "the owner has gone, so nobody is called");
        assert_eq!(owners.enter(&call()), Some(first), "it is free with the last of them");
        owners.leave(second);
        assert_eq!(owners.enter(&call()), Some(second), "it had no timer");
    }

    #[test]
    fn what_an_owner_has_left_is_let_go_when_it_goes() {
        let (mut owners, call) = (Owners::new(), call());
        let number = owners.enter(&call).unwrap();
        owners.note_scheduled(number);
        assert_eq!(Rc::strong_count(&call), 2);
        owners.leave(number);
        assert_eq!(Rc::strong_count(&call), 1, "whatever timers are pending");
    }

    #[test]
    fn when_all_numbers_are_taken_there_is_none() {
        let (mut owners, call) = (Owners::new(), call());
        assert!((0..=u16::MAX).all(|number| owners.enter(&call) == Some(number)));
        assert_eq!(owners.enter(&call), None);
        owners.leave(9);
        assert_eq!(owners.enter(&call), Some(9));
    }
}

//! Timers with a callback each.

use std::rc::Rc;

use corewheel_shard::{Tick, TimerKey};

use super::core::Core;
use super::stored::Stored;
use super::timers::{Call, LocalCall, RepeatedCall};
use crate::values::class::ClassId;
use crate::values::ids::TimerId;
use crate::values::refused::Refused;

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
        let index = self.state.borrow_mut().calls.insert(Call::Local(call)) as u32;
        match self.schedule(class, deadline, Stored::Call(index)) {
            Ok(key) => Ok(self.timer_of(key)),
            Err(_) => match self.state.borrow_mut().calls.remove(index as usize) {
                Call::Local(call) => Err(Refused::Full(call)),
                _ => unreachable!("a refusal returns what was given"),
            },
        }
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
        let call = Call::Repeated(Rc::clone(call));
        let index = self.state.borrow_mut().calls.insert(call) as u32;
        let key = self.schedule(class, deadline, Stored::Call(index)).ok();
        if key.is_none() {
            let call = self.state.borrow_mut().calls.remove(index as usize);
            drop(call);
        }
        key
    }

    /// Ends a timer of a callback that runs again and again, if it has not fired. Reads no clock,
    /// as no caller asks what was left of its time.
    pub(crate) fn cancel_repeated(&self, key: TimerKey) {
        if let Some(Stored::Call(index)) = self.cancel_unread(key) {
            let call = self.state.borrow_mut().calls.remove(index as usize);
            drop(call);
        }
    }
}

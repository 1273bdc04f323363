//! Timers of what is built on top: many of them share one callback.

use corewheel_shard::{CancelOutcome as ShardCancel, Tick, TimerKey};

use super::Core;
use crate::task::{Call, SharedCall, Stored};

impl<T: Send + 'static> Core<T> {
    /// A timer that calls `call` with `number`. `None` if the shard is full or closed.
    pub(crate) fn schedule_shared(
        &self,
        deadline: Tick,
        call: &SharedCall<T>,
        number: u32,
    ) -> Option<TimerKey> {
        let key = self.schedule_shared_quietly(deadline, call, number)?;
        self.note_deadline(deadline);
        Some(key)
    }

    /// The same, but for [`note_deadline`](Self::note_deadline), which must follow: for who has
    /// something to finish before a driver is woken, whose waker is the user's code.
    pub(crate) fn schedule_shared_quietly(
        &self,
        deadline: Tick,
        call: &SharedCall<T>,
        number: u32,
    ) -> Option<TimerKey> {
        if self.closed.get() {
            return None;
        }
        let call = Call::Shared(call.clone(), number);
        let index = self.state.borrow_mut().calls.insert(call) as u32;
        let first = self.state.borrow_mut().shard.schedule(deadline, Stored::Call(index));
        let key = first.or_else(|full| self.schedule_when_full(deadline, full.0)).ok();
        if key.is_none() {
            drop(self.state.borrow_mut().calls.remove(index as usize));
        }
        key
    }

    /// Ends such a timer, if it has not fired. Reads no clock, as nobody asks what was left of it.
    pub(crate) fn cancel_shared(&self, key: TimerKey) {
        let mut state = self.state.borrow_mut();
        let call = match state.cancel(key) {
            ShardCancel::Cancelled { task: Stored::Call(index), .. } => {
                Some(state.calls.remove(index as usize))
            }
            _ => None,
        };
        drop(state);
        drop(call);
        self.publish_command();
    }
}

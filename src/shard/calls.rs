//! Timers with a callback each.

use corewheel_shard::Tick;

use super::core::Core;
use super::stored::Stored;
use super::timers::{Call, LocalCall};
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
            return Err(Refused::Closed(call));
        }
        let index = self.state.borrow_mut().calls.insert(Call::Local(call)) as u32;
        let scheduled = self.schedule(class, deadline, Stored::Call(index));
        scheduled.map(|key| self.timer_of(key)).map_err(|_full| {
            let call = self.state.borrow_mut().calls.remove(index as usize);
            Refused::Full(call.into_local())
        })
    }
}

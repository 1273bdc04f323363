//! Timers that futures of the shard's own core wait for.

use std::task::Waker;

use corewheel_shard::{Tick, TimerKey};

use super::Core;
use super::stored::{Sleeper, Stored};
use crate::values::class::ClassId;

/// The state of a sleep, as its future polls it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slept {
    NotYet,
    Fired,
    Closed,
}

impl<T: Send + 'static> Core<T> {
    /// A timer that wakes a future, which must release its sleeper. `None` if the shard is full.
    pub(crate) fn schedule_sleep(
        &self,
        class: ClassId,
        deadline: Tick,
        waker: Waker,
    ) -> Option<(TimerKey, u32)> {
        let index = self.state().tables.sleepers.insert(Sleeper::Waiting(waker)) as u32;
        let key = self.schedule(class, deadline, Stored::Sleeper(index)).ok();
        if key.is_none() {
            self.release_sleeper(index);
        }
        key.map(|key| (key, index))
    }

    /// Looks whether the time of a sleeper has come, and keeps the waker if not.
    pub(crate) fn poll_sleeper(&self, index: u32, waker: &Waker) -> Slept {
        match &self.state().tables.sleepers[index as usize] {
            Sleeper::Fired => return Slept::Fired,
            Sleeper::Closed => return Slept::Closed,
            Sleeper::Waiting(known) if known.will_wake(waker) => return Slept::NotYet,
            Sleeper::Waiting(_) => {}
        }
        // Cloning and dropping a waker run code of the user, which may end the sleep.
        let waker = waker.clone();
        let old = match &mut self.state().tables.sleepers[index as usize] {
            Sleeper::Fired => return Slept::Fired,
            Sleeper::Closed => return Slept::Closed,
            Sleeper::Waiting(known) => std::mem::replace(known, waker),
        };
        drop(old);
        Slept::NotYet
    }

    pub(crate) fn release_sleeper(&self, index: u32) {
        let sleeper = self.state().tables.sleepers.try_remove(index as usize);
        // Dropping a waker runs code of the user, so nothing is borrowed meanwhile.
        drop(sleeper);
    }

    /// Ends a sleep whose future is dropped.
    pub(crate) fn abandon_sleep(&self, key: TimerKey, index: u32) {
        // The timer may have fired; its payload is an index either way.
        let _ = self.cancel_unread(key);
        self.release_sleeper(index);
    }
}

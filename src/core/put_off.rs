//! Callbacks whose time has come and which run later, in a task of this core: what no task has come
//! to when the shard is shut down is run then.

use slab::Slab;

use super::Core;
use super::state::Effect;
use crate::class::ClassId;
use crate::task::{Call, Callback, LocalCall, Task};
use crate::timers::Timers;

/// Each with its number in the order in which they were put off.
pub(super) struct PutOff<T: 'static> {
    calls: Slab<(u64, LocalCall<T>)>,
    count: u64,
}

impl<T> Default for PutOff<T> {
    fn default() -> Self {
        Self { calls: Slab::new(), count: 0 }
    }
}

impl<T: Send + 'static> PutOff<T> {
    fn take_all(&mut self) -> Vec<LocalCall<T>> {
        let mut calls: Vec<_> = self.calls.drain().collect();
        calls.sort_unstable_by_key(|(number, _)| *number);
        calls.into_iter().map(|(_, call)| call).collect()
    }

    /// What is left to be dropped.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Effect<T>> + use<T> {
        let drop = |call| Effect::DropTask(Task::Callback(Callback(Call::Local(call))));
        self.take_all().into_iter().map(drop)
    }
}

#[allow(dead_code, reason = "only some executors have other places to run a callback")]
impl<T: Send + 'static> Core<T> {
    /// Keeps a callback until [`run_put_off`](Self::run_put_off). It comes back if as many wait as
    /// the shard can have timers, or if nobody may come for it any more.
    pub(crate) fn put_off(&self, call: LocalCall<T>) -> Result<usize, LocalCall<T>> {
        let mut state = self.state.borrow_mut();
        if self.closed.get() || state.put_off.calls.len() >= state.shard.capacity() {
            return Err(call);
        }
        let number = state.put_off.count;
        state.put_off.count += 1;
        Ok(state.put_off.calls.insert((number, call)))
    }

    /// Runs one that was put off, unless the end of the shard was there first.
    pub(crate) fn run_put_off(&self, index: usize, timers: &Timers<T>) {
        let call = self.state.borrow_mut().put_off.calls.try_remove(index);
        if let Some((_, call)) = call {
            self.run_later(ClassId::NONE, || call(timers));
        }
    }

    /// Runs all that are left, in the order in which they were put off.
    pub(crate) fn run_all_put_off(&self, timers: &Timers<T>) {
        let calls = self.state.borrow_mut().put_off.take_all();
        for call in calls {
            self.run_later(ClassId::NONE, || call(timers));
        }
    }

    /// Runs what was due before, for a timer of this class; a panic is counted and published.
    pub(crate) fn run_later(&self, class: ClassId, run: impl FnOnce()) {
        self.deliver_as(class);
        let calm = self.contain(run);
        self.deliver_as(ClassId::NONE);
        if !calm {
            // The shard's next turn may be far off.
            self.publish();
        }
    }

    fn deliver_as(&self, class: ClassId) {
        self.state.borrow_mut().delivering = class;
    }
}

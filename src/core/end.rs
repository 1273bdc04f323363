//! The end of a shard.

use super::Core;
use super::classes::Ended;
use super::state::{Effect, Sleeper};
use crate::shutdown::{Returned, ShardReport, ShutdownPolicy};
use crate::stats::ShardState;
use crate::task::CancelOutcome;

impl<T: Send + 'static> Core<T> {
    /// Closes the door and all lanes; afterwards nothing can come in any more, and an order to shut
    /// down that was still to be seen is answered by nobody. False if that has been done before.
    pub(crate) fn close(&self, state: ShardState) -> bool {
        if self.closed.replace(true) {
            return false;
        }
        // Whoever comes to the door after this finds it closed, whoever came before is let in.
        let (jobs, order) = {
            let shard_state = &mut *self.state.borrow_mut();
            let mut visitors = self.door().visitors();
            visitors.state = state;
            visitors.moved = shard_state.moved.leave_names();
            self.lanes.borrow_mut().append(&mut visitors.arriving);
            for key in visitors.bank.drain(..) {
                shard_state.shard.revoke(key);
            }
            (std::mem::take(&mut visitors.jobs), (visitors.order.take(), self.order.take()))
        };
        // All of it may run what is the user's: the capture of a job, a waker.
        self.drop_each(jobs.into_iter().chain(self.take_jobs()));
        self.drop_each(<[_; 2]>::from(order).into_iter().flatten());
        let draining = self.draining.borrow_mut().take();
        self.drop_each(draining);
        for lane in std::mem::take(&mut *self.lanes.borrow_mut()) {
            self.let_go(lane);
        }
        self.run_effects();
        true
    }

    /// Takes all pending timers out after [`close`](Self::close), by a policy that does not fire
    /// them, and wakes the futures that wait for them.
    pub(crate) fn clear_out(&self, policy: ShutdownPolicy) -> ShardReport<T> {
        let mut drained = Vec::new();
        {
            let state = &mut *self.state.borrow_mut();
            for expired in state.shard.drain().collect::<Vec<_>>() {
                state.classes.end(expired.key.index(), Ended::Returned);
                let task = state.take(expired.task, Sleeper::Closed);
                if policy == ShutdownPolicy::Return {
                    drained.push((expired.key, expired.deadline, task));
                } else {
                    state.effects.push(Effect::DropTask(task));
                }
            }
            let left = state.put_off.clear();
            state.effects.extend(left);
            for (_, answer) in state.overtaken.drain() {
                state.effects.push(Effect::Cancelled(answer, CancelOutcome::Stale));
            }
        }
        self.run_effects();
        self.close_all_conns();
        self.tell_closed();
        // Nothing of an executor that has died may be polled.
        let is_dead = self.door().visitors().state == ShardState::Dead;
        self.end_futures(!is_dead);
        let mut returned = Vec::new();
        for (key, deadline, task) in drained {
            let handle = self.home.handle(key);
            let deadline = self.directory.clock.instant(self.directory.tick.start_of(deadline));
            let (task, left) = task.into_remote();
            returned.push(Returned { handle, deadline, task });
            self.drop_each(left);
        }
        self.publish();
        let stats = self.directory.shard_stats(self.id).expect("a core is that of a shard");
        ShardReport::new(self.id, &stats.counts, stats.classes, returned)
    }
}

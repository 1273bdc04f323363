//! The end of a shard.
//!
//! Two steps, in this order: the shard is closed, so that nothing can come in any more; then its
//! timers are taken out by a policy, and all that wait are told.

use corewheel_shard::Tick;

use super::Core;
use super::classes::Ended;
use super::effect::Effect;
use super::payload::{Host, Payload};
use super::turn::deliver;
use crate::stats::ShardCounts;
use crate::stats::class::ClassStats;
use crate::values::contain::Each;
use crate::values::handle::{ShardId, TimerHandle};
use crate::values::outcome::CancelOutcome;
use crate::values::shutdown::ShutdownPolicy;
use crate::values::state::ShardState;

/// How a shard ended. If it is dropped unread, so are the payloads in it, one at a time.
pub(crate) struct Report<P: Payload> {
    pub(crate) shard: ShardId,
    pub(crate) counts: ShardCounts,
    pub(crate) classes: Vec<ClassStats>,
    /// The timers that are handed back.
    pub(crate) returned: Each<Returned<P>>,
}

/// A timer that is handed back.
pub(crate) struct Returned<P: Payload> {
    pub(crate) handle: TimerHandle,
    pub(crate) deadline: Tick,
    pub(crate) payload: P::Remote,
}

/// Ends a shard: closes it, and gives each pending timer an outcome by the policy.
pub(crate) fn shut_down<P: Payload>(
    core: &Core<P>,
    host: &mut impl Host<P>,
    policy: ShutdownPolicy,
) -> Report<P> {
    core.close(ShardState::Closed);
    core.parts().for_each(|part| {
        core.contain(|| part.closing());
    });
    if policy == ShutdownPolicy::Fire {
        core.advance_to_the_end();
        deliver(core, host, None, usize::MAX);
    }
    core.contain(|| host.closing());
    core.clear_out(policy, false)
}

impl<P: Payload> Core<P> {
    /// Closes the mailbox and all lanes. Afterwards nothing can come in any more, and an order to
    /// shut down that was not seen yet is dropped, which tells its sender. False if the shard was
    /// closed before.
    pub(crate) fn close(&self, state_then: ShardState) -> bool {
        if self.closed.replace(true) {
            return false;
        }
        let now = self.nanos();
        // A sender that comes to the mailbox after this finds it closed; what came before is
        // taken.
        let (order, draining, lanes) = {
            let state = &mut *self.state.borrow_mut();
            let post = self.post();
            let migrated = state.migrated.leave_handles();
            let taken = post.mailbox.close(|| post.note_end(state_then, migrated));
            for key in taken.keys {
                state.wheel.revoke(key);
            }
            state.accept(taken.lanes, taken.control, Tick::ZERO);
            (state.shutdown.take(), state.draining.take(), std::mem::take(&mut state.lanes))
        };
        // Each may run code of the user: the captures of a job, a waker.
        self.drop_each(self.take_jobs());
        self.drop_each(order);
        self.drop_each(draining);
        for lane in lanes {
            self.state.borrow_mut().let_go(lane, now);
        }
        self.run_effects();
        true
    }

    /// Takes all pending timers out after [`close`](Self::close), by a policy that does not fire
    /// them, and tells all that wait. `is_dead` if the driver ended without a shutdown.
    pub(crate) fn clear_out(&self, policy: ShutdownPolicy, is_dead: bool) -> Report<P> {
        let mut drained = Vec::new();
        {
            let state = &mut *self.state.borrow_mut();
            for expired in state.wheel.drain().collect::<Vec<_>>() {
                state.classes.end(expired.key.index(), Ended::Returned);
                let taken = state.take(expired.task);
                if policy == ShutdownPolicy::Return {
                    drained.push((expired.key, expired.deadline, taken));
                } else {
                    state.effects.push(Effect::Drop(taken));
                }
            }
            for (_, reply) in state.overtaken.drain() {
                state.effects.push(Effect::Cancelled(reply, CancelOutcome::Stale));
            }
        }
        self.run_effects();
        self.parts.for_each(|part| {
            self.contain(|| part.closed(is_dead));
        });
        self.set_gauges(&mut self.state.borrow_mut().counts);
        // A part may refer to this shard, so it goes with the shard's end.
        self.drop_each(self.parts.take_all());
        for listener in self.parts.take_listeners() {
            if let Some(listener) = listener.upgrade() {
                self.contain(move || listener.closed());
            }
        }
        let mut returned = Vec::new();
        for (key, deadline, taken) in drained {
            let (payload, left) = P::into_remote(taken);
            returned.push(Returned { handle: self.handle_of(key), deadline, payload });
            self.drop_each(left);
        }
        self.publish();
        let stats = self.directory.shard_stats(self.id).expect("a core is that of a shard");
        let returned = Each(returned);
        Report { shard: self.id, counts: stats.counts, classes: stats.classes, returned }
    }
}

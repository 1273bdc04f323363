//! The end of a shard.
//!
//! First the shard is closed, so that it accepts no mail and no requests any more. Then its timers
//! are taken out by a policy, and all callers that wait for a reply get one.

use corewheel_shard::{Budget, Tick};

use super::classes::Ended;
use super::core::{Core, Effect};
use super::deliver::{Deliveries, deliver};
use super::handler::Handler;
use super::request::{Report, Returned};
use super::taken::into_remote;
use crate::values::contain::Each;
use crate::values::outcome::CancelOutcome;
use crate::values::shutdown::ShutdownPolicy;
use crate::values::state::ShardState;

/// Ends a shard: closes it, and gives each pending timer an outcome by the policy.
pub(crate) fn shut_down<T: 'static>(
    core: &Core<T>,
    host: &mut Deliveries<'_, T, impl Handler<T>>,
    policy: ShutdownPolicy,
) -> Report<T> {
    core.close(ShardState::Closed);
    for part in core.parts().in_closing_order() {
        core.contain(move || part.closing());
    }
    if policy == ShutdownPolicy::Fire {
        core.state.borrow_mut().wheel.advance(Tick::NEVER, Budget::UNLIMITED);
        deliver(core, host, Tick::NEVER, None, usize::MAX);
    }
    core.contain(|| host.closing());
    core.clear_out(policy, false)
}

impl<T: 'static> Core<T> {
    /// Closes the mailbox and all lanes, so that the shard accepts no message any more. A shutdown
    /// order that no turn has taken is dropped, so that its sender gets an error. False if the
    /// shard was closed before.
    pub(crate) fn close(&self, state_then: ShardState) -> bool {
        if self.closed.replace(true) {
            return false;
        }
        let now = self.nanos();
        // A sender finds the mailbox closed from here on. Mail that came before is taken.
        let (order, lanes) = {
            let state = &mut *self.state.borrow_mut();
            let post = self.post();
            let taken = post.mailbox.close(|| post.note_end(state_then));
            for key in taken.keys {
                state.wheel.revoke(key);
            }
            state.accept(taken.lanes, taken.control, Tick::ZERO);
            (state.mail.shutdown.take(), std::mem::take(&mut state.inbox.lanes))
        };
        // Each of these drops may run code of the user: the captures of a job or of a callback, a
        // waker.
        self.drop_each(self.take_jobs());
        self.drop_each(self.take_calls());
        self.drop_each(order);
        for lane in lanes {
            self.state.borrow_mut().close_lane(lane, now);
        }
        self.close_threads();
        self.run_effects();
        true
    }

    /// Takes all timers out that are still pending after [`close`](Self::close): returns or drops
    /// their payloads, replies to waiting callers, and closes the parts. `is_dead` if the driver
    /// ended without a shutdown.
    pub(crate) fn clear_out(&self, policy: ShutdownPolicy, is_dead: bool) -> Report<T> {
        let mut taken_out = Vec::new();
        {
            let state = &mut *self.state.borrow_mut();
            let is_returned = policy == ShutdownPolicy::Return;
            let ended = if is_returned { Ended::Returned } else { Ended::Dropped };
            // The timer of a future has no id and no payload to return. Its future finds the shard
            // closed. It publishes counts, so it comes before the wheel is drained.
            state.measured.counts.dropped += state.take_out_all();
            for expired in state.wheel.drain().collect::<Vec<_>>() {
                state.measured.classes.end(expired.key.index(), ended);
                let taken = state.take(expired.payload);
                if is_returned {
                    taken_out.push((expired.key, expired.deadline, taken));
                } else {
                    state.measured.counts.dropped += 1;
                    state.left.effects.push(Effect::Drop(taken));
                }
            }
            for (_, reply) in state.inbox.overtaken.drain() {
                state.left.effects.push(Effect::Cancelled(reply, CancelOutcome::Stale));
            }
        }
        self.run_effects();
        for part in self.parts.in_closing_order() {
            self.contain(move || part.closed(is_dead));
        }
        self.set_gauges(&mut self.state.borrow_mut());
        // A part may refer to this shard, so the parts are dropped when the shard ends.
        self.drop_each(self.parts.take_kept());
        let mut returned = Vec::new();
        for (key, deadline, taken) in taken_out {
            let (payload, left) = into_remote(taken);
            returned.push(Returned { timer: self.timer_of(key), deadline, payload });
            self.drop_each(left);
        }
        self.publish();
        let stats = self.directory.shard_stats(self.id).expect("a core is that of a shard");
        Report { stats, returned: Each(returned) }
    }
}

//! What is left to do when the state of a shard is not borrowed any more: dropping payloads,
//! sending replies, waking futures, and sending requests to other shards.

use std::task::Waker;

use corewheel_shard::TimerKey;

use super::Core;
use super::payload::{Outbox, Payload};
use super::request::{CancelReplies, CancelReply, DrainReply, MigrateReply, Request};
use super::state::into_remote;
use crate::values::handle::ShardId;
use crate::values::outcome::{CancelOutcome, ResetOutcome};

pub(super) enum Effect<P: Payload> {
    Drop(P::Taken),
    Cancelled(CancelReply<P>, CancelOutcome<P::Taken>),
    Reset(oneshot::Sender<ResetOutcome>, ResetOutcome),
    Wake(Waker),
    /// Replies to a bulk request.
    Reply(CancelReplies<P>),
    /// A request goes to where its timer has gone.
    Forward(ShardId, Request<P>),
    Migrate(TimerKey, ShardId, MigrateReply),
    Drain(Box<[ShardId]>, DrainReply),
}

impl<P: Payload> Effect<P> {
    /// A reply that cannot be sent has no caller that waits for it, and is dropped.
    fn run(self, core: &Core<P>) {
        match self {
            Self::Drop(taken) => drop(taken),
            Self::Cancelled(reply, outcome) => {
                let (outcome, left) = into_remote::<P>(outcome);
                // Apart from the reply, which may wake a waker that panics.
                core.drop_each(left);
                drop(reply.send(outcome));
            }
            Self::Reset(reply, outcome) => drop(reply.send(outcome)),
            Self::Wake(waker) => waker.wake(),
            Self::Reply(replies) => core.drop_each(replies.send()),
            Self::Forward(shard, request) => core.outbox().send(shard, request),
            Self::Migrate(key, to, reply) => core.migrate_for(key, to, reply),
            Self::Drain(into, reply) => core.begin_drain(into, reply),
        }
    }
}

impl<P: Payload> Core<P> {
    /// Runs all effects, those included that they leave themselves.
    pub(super) fn run_effects(&self) {
        loop {
            let mut effects = {
                let mut state = self.state.borrow_mut();
                if state.effects.is_empty() {
                    return;
                }
                std::mem::take(&mut state.effects)
            };
            for effect in effects.drain(..) {
                self.contain(|| effect.run(self));
            }
            let mut state = self.state.borrow_mut();
            if state.effects.is_empty() {
                // The allocation is kept for the next turn.
                state.effects = effects;
            }
        }
    }
}

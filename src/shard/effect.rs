//! The effects of commands, which run when the state of a shard is no longer borrowed: dropping
//! payloads, sending replies, waking futures, and handing messages to parts.

use std::task::Waker;

use corewheel_shard::TimerKey;

use super::Core;
use super::parts::Message;
use super::request::{CancelReplies, CancelReply, RemainingReply};
use super::state::into_remote;
use super::stored::Taken;
use crate::values::outcome::{CancelOutcome, ResetOutcome};

pub(super) enum Effect<T: 'static> {
    Drop(Taken<T>),
    Cancelled(CancelReply<T>, CancelOutcome<Taken<T>>),
    Reset(oneshot::Sender<ResetOutcome>, ResetOutcome),
    Wake(Waker),
    /// Replies to a bulk request.
    Reply(CancelReplies<T>),
    Remaining(TimerKey, RemainingReply),
    Message(Box<dyn Message>),
}

/// What commands have left to do when nothing is borrowed.
pub(super) struct Left<T: 'static> {
    pub(super) effects: Vec<Effect<T>>,
    /// The wakers of futures that have ended on other threads than they have begun. Dropped with
    /// the effects; apart from them, as there may be many.
    pub(super) unused_wakers: Vec<Waker>,
}

impl<T: 'static> Default for Left<T> {
    fn default() -> Self {
        Self { effects: Vec::new(), unused_wakers: Vec::new() }
    }
}

impl<T: 'static> Left<T> {
    /// Whether effects wait until nothing is borrowed.
    #[inline]
    pub(super) fn has_effects(&self) -> bool {
        !self.effects.is_empty() || !self.unused_wakers.is_empty()
    }
}

impl<T: 'static> Effect<T> {
    /// Runs the effect. A reply that no caller waits for is dropped.
    fn run(self, core: &Core<T>) {
        match self {
            Self::Drop(taken) => drop(taken),
            Self::Cancelled(reply, outcome) => {
                let (outcome, left) = into_remote::<T>(outcome);
                // Dropped separately from the reply, whose waker may panic.
                core.drop_each(left);
                drop(reply.send(outcome));
            }
            Self::Reset(reply, outcome) => drop(reply.send(outcome)),
            Self::Wake(waker) => waker.wake(),
            Self::Reply(replies) => core.drop_each(replies.send()),
            Self::Remaining(key, reply) => core.reply_remaining(key, reply),
            Self::Message(message) => message.receive(core.parts()),
        }
    }
}

impl<T: 'static> Core<T> {
    /// Runs all effects, including the effects that they leave themselves.
    pub(super) fn run_effects(&self) {
        loop {
            let (mut effects, mut wakers) = {
                let mut state = self.state.borrow_mut();
                if !state.left.has_effects() {
                    return;
                }
                let Left { effects, unused_wakers } = &mut state.left;
                (std::mem::take(effects), std::mem::take(unused_wakers))
            };
            self.drop_each(wakers.drain(..));
            for effect in effects.drain(..) {
                self.contain(|| effect.run(self));
            }
            // The next turn uses the allocations again.
            let state = &mut *self.state.borrow_mut();
            if state.left.effects.is_empty() {
                state.left.effects = effects;
            }
            if state.left.unused_wakers.is_empty() {
                state.left.unused_wakers = wakers;
            }
        }
    }
}

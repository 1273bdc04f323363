//! Runs the effects of commands when the state of a shard is no longer borrowed: drops payloads,
//! sends replies, wakes futures, and hands messages to parts.

use super::core::{Core, Effect, Left};
use super::taken::outcome_into_remote;

impl<T: 'static> Effect<T> {
    /// Runs the effect. A reply that no caller waits for is dropped.
    fn run(self, core: &Core<T>) {
        match self {
            Self::Drop(taken) => drop(taken),
            Self::Cancelled(reply, outcome) => {
                let (outcome, left) = outcome_into_remote::<T>(outcome);
                // Dropped separately from the reply, whose waker may panic.
                core.drop_each(left);
                drop(reply.send(Ok(outcome)));
            }
            Self::Reset(reply, outcome) => drop(reply.send(Ok(outcome))),
            Self::Wake(waker) => waker.wake(),
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

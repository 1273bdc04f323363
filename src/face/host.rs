//! Delivers what a shard finds expired: values to the handler, callbacks by calling them, futures
//! by waking them.

use super::callback::{Fired, Handler};
use super::stored::{Due, Stored};
use super::timers::Timers;
use crate::shard::payload::{Delivery, Host};
use crate::shard::turn;
use crate::shard::turn::Turn;

/// The timers of a shard and the handler of its values, for the length of a turn.
pub(crate) struct Deliveries<'a, T: 'static, H> {
    pub(crate) timers: &'a Timers<T>,
    pub(crate) handler: &'a mut H,
}

impl<T: Send + 'static, H: Handler<T>> Host<Stored<T>> for Deliveries<'_, T, H> {
    #[inline]
    fn deliver(&mut self, delivery: Delivery<Stored<T>>) {
        let Self { timers, handler } = self;
        let Delivery { handle, deadline, lateness, payload } = delivery;
        match payload {
            Due::Value(task) => {
                let deadline = timers.core().time().instant_of(deadline);
                handler.expired(Fired { handle, deadline, lateness, task }, timers);
            }
            Due::Call(call) => call.run(timers),
            Due::Wake(waker) => waker.into_iter().for_each(std::task::Waker::wake),
        }
    }

    fn closing(&mut self) {
        self.handler.closing(self.timers);
    }
}

/// Takes a turn of a shard.
pub(crate) fn take_turn<T, H>(timers: &Timers<T>, handler: &mut H) -> Turn
where
    T: Send + 'static,
    H: Handler<T>,
{
    turn::turn(timers.core(), &mut Deliveries { timers, handler })
}

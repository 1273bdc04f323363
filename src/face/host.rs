//! Delivers the payloads of a shard's expired timers: values to the handler, callbacks by calling
//! them, futures by waking them.

use super::callback::{Fired, Handler, SendCall};
use super::stored::{Due, Stored};
use super::timers::Timers;
use crate::shard::payload::{Delivery, Host};
use crate::shard::turn;
use crate::shard::turn::Next;
use crate::values::contain::Contained;

/// Receives the values of a shard's timers.
pub(crate) trait Values<T: 'static> {
    fn deliver(&mut self, fired: Fired<T>, timers: &Timers<T>);
    /// The shard is being shut down, and the last value has been delivered.
    fn close(&mut self) {}
}

/// A handler that the driver of a shard owns. It is dropped under `catch_unwind`, since some
/// executors end with a panic, or abort the process.
pub(crate) struct OwnedHandler<H>(Contained<H>);

impl<H> OwnedHandler<H> {
    pub(crate) fn new(handler: H) -> Self {
        Self(Contained::new(handler))
    }
}

impl<T: Send + 'static, H: Handler<T>> Values<T> for OwnedHandler<H> {
    #[inline]
    fn deliver(&mut self, fired: Fired<T>, timers: &Timers<T>) {
        self.0.get_mut()(fired, timers);
    }

    fn close(&mut self) {
        drop(self.0.take());
    }
}

/// A handler that is borrowed for one turn.
pub(crate) struct BorrowedHandler<H>(pub(crate) H);

impl<T: 'static, H: FnMut(Fired<T>, &Timers<T>)> Values<T> for BorrowedHandler<H> {
    #[inline]
    fn deliver(&mut self, fired: Fired<T>, timers: &Timers<T>) {
        (self.0)(fired, timers);
    }
}

/// The timers of a shard and the handler of its values, for the length of a turn.
pub(crate) struct Deliveries<'a, T: 'static, V> {
    pub(crate) timers: &'a Timers<T>,
    pub(crate) values: &'a mut V,
}

impl<T: Send + 'static, V: Values<T>> Host<Stored<T>> for Deliveries<'_, T, V> {
    #[inline]
    fn deliver(&mut self, delivery: Delivery<Stored<T>>) {
        let Self { timers, values } = self;
        let Delivery { handle, deadline, lateness, payload } = delivery;
        match payload {
            Due::Value(payload) => {
                let deadline = timers.core().time().instant_of(deadline);
                values.deliver(Fired { handle, deadline, lateness, payload }, timers);
            }
            Due::Call(call) => call.run(timers),
            Due::Wake(waker) => waker.into_iter().for_each(std::task::Waker::wake),
        }
    }

    fn run(&mut self, call: SendCall<T>) {
        call(self.timers);
    }

    fn closing(&mut self) {
        self.values.close();
    }
}

/// Takes a turn of a shard.
pub(crate) fn take_turn<T, V>(timers: &Timers<T>, values: &mut V) -> Next
where
    T: Send + 'static,
    V: Values<T>,
{
    turn::turn(timers.core(), &mut Deliveries { timers, values })
}

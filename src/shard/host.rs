//! Delivers the payloads of a shard's expired timers: values to the handler, callbacks by calling
//! them. It runs code of the user, with nothing borrowed.

use std::time::Duration;

use corewheel_shard::Tick;

use super::callback::{Fired, Handler, Payload, SendCall};
use super::stored::Taken;
use super::timers::Timers;
use super::turn;
use super::turn::Next;
use crate::values::contain::Contained;
use crate::values::ids::TimerId;

/// An expired timer.
pub(super) struct Delivery<T: 'static> {
    pub(super) timer: TimerId,
    /// The deadline, rounded up to a tick, in nanoseconds.
    pub(super) deadline: u64,
    pub(super) lateness: Duration,
    pub(super) payload: Taken<T>,
}

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

impl<T: 'static, V: Values<T>> Deliveries<'_, T, V> {
    #[inline]
    pub(super) fn deliver(&mut self, delivery: Delivery<T>) {
        let Self { timers, values } = self;
        let Delivery { timer, deadline, lateness, payload } = delivery;
        match payload {
            Payload::Value(payload) => {
                let deadline = timers.core().time().instant_of(deadline);
                values.deliver(Fired { timer, deadline, lateness, payload }, timers);
            }
            Payload::Callback(call) => call.run(timers),
            Payload::Local => {}
        }
    }

    /// Runs a callback of the mail, which has no timer.
    pub(super) fn run(&mut self, call: SendCall<T>) {
        call(self.timers);
    }

    /// Called during a shutdown, after the last timer was delivered.
    pub(super) fn closing(&mut self) {
        self.values.close();
    }
}

/// Takes a turn of a shard, which delivers no timer that is due after the tick `last`.
pub(crate) fn take_turn<T, V>(timers: &Timers<T>, values: &mut V, last: Tick) -> Next
where
    T: Send + 'static,
    V: Values<T>,
{
    turn::turn(timers.core(), &mut Deliveries { timers, values }, last)
}

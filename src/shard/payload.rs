//! The traits of the payloads that a shard's timers carry, of the host that delivers them, and of
//! the outbox to other shards. The shard itself knows no callback, no future and no client.

use std::task::Waker;
use std::time::Duration;

use super::hooks::PartId;
use crate::values::handle::TimerId;
use crate::values::migration::MigrateError;

/// The payload in a slot of the wheel: a value, or an index into the side tables.
pub(crate) trait Payload: Sized + 'static {
    /// A payload of the user's type, stored in the slot.
    type Value: 'static;
    /// A callback: a payload that is stored in the tables and may travel between threads.
    type Call: 'static;
    /// The side tables, for payloads that do not fit into a slot.
    type Tables: Default + 'static;
    /// A payload taken out of the shard, on the shard's own thread. Dropping it may run code of the
    /// user.
    type Taken: 'static;
    /// A payload taken out of the shard, ready for another thread.
    type Remote: 'static;
    /// The payload of an expired timer, to be delivered.
    type Due: 'static;
    /// A control message that the shard passes on to its driver.
    type Job: 'static;

    fn of_value(value: Self::Value) -> Self;
    fn of_call(call: Self::Call, tables: &mut Self::Tables) -> Self;
    /// The payload of a timer whose waker lies in a slot of a nursery.
    fn of_slot(nursery: u16, slot: u32) -> Self;
    /// The payload of an expired timer that wakes a future, to be delivered.
    fn due_to_wake(waker: Option<Waker>) -> Self::Due;
    /// The value; `None` if the payload is in the tables.
    fn into_value(self) -> Option<Self::Value>;
    /// Where the rest of the payload lies.
    fn place(&self) -> Place;
    /// Takes a payload that uses no table. `Err` with any other payload.
    fn take_plain(self) -> Result<Self::Taken, Self>;
    /// Takes the payload of a timer that will not fire out of the tables. Calls `wake` with the
    /// waker of a future that waits for the timer, if there is one.
    fn take(self, tables: &mut Self::Tables, wake: impl FnOnce(Waker)) -> Self::Taken;
    /// Takes the payload of an expired timer out of the tables. `is_early` if a shutdown fires the
    /// timer before its deadline.
    fn expire(self, tables: &mut Self::Tables, is_early: bool) -> Self::Due;
    /// `Err` with the reason if the payload cannot migrate.
    fn check_travels(&self, tables: &Self::Tables) -> Result<(), MigrateError>;
    /// Takes a payload that can migrate out of the tables.
    fn pack(self, tables: &mut Self::Tables) -> Packed<Self>;
    /// Makes a payload ready for another thread. Also returns the part of it that must be dropped
    /// on this thread.
    fn into_remote(taken: Self::Taken) -> (Self::Remote, Option<Self::Taken>);
}

/// Where a payload lies that a slot of the wheel stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// In the slot, or in the tables.
    Table,
    /// In a [part](super::hooks::Part), by its index there.
    Part(PartId, u32),
    /// In a slot of a nursery, by the numbers of both.
    Slot(u16, u32),
}

/// A payload that migrates to another shard.
pub(crate) enum Packed<P: Payload> {
    Value(P::Value),
    Call(P::Call),
}

/// An expired timer.
pub(crate) struct Delivery<P: Payload> {
    pub(crate) handle: TimerId,
    /// The deadline, rounded up to a tick, in nanoseconds.
    pub(crate) deadline: u64,
    pub(crate) lateness: Duration,
    pub(crate) payload: P::Due,
}

/// Delivers the expired timers of a turn. It runs code of the user, with nothing borrowed.
pub(crate) trait Host<P: Payload> {
    fn deliver(&mut self, delivery: Delivery<P>);
    /// Runs a callback of the mail, which has no timer.
    fn run(&mut self, call: P::Call);
    /// Called during a shutdown, after the last timer was delivered.
    fn closing(&mut self);
}

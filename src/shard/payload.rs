//! What a shard asks of the payloads that its timers carry, of the host that delivers them, and of
//! the way to other shards. The shard itself knows no callback, no future and no client.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use corewheel_shard::TimerKey;

use super::Directory;
use super::hooks::PartId;
use super::request::Request;
use crate::values::handle::{ShardId, TimerHandle};
use crate::values::migration::MoveError;

/// What a slot of the wheel holds for a timer: a value, or an index into the side tables.
pub(crate) trait Payload: Sized + 'static {
    /// A payload of the user's type, which lies in the slot.
    type Value: 'static;
    /// A payload that lies in the tables and may travel between threads.
    type Call: 'static;
    /// Where payloads lie that do not fit into a slot.
    type Tables: Default + 'static;
    /// A payload taken out of the shard, on the shard's own thread. Dropping it may run code of the
    /// user.
    type Taken: 'static;
    /// The same payload for another thread.
    type Remote: 'static;
    /// A payload whose timer has expired, to be delivered.
    type Due: 'static;
    /// A control message that the shard passes on to its driver.
    type Job: 'static;
    /// How the shard reaches other shards.
    type Outbox: Outbox<Self>;

    fn of_value(value: Self::Value) -> Self;
    fn of_call(call: Self::Call, tables: &mut Self::Tables) -> Self;
    /// The value, if the payload is one.
    fn into_value(self) -> Option<Self::Value>;
    /// The part and the index there, if the payload belongs to a [part](super::hooks::Part).
    fn part(&self) -> Option<(PartId, u32)>;
    /// Takes a payload out that uses no table; any other comes back.
    fn take_plain(self) -> Result<Self::Taken, Self>;
    /// Takes a payload out whose timer will not fire. `wake` is given the waker of a future that
    /// waits for it.
    fn take(self, tables: &mut Self::Tables, wake: impl FnOnce(Waker)) -> Self::Taken;
    /// Takes a payload out whose timer has expired. `is_early` if a shutdown fires it before its
    /// deadline.
    fn expire(self, tables: &mut Self::Tables, is_early: bool) -> Self::Due;
    /// Why the payload cannot go to another shard, if it cannot.
    fn check_travels(&self, tables: &Self::Tables) -> Result<(), MoveError>;
    /// Takes a payload out that can go to another shard.
    fn pack(self, tables: &mut Self::Tables) -> Packed<Self>;
    /// Makes a payload ready for another thread, with what must be dropped on this one.
    fn into_remote(taken: Self::Taken) -> (Self::Remote, Option<Self::Taken>);
}

/// A payload on its way to another shard.
pub(crate) enum Packed<P: Payload> {
    Value(P::Value),
    Call(P::Call),
}

/// A timer that has expired.
pub(crate) struct Delivery<P: Payload> {
    pub(crate) handle: TimerHandle,
    /// The deadline, rounded up to a tick, in nanoseconds.
    pub(crate) deadline: u64,
    pub(crate) lateness: Duration,
    pub(crate) payload: P::Due,
}

/// Delivers what a turn finds expired. Code of the user runs in it, while nothing is borrowed.
pub(crate) trait Host<P: Payload> {
    fn deliver(&mut self, delivery: Delivery<P>);
    /// The shard is being shut down, and the last timer has been delivered.
    fn closing(&mut self);
}

/// How a shard sends requests to other shards: over lanes, as any other thread does.
pub(crate) trait Outbox<P: Payload> {
    fn new(directory: Arc<Directory<P>>) -> Self;

    /// Sends a cancel or a reset. If the shard is closed, the request goes to where its timer has
    /// gone, or is dropped.
    fn send(&self, shard: ShardId, request: Request<P>);

    /// Sends a timer to another shard and returns its key there.
    ///
    /// Waking the other shard may run code of the user, also on this thread. So `check` says
    /// whether the timer is still there once the lane is open, and from then on nothing else runs
    /// until the timer is on the lane: a key that is taken is used. `pack` is given the key and
    /// makes the request; if the lane was closed meanwhile, `pack` is called again with another key
    /// and the request. A request that cannot be sent comes back.
    fn send_timer(
        &self,
        shard: ShardId,
        check: impl Fn() -> Result<(), MoveError>,
        pack: impl FnMut(TimerKey, Option<Request<P>>) -> Request<P>,
    ) -> Result<TimerKey, (MoveError, Option<Request<P>>)>;
}

//! What a lane must know of the requests that it carries.

use corewheel_shard::Tick;

/// A request that a lane can carry.
pub(crate) trait Request {
    /// A key that the owner grants in advance.
    type Key: Copy + Eq;

    /// A number for a key. Keys that are in use at the same time should have different numbers.
    fn number_of(key: Self::Key) -> usize;

    /// Which of the granted keys the request uses up. A request that uses the next one can be
    /// cancelled in the lane.
    fn keys(&self) -> Keys;
    /// Which timers it is about; `None` if it schedules timers.
    fn about(&self) -> Option<About<Self::Key>>;
    /// The number of requests for which it counts against a turn's budget; at least 1.
    fn weight(&self) -> usize;
    /// The latest tick at which the owner must have received it. `None` for a request that may wait
    /// for a while: the sender and the owner say until when.
    fn needed_by(&self) -> Option<Tick>;
}

/// Which granted keys a request uses up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keys {
    None,
    /// The next key. The owner passes it on with the request.
    Next,
    /// This many of the next keys. The request contains them.
    Named(usize),
}

/// Which timers a request is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum About<K> {
    One(K),
    Many,
}

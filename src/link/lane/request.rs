//! What a lane must know of the requests that it carries.

use corewheel_shard::Tick;

/// A request that a lane can carry.
pub(crate) trait Request {
    /// A key that the owner grants in advance.
    type Key: Copy + Eq;

    /// A number for a key. Keys that are in use at the same time should have different numbers.
    fn number_of(key: Self::Key) -> usize;

    /// Whether it uses up the next granted key, which the owner passes on with it. Such a request
    /// can be cancelled in the lane.
    fn uses_key(&self) -> bool;
    /// Which timer it is about; `None` if it schedules one, or is about none.
    fn about(&self) -> Option<Self::Key>;
    /// The latest tick at which the owner must have received it. `None` for a request that may wait
    /// for a while: the sender and the owner say until when.
    fn needed_by(&self) -> Option<Tick>;
}

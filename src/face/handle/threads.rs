//! What a thread has of a service, for code that does not name the type of its values: the shard
//! that it drives, and its lanes.

use std::any::Any;

use crate::shard::hooks::Message;
use crate::shard::lanes::Lanes;
use crate::values::handle::ShardId;

/// The lanes of the calling thread. Implemented by [`Lanes`].
pub(crate) trait ThreadLanes: Any {
    /// Sends a message to a part of a shard. `Err` with the message if the shard is closed.
    fn send_message(
        &self,
        shard: ShardId,
        message: Box<dyn Message>,
    ) -> Result<(), Box<dyn Message>>;
}

impl<T: Send + 'static> ThreadLanes for Lanes<T> {
    fn send_message(
        &self,
        shard: ShardId,
        message: Box<dyn Message>,
    ) -> Result<(), Box<dyn Message>> {
        self.send_message(shard, message)
    }
}

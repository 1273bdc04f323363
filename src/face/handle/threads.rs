//! What a thread has of a service, for code that does not name the type of its values: the shard
//! that it drives, and its lanes.

use std::any::Any;

use corewheel_shard::Tick;

use crate::face::{Core, Lanes};
use crate::shard::hooks::Message;
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

/// A shard that the calling thread drives. Implemented by [`Core`].
pub(crate) trait ThreadShard {
    fn id(&self) -> ShardId;
    fn is_closed(&self) -> bool;
    /// Lends one more slot to the nurseries. False if there is none.
    fn lend_one(&self, is_borrowed: bool) -> bool;
    /// Gives a message to a part of the shard, and wakes the driver for it.
    fn receive(&self, message: Box<dyn Message>);
}

impl<T: Send + 'static> ThreadShard for Core<T> {
    fn id(&self) -> ShardId {
        self.id()
    }

    fn is_closed(&self) -> bool {
        self.is_closed()
    }

    fn lend_one(&self, is_borrowed: bool) -> bool {
        self.lend_one(is_borrowed)
    }

    fn receive(&self, message: Box<dyn Message>) {
        message.receive(self.parts());
        self.note_deadline(Tick::ZERO);
    }
}

//! The lanes of the calling thread, and its messages to parts of shards.

use std::rc::Rc;

use super::here::{self, Reach};
use super::registry::ThreadLanes;
use crate::shard::lanes::Lanes;
use crate::shard::parts::Message;
use crate::values::ids::{ServiceId, ShardId};

/// The lanes of the calling thread to the shards of a service whose values are of `T`. `None` if
/// the service has ended.
#[inline]
pub(crate) fn of<T: Send + 'static>(service: ServiceId) -> Option<Rc<Lanes<T>>> {
    let lanes = open(service)?.into_any();
    Some(lanes.downcast().expect("a handle names the type of its service's values"))
}

/// The lanes of the calling thread, for what needs no type of values. `None` if the service has
/// ended.
#[inline]
pub(super) fn open(service: ServiceId) -> Option<Rc<dyn ThreadLanes>> {
    here::known_lanes(service).or_else(|| open_first(service))
}

#[cold]
fn open_first(service: ServiceId) -> Option<Rc<dyn ThreadLanes>> {
    here::with(service, Reach::lanes)?
}

/// Sends a message to a part of a shard, from any thread. `Err` with the message if the shard is
/// closed or the service has ended.
pub(crate) fn send_message(
    service: ServiceId,
    shard: ShardId,
    message: Box<dyn Message>,
) -> Result<(), Box<dyn Message>> {
    let Some(reach) = here::find(service) else { return Err(message) };
    if let Some(here) = reach.driven(Some(shard)) {
        here.receive(message);
        return Ok(());
    }
    match reach.lanes() {
        Some(lanes) => lanes.send_message(shard, message),
        None => Err(message),
    }
}

//! How threads meet: lanes, the mailbox of a shard, and the protocol by which a shard is woken.
//!
//! Nothing here knows what a lane carries: lanes are generic over the request, mailboxes over the
//! control message. No timer, no callback and no outcome occurs here.

pub(crate) mod gate;
pub(crate) mod lane;
#[cfg(all(test, corewheel_loom))]
mod loom_tests;
pub(crate) mod mailbox;
pub(crate) mod overflow;
pub(crate) mod stop_flag;
pub(crate) mod sync;
pub(crate) mod version;
pub(crate) mod wake_up;

//! How threads exchange messages: lanes, the mailbox of a shard, and the wake-up protocol.
//!
//! Lanes are generic over the request, mailboxes over the control message. No timer, callback or
//! outcome occurs in this room.

pub(crate) mod gate;
pub(crate) mod lane;
#[cfg(all(test, corewheel_loom))]
pub(crate) mod loom_tests;
pub(crate) mod mailbox;
pub(crate) mod nursery;
pub(crate) mod overflow;
pub(crate) mod owners;
pub(crate) mod stop_flag;
pub(crate) mod sync;
pub(crate) mod version;
pub(crate) mod waiters;
pub(crate) mod wake_up;
pub(crate) mod woken;

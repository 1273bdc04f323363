//! How threads meet a shard: lanes, its mailbox, the wake-up protocol, and the timers that threads
//! keep for it.
//!
//! Lanes are generic over the request, mailboxes over the control message, and the timers of
//! threads over what they carry. No payload, callback or outcome occurs in this room.

pub(crate) mod gate;
pub(crate) mod lane;
#[cfg(all(test, corewheel_loom))]
pub(crate) mod loom_tests;
pub(crate) mod mailbox;
pub(crate) mod overflow;
pub(crate) mod owners;
pub(crate) mod sync;
pub(crate) mod thread_timers;
pub(crate) mod version;
pub(crate) mod wake_up;
pub(crate) mod woken;

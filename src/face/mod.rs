//! The vocabulary of callers: [`Timers`](timers::Timers) on a shard's own core,
//! [`Handle`](handle::Handle) from any thread, and the futures of both.

pub(crate) mod handle;
pub mod part;
pub(crate) mod reply;
pub mod report;
pub(crate) mod slack;
pub(crate) mod task;
pub(crate) mod timers;

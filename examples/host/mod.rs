//! What the example servers have in common: a listener on every shard, the statistics beside them,
//! and the end by a signal. The examples include this module by its path.

pub(crate) mod acceptor;
pub(crate) mod network;
pub(crate) mod pause;
pub(crate) mod process;
pub(crate) mod server;

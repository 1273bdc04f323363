//! What hyper, axum and tower take their timers from. quinn has a package: `corewheel-quinn`.
//!
//! Each adapter is made of a [`Handle`](crate::Handle), so it works on every runtime that its
//! framework has, and on the threads of shards. Where the interface of a framework has no error for
//! a timer that a shard refuses, a thread of the process keeps the deadline. The limits of a
//! connection of `hyper` and `axum` are those of its `stream::TimedIo`, which is told about its
//! requests.

#[cfg(feature = "axum")]
pub mod axum;
#[cfg(feature = "hyper")]
pub mod hyper;
#[cfg(feature = "tower")]
pub mod tower;

pub use crate::fallback::fallback_count;

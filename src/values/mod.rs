//! Values that several rooms share: names of shards and timers, errors, outcomes and settings.
//!
//! Nothing here reads a clock, talks to a thread or holds a timer.

pub(crate) mod capacity;
pub(crate) mod class;
pub(crate) mod contain;
pub(crate) mod error;
pub(crate) mod expired;
pub(crate) mod handle;
pub(crate) mod list;
pub(crate) mod migration;
pub(crate) mod outcome;
pub(crate) mod scale;
pub(crate) mod settings;
pub(crate) mod shutdown;
pub(crate) mod state;

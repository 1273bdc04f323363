//! Values that several rooms share: names of shards and timers, errors, outcomes and settings.
//!
//! Nothing here reads a clock, talks to a thread or holds a timer.

#[macro_use]
mod debug;

pub mod class;
pub(crate) mod contain;
pub(crate) mod error;
pub(crate) mod ids;
pub(crate) mod outcome;
pub(crate) mod random;
pub(crate) mod refused;
pub(crate) mod scale;
pub mod settings;
pub(crate) mod shutdown;
pub(crate) mod state;
pub(crate) mod warning_limits;

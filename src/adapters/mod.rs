//! What hyper, tower and quinn take their timers from.

#[cfg(feature = "hyper")]
pub mod hyper;

#[cfg(feature = "hyper")]
pub use crate::fallback::fallback_count;

//! What hyper, tower and quinn take their timers from.

#[cfg(feature = "hyper")]
pub mod hyper;
#[cfg(feature = "quinn")]
pub mod quinn;
#[cfg(feature = "tower")]
pub mod tower;

pub use crate::fallback::fallback_count;

//! What hyper, tower and quinn take their timers from.

#[cfg(feature = "hyper")]
pub mod hyper;
#[cfg(feature = "tower")]
pub mod tower;

#[cfg(any(feature = "hyper", feature = "tower"))]
pub use crate::fallback::fallback_count;

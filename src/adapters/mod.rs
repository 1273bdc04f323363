//! What hyper, tower and quinn take their timers from.

#[cfg(feature = "quinn")]
pub mod quinn;

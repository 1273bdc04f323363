//! The tests of `same` and `paused_same`, compiled for `tokio::time`: what a drop-in must do.

use tokio::time;

#[path = "paused_same.rs"]
mod paused_same;
#[path = "same.rs"]
mod same;

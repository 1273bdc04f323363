//! The tests of `same`, compiled for `tokio::time`: what a drop-in must do.

use tokio::time;

#[path = "same.rs"]
mod same;

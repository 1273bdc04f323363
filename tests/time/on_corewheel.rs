//! The tests of `same` and `paused_same`, compiled for `corewheel::time`.

use corewheel::time;

#[path = "paused_same.rs"]
mod paused_same;
#[path = "same.rs"]
mod same;

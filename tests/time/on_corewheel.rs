//! The tests of `same`, compiled for `corewheel::time`.

use corewheel::time;

#[path = "same.rs"]
mod same;

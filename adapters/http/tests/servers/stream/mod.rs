//! `TimedHttp` over a stream, by a manual clock, for both kinds of timers.

mod pieces;
mod requests;

use corewheel_test_support::stream::*;

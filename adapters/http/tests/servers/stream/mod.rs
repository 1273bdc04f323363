//! `TimedHttp` over a stream, by a manual clock, for both kinds of timers, and a server that is
//! drained.

mod drains;
mod pieces;
mod requests;

use corewheel_test_support::stream::*;

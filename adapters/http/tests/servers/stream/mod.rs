//! `TimedHttp` over a stream, by a manual clock, for both kinds of timers, and a server that is
//! drained.

mod drains;
mod pieces;
mod requests;
#[path = "../../../../../tests/stream/support.rs"]
#[allow(dead_code, unused_imports, reason = "the tests of streams use the rest")]
mod support;

use support::*;

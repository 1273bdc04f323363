//! Streams with their timeouts: each limit by a manual clock, for both kinds of timers, and servers
//! over real sockets.

#![cfg(all(target_os = "linux", not(corewheel_loom)))]

mod acknowledged;
mod control;
mod drained;
mod framework;
mod http;
mod hyper_traits;
mod limits;
mod orders;
mod rates;
mod refusals;
mod servers;
mod timeouts;
mod waits;

use corewheel_test_support::stream::*;
